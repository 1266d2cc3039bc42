"""Where the records of a batch lie, and what a cleaner must know of each: offset, key, and whether it has a value.

A record that is kept is copied as it stands: offsets and times in it are relative to its batch, whose base stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moldau.kernel import Buffer
from moldau.protocol.batches import HEADER_BYTES, BatchHeader, CorruptBatchError, read_varint
from moldau.protocol.compression import CompressionError, decompress


class Located(NamedTuple):
    start: int
    end: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def plain_records(header: BatchHeader, batch: Buffer) -> bytes:
    """What follows the header, inflated."""
    try:
        return bytes(decompress(header.compression, memoryview(batch)[HEADER_BYTES : header.size]))
    except (CompressionError, ValueError) as error:
        raise CorruptBatchError(f"the batch at offset {header.base_offset} does not inflate: {error}") from None


def locate(data: bytes, count: int) -> Iterator[Located]:
    """The records of `plain_records` in order. Varints of one byte, which most are, are read in place."""
    position, total = 0, len(data)
    make = tuple.__new__
    try:
        for _ in range(count):
            start = position
            number = data[position]
            if number < 0x80:
                size, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                size, position = read_varint(data, position)
            end = position + size
            if size < 0 or end > total:
                raise CorruptBatchError(f"record claims {size} bytes, {total - position} are left")
            position += 1  # attributes
            while data[position] >= 0x80:
                position += 1
            position += 1
            number = data[position]
            if number < 0x80:
                delta, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                delta, position = read_varint(data, position)
            number = data[position]
            if number < 0x80:
                size, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                size, position = read_varint(data, position)
            if size < 0:
                key = None
            else:
                key = data[position : position + size]
                position += size
            # A zigzag number is negative exactly when its lowest bit is set.
            has_value = not data[position] & 1
            if position >= end:
                raise CorruptBatchError("a record's key is longer than the record")
            position = end
            yield make(Located, (start, end, delta, key, has_value))
    except IndexError as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None


def note_keys(data: bytes, count: int, base_offset: int, last_offsets: dict[bytes, int]) -> bool:
    """Put the offset of every key of a batch into `last_offsets`, the hot half of `locate` with its calls taken out.

    False, with some of them put, when the records are not numbered one by one: `locate` knows what to do then.
    """
    position, total = 0, len(data)
    try:
        for index in range(count):
            number = data[position]
            if number < 0x80:
                end = position + 1 + (number >> 1)
                position += 2
            else:
                second = data[position + 1]
                if second < 0x80:
                    end = position + 2 + ((number & 0x7F | second << 7) >> 1)
                    position += 3
                else:
                    size, position = read_varint(data, position)
                    end = position + size
                    position += 1
            # A negative size would be odd; `pick` and `locate` would stumble over it, and so do we.
            if number & 1 or end > total:
                raise CorruptBatchError("a record is longer than its batch")
            while data[position] >= 0x80:
                position += 1
            number = data[position + 1]
            if number < 0x80:
                position += 2
                delta = number >> 1
            else:
                second = data[position + 2]
                if second < 0x80:
                    delta = (number & 0x7F | second << 7) >> 1
                    position += 3
                else:
                    delta, position = read_varint(data, position + 1)
            if delta != index:
                return False
            number = data[position]
            if number < 0x80:
                size, position = number >> 1, position + 1
                is_absent = number & 1
            else:
                size, position = read_varint(data, position)
                is_absent = size < 0
            if not is_absent:
                if position + size >= end:
                    raise CorruptBatchError("a record's key is longer than the record")
                last_offsets[data[position : position + size]] = base_offset + index
            position = end
    except IndexError as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None
    return True


def pick(data: bytes, wanted: Sequence[int]) -> list[Located]:
    """The records at these places, in order; the others are only stepped over."""
    found = []
    position = index = 0
    try:
        for place in wanted:
            while True:
                number = data[position]
                if number < 0x80:
                    end = position + 1 + (number >> 1)
                else:
                    second = data[position + 1]
                    if second < 0x80:
                        end = position + 2 + ((number & 0x7F | second << 7) >> 1)
                    else:
                        size, begin = read_varint(data, position)
                        end = begin + size
                if index == place:
                    break
                position = end
                index += 1
            (record,) = locate(data[position:end], 1)
            found.append(Located(position, end, record.offset_delta, record.key, record.has_value))
            position = end
            index += 1
    except IndexError as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None
    return found


def timestamp_delta(data: bytes, start: int) -> tuple[int, int, int]:
    """Of the record at `start`: its time after the batch's, and where that number begins and ends."""
    _, position = read_varint(data, start)
    delta, end = read_varint(data, position + 1)
    return delta, position + 1, end
