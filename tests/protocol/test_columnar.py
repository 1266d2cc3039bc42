"""Record batches as columns: the same records as the plain loop reads and the plain builder writes, damage included."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moldau.protocol import (
    HEADER_BYTES,
    Compression,
    CorruptBatchError,
    Header,
    Record,
    add_to_sequence,
    build_batch,
    crc32c,
    crc_is_valid,
    iterate_batches,
    iterate_records,
    read_header,
    seal_batch,
    vectors,
)
from moldau.protocol.batches import SEQUENCE_MAX, control_key, write_varint
from moldau.protocol.columnar import decode, decode_fetched, encode_batches, utc_timestamps
from moldau.protocol.readable import readable_batches

TIME = 1_700_000_000_000
ALL = 1 << 62
# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
# Around every change of a varint's length.
SIZES = [0, 1, 62, 63, 64, 65, 100, 8190, 8191, 8192]

sized_bytes = st.builds(lambda size, fill: bytes([fill]) * size, st.sampled_from(SIZES), st.integers(0, 255))
optional_bytes = st.none() | st.binary(max_size=40) | sized_bytes
header_lists = st.lists(st.builds(Header, st.text(max_size=8), st.none() | st.binary(max_size=80)), max_size=4)
times = st.integers(TIME, TIME + 10) | st.integers(0, 2**62) | st.sampled_from([-1, 0, TIME - 10**6])


@st.composite
def batches(draw: st.DrawFn, base_offset: int) -> bytearray:
    """One batch as a log may hold it after compaction: gaps between records, before the first and after the last."""
    offset = base_offset + draw(st.sampled_from([0, 0, 1, 100]))
    records = []
    for _ in range(draw(st.integers(0, 8))):
        record = Record(offset, draw(times), draw(optional_bytes), draw(optional_bytes), draw(header_lists))
        records.append(record)
        offset += draw(st.sampled_from([1, 1, 1, 2, 63, 64, 9000, 2_000_000]))
    kind = draw(st.sampled_from(["plain", "plain", "transactional", "control"]))
    if kind == "control":
        records = [Record(offset, TIME, control_key(draw(st.integers(0, 1))), b"\0\0\0\0\0\0")]
    return build_batch(
        records,
        base_offset=base_offset,
        last_offset=offset + draw(st.sampled_from([0, 0, 5])),
        compression=draw(st.sampled_from(list(Compression))),
        log_append_time_ms=draw(st.sampled_from([None, None, TIME + 77])),
        producer_id=-1 if kind == "plain" else draw(st.integers(1, 2)),
        transactional=kind != "plain",
        control=kind == "control",
    )


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Whole batches, then perhaps a part of one."""
    log = bytearray()
    base_offset = draw(st.sampled_from([0, 7, 2**40]))
    for _ in range(draw(st.integers(0, 6))):
        batch = draw(batches(base_offset))
        base_offset = read_header(batch).next_offset + draw(st.sampled_from([0, 0, 3]))
        log += batch
    tail = draw(batches(base_offset))
    return bytes(log + tail[: draw(st.integers(0, len(tail)))])


def expected_rows(
    log: bytes, first: int, end: int, aborted: list[tuple[int, int]] | None, *, with_headers: bool
) -> list[tuple[Any, ...]]:
    """What the plain loop reads."""
    rows: list[tuple[Any, ...]] = []
    for header, batch in readable_batches(log, aborted):
        for record in iterate_records(batch) if batch is not None else ():
            if first <= record.offset < end:
                row = (record.key, record.value, record.offset, record.timestamp, int(header.is_log_append_time))
                rows.append((*row, [(name, value) for name, value in record.headers]) if with_headers else row)
    return rows


def rows_of(pieces: Iterator[decode.FetchedColumns]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for columns, _ in pieces:
        columns.validate(full=True)
        lists = columns.to_pydict()
        if "headers" in lists:
            lists["headers"] = [[(pair["key"], pair["value"]) for pair in pairs] for pairs in lists["headers"]]
        rows += zip(*lists.values(), strict=True)
    return rows


@settings(patient, max_examples=60)
@given(log=logs(), first=st.sampled_from([0, 9, 100]), length=st.sampled_from([50, 10_000, ALL]), headers=st.booleans())
def test_decoded_columns_are_the_records_of_the_plain_loop(log: bytes, first: int, length: int, headers: bool) -> None:
    base = read_header(log).base_offset if len(log) >= HEADER_BYTES else 0
    first += base
    decoded = rows_of(decode_fetched(log, first, first + length, with_headers=headers))
    assert decoded == expected_rows(log, first, first + length, None, with_headers=headers)


@settings(patient, max_examples=25)
@given(log=logs(), aborted=st.lists(st.tuples(st.integers(1, 2), st.sampled_from([0, 7, 20, 120, 9000])), max_size=3))
def test_read_committed_hides_what_was_aborted(log: bytes, aborted: list[tuple[int, int]]) -> None:
    decoded = rows_of(decode_fetched(log, 0, ALL, aborted=aborted))
    assert decoded == expected_rows(log, 0, ALL, aborted, with_headers=False)


@settings(patient, max_examples=25)
@given(log=logs(), wrap=st.sampled_from([bytearray, memoryview, lambda log: memoryview(b"before" + log)[6:], np.array]))
def test_any_buffer_is_read(log: bytes, wrap: Any) -> None:
    buffer = memoryview(np.frombuffer(log, np.uint8).copy()) if wrap is np.array else wrap(log)
    assert rows_of(decode_fetched(buffer, 0, ALL)) == expected_rows(log, 0, ALL, None, with_headers=False)


@settings(patient, max_examples=25)
@given(log=logs(), rows_max=st.integers(1, 5))
def test_pieces_of_any_number_of_rows_make_the_same_records(log: bytes, rows_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PIECE_ROWS_MAX", rows_max)
        patch.setattr(decode, "JOINED_BYTES_MAX", 1000)
        pieces = list(decode_fetched(log, 0, ALL, with_headers=True))
    assert all(len(columns) <= rows_max for columns, _ in pieces)
    assert rows_of(iter(pieces)) == expected_rows(log, 0, ALL, None, with_headers=True)


@settings(patient, max_examples=25)
@given(log=logs())
def test_the_last_piece_says_where_to_go_on(log: bytes) -> None:
    pieces = list(decode_fetched(log, 0, ALL, aborted=[(1, 0), (2, 0)]))
    ends = [header.next_offset for header, _ in iterate_batches(log)]
    assert [next_offset for _, next_offset in pieces][-1:] == ends[-1:]
    reached = [next_offset for _, next_offset in pieces]
    assert reached == sorted(reached)


def test_an_end_inside_the_log_is_where_to_go_on() -> None:
    log = bytes(build_batch([Record(offset, TIME, None, b"v") for offset in range(10)]))
    pieces = list(decode_fetched(log, 2, 6))
    assert [columns["offset"].to_pylist() for columns, _ in pieces] == [[2, 3, 4, 5]]
    assert pieces[-1].next_offset == 6
    before = list(decode_fetched(build_batch([Record(8, TIME, None, b"v")]), 2, 6))
    assert [(len(columns), next_offset) for columns, next_offset in before] == [(0, 6)]


def test_nothing_whole_makes_no_piece() -> None:
    batch = bytes(build_batch([Record(0, TIME, None, b"v")]))
    assert list(decode_fetched(b"", 0, ALL)) == []
    assert list(decode_fetched(batch[:-1], 0, ALL)) == []


def test_times_become_microseconds_of_utc() -> None:
    column = utc_timestamps(pa.array([TIME, -1, 2**63 - 1]))
    assert column.type == pa.timestamp("us", tz="UTC")
    assert column.cast(pa.int64()).to_pylist() == [TIME * 1000, -1000, (2**63 - 1) // 1000 * 1000]


def padded_varint(number: int, length: int) -> bytes:
    """A varint with zeros to the left, which readers must take."""
    out = bytearray()
    write_varint(out, number)
    missing = length - len(out)
    if missing > 0:
        out[-1] |= 0x80
        out += b"\x80" * (missing - 1) + b"\0"
    return bytes(out)


def resealed(payload: bytes, record_count: int, base_offset: int = 0) -> bytes:
    return bytes(
        seal_batch(
            payload,
            base_offset=base_offset,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=max(record_count - 1, 0),
            base_timestamp=TIME,
            max_timestamp=TIME,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=record_count,
        )
    )


@settings(patient, max_examples=50)
@given(lengths=st.lists(st.tuples(*[st.integers(1, 10)] * 8), min_size=1, max_size=5))
def test_varints_of_every_length_are_read(lengths: list[tuple[int, ...]]) -> None:
    payload = b""
    for offset, (size, *fields) in enumerate(lengths):
        body = b"\0" + padded_varint(3, fields[0]) + padded_varint(offset, fields[1])
        body += padded_varint(2, fields[2]) + b"ke" + padded_varint(-1, fields[3])
        body += padded_varint(1, fields[4]) + padded_varint(1, fields[5]) + b"h" + padded_varint(0, fields[6])
        payload += padded_varint(len(body), size) + body
    log = resealed(payload, len(lengths))
    decoded = rows_of(decode_fetched(log, 0, ALL, with_headers=True))
    assert decoded == [(b"ke", None, offset, TIME + 3, 0, [("h", b"")]) for offset in range(len(lengths))]
    assert decoded == expected_rows(log, 0, ALL, None, with_headers=True)


@pytest.mark.parametrize("codec", list(Compression))
def test_large_records_between_small_ones_are_read_and_written(codec: Compression) -> None:
    """Sizes in four bytes, offsets in two, times that descend."""
    values = [bytes([index]) * (2_000_000 if index % 40 == 0 else index) for index in range(90)]
    times = pa.array([TIME - 1000 * index for index in range(90)])
    (batch,) = encode_batches(pa.array(values[::-1]), pa.array(values), timestamp=times, bytes_max=1 << 24)
    records = [
        Record(index, TIME - 1000 * index, key, value)
        for index, (key, value) in enumerate(zip(values[::-1], values, strict=True))
    ]
    assert batch == build_batch(records)
    decoded = rows_of(decode_fetched(build_batch(records, compression=codec), 0, ALL))
    assert decoded == [(key, value, offset, time, 0) for offset, time, key, value, _ in records]


@settings(patient, max_examples=30)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from([0, 1, 50, 56, 57, 58, 8180, 8190]), st.integers(1, 150)), min_size=1, max_size=6
    ),
    is_inside=st.booleans(),
)
def test_runs_of_records_of_one_size_are_found_among_others(runs: list[tuple[int, int]], is_inside: bool) -> None:
    values = [bytes(size) for size, count in runs for _ in range(count)]
    log = bytes(build_batch([Record(offset, TIME, None, value) for offset, value in enumerate(values)]))
    buffer = memoryview(b"\x71" * 9 + log + b"\x71" * 9)[9:-9] if is_inside else log
    assert rows_of(decode_fetched(buffer, 0, ALL)) == expected_rows(log, 0, ALL, None, with_headers=False)


# -- damage ------------------------------------------------------------------------------------------------------------


def fits_int64(rows: list[tuple[Any, ...]]) -> bool:
    return all(-(2**63) <= number < 2**63 for row in rows for number in row[2:4])


@settings(patient, max_examples=150)
@given(data=st.data())
def test_damaged_records_are_refused_or_read_as_the_plain_loop_reads_them(data: st.DataObject) -> None:
    records = [
        Record(offset, TIME + offset, data.draw(optional_bytes), data.draw(st.binary(max_size=9)), [Header("n", b"v")])
        for offset in range(data.draw(st.integers(1, 5)))
    ]
    payload = bytearray(build_batch(records)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(payload) - 1) | st.integers(0, min(20, len(payload) - 1)))
        payload[position] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    count = data.draw(st.sampled_from([len(records), len(records) + 1, 0, -1, 2**31 - 1]))
    log = resealed(bytes(payload[:cut]), count)
    try:
        expected = expected_rows(log, -(2**63), 2**63 - 1, None, with_headers=True)
    except CorruptBatchError:
        expected = None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vectors, "RUN_ROWS_MIN", data.draw(st.sampled_from([1, 2, 100])))
            patch.setattr(vectors, "LOOP_ROWS_MIN", 1)
            decoded = rows_of(decode_fetched(log, -(2**63), 2**63 - 1, with_headers=True))
    except CorruptBatchError:
        assert expected is None or not fits_int64(expected) or count < 0
    else:
        assert expected is not None
        assert decoded == expected or not fits_int64(expected)


@settings(patient, max_examples=150)
@given(payload=st.binary(max_size=200), count=st.integers(-1, 30), codec=st.integers(0, 7), headers=st.booleans())
@example(payload=b"\x0c\0\0\0\1\1\x80", count=1, codec=0, headers=False)
def test_garbage_is_refused_and_nothing_else_happens(payload: bytes, count: int, codec: int, headers: bool) -> None:
    log = bytearray(resealed(payload, count))
    log[22] = codec
    log[17:21] = crc32c(log[21:]).to_bytes(4, "big")
    try:
        rows_of(decode_fetched(bytes(log), 0, ALL, with_headers=headers))
    except CorruptBatchError:
        pass


@patient
@given(garbage=st.binary(max_size=300))
def test_bytes_that_are_no_log_are_refused_or_empty(garbage: bytes) -> None:
    try:
        assert rows_of(decode_fetched(garbage, 0, ALL)) == []
    except CorruptBatchError:
        pass


def test_a_wrong_checksum_is_refused() -> None:
    log = build_batch([Record(0, TIME, b"k", b"value")])
    log[-3] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(decode_fetched(log, 0, ALL))


HUGE = padded_varint(2**31 - 1, 5)
# Records that do not parse: their bytes, how many they are said to be, and what is said of them.
BROKEN = {
    "too many records": (b"\x0c\0\0\0\1\1\0", 2**31 - 1, "claims 2147483647 records"),
    "fewer than no records": (b"\x0c\0\0\0\1\1\0", -1, "claims -1 records"),
    "bytes after the last": (b"\x0c\0\0\0\1\1\0" * 2, 1, "7 bytes follow"),
    "a record longer than its batch": (HUGE + b"\0\0\0\1\1\0", 1, "more than their batch has"),
    "a record longer than any number": (b"\xfe" + b"\xff" * 8 + b"\x7f\0\0\0\1\1\0", 1, "do not parse"),
    "a record of negative size": (b"\x0d\0\0\0\1\1\0", 1, "negative size"),
    "a record of large negative size": (b"\x81\x80\x01\0\0\0\1\1\0", 1, "record claims -8193 bytes"),
    "a size without its end": (b"\x0c\0\0\0\1\1\0" + b"\xff" * 7, 2, "do not parse"),
    "a time of more than 64 bits": (b"\x1e\0" + b"\x80" * 9 + b"\x02\0\1\1\0", 1, "64 bits"),
    "a key longer than its record": (b"\x16\0\0\0" + HUGE + b"\1\0\0", 1, "key is longer"),
    "a value longer than its record": (b"\x0c\0\0\0\1\x04\0" + b"\x0c\0\0\0\1\1\0", 2, "value is longer"),
    "a record without an end": (b"\x08\0\0\0\1", 1, "claims 1 records"),
    "bytes after the headers": (b"\x0e\0\0\0\1\1\0\0", 1, "headers do not end"),
    "more headers than bytes": (b"\x14\0\0\0\1\1" + HUGE, 1, "headers do not end"),
    "headers without bytes": (b"\x0c\0\0\0\1\1\6", 1, "headers do not end"),
}
BROKEN_HEADERS = {
    "a name longer than its record": (b"\x18\0\0\0\1\1\2" + HUGE + b"\0", 1, "header name is longer"),
    "a value longer than its record": (b"\x10\0\0\0\1\1\2\0\2", 1, "header value is longer"),
    "no name": (b"\x10\0\0\0\1\1\2\1\1", 1, "without a name"),
    "a name that is no text": (b"\x12\0\0\0\1\1\2\2\xff\1", 1, "do not parse"),
    "bytes after the last": (b"\x12\0\0\0\1\1\2\0\1\0", 1, "headers do not end"),
    "too many": (
        padded_varint(200_010, 3) + b"\0\0\0\1\1" + padded_varint(100_001, 3) + b"\0\1" * 100_001,
        1,
        "claims 100001 headers",
    ),
}


@pytest.mark.parametrize("with_headers", [False, True], ids=["without headers", "with headers"])
@pytest.mark.parametrize("case", BROKEN)
def test_broken_records_are_refused_before_anything_is_allocated(case: str, with_headers: bool) -> None:
    refuse(*BROKEN[case], with_headers=with_headers)


@pytest.mark.parametrize("case", BROKEN_HEADERS)
def test_broken_headers_are_refused_when_asked_for_and_else_passed_over(case: str) -> None:
    payload, count, message = BROKEN_HEADERS[case]
    refuse(payload, count, message, with_headers=True)
    assert len(rows_of(decode_fetched(resealed(payload, count), 0, ALL))) == count


def refuse(payload: bytes, count: int, message: str, *, with_headers: bool) -> None:
    log = resealed(payload, count)
    whole = build_batch([Record(0, TIME, b"", b"", [Header("", b"")])])
    list(decode_fetched(whole, 0, ALL, with_headers=with_headers))  # numpy and Arrow load parts of themselves late
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match=message):
            list(decode_fetched(log, 0, ALL, with_headers=with_headers))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_batch_inflates_to_no_more_than_the_cap(codec: Compression) -> None:
    log = build_batch([Record(0, TIME, None, bytes(1 << 20))], compression=codec)
    assert len(rows_of(decode_fetched(log, 0, ALL, bytes_max=2 << 20))) == 1
    with pytest.raises(CorruptBatchError, match="inflates to more"):
        list(decode_fetched(log, 0, ALL, bytes_max=1 << 16))


# -- encode ------------------------------------------------------------------------------------------------------------

BYTES_TYPES = [pa.binary(), pa.large_binary()]
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers_column(records: list[Record]) -> pa.Array:
    rows = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    return pa.array(rows, HEADERS_TYPE)


@patient
@given(
    records=st.lists(st.builds(Record, st.just(0), times, optional_bytes, optional_bytes, header_lists), max_size=30),
    key_type=st.sampled_from(BYTES_TYPES),
    value_type=st.sampled_from(BYTES_TYPES),
    codec=st.sampled_from(list(Compression)),
    bytes_max=st.sampled_from([62, 100, 300, 20_000, 1 << 20]),
    transactional=st.booleans(),
    base_sequence=st.sampled_from([0, 5, SEQUENCE_MAX - 3]),
    sliced=st.booleans(),
)
def test_encoded_batches_are_those_of_the_plain_builder(
    records: list[Record],
    key_type: pa.DataType,
    value_type: pa.DataType,
    codec: Compression,
    bytes_max: int,
    transactional: bool,
    base_sequence: int,
    sliced: bool,
) -> None:
    """Byte for byte, compression included; each batch as full as it can be."""
    columns = [
        pa.array([record.key for record in records], key_type),
        pa.array([record.value for record in records], value_type),
        pa.array([record.timestamp for record in records], pa.int64()),
        headers_column(records),
    ]
    if sliced:
        columns = [column[len(records) // 3 :] for column in columns]
        records = records[len(records) // 3 :]
    key, value, timestamp, headers = columns
    producer = {"producer_id": 9, "producer_epoch": 2, "transactional": transactional, "compression": codec}
    batches = encode_batches(
        key, value, timestamp=timestamp, headers=headers, bytes_max=bytes_max, base_sequence=base_sequence, **producer
    )
    start = 0
    for batch in batches:
        header = read_header(batch)
        assert crc_is_valid(batch, header)
        stop = start + header.record_count

        def plain(stop: int, start: int = start, sequence: int = base_sequence, **changes: Any) -> bytearray:
            rows = [record._replace(offset=index) for index, record in enumerate(records[start:stop])]
            return build_batch(rows, base_sequence=sequence, **{**producer, **changes})

        assert batch == plain(stop)
        assert len(plain(stop, compression=Compression.NONE)) <= bytes_max or header.record_count == 1
        assert stop == len(records) or len(plain(stop + 1, compression=Compression.NONE)) > bytes_max
        base_sequence = add_to_sequence(base_sequence, header.record_count)
        start = stop
    assert start == len(records)


@patient
@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 2**14 - 1, 2**14]), min_size=1),
)
def test_varints_are_encoded_as_the_plain_writer_does(numbers: list[int]) -> None:
    from moldau.protocol.columnar.encode import _varint_sizes, _varints

    expected = []
    for number in numbers:
        out = bytearray()
        write_varint(out, number)
        expected.append(bytes(out))
    column = _varints(np.array(numbers, np.int64))
    assert (column if isinstance(column, bytes) else column.to_pylist()) == (
        expected[0] if isinstance(column, bytes) else expected
    )
    assert _varint_sizes(np.array(numbers, np.int64)).tolist() == [len(varint) for varint in expected]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ü"], pa.string()),
        pa.array(["a", None, "ü"], pa.large_string()),
        pa.array(["a", None, "ü"]).dictionary_encode(),
        pa.chunked_array([["a"], [None, "ü"]]),
        pa.array(["a", None, "ü"], pa.string_view()),
    ],
    ids=lambda column: str(column.type),
)
def test_strings_of_every_kind_are_values(column: Any) -> None:
    (batch,) = encode_batches(None, column, timestamp=TIME, bytes_max=1000)
    expected = [b"a", None, "ü".encode()]
    assert [(record.key, record.value, record.timestamp) for record in iterate_records(batch)] == [
        (None, value, TIME) for value in expected
    ]


def test_rows_that_are_all_alike_are_records_too() -> None:
    (batch,) = encode_batches(None, pa.nulls(1), timestamp=TIME, bytes_max=1000)
    assert list(iterate_records(batch)) == [Record(0, TIME, None, None, [])]
    assert list(encode_batches(None, pa.array([], pa.binary()), timestamp=TIME, bytes_max=1000)) == []


def test_arrow_timestamps_become_milliseconds() -> None:
    times_us = pa.array([TIME * 1000 + 999, TIME * 1000 - 1], pa.timestamp("us", tz="UTC"))
    (batch,) = encode_batches(None, pa.array([b"a", b"b"]), timestamp=times_us, bytes_max=1000)
    assert [record.timestamp for record in iterate_records(batch)] == [TIME, TIME - 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.array([1, 2])}, "int64 is neither binary nor strings"),
        ({"value": None}, "neither a key nor a value"),
        ({"value": pa.array([b"a"]), "key": pa.array([b"a", b"b"])}, "different lengths"),
        ({"value": pa.array([b"a"]), "timestamp": pa.array([None], pa.int64())}, "timestamp is null"),
        ({"value": pa.array([b"a"]), "bytes_max": 61}, "a batch of 61 bytes"),
        ({"value": pa.array([b"a"]), "headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)}, "no key"),
        ({"value": pa.array([b"a"]), "headers": pa.array([[{"key": "a"}]])}, "no struct<key"),
        ({"value": pa.array([b"a"]), "headers": pa.array([["a"]])}, "no struct<key"),
    ],
)
def test_columns_that_are_no_records_are_refused(columns: dict[str, Any], message: str) -> None:
    given = {"key": None, "timestamp": TIME, "bytes_max": 1000, **columns}
    with pytest.raises(ValueError, match=message):
        list(encode_batches(**given))


# -- an extra ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["moldau.broker", "moldau.client", "moldau.cli", "moldau.testing"])
def test_nobody_loads_numpy_or_arrow_unasked(module: str) -> None:
    check = f"import sys, {module}; print([name for name in ('numpy', 'pyarrow') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
