"""Compaction of one log, on a simulated disk: rule by rule, then at random against a model, with crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.batches import CorruptBatchError, Record, build_batch, iterate_batches
from moldau.protocol.compression import Compression
from moldau.protocol.markers import Marker, build_marker
from moldau.storage import LogConfig, PartitionLog
from moldau.testing.disk import PowerLoss, SimulatedDisk
from tests.storage.cleaning_kit import clean_log, committed, stored
from tests.storage.kit import new_disk

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def open_log(disk: SimulatedDisk, cleaned: bool = False, **config: Any) -> PartitionLog:
    return PartitionLog.open(disk, "data/t-0", LogConfig(compact=True, delete=False, **config), now_ms=NOW_MS)


def put(log: PartitionLog, *pairs: tuple[str, str | None], **fields: Any) -> None:
    """One batch; the value None is a tombstone."""
    records = [
        Record(index, NOW_MS + log.end_offset + index, key.encode(), None if value is None else value.encode())
        for index, (key, value) in enumerate(pairs)
    ]
    log.append_as_leader(build_batch(records, **fields), 0, NOW_MS)


def end_transaction(log: PartitionLog, producer_id: int, *, committed: bool, epoch: int = 0) -> None:
    log.append_control(build_marker(producer_id, epoch, Marker(committed, 0), NOW_MS), 0, NOW_MS)


def pairs(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in stored(log)
    ]


def headers(log: PartitionLog) -> list[Any]:
    found = []
    for segment in log._segments.all:
        found += [header for header, _ in iterate_batches(segment.open().read(0, segment.size))]
    return found


def test_only_the_last_record_of_a_key_is_left_and_keeps_its_offset() -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    log.roll(NOW_MS)
    put(log, ("b", "2"), ("c", "1"))
    log.roll(NOW_MS)
    put(log, ("a", "3"))
    assert clean_log(log, disk, None, NOW_MS) == 5
    # What the active segment has does not count: it may yet be lost.
    assert pairs(log) == [(2, "a", "2"), (3, "b", "2"), (4, "c", "1"), (5, "a", "3")]
    assert log.segment_base_offsets == [0, 5]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name.lower())
def test_a_batch_that_is_thinned_out_keeps_codec_times_headers_and_a_valid_checksum(codec: Compression) -> None:
    disk = new_disk()
    log = open_log(disk)
    kept = Record(1, NOW_MS + 77, b"b", b"value" * 20, ())
    log.append_as_leader(
        build_batch([Record(0, NOW_MS, b"a", b"x"), kept, Record(2, NOW_MS + 500, b"a", b"y")], compression=codec),
        3,
        NOW_MS,
    )
    log.roll(NOW_MS)
    put(log, ("a", "z"))
    log.roll(NOW_MS)
    clean_log(log, disk, None, NOW_MS)
    first, *_ = headers(log)
    assert (first.compression, first.leader_epoch, first.base_offset, first.last_offset) == (codec, 3, 0, 2)
    assert (first.record_count, first.max_timestamp) == (1, NOW_MS + 77)
    assert stored(log)[0] == kept._replace(headers=[])
    reopened = open_log(disk)
    assert stored(reopened) == stored(log)


def test_a_tombstone_stays_until_its_horizon_and_then_goes() -> None:
    disk = new_disk()
    log = open_log(disk, delete_retention_ms=DAY_MS)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    log.roll(NOW_MS)
    clean_log(log, disk, None, NOW_MS)
    assert pairs(log) == [(1, "b", "1"), (2, "a", None)]
    assert [header.base_timestamp for header in headers(log) if header.has_delete_horizon] == [NOW_MS + DAY_MS]
    assert [record.timestamp for record in stored(log)] == [NOW_MS + 1, NOW_MS + 2]
    put(log, ("c", "1"))
    log.roll(NOW_MS)
    clean_log(log, disk, 3, NOW_MS + DAY_MS - 1)
    assert (2, "a", None) in pairs(log)
    put(log, ("c", "2"))
    log.roll(NOW_MS)
    clean_log(log, disk, 4, NOW_MS + DAY_MS)
    assert pairs(log) == [(1, "b", "1"), (4, "c", "2")]


def test_records_of_an_aborted_transaction_go_and_its_marker_outlives_them_by_the_retention() -> None:
    disk = new_disk()
    log = open_log(disk, delete_retention_ms=DAY_MS)
    put(log, ("a", "committed"))
    put(log, ("a", "aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    put(log, ("b", "1"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 8, committed=True)
    log.roll(NOW_MS)
    log.producers.clear()
    clean_log(log, disk, None, NOW_MS)
    assert pairs(log) == [(0, "a", "committed"), (3, "b", "1")]
    assert [header.base_offset for header in headers(log) if header.is_control] == [2, 4]
    put(log, ("x", "1"))
    log.roll(NOW_MS)
    clean_log(log, disk, 5, NOW_MS + 1)
    (aborted, committed) = [header for header in headers(log) if header.is_control]
    assert aborted.has_delete_horizon and aborted.base_timestamp == NOW_MS + 1 + DAY_MS
    assert not committed.has_delete_horizon, "one of its records is still there"
    put(log, ("x", "2"))
    log.roll(NOW_MS)
    clean_log(log, disk, 6, NOW_MS + 1 + DAY_MS)
    assert [header.base_offset for header in headers(log) if header.is_control] == [4]


def test_what_was_aborted_behind_the_begin_of_an_open_transaction_stays_aborted() -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    put(log, ("o", "open"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, ("a", "aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, committed=False)
    put(log, ("b", "aborted"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(NOW_MS)
    end_transaction(log, 8, committed=False)
    assert clean_log(log, disk, None, NOW_MS) == 2
    end_transaction(log, 6, committed=True)
    assert [record.offset for record in committed(log)] == [1, 2]
    assert not any(header.has_delete_horizon for header in headers(log))


def test_cleaning_stops_before_an_open_transaction_the_active_segment_and_what_is_too_young() -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    put(log, ("a", "3"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(NOW_MS)
    assert clean_log(log, disk, None, NOW_MS) == 2
    assert [offset for offset, *_ in pairs(log)] == [1, 2]
    end_transaction(log, 7, committed=True)
    log.roll(NOW_MS)
    log.apply_config(LogConfig(compact=True, min_compaction_lag_ms=1000))
    # The times of the records are NOW_MS and a little more.
    assert clean_log(log, disk, 2, NOW_MS + 900) is None
    assert clean_log(log, disk, 2, NOW_MS + 2000) == 4
    assert [offset for offset, *_ in pairs(log)] == [2]


def test_the_last_batch_of_a_live_producer_stays_without_records() -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"), ("b", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, ("a", "2"), ("b", "2"), producer_id=7, producer_epoch=0, base_sequence=2)
    log.roll(NOW_MS)
    put(log, ("a", "3"), ("b", "3"))
    log.roll(NOW_MS)
    clean_log(log, disk, None, NOW_MS)
    (empty, _) = headers(log)
    assert (empty.base_offset, empty.last_offset, empty.record_count, empty.base_sequence) == (2, 3, 0, 2)
    reopened = open_log(disk)
    state = reopened.producers.get(7)
    assert state is not None and (state.last_sequence, state.last_offset) == (3, 3)


def test_small_segments_are_merged_up_to_the_size_of_one() -> None:
    disk = new_disk()
    log = open_log(disk)
    for number in range(10):
        put(log, (f"k{number}", "v" * 100))
        log.roll(NOW_MS)
    one = log._segments.all[0].size
    log.apply_config(LogConfig(compact=True, segment_bytes=one * 4))
    clean_log(log, disk, None, NOW_MS)
    assert log.segment_base_offsets == [0, 4, 8, 10]
    assert [offset for offset, *_ in pairs(log)] == list(range(10))


def test_what_does_not_fit_into_the_map_is_for_the_next_time_and_some_of_it_always_fits() -> None:
    disk = new_disk()
    log = open_log(disk)
    for number in range(40):
        put(log, (f"k{number % 20}", str(number)))
    log.roll(NOW_MS)
    cleaned_to, rounds = 0, 0
    while cleaned_to < 40:
        before = cleaned_to
        cleaned_to = clean_log(log, disk, cleaned_to, NOW_MS, map_bytes=500) or cleaned_to
        assert cleaned_to > before
        rounds += 1
    assert rounds > 5
    assert [offset for offset, *_ in pairs(log)] == list(range(20, 40))


@pytest.mark.parametrize(("position", "complaint"), ((65, "wrong checksum"), (72, "out of order"), (8, "no batch")))
def test_a_damaged_batch_stops_the_job_and_nothing_is_changed(position: int, complaint: str) -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    disk.flip_bit("data/t-0/00000000000000000000.log", position)
    with pytest.raises(CorruptBatchError, match=complaint):
        clean_log(log, disk, None, NOW_MS)
    assert log.segment_base_offsets == [0, 2]
    assert log._segments.all[0].size > 0


def test_a_cleaning_that_finds_no_room_leaves_nothing_behind() -> None:
    disk = new_disk()
    log = open_log(disk)
    for number in range(20):
        put(log, (f"k{number % 19}", "v" * 100))
    log.roll(NOW_MS)
    disk.capacity_bytes = disk.used_bytes + 1000
    with pytest.raises(OSError, match="No space left"):
        clean_log(log, disk, None, NOW_MS)
    assert not [name for name in disk.list("data/t-0") if name.endswith(".cleaned")]
    disk.capacity_bytes += 10_000
    assert clean_log(log, disk, None, NOW_MS) == 20


def test_readers_keep_the_old_segment_that_they_are_reading() -> None:
    disk = new_disk()
    log = open_log(disk)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    piece = log.read(0, 1 << 20, offset_max=log.end_offset)
    assert piece is not None
    before = piece.read()
    clean_log(log, disk, None, NOW_MS)
    assert piece.read() == before


# -- at random ---------------------------------------------------------------------------------------------------------

KEYS = "abcde"
step = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(
            st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.text("xyz", max_size=4))), min_size=1, max_size=4
        ),
        st.sampled_from([Compression.NONE, Compression.GZIP, Compression.ZSTD]),
    ),
    st.tuples(
        st.just("transaction"),
        st.lists(st.tuples(st.sampled_from(KEYS), st.text("xyz", max_size=4)), min_size=1, max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.integers(0, 3)),
    st.tuples(st.just("reopen")),
)


class Model:
    """What was written, and what of it counts."""

    def __init__(self) -> None:
        self.written: dict[int, tuple[str, str | None]] = {}
        self.aborted: set[int] = set()
        self.tombstones_may_be_gone = False

    def check(self, log: PartitionLog) -> None:
        found = [each for each in pairs(log) if each[0] not in self.aborted]
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets)), "order, and nothing twice"
        for offset, key, value in found:
            assert self.written[offset] == (key, value), "nothing that never was written"
        last: dict[str, tuple[int, str | None]] = {}
        for offset, (key, value) in sorted(self.written.items()):
            if offset not in self.aborted:
                last[key] = (offset, value)
        held = {key: (offset, value) for offset, key, value in found}
        for key, (offset, value) in last.items():
            if value is None and key not in held:
                continue  # a tombstone whose time is over
            assert held[key] == (offset, value), "the last value of every key"


class Run:
    def __init__(self, seed: int) -> None:
        self.disk = new_disk(seed)
        self.log = open_log(self.disk, delete_retention_ms=1000)
        self.model = Model()
        self.cleaned_to: int | None = None
        self.now_ms = NOW_MS
        self.sequence: dict[int, int] = {}

    def do(self, what: str, *arguments: Any) -> None:
        getattr(self, what)(*arguments)
        self.model.check(self.log)

    def put(self, records: list[tuple[str, str | None]], codec: Compression) -> None:
        base = self.log.end_offset
        put(self.log, *records, compression=codec)
        self.model.written.update({base + index: pair for index, pair in enumerate(records)})

    def transaction(self, records: list[tuple[str, str]], committed: bool) -> None:
        base = self.log.end_offset
        sequence = self.sequence.get(7, 0)
        put(self.log, *records, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        self.sequence[7] = sequence + len(records)
        offsets = range(base, base + len(records))
        self.model.written.update(zip(offsets, records, strict=True))
        if not committed:
            self.model.aborted.update(offsets)
        end_transaction(self.log, 7, committed=committed)

    def roll(self) -> None:
        self.log.roll(NOW_MS)

    def clean(self, wait: int) -> None:
        self.now_ms += wait * 600
        self.cleaned_to = clean_log(self.log, self.disk, self.cleaned_to, self.now_ms) or self.cleaned_to

    def flush(self) -> None:
        task = self.log.flush_task()
        if task is not None:
            task.run()
            self.log.complete_flush(task)

    def reopen(self) -> None:
        self.flush()
        recovery_point = self.log.recovery_point
        self.log = PartitionLog.open(
            self.disk, "data/t-0", self.log.config, now_ms=NOW_MS, recovery_point=recovery_point
        )


@given(st.lists(step, max_size=25))
def test_a_compacted_log_holds_the_last_value_of_every_key_in_order_and_nothing_else(steps: list[Any]) -> None:
    run = Run(0)
    for each in steps:
        run.do(*each)


@settings(max_examples=600)
@given(st.lists(step, min_size=3, max_size=20), st.integers(0, 60), st.integers(0, 2**32))
def test_a_power_loss_at_any_step_of_a_cleaning_loses_nothing(steps: list[Any], after: int, seed: int) -> None:
    run = Run(seed)
    for each in steps:
        run.do(*each)
    run.roll()
    run.flush()
    run.disk.sync_directory("")
    recovery_point = run.log.recovery_point
    run.disk.lose_power_after(after)
    try:
        run.clean(1)
    except PowerLoss:
        pass
    disk = run.disk.crash()
    log = PartitionLog.open(disk, "data/t-0", run.log.config, now_ms=NOW_MS, recovery_point=recovery_point)
    assert log.end_offset == run.log.end_offset
    run.model.check(log)
    clean_log(log, disk, run.cleaned_to, run.now_ms + 1)
    run.model.check(log)
