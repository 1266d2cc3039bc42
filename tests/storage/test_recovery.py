"""Opening after a crash or by someone else's hand: damage is found, cut or repaired, and told."""

from __future__ import annotations

import pytest

from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import PartitionLog, ProducerStates
from moldau.testing.disk import UNLIMITED_BYTES, SimulatedDisk
from tests.storage.kit import DIRECTORY, NOW_MS, append, batch, content, fill, flush, idempotent, new_disk, open_log

SIZE = len(batch())
LOG_0 = f"{DIRECTORY}/{0:020d}.log"


def filled(disk: SimulatedDisk, batches: int = 10, per_segment: int = 4) -> PartitionLog:
    log = open_log(disk, segment_bytes=per_segment * SIZE, index_interval_bytes=0)
    for offset in range(batches):
        append(log, timestamp=NOW_MS + offset, epoch=offset // 3)
    return log


def test_after_a_kill_everything_written_is_there() -> None:
    disk = new_disk()
    log = filled(disk)
    said: list[str] = []
    again = open_log(disk.kill(), say=said.append)
    assert (content(again), again.epochs, said) == (content(log), log.epochs, [])


@pytest.mark.parametrize("kept", range(0, SIZE, 7))
def test_a_torn_tail_is_cut_at_the_last_whole_batch_and_told(kept: int) -> None:
    disk = new_disk()
    log = filled(disk, 3)
    whole = content(log)
    disk.open(LOG_0).truncate(2 * SIZE + kept)
    said: list[str] = []
    log = open_log(disk, say=said.append)
    assert (log.end_offset, content(log), disk.size(LOG_0)) == (2, whole[: 2 * SIZE], 2 * SIZE)
    if kept:
        assert said[0].startswith(f"log_truncated topic=orders partition=0 offset=2 bytes_cut={kept} ")
    else:
        assert said == []
    assert append(log) == 2


def test_a_damaged_batch_cuts_all_that_follows_also_later_segments() -> None:
    disk = new_disk()
    filled(disk)
    disk.flip_bit(LOG_0, 2 * SIZE + 70)
    said: list[str] = []
    log = open_log(disk, say=said.append)
    assert (log.end_offset, log.segment_base_offsets) == (2, [0])
    assert f"bytes_cut={8 * SIZE} segments_removed=2" in said[0] and "checksum" in said[0]
    assert not disk.exists(f"{DIRECTORY}/{4:020d}.log")
    assert log.epochs.entries == [(0, 0)]


def test_a_segment_that_never_reached_the_disk_cuts_those_after_it() -> None:
    disk = new_disk()
    filled(disk)
    disk.remove(f"{DIRECTORY}/{4:020d}.log")
    log = open_log(disk)
    assert (log.end_offset, log.segment_base_offsets) == (4, [0])


def test_a_first_segment_that_never_reached_the_disk_is_missed_where_no_checkpoint_explains_it() -> None:
    disk = new_disk()
    filled(disk)
    disk.remove(f"{DIRECTORY}/{0:020d}.log")
    log = open_log(disk)
    assert (log.start_offset, log.head_missing_from, log.vouched_start_offset) == (4, 0, 0)
    for explained in ({"start_offset": 4}, {"clean": True}):
        log = open_log(disk, **explained)
        assert (log.start_offset, log.head_missing_from, log.vouched_start_offset) == (4, None, 4)


def test_segments_below_the_recovery_point_are_not_read() -> None:
    disk = new_disk()
    log = filled(disk)
    flush(log)
    disk.fail_reads(LOG_0)
    again = open_log(disk, recovery_point=10)
    assert again.end_offset == 10
    with pytest.raises(OSError):
        open_log(disk, recovery_point=0)


def test_a_clean_open_reads_no_segment_and_no_index() -> None:
    disk = new_disk()
    log = filled(disk)
    log.append_as_leader(idempotent(0), 4, NOW_MS)
    log.close(clean=True, now_ms=NOW_MS)
    for name in disk.list(DIRECTORY):
        if not name.endswith((".snapshot", "checkpoint", "metadata")):
            disk.fail_reads(f"{DIRECTORY}/{name}")
    again = open_log(disk, clean=True, recovery_point=11)
    assert (again.end_offset, again.recovery_point, again.epochs) == (11, 11, log.epochs)
    assert len(again.producers) == 1


def test_a_clean_directory_without_our_checkpoints_is_understood_too() -> None:
    disk = new_disk()
    log = filled(disk)
    log.close(clean=True, now_ms=NOW_MS)
    for name in disk.list(DIRECTORY):
        if name.endswith((".snapshot", ".index", ".timeindex", "checkpoint")):
            disk.remove(f"{DIRECTORY}/{name}")
    again = open_log(disk, clean=True, recovery_point=0)
    assert (again.end_offset, again.epochs) == (10, log.epochs)


@pytest.mark.parametrize("damage", ["missing", "torn", "zeros", "past the end"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_made_again_from_the_batches(damage: str, suffix: str) -> None:
    disk = new_disk()
    log = filled(disk)
    log.close(clean=True, now_ms=NOW_MS)
    path = f"{DIRECTORY}/{0:020d}{suffix}"
    file = disk.open(path)
    if damage == "missing":
        disk.remove(path)
    elif damage == "torn":
        file.truncate(file.size() - 3)
    elif damage == "zeros":
        file.write(0, (bytes(file.size()),))
    else:
        file.write(0, (b"\x7f" * file.size(),))
    again = open_log(disk, clean=True, recovery_point=10, segment_bytes=4 * SIZE, index_interval_bytes=0)
    for offset in range(10):
        piece = again.read(offset, 1, offset_max=10)
        assert piece is not None and piece.first_offset == offset
        assert again.offset_for_timestamp(NOW_MS + offset) == (offset, NOW_MS + offset, offset // 3)


def test_a_lost_or_damaged_epoch_checkpoint_is_made_again_from_the_batches() -> None:
    for damage in (b"", b"0\n2\n0 0\n1 ", b"garbage\n", b"0\n1\n0 0\n1 3\n", None):
        disk = new_disk()
        log = filled(disk)
        log.close(clean=True, now_ms=NOW_MS)
        path = f"{DIRECTORY}/leader-epoch-checkpoint"
        disk.remove(path)
        if damage is not None:
            disk.replace_file(path, damage)
        for clean in (True, False):
            assert open_log(disk.kill(), clean=clean, recovery_point=10).epochs == log.epochs


def test_a_damaged_snapshot_falls_back_to_an_older_one_and_the_batches() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=4 * SIZE)
    for sequence in range(10):
        log.append_as_leader(idempotent(sequence), 0, NOW_MS)
    log.close(clean=True, now_ms=NOW_MS)
    disk.flip_bit(f"{DIRECTORY}/{10:020d}.snapshot", 20)
    said: list[str] = []
    again = open_log(disk, clean=True, recovery_point=10, say=said.append)
    state = again.producers.get(7)
    assert state is not None and state.snapshot_fields == log.producers.get(7).snapshot_fields  # type: ignore[union-attr]
    assert "producer_snapshot_ignored" in said[0]


def test_a_snapshot_that_was_never_durable_is_not_believed() -> None:
    disk = new_disk()
    log = open_log(disk)
    for sequence in range(3):
        log.append_as_leader(idempotent(sequence), 0, NOW_MS)
    wrong = ProducerStates()
    wrong.note_batch(7, 5, 90, 0, 1, NOW_MS, False)
    disk.replace_file(f"{DIRECTORY}/{2:020d}.snapshot", wrong.to_snapshot())
    state = open_log(disk.kill()).producers.get(7)
    assert state is not None and (state.epoch, state.last_sequence) == (0, 2)


def test_leftovers_of_deletion_and_cleaning_are_removed_and_a_finished_swap_is_completed() -> None:
    disk = new_disk()
    log = filled(disk, 8, per_segment=2)
    expected = content(log)
    log.close(clean=True, now_ms=NOW_MS)
    merged = disk.read_file(LOG_0) + disk.read_file(f"{DIRECTORY}/{2:020d}.log")
    disk.replace_file(LOG_0 + ".swap", merged)
    for name in (f"{6:020d}.log.cleaned", f"{9:020d}.log.deleted", "leader-epoch-checkpoint.tmp", f"{77:020d}.index"):
        disk.replace_file(f"{DIRECTORY}/{name}", b"left over")
    again = open_log(disk, clean=True, recovery_point=8)
    assert again.segment_base_offsets == [0, 4, 6]
    assert content(again) == expected
    assert not [n for n in disk.list(DIRECTORY) if n.endswith((".swap", ".cleaned", ".deleted", ".tmp"))]
    assert not disk.exists(f"{DIRECTORY}/{77:020d}.index")


def test_an_unfinished_swap_is_undone() -> None:
    disk = new_disk()
    log = filled(disk, 4, per_segment=2)
    expected = content(log)
    log.close(clean=True, now_ms=NOW_MS)
    disk.replace_file(f"{DIRECTORY}/{2:020d}.log.swap", b"")
    disk.replace_file(f"{DIRECTORY}/{0:020d}.log.cleaned", b"")
    assert content(open_log(disk, clean=True, recovery_point=4)) == expected


def test_a_start_beyond_the_end_leaves_an_empty_log_there() -> None:
    disk = new_disk()
    filled(disk)
    said: list[str] = []
    log = open_log(disk, start_offset=50, say=said.append)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (50, 50, 0)
    assert append(log) == 50


def test_the_directory_of_another_topic_is_refused_and_a_torn_metadata_file_is_written_again() -> None:
    disk = new_disk()
    first, second = bytes(15) + b"\x07", bytes(15) + b"\x08"
    open_log(disk, topic_id=first)
    assert disk.read_file(f"{DIRECTORY}/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
    assert open_log(disk).topic_id == first
    with pytest.raises(KafkaError) as refusal:
        open_log(disk, topic_id=second)
    assert refusal.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    disk.open(f"{DIRECTORY}/partition.metadata").truncate(12)
    assert open_log(disk, topic_id=second).topic_id == second
    assert open_log(disk).topic_id == second


@pytest.mark.parametrize("seed", range(20))
def test_a_flush_makes_a_new_partition_durable_with_its_directory(seed: int) -> None:
    disk = new_disk(seed)
    disk.sync_directory("")
    log = open_log(disk, topic_id=bytes(16))
    fill(log, 3)
    flush(log)
    again = open_log(disk.crash(), recovery_point=3)
    assert (again.end_offset, again.topic_id) == (3, bytes(16))


@pytest.mark.parametrize("seed", range(40))
def test_a_tail_that_was_cut_does_not_come_back_behind_new_batches(seed: int) -> None:
    disk = new_disk(seed)
    disk.sync_directory("")
    log = open_log(disk)
    fill(log, 3)
    flush(log)
    disk.flip_bit(LOG_0, SIZE + 70)
    log = open_log(disk.kill())
    assert log.end_offset == 1
    append(log, epoch=1)
    expected = content(log)
    found = content(open_log(log.disk.crash()))  # type: ignore[attr-defined]
    assert found in (expected[:SIZE], expected)


def test_a_snapshot_from_which_recovery_could_start_is_kept_however_far_the_log_has_gone() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=2 * SIZE)
    fill(log, 5)
    flush(log)
    fill(log, 20)
    kept = [int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]
    assert kept == [4, 22, 24]


# -- faults while running ----------------------------------------------------------------------------------------------


def test_a_failed_sync_is_reported_and_takes_the_log_out_of_service() -> None:
    disk = new_disk()
    said: list[str] = []
    log = open_log(disk, say=said.append)
    fill(log, 2)
    task = log.flush_task()
    assert task is not None
    disk.fail_sync(".log")
    task.run()
    with pytest.raises(KafkaError) as refusal:
        log.complete_flush(task)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure and "log_failed topic=orders partition=0" in said[0]
    for attempt in (lambda: append(log), lambda: log.roll(NOW_MS), lambda: log.truncate_to(0)):
        with pytest.raises(KafkaError) as refusal:
            attempt()
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.flush_task(), log.recovery_point, len(content(log))) == (None, 0, 2 * SIZE)


def test_a_full_disk_refuses_appends_cuts_the_partial_batch_and_goes_on_when_there_is_space() -> None:
    for room in range(0, SIZE, 9):
        disk = new_disk(room)
        log = open_log(disk)
        fill(log, 2)
        disk.capacity_bytes = disk.used_bytes + room
        for _ in range(2):
            with pytest.raises(KafkaError) as refusal:
                log.append_as_leader(idempotent(0), 0, NOW_MS)
            assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert disk.size(LOG_0) == 2 * SIZE
        assert (log.end_offset, len(log.producers), log.failure) == (2, 0, None)
        disk.capacity_bytes = UNLIMITED_BYTES
        assert log.append_as_leader(idempotent(0), 0, NOW_MS).base_offset == 2
        assert open_log(disk.kill()).end_offset == 3


def test_a_full_disk_during_a_roll_leaves_the_log_as_it_was() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=3 * SIZE)
    fill(log, 3)
    disk.capacity_bytes = disk.used_bytes + 5
    with pytest.raises(KafkaError) as refusal:
        append(log)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.segment_base_offsets == [0]
    disk.capacity_bytes = UNLIMITED_BYTES
    assert append(log) == 3
    assert log.segment_base_offsets == [0, 3]


def test_a_write_error_other_than_a_full_disk_takes_the_log_out_of_service() -> None:
    log = open_log(new_disk())
    append(log)

    class Broken:
        def write(self, position: int, buffers: object) -> None:
            raise OSError(5, "Input/output error")

    log._segments.active.file = Broken()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            append(log)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is not None


def test_a_flush_that_began_before_a_truncation_does_not_vouch_for_what_came_after() -> None:
    log = open_log(new_disk())
    fill(log, 6)
    task = log.flush_task()
    assert task is not None
    assert log.flush_task() is None
    log.truncate_to(2)
    fill(log, 6)
    task.run()
    log.complete_flush(task)
    assert log.recovery_point <= 2
    flush(log)
    assert log.recovery_point == 8


def test_an_empty_log_costs_no_file_but_its_metadata_and_no_sync() -> None:
    disk = new_disk()
    log = open_log(disk, topic_id=bytes(16))
    steps = disk.steps
    assert disk.list(DIRECTORY) == ["partition.metadata"]
    assert log.flush_task() is None
    log.close(clean=True, now_ms=NOW_MS)
    assert disk.steps == steps
