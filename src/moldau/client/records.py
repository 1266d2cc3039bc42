"""From fetched bytes to records: whole batches opened straight into what the reader yields.

Follows the rules of Fetch: a batch may begin before the offset asked for, a partial one may stand at the end, control
batches are not for readers, and under read_committed the batches of aborted transactions are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from moldau.kernel import Buffer
from moldau.protocol.batches import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    Header,
    control_kind,
    crc_is_valid,
    iterate_batches,
    iterate_records,
    read_varint,
)
from moldau.protocol.compression import CompressionError, decompress

_ABORT = 0


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


class AbortedTransactions:
    """Which transactional batches to leave out: those of a producer between its first aborted offset and its marker."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Pairs of producer id and first offset."""
        self._coming = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether readers must not see the batch; call it for every batch in order, control batches too."""
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.is_control:
            if header.is_transactional and header.producer_id in self._open:
                marker = next(iterate_records(batch), None)
                if marker is not None and control_kind(marker.key) == _ABORT:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def readable_batches(
    records: Buffer, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """Every whole batch of a fetched partition; the bytes are None for one that readers must not see.

    `aborted` is None under read_uncommitted.
    """
    hidden = AbortedTransactions(aborted or ())
    for header, batch in iterate_batches(records):
        if header.magic != MAGIC:
            raise CorruptBatchError(f"batch at offset {header.base_offset} has magic {header.magic}, not {MAGIC}")
        yield header, None if hidden.hides(header, batch) else batch


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
