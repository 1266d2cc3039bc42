"""Record batches: round trips, what the checksum covers, damage of every kind, and other libraries as oracles."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol import (
    HEADER_BYTES,
    Compression,
    CorruptBatchError,
    Header,
    Record,
    add_to_sequence,
    build_batch,
    crc_is_valid,
    iterate_batches,
    iterate_records,
    read_header,
)
from moldau.protocol.batches import (
    SEQUENCE_MAX,
    build_plain_batch,
    control_key,
    control_kind,
    keys_and_values,
    read_varint,
    set_log_append_time,
    set_offset_and_epoch,
    write_varint,
)

TIME = 1_700_000_000_000
optional_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.builds(Header, st.text(max_size=8), optional_bytes), max_size=3)
record_lists = st.lists(
    st.builds(Record, st.just(0), st.integers(TIME, TIME + 10**6), optional_bytes, optional_bytes, headers),
    min_size=1,
    max_size=20,
).map(lambda records: [record._replace(offset=100 + index) for index, record in enumerate(records)])


@given(records=record_lists, codec=st.sampled_from(list(Compression)))
def test_what_is_built_is_read_back(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, compression=codec, producer_id=7, producer_epoch=3, base_sequence=9)
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_is_valid(batch, header)
    assert header.compression is codec
    assert (header.base_offset, header.last_offset) == (100, 99 + len(records))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 9)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(iterate_records(batch)) == records


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(optional_bytes, st.none() | st.binary(max_size=300)), min_size=1, max_size=100),
    codec=st.sampled_from(list(Compression)),
)
def test_a_plain_batch_has_the_bytes_of_any_other(
    pairs: list[tuple[bytes | None, bytes | None]], codec: Compression
) -> None:
    records = [Record(index, TIME, key, value) for index, (key, value) in enumerate(pairs)]
    assert build_plain_batch(pairs, TIME, codec) == build_batch(records, compression=codec)


@given(records=record_lists, codec=st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_another_library_reads_what_we_build(records: list[Record], codec: Compression) -> None:
    theirs = DefaultRecordBatch(bytes(build_batch(records, compression=codec)))
    assert theirs.validate_crc()
    read = [
        (each.offset, each.timestamp, each.key, each.value, [tuple(pair) for pair in each.headers]) for each in theirs
    ]
    assert read == [
        (record.offset, record.timestamp, record.key, record.value, [tuple(pair) for pair in record.headers])
        for record in records
    ]


@given(records=record_lists, codec=st.sampled_from(list(Compression)))
def test_the_short_way_reads_the_same(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, compression=codec)
    assert list(keys_and_values(batch)) == [(record.key, record.value) for record in records]


def test_the_short_way_is_not_led_astray_by_damage() -> None:
    batch = build_batch([Record(0, TIME, b"k" * 70, b"v" * 200), Record(1, TIME, None, b"w")])
    for place in range(HEADER_BYTES, len(batch)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[place] = value
            try:
                found = list(keys_and_values(damaged))
            except CorruptBatchError:
                continue
            assert all(len(key or b"") + len(value or b"") <= len(batch) for key, value in found)


def test_offset_and_epoch_are_outside_the_checksum() -> None:
    """Trap 14."""
    batch = build_batch([Record(0, TIME, None, b"x")])
    set_offset_and_epoch(batch, 12345, 6)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (12345, 6)
    assert crc_is_valid(batch, header)


def test_the_brokers_time_needs_a_new_checksum() -> None:
    """Trap 14."""
    batch = build_batch([Record(0, TIME, None, b"x"), Record(1, TIME + 5, None, b"y")])
    set_log_append_time(batch, TIME + 99)
    header = read_header(batch)
    assert crc_is_valid(batch, header)
    assert header.is_log_append_time
    assert [record.timestamp for record in iterate_records(batch)] == [TIME + 99, TIME + 99]


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [(0, 5, 5), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX - 1, 3, 1), (-1, 4, -1)],
)
def test_sequences_wrap(sequence: int, increment: int, expected: int) -> None:
    assert add_to_sequence(sequence, increment) == expected


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varint(bytes(out), 0) == (number, len(out))
    assert len(out) <= 10


def test_a_varint_that_never_ends_is_refused() -> None:
    with pytest.raises(CorruptBatchError):
        read_varint(b"\xff" * 20, 0)


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    batch = bytes(build_batch([Record(0, TIME, None, b"x" * 50)]))
    for cut in range(len(batch)):
        assert len(list(iterate_batches(batch + batch[:cut]))) == 1


def test_a_length_that_cannot_be_is_refused() -> None:
    batch = build_batch([Record(0, TIME, None, b"x")])
    for length in (-1, 0, HEADER_BYTES - 13):
        struct.pack_into(">i", batch, 8, length)
        with pytest.raises(CorruptBatchError):
            list(iterate_batches(batch))


def test_control_records_have_their_kind() -> None:
    assert control_kind(control_key(2)) == 2
    for key in (None, b"", b"\x00\x00"):
        with pytest.raises(CorruptBatchError):
            control_kind(key)


def test_damaged_records_raise_only_their_own_error_and_take_bounded_memory() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    whole = [
        bytes(
            build_batch(
                [Record(i, TIME, b"k%d" % i, bytes(30), [Header("h", b"v")]) for i in range(5)], compression=codec
            )
        )
        for codec in Compression
    ]
    tracemalloc.start()
    try:
        for _ in range(4000):
            batch = bytearray(dice.choice(whole))
            for _ in range(dice.randrange(1, 4)):
                batch[dice.randrange(HEADER_BYTES, len(batch))] = dice.randrange(256)
            if dice.random() < 0.3:
                struct.pack_into(">i", batch, 57, dice.choice([-1, 0, 2**31 - 1, 1000]))
            try:
                list(iterate_records(batch))
            except CorruptBatchError:
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
