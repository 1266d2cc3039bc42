"""Which segments a log gives up, on a simulated disk; the rules beside a model of ten lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.batches import Record, build_batch
from moldau.storage import LogConfig, PartitionLog
from moldau.testing.disk import SimulatedDisk
from tests.storage.kit import new_disk

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def open_log(disk: SimulatedDisk, **config: Any) -> PartitionLog:
    defaults: dict[str, Any] = {"message_timestamp_after_max_ms": 2**62, "segment_ms": 2**62}
    disk.now_ms = NOW_MS
    return PartitionLog.open(disk, "data/t-0", LogConfig(**defaults | config), now_ms=NOW_MS)


def segment_of(log: PartitionLog, timestamp_ms: int, payload_bytes: int = 10) -> None:
    """One more segment, which the next one closes."""
    log.roll(NOW_MS)
    log.append_as_leader(build_batch([Record(0, timestamp_ms, b"k", b"v" * payload_bytes)]), 0, NOW_MS)


def starts(log: PartitionLog, high_watermark: int | None = None, now_ms: int = NOW_MS) -> list[tuple[int, str]]:
    limit = log.end_offset if high_watermark is None else high_watermark
    return [(found.end_offset, found.reason) for found in log.outlived(limit, now_ms)]


def test_segments_go_whose_newest_record_is_too_old_and_those_behind_a_younger_one_stay() -> None:
    log = open_log(new_disk(), retention_ms=HOUR_MS)
    for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, 2 * HOUR_MS):
        segment_of(log, NOW_MS - age_ms)
    assert starts(log) == [(1, "time"), (2, "time")]


def test_a_record_is_kept_for_exactly_its_retention() -> None:
    log = open_log(new_disk(), retention_ms=HOUR_MS)
    segment_of(log, NOW_MS - HOUR_MS)
    assert starts(log) == []
    assert starts(log, now_ms=NOW_MS + 1) == [(1, "time")]


def test_as_much_goes_as_the_log_is_too_large_and_never_more() -> None:
    log = open_log(new_disk(), retention_ms=-1)
    for _ in range(4):
        segment_of(log, NOW_MS)
    one = log.size_bytes // 4
    for retention_bytes, gone in ((0, 4), (one - 1, 3), (one, 3), (one + 1, 2), (3 * one, 1), (4 * one, 0), (-1, 0)):
        log.apply_config(LogConfig(retention_ms=-1, retention_bytes=retention_bytes))
        assert len(starts(log)) == gone, retention_bytes


def test_nothing_above_the_high_watermark_goes() -> None:
    log = open_log(new_disk(), retention_ms=0)
    for _ in range(3):
        segment_of(log, NOW_MS - 10)
    assert [start for start, _ in starts(log, high_watermark=2)] == [1, 2]


def test_a_topic_that_only_compacts_keeps_everything() -> None:
    log = open_log(new_disk(), retention_ms=0, retention_bytes=0, compact=True, delete=False)
    segment_of(log, 0)
    assert starts(log) == []


def test_a_record_from_the_future_delays_its_segment_by_one_retention_and_no_more() -> None:
    disk = new_disk()
    log = open_log(disk, retention_ms=HOUR_MS)
    segment_of(log, NOW_MS + 1000 * 365 * 24 * HOUR_MS)
    segment_of(log, NOW_MS - 2 * HOUR_MS)
    assert starts(log, now_ms=NOW_MS + HOUR_MS) == []
    assert starts(log, now_ms=NOW_MS + HOUR_MS + 1) == [(1, "time"), (2, "time")]


def test_records_without_a_time_are_as_old_as_their_file() -> None:
    disk = new_disk()
    log = open_log(disk, retention_ms=HOUR_MS)
    segment_of(log, -1)
    assert starts(log, now_ms=NOW_MS + HOUR_MS) == []
    assert starts(log, now_ms=NOW_MS + HOUR_MS + 1) == [(1, "time")]


def test_an_active_segment_of_which_nothing_is_left_goes_and_the_next_offset_stays() -> None:
    disk = new_disk()
    log = open_log(disk, retention_ms=0)
    segment_of(log, NOW_MS - 10)
    ((end, _),) = starts(log)
    log.give_up_before(end, NOW_MS)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (1, 1, 0)
    reopened = PartitionLog.open(disk, "data/t-0", LogConfig(), now_ms=NOW_MS, start_offset=1)
    assert (reopened.start_offset, reopened.end_offset) == (1, 1)
    assert starts(reopened) == []


def test_looking_at_many_segments_leaves_none_of_them_open() -> None:
    disk = new_disk()
    log = open_log(disk, retention_ms=-1)
    for _ in range(20):
        segment_of(log, NOW_MS - HOUR_MS)
    log.close(clean=True, now_ms=NOW_MS)
    reopened = PartitionLog.open(disk, "data/t-0", LogConfig(retention_ms=0), now_ms=NOW_MS, clean=True)
    assert len(starts(reopened)) == 20
    assert sum(segment.file is not None for segment in reopened._segments.all[:-1]) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), min_size=1, max_size=12),
    st.integers(-1, 5),
    st.one_of(st.just(-1), st.integers(0, 3000)),
    st.integers(0, 12),
)
def test_retention_is_what_a_model_of_it_says(
    batches: list[tuple[int, int]], retention_hours: int, retention_bytes: int, high_watermark: int
) -> None:
    log = open_log(new_disk(), retention_ms=retention_hours * HOUR_MS, retention_bytes=retention_bytes)
    if retention_hours < 0:
        log.apply_config(LogConfig(retention_ms=-1, retention_bytes=retention_bytes))
    for age_hours, payload_bytes in batches:
        segment_of(log, NOW_MS - age_hours * HOUR_MS, payload_bytes)
    sizes = [segment.size for segment in log._segments.all]
    kept = list(zip(batches, sizes, strict=True))
    gone = 0
    while kept and gone < high_watermark:
        (age_hours, _), _ = kept[0]
        is_old = 0 <= retention_hours < age_hours
        is_too_much = retention_bytes >= 0 and sum(size for _, size in kept[1:]) >= retention_bytes
        if not is_old and not is_too_much:
            break
        kept.pop(0)
        gone += 1
    assert [start for start, _ in starts(log, high_watermark=high_watermark)] == list(range(1, gone + 1))


@pytest.mark.parametrize("reason", ("time", "size"))
def test_the_reason_is_told(reason: str) -> None:
    log = open_log(new_disk(), retention_ms=HOUR_MS if reason == "time" else -1, retention_bytes=0)
    segment_of(log, NOW_MS - 2 * HOUR_MS)
    assert starts(log) == [(1, reason)]
