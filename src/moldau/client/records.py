"""From fetched bytes to records: whole batches opened straight into what the reader yields.

Which batches a reader may see is `protocol.readable`'s to say; one may begin before the offset asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from moldau.protocol.batches import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatchError,
    Header,
    crc_is_valid,
    read_varint,
)
from moldau.protocol.compression import CompressionError, decompress


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def decode_records(
    topic: str, partition: int, header: BatchHeader, batch: memoryview, from_offset: int
) -> list[ConsumedRecord]:
    """The records of one batch from `from_offset` on. CorruptBatchError when checksum or contents are wrong."""
    if not crc_is_valid(batch, header):
        raise CorruptBatchError(f"{topic}-{partition}: batch at offset {header.base_offset} has a wrong checksum")
    try:
        data = bytes(decompress(header.compression, batch[HEADER_BYTES:]))
    except (CompressionError, ValueError) as error:
        raise CorruptBatchError(f"{topic}-{partition}: batch at offset {header.base_offset}: {error}") from None
    try:
        return _decode_plain(topic, partition, header, data, from_offset)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"{topic}-{partition}: batch at offset {header.base_offset}: {error}") from None


def _decode_plain(
    topic: str, partition: int, header: BatchHeader, data: bytes, from_offset: int
) -> list[ConsumedRecord]:
    # One-byte varints, by far the most common, are read in place.
    append_time = header.is_log_append_time
    timestamp_type = TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    timestamp = header.max_timestamp
    records: list[ConsumedRecord] = []
    new, kind = tuple.__new__, ConsumedRecord
    pos = 0
    for _ in range(header.record_count):
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, pos = read_varint(data, pos)
        end = pos + size
        if size < 0 or end > len(data):
            raise CorruptBatchError(f"record claims {size} bytes, {len(data) - pos} are left")
        pos += 1  # attributes: unused by the protocol
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            delta = (byte >> 1) ^ -(byte & 1)
        else:
            delta, pos = read_varint(data, pos)
        if not append_time:
            timestamp = base_timestamp + delta
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            offset = base_offset + (byte >> 1)
        else:
            delta, pos = read_varint(data, pos)
            offset = base_offset + delta
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, pos = read_varint(data, pos)
        if size < 0:
            key = None
        else:
            stop = pos + size
            if stop > end:
                raise CorruptBatchError(f"key claims {size} bytes, {end - pos} are left")
            key = data[pos:stop]
            pos = stop
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, pos = read_varint(data, pos)
        if size < 0:
            value = None
        else:
            stop = pos + size
            if stop > end:
                raise CorruptBatchError(f"value claims {size} bytes, {end - pos} are left")
            value = data[pos:stop]
            pos = stop
        headers: Sequence[Header] = ()
        if data[pos]:
            headers, pos = _decode_headers(data, pos, end)
        else:
            pos += 1
        if pos != end:
            raise CorruptBatchError(f"record ends {end - pos} bytes early")
        if offset >= from_offset:
            records.append(new(kind, (topic, partition, offset, timestamp, timestamp_type, key, value, headers)))
    if pos != len(data):
        raise CorruptBatchError(f"{len(data) - pos} bytes follow the last of {header.record_count} records")
    return records


def _decode_headers(data: bytes, pos: int, end: int) -> tuple[list[Header], int]:
    count, pos = read_varint(data, pos)
    if not 0 <= count <= end - pos:
        raise CorruptBatchError(f"record claims {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        size, pos = read_varint(data, pos)
        if size < 0 or pos + size > end:
            raise CorruptBatchError(f"header name claims {size} bytes, {end - pos} are left")
        name = data[pos : pos + size].decode()
        pos += size
        size, pos = read_varint(data, pos)
        if size < 0:
            headers.append(Header(name, None))
            continue
        if pos + size > end:
            raise CorruptBatchError(f"header value claims {size} bytes, {end - pos} are left")
        headers.append(Header(name, data[pos : pos + size]))
        pos += size
    return headers, pos
