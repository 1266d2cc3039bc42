"""The cleaner's two ways of reading records: one by one, and with numpy all at once. They find the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.batches import CorruptBatchError, Header, Record, build_batch, read_header
from moldau.protocol.compression import Compression
from moldau.storage.cleaning import fields
from moldau.storage.cleaning.fields import read_fields
from moldau.storage.cleaning.located import locate, plain_records
from tests.storage.cleaning_kit import clean_log, stored
from tests.storage.kit import new_disk
from tests.storage.test_cleaning import NOW_MS, open_log

record = st.tuples(
    st.one_of(st.none(), st.binary(max_size=200)),
    st.one_of(st.none(), st.binary(max_size=300)),
    st.integers(0, 2**40),
    st.booleans(),
)


def records_of(parts: list[tuple[bytes | None, bytes | None, int, bool]]) -> list[Record]:
    return [
        Record(index, NOW_MS + time, key, value, (Header("h", b"v"),) if has_header else ())
        for index, (key, value, time, has_header) in enumerate(parts)
    ]


@given(st.lists(record, min_size=1, max_size=80), st.integers(1, 4))
def test_both_ways_find_the_same_records(parts: list[tuple[bytes | None, bytes | None, int, bool]], step: int) -> None:
    # Places left out are what an earlier cleaning left.
    batch = build_batch(records_of(parts)[::step], base_offset=0)
    header = read_header(batch)
    data = plain_records(header, batch)
    found = read_fields(data, header.record_count)
    assert list(found.located()) == list(locate(data, header.record_count))
    assert found.is_dense == (found.deltas == list(range(header.record_count)))
    assert found.at([0, header.record_count - 1]) == [next(iter(found.located())), list(found.located())[-1]]


@given(st.binary(max_size=120), st.integers(1, 20))
def test_any_bytes_are_records_or_refused(data: bytes, count: int) -> None:
    try:
        found = list(read_fields(data, count).located())
    except CorruptBatchError:
        return
    assert len(found) == count and found[-1].end <= len(data)


@pytest.mark.parametrize("codec", (Compression.NONE, Compression.ZSTD))
def test_a_log_is_cleaned_to_the_same_bytes_both_ways(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    for job_bytes_min in (0, 1 << 40):
        monkeypatch.setattr(fields, "JOB_BYTES_MIN", job_bytes_min)
        dice, disk = random.Random(7), new_disk()
        log = open_log(disk, segment_bytes=1 << 16)
        cleaned_to = None
        for _ in range(4):
            for _ in range(8):
                parts = [
                    (b"k%d" % dice.randrange(900), dice.choice((None, b"v" * dice.randrange(90))), index, False)
                    for index in range(300)
                ]
                log.append_as_leader(build_batch(records_of(parts), compression=codec), 0, NOW_MS)
            log.roll(NOW_MS)
            cleaned_to = clean_log(log, disk, cleaned_to, NOW_MS)
        files = [(name, disk.read_file(f"data/t-0/{name}")) for name in sorted(disk.list("data/t-0"))]
        left.append((files, [(each.offset, each.key, each.value) for each in stored(log)]))
    assert left[0] == left[1]
    assert len(left[0][1]) < 2 * 900
