"""Finding batches by offset and by time; whole batches only, and slices that outlive their segments."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.host import SystemDisk
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import Record, build_batch, iterate_batches
from moldau.storage import LogConfig, LogSlice, PartitionLog
from moldau.testing.disk import SimulatedDisk
from tests.storage.kit import NOW_MS, append, batch, content, fill, new_disk, offsets, open_log


def test_trap_16_the_first_batch_may_begin_before_the_offset_and_exceed_the_size() -> None:
    log = open_log(new_disk())
    append(log, 3)
    append(log, 5)
    append(log, 2)
    piece = log.read(5, 1, offset_max=10)
    assert piece is not None
    assert (piece.first_offset, piece.next_offset) == (3, 8)
    assert [header.base_offset for header, _ in iterate_batches(piece.read())] == [3]
    assert log.read(5, 1, offset_max=10, at_least_one=False) is None


def test_trap_16_batches_are_never_split_and_never_beyond_the_visible_end() -> None:
    log = open_log(new_disk())
    for count in (1, 4, 2):
        append(log, count)
    assert log.read(1, 1 << 20, offset_max=4) is None  # the batch [1, 4] is not visible as a whole
    piece = log.read(0, 1 << 20, offset_max=4)
    assert piece is not None and piece.next_offset == 1
    piece = log.read(0, 1 << 20, offset_max=5)
    assert piece is not None and piece.next_offset == 5
    piece = log.read(0, 1 << 20, offset_max=99)
    assert piece is not None and piece.next_offset == 7


def test_trap_22_offsets_outside_of_the_log_are_out_of_range() -> None:
    log = open_log(new_disk())
    fill(log, 4)
    log.delete_records_before(2)
    for offset in (-1, 1, 5):
        with pytest.raises(KafkaError) as refusal:
            log.read(offset, 100, offset_max=4)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(4, 100, offset_max=4) is None
    assert log.read(2, 100, offset_max=2) is None


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    segment_bytes=st.sampled_from([300, 900, 1 << 20]),
    interval=st.sampled_from([0, 100, 500, 4096]),
    bytes_max=st.integers(0, 1200),
    data=st.data(),
)
def test_every_read_equals_the_naive_answer(
    counts: list[int], segment_bytes: int, interval: int, bytes_max: int, data: st.DataObject
) -> None:
    log = open_log(new_disk(), segment_bytes=segment_bytes, index_interval_bytes=interval)
    stored: list[tuple[int, int, bytes]] = []
    for count in counts:
        sent = batch(count)
        result = log.append_as_leader(sent, 0, NOW_MS)
        stored.append((result.base_offset, result.last_offset, bytes(sent)))
    bases = log.segment_base_offsets
    for _ in range(10):
        offset = data.draw(st.integers(0, log.end_offset))
        offset_max = data.draw(st.integers(0, log.end_offset))
        wanted: list[bytes] = []
        for base, last, sent_bytes in stored:
            if last < offset:
                continue
            if last >= offset_max or (wanted and base in bases):
                break
            if sum(map(len, wanted)) + len(sent_bytes) > bytes_max and wanted:
                break
            wanted.append(sent_bytes)
        piece = log.read(offset, bytes_max, offset_max=offset_max)
        assert (b"" if piece is None else piece.read()) == b"".join(wanted)
        if piece is not None:
            headers = [header for header, _ in iterate_batches(piece.read())]
            assert (piece.first_offset, piece.next_offset) == (headers[0].base_offset, headers[-1].next_offset)


def test_a_tailing_reader_needs_no_index_and_no_header() -> None:
    log = open_log(new_disk(), segment_bytes=1000)
    append(log)
    piece = log.read(0, 1 << 20, offset_max=1)
    for _ in range(30):
        assert piece is not None
        append(log)
        piece = _read_without_looking(log, piece.next_offset)


def _read_without_looking(log: PartitionLog, offset: int) -> LogSlice | None:
    """Reads with a disk that gives no bytes: only what is remembered can answer."""
    disk = log.disk
    assert isinstance(disk, SimulatedDisk)
    path = log._segments.active.stem + ".log"
    disk.fail_reads(path)
    try:
        return log.read(offset, 1 << 20, offset_max=log.end_offset)
    finally:
        disk._unreadable.discard(path)


@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_a_slice_stays_readable_when_its_segment_goes(tmp_path: Path, how: str) -> None:
    disk = SystemDisk()
    log = PartitionLog.open(
        disk, f"{tmp_path}/orders-0", LogConfig(segment_bytes=300, file_delete_delay_ms=0), now_ms=0
    )
    fill(log, 8)
    piece = log.read(0, 1 << 20, offset_max=8)
    assert piece is not None
    before = piece.read()
    if how == "deleted":
        log.delete_records_before(7)
        for path in log.take_deletions(NOW_MS):
            disk.remove(path)
        assert not Path(f"{tmp_path}/orders-0/{0:020d}.log").exists()
    else:
        log.truncate_fully_and_start_at(20)
        before = b""  # the file is emptied; reading it must not fail
    assert piece.read() == before


# -- by time -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    deltas=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=30),
    segment_bytes=st.sampled_from([300, 1 << 20]),
    interval=st.sampled_from([0, 150, 4096]),
    start=st.integers(0, 5),
    reopen=st.sampled_from(["no", "clean", "crash"]),
)
def test_look_ups_by_time_find_the_first_record_that_is_not_older(
    deltas: list[list[int]], segment_bytes: int, interval: int, start: int, reopen: str
) -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=segment_bytes, index_interval_bytes=interval)
    records: list[tuple[int, int]] = []
    for batch_deltas in deltas:
        sent = [Record(index, NOW_MS + delta, b"k", b"v") for index, delta in enumerate(batch_deltas)]
        base = log.append_as_leader(build_batch(sent), 3, NOW_MS).base_offset
        records += [(base + index, NOW_MS + delta) for index, delta in enumerate(batch_deltas)]
    start = min(start, log.end_offset)
    log.delete_records_before(start)
    if reopen != "no":
        log.close(clean=reopen == "clean", now_ms=NOW_MS)
        log = open_log(
            disk,
            clean=reopen == "clean",
            recovery_point=log.recovery_point,
            start_offset=start,
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
        )
    for delta in range(-1, 53):
        wanted = next(((o, t, 3) for o, t in records if o >= start and t >= NOW_MS + delta), None)
        assert log.offset_for_timestamp(NOW_MS + delta) == wanted
    kept = [(o, t) for o, t in records if o >= log.segment_base_offsets[0]]
    newest = max((t for _, t in kept), default=None)
    assert log.max_timestamp() == next(((o, t) for o, t in kept if t == newest), None)


def test_an_empty_log_has_no_times() -> None:
    log = open_log(new_disk())
    assert (log.offset_for_timestamp(0), log.max_timestamp(), offsets(log), content(log)) == (None, None, [], b"")


def test_reads_step_over_the_gaps_that_compaction_leaves() -> None:
    leader, log = open_log(new_disk()), open_log(new_disk(1))
    fill(leader, 6)
    data = content(leader)
    size = len(data) // 6
    log.append_as_follower(data[:size])
    log.append_as_follower(data[3 * size : 4 * size])
    log.roll(NOW_MS)
    log.append_as_follower(data[5 * size :])
    piece = log.read(1, 1, offset_max=6)
    assert piece is not None and (piece.first_offset, piece.next_offset) == (3, 4)
    piece = log.read(4, 1, offset_max=6)
    assert piece is not None and (piece.first_offset, piece.next_offset) == (5, 6)
