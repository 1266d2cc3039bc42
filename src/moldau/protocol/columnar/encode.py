"""Arrow columns to record batches.

A record is a row of short byte strings: sizes and deltas as varints, key, value, headers. Each of them is a column, and
Arrow joins the columns row by row; the data of the result is the batch's record section as it stands. Most varints are
taken from a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.protocol.batches import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    add_to_sequence,
    batch_attributes,
    seal_batch,
    write_varint,
)
from moldau.protocol.compression import Compression, compress

# A batch's length is an int32, and so are the offsets of Arrow's binary columns.
BATCH_BYTES_MAX = 1 << 30
RECORDS_BYTES_MAX = (1 << 31) - 1 - HEADER_BYTES
# So much is joined at once: enough to hide the calls, little enough for the processor's cache.
GROUP_BYTES_MAX = 2 << 20
# Size, attributes, time and offset take a byte each at least.
_BEFORE_KEY_BYTES_MIN = 4

Numbers = npt.NDArray[np.int64]


class _Field(NamedTuple):
    """A column of byte strings and the length of each, -1 for null."""

    column: Any  # pyarrow.Array of binary or large_binary; None when all rows are null
    lengths: Numbers


def encode_batches(
    key: Any,
    value: Any,
    *,
    timestamp: Any,
    bytes_max: int,
    headers: Any = None,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> Iterator[bytearray]:
    """Whole batches as producers send them, offsets from 0 in each, the sequences of one following the other's.

    `key` and `value` are Arrow columns of binary or strings, or None for nulls only; one of them must be given.
    `timestamp` is a column of milliseconds or of Arrow timestamps, or one number for all. `headers` is a column of
    list<struct<key: string, value: binary>>. A batch takes at most `bytes_max` before compression, unless a single
    record needs more. ValueError for columns that are no records.
    """
    if not HEADER_BYTES < bytes_max <= BATCH_BYTES_MAX:
        raise ValueError(f"a batch of {bytes_max} bytes: between {HEADER_BYTES + 1} and {BATCH_BYTES_MAX} are possible")
    if key is None and value is None:
        raise ValueError("neither a key nor a value column")
    row_count = len(value if key is None else key)
    keys, values, sections = _field(key, row_count), _field(value, row_count), _header_sections(headers, row_count)
    timestamps = _milliseconds(timestamp, row_count)
    if not len(keys.lengths) == len(values.lengths) == len(sections.sizes) == len(timestamps) == row_count:
        raise ValueError("columns of different lengths")
    # What a record takes from its key on, wherever it stands.
    fixed = _field_sizes(keys.lengths) + _field_sizes(values.lengths) + sections.sizes
    for group in _groups(_plan_batches(timestamps, fixed, bytes_max - HEADER_BYTES)):
        payloads = _join(group, keys, values, sections)
        start = 0
        for plan in group:
            payload = payloads[start : start + plan.size]
            start += plan.size
            count = len(plan.bodies)
            yield seal_batch(
                compress(compression, payload, compression_level) if compression else payload,
                base_offset=0,
                leader_epoch=-1,
                attributes=batch_attributes(compression, transactional=transactional),
                last_offset_delta=count - 1,
                base_timestamp=int(timestamps[plan.first_row]),
                max_timestamp=int(timestamps[plan.first_row] + plan.deltas.max()),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=count,
            )
            base_sequence = add_to_sequence(base_sequence, count)


class _Plan(NamedTuple):
    """One batch: its rows by what differs with their place in it."""

    first_row: int
    bodies: Numbers
    deltas: Numbers
    # Bytes of all its records.
    size: int


def _plan_batches(timestamps: Numbers, fixed: Numbers, room: int) -> Iterator[_Plan]:
    """As many records into each batch as it has room for."""
    offset_sizes = _varint_sizes(np.arange(len(fixed)))
    ends = np.cumsum(fixed + _BEFORE_KEY_BYTES_MIN)
    start, before = 0, 0
    while start < len(fixed):
        stop = max(int(np.searchsorted(ends, before + room, "right")), start + 1)
        deltas = timestamps[start:stop] - timestamps[start]
        bodies = 1 + _varint_sizes(deltas) + offset_sizes[: stop - start] + fixed[start:stop]
        sizes = np.cumsum(bodies + _varint_sizes(bodies))
        count = max(int(np.searchsorted(sizes, room, "right")), 1)
        size = int(sizes[count - 1])
        if size > RECORDS_BYTES_MAX:
            raise ValueError(f"a record of {size} bytes is larger than any batch")
        yield _Plan(start, bodies[:count], deltas[:count], size)
        start += count
        before = int(ends[start - 1])


def _groups(plans: Iterator[_Plan]) -> Iterator[list[_Plan]]:
    """Small batches are joined together and cut apart after."""
    group: list[_Plan] = []
    size = 0
    for plan in plans:
        if group and size + plan.size > GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(plan)
        size += plan.size
    if group:
        yield group


def _join(group: list[_Plan], keys: _Field, values: _Field, sections: _HeaderSections) -> memoryview:
    bodies = np.concatenate([plan.bodies for plan in group])
    rows = slice(group[0].first_row, group[0].first_row + len(bodies))
    columns = [
        _varints(bodies),
        b"\0",
        _varints(np.concatenate([plan.deltas for plan in group])),
        _varints(np.concatenate([np.arange(len(plan.bodies)) for plan in group])),
    ]
    for column, lengths in (keys, values):
        columns.append(_varints(lengths[rows]))
        if column is not None:
            columns.append(column[rows])
    columns.append(_varints(sections.counts[rows]))
    if sections.column is not None:
        columns.append(sections.column[rows])
    joined, _ = _join_rows(columns, len(bodies))
    return joined


def _join_rows(columns: list[Any], row_count: int) -> tuple[memoryview, npt.NDArray[Any]]:
    """All rows side by side, and where each begins. `bytes` stand for a column that is the same in all rows."""
    merged: list[Any] = []
    for column in columns:
        if isinstance(column, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += column
        else:
            merged.append(column)
    if len(merged) == 1 and isinstance(merged[0], bytes):
        merged = [pa.repeat(merged[0], row_count)]
    kind = pa.large_binary() if any(_is_large(column) for column in merged) else pa.binary()
    arguments = [pa.scalar(column, kind) if isinstance(column, bytes) else column.cast(kind) for column in merged]
    joined = pc.binary_join_element_wise(*arguments, pa.scalar(b"", kind), null_handling="replace")
    _, offset_buffer, data = joined.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64 if kind == pa.large_binary() else np.int32)[: row_count + 1]
    return memoryview(b"" if data is None else data)[: int(offsets[-1])], offsets


def _is_large(column: Any) -> bool:
    return not isinstance(column, bytes) and pa.types.is_large_binary(column.type)


# -- columns as they come ----------------------------------------------------------------------------------------------


def _field(column: Any, row_count: int) -> _Field:
    if column is None or pa.types.is_null(column.type):
        return _Field(None, np.full(row_count if column is None else len(column), -1, np.int64))
    column = _as_binary(column)
    return _Field(column, pc.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))


def _as_binary(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    try:
        return column.cast(pa.large_binary() if large else pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ValueError(f"a column of {kind} is neither binary nor strings") from None


def _milliseconds(timestamp: Any, row_count: int) -> Numbers:
    if isinstance(timestamp, int):
        return np.full(row_count, timestamp, np.int64)
    if timestamp.null_count:
        raise ValueError("a timestamp is null")
    if pa.types.is_timestamp(timestamp.type):
        timestamp = timestamp.cast(pa.timestamp("ms", tz=timestamp.type.tz), safe=False)
    numbers: Numbers = timestamp.cast(pa.int64()).to_numpy()
    return numbers


class _HeaderSections(NamedTuple):
    """How many headers each record has, their bytes, and the size of both."""

    counts: Numbers
    column: Any  # pyarrow.Array, None when no record has headers
    sizes: Numbers


def _header_sections(headers: Any, row_count: int) -> _HeaderSections:
    if headers is None:
        return _HeaderSections(np.zeros(row_count, np.int64), None, np.ones(row_count, np.int64))
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = headers.flatten()
    names_of_fields = [field.name for field in pairs.type] if pa.types.is_struct(pairs.type) else []
    if sorted(names_of_fields) != ["key", "value"]:
        raise ValueError(f"headers of {pairs.type} are no struct<key: string, value: binary>")
    fields = dict(zip(names_of_fields, pairs.flatten(), strict=True))
    if not len(pairs):
        return _HeaderSections(counts, None, np.ones(len(counts), np.int64))
    names, values = _field(fields["key"], 0), _field(fields["value"], 0)
    if np.any(names.lengths < 0):
        raise ValueError("a header has no key")
    columns = [_varints(names.lengths), names.column, _varints(values.lengths)]
    if values.column is not None:
        columns.append(values.column)
    joined, offsets = _join_rows(columns, len(pairs))
    # The headers of one record lie side by side: its section is from where its first begins to where its last ends.
    firsts = np.concatenate([[0], np.cumsum(counts)])
    bounds = offsets[firsts].astype(np.int64)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(joined)]
    column = pa.Array.from_buffers(pa.large_binary(), len(counts), buffers)
    return _HeaderSections(counts, column, _varint_sizes(counts) + np.diff(bounds))


# -- varints -----------------------------------------------------------------------------------------------------------


def _zigzag(numbers: Numbers) -> npt.NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _varint_sizes(numbers: Numbers) -> Numbers:
    raw = _zigzag(numbers)
    largest = int(raw.max(initial=0))
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 70, 7):
        if largest >> shift == 0:
            break
        sizes += raw >= np.uint64(1 << shift)
    return sizes


def _field_sizes(lengths: Numbers) -> Numbers:
    return _varint_sizes(lengths) + np.maximum(lengths, 0)


def _encode_varints(numbers: Numbers) -> Any:
    raw = _zigzag(numbers)
    sizes = _varint_sizes(numbers)
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    rows = np.arange(len(numbers))
    position = 0
    while len(rows):
        last = sizes[rows] == position + 1
        low = (raw[rows] >> np.uint64(7 * position)).astype(np.uint8) & np.uint8(0x7F)
        data[offsets[rows] + position] = np.where(last, low, low | np.uint8(0x80))
        rows = rows[~last]
        position += 1
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


_TABLE_MIN = -1
_TABLE_MAX = (1 << 14) - 1
_TABLE = _encode_varints(np.arange(_TABLE_MIN, _TABLE_MAX + 1))


def _varints(numbers: Numbers) -> Any:
    """The numbers as a binary column, or as the bytes of the one number that all are."""
    least, largest = int(numbers.min()), int(numbers.max())
    if least == largest:
        constant = bytearray()
        write_varint(constant, least)
        return bytes(constant)
    if least >= _TABLE_MIN and largest <= _TABLE_MAX:
        return _TABLE.take(pa.array(numbers - _TABLE_MIN))
    return _encode_varints(numbers)
