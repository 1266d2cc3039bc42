"""Fetched record batches to Arrow columns.

A Python loop finds only where records begin, and not even that where many have one size; numpy reads all fields of
thousands of records at once. Keys and values are gathered by one Arrow `take()` from an array whose elements are laid
over the fetched buffer itself: the bytes of a plain batch are copied once, into the result.

Nothing read from the wire becomes an index or an allocation before it is checked: positions only grow, each stays
inside its record, and counts are held against the bytes that must carry them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.kernel import Buffer
from moldau.protocol.batches import (
    HEADER_BYTES,
    RECORD_HEADERS_MAX,
    BatchHeader,
    CorruptBatchError,
    crc_is_valid,
)
from moldau.protocol.compression import DECOMPRESSED_BYTES_MAX, Compression, CompressionError, decompress
from moldau.protocol.readable import readable_batches
from moldau.protocol.vectors import Bytes, Positions, RecordFinder, read_varints, skip_varints

# Columns come in pieces of so many rows: few enough to stay in the processor's cache, enough to hide numpy's calls.
PIECE_ROWS_MAX = 1 << 15
# Small batches are joined up to this size after they are inflated, and read together.
JOINED_BYTES_MAX = 256 << 10
# Size, attributes, time, offset, key size, value size and header count take a byte each at least.
RECORD_BYTES_MIN = 7
# A header's name size and value size.
RECORD_HEADER_BYTES_MIN = 2

_INT32_MAX = 2**31 - 1
_CREATE_TIME, _LOG_APPEND_TIME = 0, 1

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestampType", pa.int32()),
    ]
)
_SCHEMA_WITH_HEADERS = _SCHEMA.append(pa.field("headers", HEADERS_TYPE))


class FetchedColumns(NamedTuple):
    """Records in columns key, value, offset, timestamp (ms), timestampType and, when asked for, headers."""

    columns: Any  # pyarrow.RecordBatch
    # The offset to go on from: past records that were left out, too.
    next_offset: int


class _Placed(NamedTuple):
    """A batch whose plain records are data[start:end]."""

    header: BatchHeader
    start: int
    end: int


class _Span(NamedTuple):
    """Neighbouring records of one batch."""

    header: BatchHeader
    start: int
    # Where each record ends.
    ends: Positions


def decode_fetched(
    records: Buffer,
    first_offset: int,
    end_offset: int,
    *,
    aborted: Iterable[tuple[int, int]] | None = None,
    with_headers: bool = False,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[FetchedColumns]:
    """The records in [first_offset, end_offset) of one partition of a Fetch answer, in pieces.

    `aborted` are Fetch's pairs of producer id and first offset, None under read_uncommitted. The last piece may have no
    rows: it says where to go on when all that was fetched is hidden. No piece at all: no whole batch was there.
    `bytes_max` is the cap on what one batch may inflate to. CorruptBatchError when a checksum or the records are wrong;
    without `with_headers` the bytes of headers are passed over unread.
    """
    next_offset = first_offset
    wanted: list[tuple[BatchHeader, memoryview]] = []
    for header, batch in readable_batches(records, aborted):
        if header.base_offset >= end_offset:
            next_offset = end_offset
            break
        next_offset = max(next_offset, min(header.next_offset, end_offset))
        if batch is not None and header.last_offset >= first_offset:
            wanted.append((header, batch))
    reader = _Reader(first_offset, end_offset, with_headers)
    for data, placed in _plain_records(records, wanted, bytes_max):
        yield from reader.read(data, placed)
    if reader.next_offset != next_offset:
        yield FetchedColumns(pa.RecordBatch.from_pylist([], schema=reader.schema), next_offset)


def utc_timestamps(timestamps_ms: Any) -> Any:
    """A column of milliseconds as timestamp[us, UTC], which is Spark's. Times too far off to say stay at the limit."""
    limit = (2**63 - 1) // 1000
    clipped = np.clip(timestamps_ms.to_numpy(zero_copy_only=False), -limit, limit)
    return pa.array(clipped * 1000).view(pa.timestamp("us", tz="UTC"))


# -- where the plain records are ---------------------------------------------------------------------------------------


def _plain_records(
    records: Buffer, wanted: list[tuple[BatchHeader, memoryview]], bytes_max: int
) -> Iterator[tuple[Buffer, list[_Placed]]]:
    """Buffers of plain records: the fetched one itself when nothing in it is compressed."""
    for header, batch in wanted:
        if not crc_is_valid(batch, header):
            raise CorruptBatchError(f"batch at offset {header.base_offset} has a wrong checksum")
    if not any(header.attributes & 0x07 for header, _ in wanted):
        if wanted:
            yield _in_place(records, wanted)
        return
    parts: list[memoryview] = []
    placed: list[_Placed] = []
    position = 0
    for header, batch in wanted:
        plain = _inflate(header, batch[HEADER_BYTES:], bytes_max)
        if parts and position + len(plain) > JOINED_BYTES_MAX:
            yield b"".join(parts), placed
            parts, placed, position = [], [], 0
        if len(plain) > JOINED_BYTES_MAX:
            yield plain, [_Placed(header, 0, len(plain))]
            continue
        parts.append(plain)
        placed.append(_Placed(header, position, position + len(plain)))
        position += len(plain)
    if parts:
        yield b"".join(parts), placed


def _in_place(records: Buffer, wanted: list[tuple[BatchHeader, memoryview]]) -> tuple[Buffer, list[_Placed]]:
    origin = _address(records)
    placed = []
    for header, batch in wanted:
        start = _address(batch) - origin
        placed.append(_Placed(header, start + HEADER_BYTES, start + header.size))
    return records, placed


def _rooted(data: Buffer) -> tuple[Buffer, int]:
    """The bytes or bytearray that a view is of, and where it begins there: a loop reads them a third faster."""
    root = data.obj if isinstance(data, memoryview) else data
    if not isinstance(root, bytes | bytearray):
        return data, 0
    return root, _address(data) - _address(root)


def _address(buffer: Buffer) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def _inflate(header: BatchHeader, data: memoryview, bytes_max: int) -> memoryview:
    try:
        return decompress(Compression(header.attributes & 0x07), data, bytes_max=bytes_max)
    except (CompressionError, ValueError) as error:
        raise CorruptBatchError(f"batch at offset {header.base_offset}: {error}") from None


# -- columns -----------------------------------------------------------------------------------------------------------


class _Reader:
    """Plain records in, columns of those in the wanted offsets out."""

    def __init__(self, first_offset: int, end_offset: int, with_headers: bool) -> None:
        self._first_offset = first_offset
        self._end_offset = end_offset
        self.schema = _SCHEMA_WITH_HEADERS if with_headers else _SCHEMA
        # Where the last piece ended.
        self.next_offset = first_offset

    def read(self, data: Buffer, placed: list[_Placed]) -> Iterator[FetchedColumns]:
        spans: list[_Span] = []
        row_count = 0
        root, origin = _rooted(data)
        view = np.frombuffer(root, np.uint8)
        try:
            for header, start, end in placed:
                left = header.record_count
                if not 0 <= left <= (end - start) // RECORD_BYTES_MIN:
                    raise CorruptBatchError(f"batch of {end - start} bytes claims {left} records")
                if spans and end - spans[0].start > _INT32_MAX:
                    yield self._piece(data, spans)
                    spans, row_count = [], 0
                finder = RecordFinder(root, view, origin + start)
                while left:
                    count = min(left, PIECE_ROWS_MAX - row_count)
                    ends = finder.take(count) - origin
                    if ends[-1] > end:
                        raise CorruptBatchError(f"records claim {ends[-1] - end} bytes more than their batch has")
                    spans.append(_Span(header, start, ends))
                    start = int(ends[-1])
                    left -= count
                    row_count += count
                    if row_count == PIECE_ROWS_MAX:
                        yield self._piece(data, spans)
                        spans, row_count = [], 0
                if start != end:
                    raise CorruptBatchError(f"{end - start} bytes follow the last of {header.record_count} records")
            if spans:
                yield self._piece(data, spans)
        except (IndexError, OverflowError, pa.ArrowInvalid) as error:
            raise CorruptBatchError(f"records do not parse: {error}") from None

    def _piece(self, data: Buffer, spans: list[_Span]) -> FetchedColumns:
        first = spans[0].start
        ends = np.concatenate([span.ends for span in spans]) - first
        counts = np.array([len(span.ends) for span in spans])
        begins = np.empty_like(ends)
        begins[1:] = ends[:-1]
        begins[np.cumsum(counts) - counts] = np.array([span.start for span in spans]) - first
        view = np.frombuffer(data, np.uint8, count=int(ends[-1]), offset=first)

        if np.any(view[begins] & 1):
            raise CorruptBatchError("record claims a negative size")
        at = skip_varints(view, begins)
        at += 1  # attributes: unused by the protocol
        timestamp, at = read_varints(view, at)
        offset, at = read_varints(view, at)
        key_size, key_at = read_varints(view, at)
        _check_fit(key_size, key_at, ends, "key")
        key_end = key_at + np.maximum(key_size, 0)
        value_size, value_at = read_varints(view, key_end)
        _check_fit(value_size, value_at, ends, "value")
        value_end = value_at + np.maximum(value_size, 0)
        header_count, at = read_varints(view, value_end)
        left = ends - at
        if np.any((header_count < 0) | (header_count > left // RECORD_HEADER_BYTES_MIN)) or np.any(
            (header_count == 0) & (left != 0)
        ):
            raise CorruptBatchError("a record's headers do not end where the record does")

        offset += _of_batches([span.header.base_offset for span in spans], counts)
        timestamp += _of_batches([span.header.base_timestamp for span in spans], counts)
        timestamp_type = np.full(len(begins), _CREATE_TIME, np.int32)
        if any(span.header.is_log_append_time for span in spans):
            appended = np.repeat(np.array([span.header.is_log_append_time for span in spans]), counts)
            timestamp_type[appended] = _LOG_APPEND_TIME
            times = _of_batches([span.header.max_timestamp for span in spans], counts)
            timestamp = np.where(appended, times, timestamp)

        self.next_offset = min(max(self.next_offset, int(offset[-1]) + 1), self._end_offset)
        spots = np.empty((len(begins), 4), np.int32)
        spots[:, 0], spots[:, 1], spots[:, 2], spots[:, 3] = key_at, key_end, value_at, value_end
        rows = np.flatnonzero((offset >= self._first_offset) & (offset < self._end_offset))
        if len(rows) < len(begins):
            offset, timestamp, timestamp_type = offset[rows], timestamp[rows], timestamp_type[rows]
            key_size, value_size, header_count = key_size[rows], value_size[rows], header_count[rows]
            at, ends = at[rows], ends[rows]
        rows *= 4
        laid = _laid_over(view, spots)
        columns = [
            _take(laid, rows, key_size < 0),
            _take(laid, rows + 2, value_size < 0),
            pa.array(offset),
            pa.array(timestamp),
            pa.array(timestamp_type),
        ]
        if self.schema is _SCHEMA_WITH_HEADERS:
            columns.append(_read_headers(view, at, ends, header_count))
        return FetchedColumns(pa.RecordBatch.from_arrays(columns, schema=self.schema), self.next_offset)


def _of_batches(numbers: list[int], counts: Positions) -> Positions:
    """Each batch's number beside each of its records."""
    return np.repeat(np.array(numbers, np.int64), counts)


def _check_fit(size: Positions, at: Positions, ends: Positions, field: str) -> None:
    if np.any(size > ends - at):
        raise CorruptBatchError(f"a record's {field} is longer than the record")


def _laid_over(view: Bytes, spots: npt.NDArray[np.int32]) -> Any:
    """An Arrow array over `view` itself: its even elements lie between the pairs of `spots`, which only grow."""
    buffers = [None, pa.py_buffer(spots), pa.py_buffer(view)]
    return pa.Array.from_buffers(pa.binary(), spots.size - 1, buffers)


def _take(laid: Any, elements: Positions, is_null: npt.NDArray[np.bool_]) -> Any:
    nulls = np.count_nonzero(is_null)
    if nulls == len(elements):
        return pa.nulls(nulls, pa.binary())
    return laid.take(pa.array(elements, mask=is_null if nulls else None))


def _read_headers(view: Bytes, at: Positions, ends: Positions, counts: Positions) -> Any:
    """The headers of all records: the first of each, then the second of those that have one, and so on."""
    if np.any(counts > RECORD_HEADERS_MAX):
        raise CorruptBatchError(f"record claims {counts.max()} headers")
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    spots = np.empty((total, 4), np.int32)
    is_null = np.zeros(total, np.bool_)
    rows = np.flatnonzero(counts)
    at, ends, counts, slots = at[rows], ends[rows], counts[rows], offsets[:-1][rows]
    while len(slots):
        name_size, name_at = read_varints(view, at)
        if np.any(name_size < 0):
            raise CorruptBatchError("record header without a name")
        _check_fit(name_size, name_at, ends, "header name")
        value_size, value_at = read_varints(view, name_at + name_size)
        _check_fit(value_size, value_at, ends, "header value")
        at = value_at + np.maximum(value_size, 0)
        spots[slots, 0], spots[slots, 1], spots[slots, 2], spots[slots, 3] = name_at, name_at + name_size, value_at, at
        is_null[slots] = value_size < 0
        counts = counts - 1
        if np.any((at != ends) & (counts == 0)):
            raise CorruptBatchError("a record's headers do not end where the record does")
        more = counts > 0
        at, ends, counts, slots = at[more], ends[more], counts[more], slots[more] + 1
    if not total:
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array([], HEADERS_TYPE.value_type), type=HEADERS_TYPE)
    laid = _laid_over(view, spots)
    elements = np.arange(0, 4 * total, 4)
    names = _take(laid, elements, np.zeros(total, np.bool_)).cast(pa.string())
    values = _take(laid, elements + 2, is_null)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS_TYPE)
