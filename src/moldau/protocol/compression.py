"""The four codecs of record batches, each with a cap on what it may inflate to.

Kafka's framings differ from the codecs' usual ones in two places: snappy is wrapped in xerial blocks (librdkafka sends
bare blocks, so both are read), and Java reads lz4 frames only when their blocks are independent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from moldau.kernel import Buffer

DECOMPRESSED_BYTES_MAX = 128 << 20
# The first guess at the inflated size; it grows fourfold until the data fits or the cap is met.
GUESS_RATIO = 8
GUESS_BYTES_MIN = 1 << 12


class Compression(IntEnum):
    """The codec bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COMPRESSION_BY_NAME = {codec.name.lower(): codec for codec in Compression}


class CompressionError(ValueError):
    """Data that does not inflate, or inflates past the cap."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing as Kafka's Java client reads it; `level` None is the codec's own default."""
    import cramjam

    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, level=_default(level, 6)))
    if codec is Compression.SNAPPY:
        return _xerial_compress(data)
    if codec is Compression.LZ4:
        return _lz4_frame_compress(data, level)
    return bytes(cramjam.zstd.compress(data, level=_default(level, 3)))


def decompress(codec: Compression, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> memoryview:
    """The inflated data; CompressionError when it is damaged or larger than `bytes_max`."""
    import cramjam

    if codec is Compression.NONE:
        return memoryview(data)
    if codec is Compression.SNAPPY:
        return _snappy_decompress(data, bytes_max)
    if codec is Compression.GZIP:
        return _inflate(cramjam.gzip.decompress_into, data, bytes_max)
    if codec is Compression.LZ4:
        return _inflate(cramjam.lz4.decompress_into, data, bytes_max)
    return _inflate(cramjam.zstd.decompress_into, data, bytes_max)


def _default(level: int | None, default: int) -> int:
    return default if level is None or level == -1 else level


def _inflate(decompress_into: Callable[[Any, bytearray], int], data: Buffer, bytes_max: int) -> memoryview:
    size = min(max(len(data) * GUESS_RATIO, GUESS_BYTES_MIN), bytes_max)
    while True:
        out = bytearray(size)
        try:
            count = decompress_into(data, out)
        except Exception as error:  # cramjam has no common base class: it did not fit, or the data is damaged
            if "whole buffer" not in str(error):
                raise CompressionError(f"compressed data is damaged: {error}") from None
            if size >= bytes_max:
                raise CompressionError(f"compressed data inflates to more than {bytes_max} bytes") from None
            size = min(size * 4, bytes_max)
            continue
        return memoryview(out)[:count]


# -- snappy in xerial blocks -------------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_INT32 = struct.Struct(">i")


def _xerial_compress(data: Buffer) -> bytes:
    import cramjam

    out = bytearray(_XERIAL_HEADER)
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            out += _INT32.pack(len(block))
            out += block
    return bytes(out)


def _snappy_decompress(data: Buffer, bytes_max: int) -> memoryview:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return memoryview(_snappy_block(view, bytes_max, bytes_max))
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise CompressionError("compressed data is damaged: a snappy block has no length")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise CompressionError(f"compressed data is damaged: a snappy block claims {size} bytes")
        out += _snappy_block(view[position : position + size], bytes_max - len(out), bytes_max)
        position += size
    return memoryview(out)


def _snappy_block(block: memoryview, bytes_left: int, bytes_max: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_left:
            raise CompressionError(f"compressed data inflates to more than {bytes_max} bytes")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"compressed data is damaged: {error}") from None


# -- lz4 frames with independent blocks --------------------------------------------------------------------------------

# Magic, then FLG (version 1, independent blocks), BD (64 KiB blocks) and the header checksum of those two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_FRAME_HEADER_BYTES = len(_LZ4_HEADER)
_LZ4_LEVEL_HIGH_MIN = 3
_LZ4_STORED = 0x80000000
_UINT32_LE = struct.Struct("<I")


def _lz4_frame_compress(data: Buffer, level: int | None) -> bytes:
    out = bytearray(_LZ4_HEADER)
    with memoryview(data) as view:
        for start in range(0, len(view), _LZ4_BLOCK_BYTES):
            plain = view[start : start + _LZ4_BLOCK_BYTES]
            block = _lz4_block(plain, level)
            if len(block) < len(plain):
                out += _UINT32_LE.pack(len(block))
                out += block
            else:
                out += _UINT32_LE.pack(len(plain) | _LZ4_STORED)
                out += plain
    out += b"\x00\x00\x00\x00"
    return bytes(out)


def _lz4_block(plain: memoryview, level: int | None) -> bytes:
    """One block. The library knows levels only for whole frames, so the block is taken out of a frame of its own."""
    import cramjam

    if level is None or level < _LZ4_LEVEL_HIGH_MIN:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    frame = bytes(cramjam.lz4.compress(plain, level=level))
    size = _UINT32_LE.unpack_from(frame, _LZ4_FRAME_HEADER_BYTES)[0]
    if size & _LZ4_STORED:
        return bytes(plain)
    first = _LZ4_FRAME_HEADER_BYTES + 4
    return frame[first : first + size]
