"""Batches as scenarios need them: good ones, and each way of being wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from moldau.protocol.batches import CRC_POSITION, HEADER_BYTES, Record, build_batch, read_header, seal_batch

BASE_MS = 1_700_000_000_000


def batch(
    *values: bytes,
    key: bytes | None = b"k",
    timestamps: Sequence[int] | None = None,
    **options: Any,
) -> bytes:
    """One batch with a record per value, a millisecond apart."""
    records = [
        Record(index, timestamps[index] if timestamps else BASE_MS + index, key, value)
        for index, value in enumerate(values or (b"v",))
    ]
    return bytes(build_batch(records, **options))


def with_header(data: bytes, **changes: int) -> bytes:
    """The same records under a header that says something else, with a checksum that fits."""
    header = read_header(data)._asdict() | changes
    for derived in ("length", "magic", "crc"):
        del header[derived]
    return bytes(seal_batch(data[HEADER_BYTES:], **header))


def with_bytes(data: bytes, position: int, replacement: bytes) -> bytes:
    """Overwritten in place, checksum untouched."""
    return data[:position] + replacement + data[position + len(replacement) :]


def corrupt(data: bytes) -> bytes:
    """A checksum that does not fit."""
    (checksum,) = struct.unpack_from(">I", data, CRC_POSITION)
    return with_bytes(data, CRC_POSITION, struct.pack(">I", checksum ^ 1))


def old_message(magic: int) -> bytes:
    """A message of the formats before batches: offset, size, crc, magic, attributes, (timestamp,) key, value."""
    from zlib import crc32

    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", BASE_MS)
    body += struct.pack(">i", -1) + struct.pack(">i1s", 1, b"v")
    message = struct.pack(">I", crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
