"""When a segment ends, what is written then, and how old ones go."""

from __future__ import annotations

import pytest

from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import LogConfig
from moldau.storage.rolling import roll_after_ms
from tests.storage.kit import DIRECTORY, NOW_MS, append, batch, content, fill, flush, new_disk, offsets, open_log

SIZE = len(batch())


def test_a_segment_never_grows_beyond_its_bytes_and_is_filled_up_to_them() -> None:
    log = open_log(new_disk(), segment_bytes=3 * SIZE)
    fill(log, 7)
    assert log.segment_base_offsets == [0, 3, 6]


def test_a_segment_rolls_by_the_age_of_its_first_batch_in_the_batches_own_time() -> None:
    log = open_log(new_disk(), segment_ms=1000)
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + 1000)
    append(log, timestamp=NOW_MS - 5000)
    assert log.segment_base_offsets == [0]
    append(log, timestamp=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 3]


def test_batches_without_a_time_age_by_the_clock() -> None:
    log = open_log(new_disk(), segment_ms=1000)
    append(log, timestamp=-1, now_ms=NOW_MS)
    append(log, timestamp=-1, now_ms=NOW_MS + 1000)
    assert log.segment_base_offsets == [0]
    append(log, timestamp=-1, now_ms=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 2]


def test_age_counts_over_a_restart() -> None:
    disk = new_disk()
    log = open_log(disk, segment_ms=1000)
    append(log)
    log.close(clean=True, now_ms=NOW_MS)
    log = open_log(disk, segment_ms=1000, clean=True, recovery_point=1)
    append(log, timestamp=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 1]


def test_jitter_shortens_the_time_by_a_fixed_amount_per_segment() -> None:
    log = open_log(new_disk())
    segment = log._segments.active
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400)
    waits = {roll_after_ms(segment, config) for _ in range(5)}
    assert len(waits) == 1 and 600 < waits.pop() <= 1000


def test_a_segment_rolls_when_its_indexes_are_full() -> None:
    # Room for five entries of the time index, one of which is kept for the roll.
    log = open_log(new_disk(), index_interval_bytes=0, segment_index_bytes=60)
    for offset in range(12):
        append(log, timestamp=NOW_MS + offset)
    # The first batch makes no entry.
    assert log.segment_base_offsets == [0, 5, 10]


def test_a_segment_rolls_before_offsets_leave_four_bytes() -> None:
    leader, log = open_log(new_disk()), open_log(new_disk(1))
    append(leader)
    leader.truncate_fully_and_start_at(2**31 - 1)
    append(leader)
    append(leader)
    append(log)
    log.append_as_follower(content(leader))
    assert log.segment_base_offsets == [0, 2**31]
    assert log.end_offset == 2**31 + 1


def test_roll_writes_indexes_and_the_producers_and_keeps_two_snapshots() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=3 * SIZE, index_interval_bytes=0)
    fill(log, 13)
    flush(log)
    fill(log, 3)
    names = disk.list(DIRECTORY)
    assert disk.size(f"{DIRECTORY}/{0:020d}.index") == 2 * 8
    assert disk.size(f"{DIRECTORY}/{0:020d}.timeindex") == 12
    assert [name for name in names if name.endswith(".snapshot")] == [f"{o:020d}.snapshot" for o in (12, 15)]


def test_rolling_an_empty_segment_does_nothing() -> None:
    log = open_log(new_disk())
    log.roll(NOW_MS)
    append(log)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert log.segment_base_offsets == [0, 1]


def test_trap_22_deleted_segments_are_renamed_at_once_and_removed_after_the_delay() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=2 * SIZE, file_delete_delay_ms=1000)
    fill(log, 7)
    log.delete_records_before(5)
    assert (log.start_offset, log.segment_base_offsets, offsets(log)) == (5, [4, 6], [(5, 5), (6, 6)])
    assert disk.exists(f"{DIRECTORY}/{0:020d}.log.deleted")
    assert log.take_deletions(NOW_MS) == []
    assert log.take_deletions(NOW_MS + 999) == []
    due = log.take_deletions(NOW_MS + 1000)
    assert {path.rsplit("/", 1)[1] for path in due} == {
        f"{base:020d}{suffix}.deleted" for base in (0, 2) for suffix in (".log", ".index", ".timeindex")
    }
    assert log.take_deletions(NOW_MS + 5000) == []
    with pytest.raises(KafkaError) as refusal:
        log.delete_records_before(8)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(2)
    assert log.start_offset == 5


@pytest.mark.parametrize("clean", [True, False])
def test_trap_22_offsets_are_never_given_twice_after_everything_was_trimmed(clean: bool) -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=2 * SIZE, file_delete_delay_ms=0)
    fill(log, 6)
    log.roll(NOW_MS)
    log.delete_records_before(6)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (6, 6, 0)
    assert log.take_deletions(NOW_MS) != []
    log.close(clean=clean, now_ms=NOW_MS)
    log = open_log(disk, clean=clean, start_offset=0, recovery_point=0)
    assert (log.start_offset, log.end_offset) == (6, 6)
    assert append(log) == 6


def test_truncation_cuts_the_batch_that_holds_the_offset_and_what_it_knew() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=3 * SIZE, index_interval_bytes=0)
    for offset in range(8):
        append(log, epoch=offset // 2, timestamp=NOW_MS + offset)
    log.truncate_to(4)
    assert (log.end_offset, log.segment_base_offsets) == (4, [0, 3])
    assert log.epochs.entries == [(0, 0), (1, 2)]
    assert log.offset_for_timestamp(NOW_MS + 4) is None
    assert log.max_timestamp() == (3, NOW_MS + 3)
    assert append(log, epoch=9, timestamp=NOW_MS + 2) == 4
    assert log.epochs.entries == [(0, 0), (1, 2), (9, 4)]
    log = open_log(disk.kill())
    assert (log.end_offset, log.epochs.entries) == (5, [(0, 0), (1, 2), (9, 4)])


def test_truncation_forgets_what_producers_wrote_after_it() -> None:
    log = open_log(new_disk(), segment_bytes=3 * SIZE)
    for sequence in range(8):
        log.append_as_leader(batch(producer_id=1, producer_epoch=0, base_sequence=sequence), 0, NOW_MS)
    log.truncate_to(5)
    state = log.producers.get(1)
    assert state is not None and (state.last_sequence, state.last_offset) == (4, 4)


def test_full_truncation_goes_on_at_the_given_offset_also_after_a_restart() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=2 * SIZE)
    fill(log, 5)
    log.truncate_fully_and_start_at(100)
    assert (log.start_offset, log.end_offset, log.recovery_point, log.epochs.entries) == (100, 100, 100, [])
    assert append(log) == 100
    log = open_log(disk.kill())
    assert (log.start_offset, log.end_offset) == (100, 101)
    log.truncate_to(50)
    assert (log.start_offset, log.end_offset) == (50, 50)


def test_flush_is_due_by_messages_by_time_and_after_a_roll() -> None:
    log = open_log(new_disk(), flush_messages=3)
    append(log, 2)
    assert not log.flush_is_due(NOW_MS)
    append(log)
    assert log.flush_is_due(NOW_MS)
    flush(log)
    assert not log.flush_is_due(NOW_MS)
    log = open_log(new_disk(), flush_ms=100)
    assert not log.flush_is_due(NOW_MS + 10**6)
    append(log)
    assert not log.flush_is_due(NOW_MS)
    assert log.flush_is_due(NOW_MS + 100)
    log = open_log(new_disk())
    append(log)
    assert not log.flush_is_due(NOW_MS + 10**9)
    log.roll(NOW_MS)
    assert log.flush_is_due(NOW_MS)
