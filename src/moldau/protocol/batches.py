"""Record batches, magic 2: the unit that producers send, logs store and consumers fetch.

The broker reads the 61-byte header and leaves the records closed; `iterate_records` and `build_batch` are for the few
places that must open them. The checksum covers everything from the attributes on, so the base offset and the leader
epoch may be set in place without touching it.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from moldau.kernel import Buffer
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import DECOMPRESSED_BYTES_MAX, Compression, CompressionError, compress, decompress

HEADER_BYTES = 61
# What precedes the bytes that the length field counts.
LENGTH_OVERHEAD_BYTES = 12
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1
RECORD_HEADERS_MAX = 100_000

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_BEFORE_ATTRIBUTES = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")


class CorruptBatchError(ValueError):
    """Bytes that are no whole and valid record batch."""


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """ValueError for a codec number that no Kafka knows."""
        return Compression(self.attributes & _CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def last_sequence(self) -> int:
        return add_to_sequence(self.base_sequence, self.last_offset_delta)


class Header(NamedTuple):
    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record, opened. Offset and timestamp are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


KeyAndValue = tuple[bytes | None, bytes | None]


def add_to_sequence(sequence: int, increment: int) -> int:
    """Producer sequences wrap from 2^31-1 to 0."""
    if sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (sequence + increment) & SEQUENCE_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error when fewer than 61 bytes are there."""
    return tuple.__new__(BatchHeader, _unpack_header(buffer, position))


def read_offset_and_size(buffer: Buffer, position: int) -> tuple[int, int]:
    """Base offset and whole size of the batch at `position`: enough to walk over it."""
    base_offset, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
    return base_offset, length + LENGTH_OVERHEAD_BYTES


def crc_is_valid(batch: Buffer, header: BatchHeader) -> bool:
    """`batch` is exactly the batch's bytes."""
    with memoryview(batch) as view:
        return crc32c(view[ATTRIBUTES_POSITION:]) == header.crc


def set_offset_and_epoch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Stamp a batch in place with what the leader assigns."""
    _INT64.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, 12, leader_epoch)


def set_log_append_time(batch: bytearray | memoryview, timestamp_ms: int) -> None:
    """Give a batch the broker's time: attribute bit, max timestamp and a new checksum."""
    (attributes,) = _INT16.unpack_from(batch, ATTRIBUTES_POSITION)
    _INT16.pack_into(batch, ATTRIBUTES_POSITION, attributes | _LOG_APPEND_TIME)
    _INT64.pack_into(batch, 35, timestamp_ms)
    with memoryview(batch) as view:
        _UINT32.pack_into(batch, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))


def iterate_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Whole batches, one after the other; a partial one at the end is left out, as fetch answers may carry it."""
    view = memoryview(buffer)
    position = 0
    while position + HEADER_BYTES <= len(view):
        header = read_header(view, position)
        if header.length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
            raise CorruptBatchError(f"batch at byte {position} claims a length of {header.length}")
        if position + header.size > len(view):
            return
        yield header, view[position : position + header.size]
        position += header.size


# -- records, where they must be opened --------------------------------------------------------------------------------


def iterate_records(batch: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of one whole batch. CorruptBatchError when they do not parse or do not match the header's count."""
    header = read_header(batch)
    view = memoryview(batch)[HEADER_BYTES : header.size]
    try:
        data = bytes(decompress(header.compression, view, bytes_max=bytes_max))
    except CompressionError as error:
        raise CorruptBatchError(str(error)) from None
    except ValueError:
        raise CorruptBatchError(f"unknown compression in attributes {header.attributes:#x}") from None
    return _iterate_plain_records(data, header)


def keys_and_values(batch: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[KeyAndValue]:
    """The same without offsets, times and headers, in a third of the time: internal topics are loaded with it."""
    header = read_header(batch)
    view = memoryview(batch)[HEADER_BYTES : header.size]
    try:
        data = bytes(decompress(header.compression, view, bytes_max=bytes_max))
        return _keys_and_values(data, header.record_count)
    except (CompressionError, ValueError) as error:
        raise CorruptBatchError(str(error)) from None


def _keys_and_values(data: bytes, count: int) -> Iterator[KeyAndValue]:
    """Varints of one byte, which most are, are read in place."""
    position, total = 0, len(data)
    try:
        for _ in range(count):
            number = data[position]
            if number < 0x80:
                size, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                size, position = read_varint(data, position)
            end = position + size
            if size < 0 or end > total:
                raise CorruptBatchError(f"record claims {size} bytes, {total - position} are left")
            position += 1
            for _ in (0, 1):  # time and offset
                while data[position] >= 0x80:
                    position += 1
                position += 1
            number = data[position]
            if number < 0x80:
                size, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                size, position = read_varint(data, position)
            key = None if size < 0 else data[position : position + size]
            position += max(size, 0)
            number = data[position]
            if number < 0x80:
                size, position = (number >> 1) ^ -(number & 1), position + 1
            else:
                size, position = read_varint(data, position)
            value = None if size < 0 else data[position : position + size]
            if position + max(size, 0) > end:
                raise CorruptBatchError("a record's key and value are longer than the record")
            position = end
            yield key, value
    except IndexError as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None


def _iterate_plain_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    append_time = header.max_timestamp if header.is_log_append_time else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    position = 0
    try:
        for _ in range(header.record_count):
            size, position = read_varint(data, position)
            end = position + size
            if size < 0 or end > len(data):
                raise CorruptBatchError(f"record claims {size} bytes, {len(data) - position} are left")
            position += 1  # attributes: unused by the protocol
            timestamp_delta, position = read_varint(data, position)
            offset_delta, position = read_varint(data, position)
            key, position = _read_bytes(data, position, end)
            value, position = _read_bytes(data, position, end)
            header_count, position = read_varint(data, position)
            if not 0 <= header_count <= min(end - position, RECORD_HEADERS_MAX):
                raise CorruptBatchError(f"record claims {header_count} headers")
            headers: list[Header] = []
            for _ in range(header_count):
                name, position = _read_bytes(data, position, end)
                if name is None:
                    raise CorruptBatchError("record header without a name")
                header_value, position = _read_bytes(data, position, end)
                headers.append(Header(name.decode(), header_value))
            if position != end:
                raise CorruptBatchError(f"record of {size} bytes ends {end - position} bytes early")
            yield Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None
    if position != len(data):
        raise CorruptBatchError(f"{len(data) - position} bytes follow the last of {header.record_count} records")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise CorruptBatchError(f"field claims {size} bytes, {end - position} are left")
    return data[position : position + size], position + size


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint of up to ten bytes."""
    result = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
    raise CorruptBatchError("varint longer than ten bytes")


def write_varint(out: bytearray, number: int) -> None:
    if 0 <= number < 64:
        out.append(number << 1)
        return
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)


def _append_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(b"\x00")
    write_varint(body, record.timestamp - base_timestamp)
    write_varint(body, record.offset - base_offset)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _append_bytes(body, name.encode())
        _append_bytes(body, value)
    write_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
        return
    write_varint(out, len(data))
    out += data


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One whole batch with a valid checksum. Offsets default to the first and last record's."""
    records = list(records)
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    payload = bytearray()
    for record in records:
        _append_record(payload, record, first, base_timestamp)
    attributes = batch_attributes(compression, transactional=transactional)
    if log_append_time_ms is not None:
        attributes |= _LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    if control:
        attributes |= _CONTROL
    return seal_batch(
        compress(compression, payload, compression_level) if compression else payload,
        base_offset=first,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last - first,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )


def batch_attributes(compression: Compression, *, transactional: bool) -> int:
    """The attributes of a batch as producers send it."""
    return int(compression) | (_TRANSACTIONAL if transactional else 0)


def build_plain_batch(
    records: Sequence[KeyAndValue], timestamp_ms: int, compression: Compression = Compression.NONE
) -> bytearray:
    """A batch of records of one time, from offset 0, without headers or a producer: what internal topics are made of.

    The same bytes as `build_batch`, in a third of the time.
    """
    payload = bytearray()
    for index, (key, value) in enumerate(records):
        body = bytearray(b"\0\0")  # attributes, time after the first record's
        write_varint(body, index)
        _append_bytes(body, key)
        _append_bytes(body, value)
        body.append(0)  # headers
        write_varint(payload, len(body))
        payload += body
    if compression:
        payload = bytearray(compress(compression, payload, None))
    count = len(records)
    checked = (
        _AFTER_CRC.pack(
            compression,
            count - 1,
            timestamp_ms,
            timestamp_ms,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            count,
        )
        + payload
    )
    length = len(checked) + ATTRIBUTES_POSITION - LENGTH_OVERHEAD_BYTES
    return bytearray(_BEFORE_ATTRIBUTES.pack(0, length, -1, MAGIC, crc32c(checked)) + checked)


def seal_batch(
    payload: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytearray:
    """Header and checksum around records that are already encoded (and compressed as the attributes say)."""
    after_crc = _AFTER_CRC.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch = bytearray().join((bytes(ATTRIBUTES_POSITION), after_crc, payload))
    with memoryview(batch) as view:
        checksum = crc32c(view[ATTRIBUTES_POSITION:])
    _BEFORE_ATTRIBUTES.pack_into(
        batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD_BYTES, leader_epoch, MAGIC, checksum
    )
    return batch


# -- control records ---------------------------------------------------------------------------------------------------


def control_key(kind: int, version: int = 0) -> bytes:
    """Key of a control record: version and type (0 abort, 1 commit, 2 leader change, 3/4 snapshot, 5/6 voters)."""
    return struct.pack(">hh", version, kind)


def control_kind(key: bytes | None) -> int:
    if key is None or len(key) < 4:
        raise CorruptBatchError("control record without a type")
    kind: int = struct.unpack_from(">hh", key)[1]
    return kind
