"""Primitive encodings of Kafka's protocol, and the errors of reading them.

Knows varints, strings and arrays of primitives; knows no message. The generated code in `messages/` inlines the common
cases (a varint below 128, a run of fixed-size fields) and comes here for the rest. Two rules hold everywhere: a length
or count from the wire is compared with the bytes that are left before anything is allocated for it, and bad bytes end
in a `ProtocolError` and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

# Tagged fields that we do not know are kept and written back, at most this many per struct; the rest is skipped.
UNKNOWN_TAGS_MAX = 64
VARINT_BYTES_MAX = 5
TEXT_BYTES_MAX = 0x7FFF
VARLONG_BYTES_MAX = 10

ZERO_UUID = bytes(16)

# Stands in a signature for "a fresh empty list (or struct) per call"; None is taken: it means null.
EMPTY: Any = object()


class ProtocolError(ValueError):
    """Bytes that are not what the protocol says they should be."""


class UnsupportedVersionError(ProtocolError):
    """A message, or a value in it, does not exist in the version asked for."""


class EncodingError(ProtocolError):
    """A message of ours holds a value that cannot be written: out of range, too long, null or of the wrong type."""


def length_error(where: str, length: int, left: int) -> ProtocolError:
    return ProtocolError(f"{where}: length {length} with {left} bytes left")


def count_error(where: str, count: int, left: int) -> ProtocolError:
    return ProtocolError(f"{where}: {count} elements with {left} bytes left")


def null_error(where: str) -> ProtocolError:
    return ProtocolError(f"{where}: null where the protocol allows none")


def tag_error(where: str) -> ProtocolError:
    return ProtocolError(f"{where}: tagged field does not fill its declared size")


def absent_error(where: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{where} is set, but the version being written has no such field")


# ---- unsigned and signed varints


def uvarint_rest(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Finish an unsigned varint whose first byte, already read, had its top bit set."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError("varint is longer than five bytes")
    if value > 0xFFFFFFFF:
        raise ProtocolError(f"varint {value} does not fit 32 bits")
    return value, pos


def text_rest(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """The same for the length of a text, plus one: Kafka lets none be longer than the old int16 lengths could say."""
    length, pos = uvarint_rest(buf, pos, first)
    if length > TEXT_BYTES_MAX + 1:
        raise ProtocolError(f"a text of {length - 1} bytes, {TEXT_BYTES_MAX} are allowed")
    return length, pos


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    first = buf[pos]
    pos += 1
    return (first, pos) if first < 0x80 else uvarint_rest(buf, pos, first)


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zigzag-coded int32, as in records."""
    value, pos = read_uvarint(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def write_varint(out: bytearray, value: int) -> None:
    write_uvarint(out, (value << 1) ^ (value >> 31))


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zigzag-coded int64, as in records."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ProtocolError("varlong is longer than ten bytes")
    if value > 0xFFFFFFFFFFFFFFFF:
        raise ProtocolError(f"varlong {value} does not fit 64 bits")
    return (value >> 1) ^ -(value & 1), pos


def write_varlong(out: bytearray, value: int) -> None:
    write_uvarint(out, (value << 1) ^ (value >> 63))


# ---- arrays of primitives; the count is known to be positive, not to be true


def read_int8s(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[int], int]:
    stop = pos + count
    if stop > end:
        raise count_error("int8 array", count, end - pos)
    return list(struct.unpack_from(f">{count}b", buf, pos)), stop


def read_int16s(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[int], int]:
    stop = pos + 2 * count
    if stop > end:
        raise count_error("int16 array", count, end - pos)
    return list(struct.unpack_from(f">{count}h", buf, pos)), stop


def read_int32s(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[int], int]:
    stop = pos + 4 * count
    if stop > end:
        raise count_error("int32 array", count, end - pos)
    return list(struct.unpack_from(f">{count}i", buf, pos)), stop


def read_int64s(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[int], int]:
    stop = pos + 8 * count
    if stop > end:
        raise count_error("int64 array", count, end - pos)
    return list(struct.unpack_from(f">{count}q", buf, pos)), stop


def read_uuids(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[bytes], int]:
    stop = pos + 16 * count
    if stop > end:
        raise count_error("uuid array", count, end - pos)
    return [bytes(buf[start : start + 16]) for start in range(pos, stop, 16)], stop


def read_strings(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[str], int]:
    if 2 * count > end - pos:
        raise count_error("string array", count, end - pos)
    strings = []
    for _ in range(count):
        length = int.from_bytes(buf[pos : pos + 2], "big", signed=True)
        pos += 2
        stop = pos + length
        if stop > end or length < 0:
            raise length_error("string in array", length, end - pos)
        strings.append(str(buf[pos:stop], "utf-8"))
        pos = stop
    return strings, pos


def read_compact_strings(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[str], int]:
    if count > end - pos:
        raise count_error("string array", count, end - pos)
    strings = []
    for _ in range(count):
        length = buf[pos]
        pos += 1
        if length > 0x7F:
            length, pos = text_rest(buf, pos, length)
        stop = pos + length - 1
        if stop > end or not length:
            raise length_error("string in array", length - 1, end - pos)
        strings.append(str(buf[pos:stop], "utf-8"))
        pos = stop
    return strings, pos


def write_int8s(out: bytearray, values: Sequence[int]) -> None:
    out += struct.pack(f">{len(values)}b", *values)


def write_int16s(out: bytearray, values: Sequence[int]) -> None:
    out += struct.pack(f">{len(values)}h", *values)


def write_int32s(out: bytearray, values: Sequence[int]) -> None:
    out += struct.pack(f">{len(values)}i", *values)


def write_int64s(out: bytearray, values: Sequence[int]) -> None:
    out += struct.pack(f">{len(values)}q", *values)


def write_uuids(out: bytearray, values: Iterable[bytes]) -> None:
    for value in values:
        out += check_uuid(value)


def check_uuid(value: bytes) -> bytes:
    if len(value) != 16:
        raise EncodingError(f"a uuid has 16 bytes, not {len(value)}")
    return value


def write_strings(out: bytearray, values: Iterable[str]) -> None:
    for value in values:
        text = value.encode()
        out += struct.pack(">h", len(text))
        out += text


def write_compact_strings(out: bytearray, values: Iterable[str]) -> None:
    for value in values:
        text = value.encode()
        write_uvarint(out, len(text) + 1)
        out += text


# ---- tagged fields


def check_tag_count(buf: Buffer, pos: int, end: int, count: int) -> None:
    if 2 * count > end - pos:
        raise count_error("tagged fields", count, end - pos)


def read_tag(buf: Buffer, pos: int, end: int) -> tuple[int, int, int]:
    """The tag, where its value starts and where it stops."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if size > end - pos:
        raise length_error(f"tagged field {tag}", size, end - pos)
    return tag, pos, pos + size


def keep_tags(unknown: dict[int, bytes]) -> tuple[tuple[int, bytes], ...]:
    return tuple(sorted(unknown.items()))


def read_unknown_tags(buf: Buffer, pos: int, end: int, count: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """The tagged fields of a struct that has none that we know."""
    check_tag_count(buf, pos, end, count)
    unknown: dict[int, bytes] = {}
    for _ in range(count):
        tag, start, pos = read_tag(buf, pos, end)
        if len(unknown) < UNKNOWN_TAGS_MAX:
            unknown[tag] = bytes(buf[start:pos])
    return keep_tags(unknown), pos


def write_tags(out: bytearray, known: list[tuple[int, bytearray]], unknown: Sequence[tuple[int, bytes]]) -> None:
    """Tagged fields in ascending order; `known` ascends already, `unknown` is what a newer sender gave us."""
    tags: list[tuple[int, bytearray | bytes]] = [*known, *unknown]
    if unknown:
        tags.sort(key=lambda item: item[0])
        for (lower, _), (upper, _) in pairwise(tags):
            if lower == upper:
                raise EncodingError(f"tag {lower} is set twice")
    write_uvarint(out, len(tags))
    for tag, value in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value
