"""A seeded life of one log on the simulated disk, beside a model that remembers what must be true of it.

`Workload(seed).run()` appends, rolls, flushes, trims, truncates, closes and opens, changes configuration, fills the
disk and fails syncs; power goes or the process dies at any change of the disk, also inside a write. After every opening
the log is compared with the model byte by byte. The trace of what happened is the same for the same seed.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from hashlib import blake2b

from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import Record, build_batch, control_key, iterate_batches, iterate_records, read_header
from moldau.protocol.compression import Compression
from moldau.storage import LogConfig, LogDirectory, PartitionLog, ProducerStates
from moldau.storage.scan import scan_segment
from moldau.testing.dice import SeededDice
from moldau.testing.disk import UNLIMITED_BYTES, PowerLoss, SimulatedDisk

ROOT = "data"
PARTITION = TopicPartition("orders", 0)
DIRECTORY = f"{ROOT}/{PARTITION}"
TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Stored:
    base_offset: int
    last_offset: int
    data: bytes


class Workload:
    def __init__(self, seed: int, *, rounds: int = 6, operations: int = 60, power_loss_percent: int = 60) -> None:
        self.seed = seed
        self.dice = SeededDice(seed)
        self.rounds = rounds
        self.operations = operations
        self.power_loss_percent = power_loss_percent
        self.disk = SimulatedDisk(self.dice)
        self.disk.make_directories(ROOT)
        self.disk.sync_directory("")
        self.trace = blake2b(digest_size=16)
        self.now_ms = NOW_MS
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.in_transaction = False
        self.config = self._some_config()
        # The model: all batches ever acknowledged and not truncated, trimmed ones included.
        self.history: list[Stored] = []
        self.in_flight: Stored | None = None
        # Below this everything survives a power cut.
        self.durable_offset = 0
        self.start_offset = 0
        # While an operation is under way, the outcomes that a crash may leave.
        self.start_offset_before = 0
        self.truncating_to: int | None = None
        self.restarting = False
        self.must_lose_power = False
        self.log: PartitionLog
        self.crashes = 0

    # -- driving -------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        self._open(everything_there=True)
        for _ in range(self.rounds):
            loses_power = self.dice.chance(self.power_loss_percent)
            if self.dice.chance(80):
                self.disk.lose_power_after(self.dice.below(120))
            try:
                for _ in range(self.operations):
                    self._operate()
                self._note("round complete")
            except PowerLoss:
                self._note("power lost" if loses_power else "killed")
            loses_power |= self.must_lose_power
            self.must_lose_power = False
            self.crashes += 1
            self.disk = self.disk.crash() if loses_power else self.disk.kill()
            self.disk.capacity_bytes = UNLIMITED_BYTES
            self._open(everything_there=not loses_power)
        return self.trace.hexdigest()

    def _note(self, *what: object) -> None:
        self.trace.update(repr(what).encode())

    def _operate(self) -> None:
        operation = self.dice.below(100)
        if operation < 55:
            self._append()
        elif operation < 62:
            self._note("roll")
            self.log.roll(self.now_ms)
        elif operation < 74:
            self._flush()
        elif operation < 79:
            self._delete_records()
        elif operation < 83:
            self._truncate()
        elif operation < 87:
            self._close_and_open()
        elif operation < 91:
            self.config = self._some_config()
            self.log.apply_config(self.config)
        elif operation < 94:
            self._run_out_of_space()
        elif operation < 95:
            self._fail_a_sync()
        elif operation < 97:
            self._checkpoint()
        else:
            for path in self.log.take_deletions(self.now_ms):
                self.disk.remove(path)
        self.now_ms += self.dice.below(500)

    def _some_config(self) -> LogConfig:
        pick = self.dice.below
        return LogConfig(
            segment_bytes=(400, 700, 1500, 1 << 20)[pick(4)],
            segment_ms=(1000, 604_800_000)[pick(2)],
            segment_jitter_ms=(0, 300)[pick(2)],
            segment_index_bytes=(60, 10 << 20)[pick(2)],
            index_interval_bytes=(0, 150, 4096)[pick(3)],
            message_timestamp_type=("CreateTime", "CreateTime", "LogAppendTime")[pick(3)],
            compression_type=("producer", "producer", "zstd", "uncompressed")[pick(4)],
            file_delete_delay_ms=(0, 1000)[pick(2)],
            flush_messages=(1, 5, 2**63 - 1)[pick(3)],
        )

    # -- operations ----------------------------------------------------------------------------------------------------

    def _batch(self) -> bytearray:
        pick = self.dice.below
        count = 1 + pick(4)
        timestamp = self.now_ms - pick(2000)
        records = [
            Record(index, timestamp + pick(50), None if pick(3) else b"key", self.dice.random_bytes(pick(60)))
            for index in range(count)
        ]
        compression = Compression.GZIP if pick(6) == 0 else Compression.NONE
        producer = pick(6)
        if producer >= 4:
            return build_batch(records, base_offset=0, compression=compression)
        transactional = producer == 3
        sequence = self.sequences.get(producer, 0)
        self.in_transaction |= transactional
        return build_batch(
            records,
            base_offset=0,
            compression=compression,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )

    def _append(self) -> None:
        if self.in_transaction and self.dice.below(4) == 0:
            self._append_marker()
            return
        if self.dice.below(40) == 0:
            self.epoch += 1
        batch = self._batch()
        before = self.log.end_offset
        self._expect_in_flight(batch, before)
        result = self.log.append_as_leader(batch, self.epoch, self.now_ms)
        self._note("append", result)
        assert not result.duplicate
        assert result.base_offset == before
        self._acknowledge(result.base_offset, result.last_offset)
        header = read_header(batch)
        if header.producer_id >= 0:
            self.sequences[header.producer_id] = header.base_sequence + header.record_count
            if self.dice.below(3) == 0:
                again = bytearray(batch)
                struct.pack_into(">q", again, 0, 0)
                repeated = self.log.append_as_leader(again, self.epoch, self.now_ms) if not self._stamped() else None
                if repeated is not None:
                    assert repeated.duplicate and repeated.base_offset == result.base_offset

    def _stamped(self) -> bool:
        # The batch in our hands carries the broker's time now; a producer would send its own again.
        return self.config.message_timestamp_type == "LogAppendTime"

    def _append_marker(self) -> None:
        value = struct.pack(">hi", 0, 7)
        aborted = self.dice.below(2)
        records = [Record(0, self.now_ms, control_key(1 - aborted), value)]
        batch = build_batch(
            records, producer_id=3, producer_epoch=0, base_sequence=-1, transactional=True, control=True
        )
        before = self.log.end_offset
        self._expect_in_flight(batch, before)
        result = self.log.append_control(batch, self.epoch, self.now_ms)
        self._note("marker", result)
        self._acknowledge(before, before)
        self.in_transaction = False
        assert self.log.last_stable_offset_bound is None

    def _expect_in_flight(self, batch: bytearray, offset: int) -> None:
        header = read_header(batch)
        self.in_flight = Stored(offset, offset + header.last_offset_delta, b"")

    def _acknowledge(self, base_offset: int, last_offset: int) -> None:
        self.in_flight = None
        piece = self.log.read(base_offset, 1, offset_max=last_offset + 1)
        assert piece is not None and (piece.first_offset, piece.next_offset) == (base_offset, last_offset + 1)
        self.history.append(Stored(base_offset, last_offset, piece.read()))

    def _flush(self) -> None:
        task = self.log.flush_task()
        self._note("flush", task is not None)
        if task is None:
            return
        generation = self.log._unsynced.generation
        for _ in range(self.dice.below(3)):
            (self._append, self._delete_records, self._truncate, lambda: self.log.roll(self.now_ms))[
                self.dice.below(4)
            ]()
        task.run()
        self.log.complete_flush(task)
        if generation == self.log._unsynced.generation:
            assert self.log.recovery_point >= task.offset
            self.durable_offset = max(self.durable_offset, task.offset)
        if self.dice.below(2):
            self._checkpoint()

    def _checkpoint(self) -> None:
        directory = LogDirectory(self.disk, ROOT)
        directory.write_recovery_points({PARTITION: self.log.recovery_point})
        directory.write_log_start_offsets({PARTITION: self.log.start_offset})

    def _expect_a_cut(self) -> None:
        """What the caller owes before a truncation."""
        LogDirectory(self.disk, ROOT).write_recovery_points({PARTITION: 0})

    def _delete_records(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        offset = start + self.dice.below(end - start + 1)
        if self.dice.below(4) == 0:
            offset = end
        self._note("delete records", offset)
        self.start_offset_before, self.start_offset = self.start_offset, max(self.start_offset, offset)
        LogDirectory(self.disk, ROOT).write_log_start_offsets({PARTITION: self.start_offset})
        self.log.delete_records_before(offset)
        assert self.log.start_offset == self.start_offset
        self.start_offset_before = self.start_offset

    def _truncate(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        if self.dice.below(6) == 0:
            self._truncate_fully(end + self.dice.below(5))
            return
        offset = start + self.dice.below(end - start + 1)
        self._note("truncate", offset)
        self._expect_a_cut()
        self.truncating_to = offset
        self.log.truncate_to(offset)
        expected = max((b.last_offset + 1 for b in self.history if b.last_offset < offset), default=self.start_offset)
        if offset < end:
            assert self.log.end_offset == max(expected, self.start_offset), (offset, expected)
        self._cut_model(self.log.end_offset)
        self._checkpoint()
        self.truncating_to = None

    def _first_base(self) -> int:
        return self.log.segment_base_offsets[0]

    def _truncate_fully(self, offset: int) -> None:
        self._note("truncate fully", offset)
        self._expect_a_cut()
        self.restarting = True
        self.log.truncate_fully_and_start_at(offset)
        assert (self.log.start_offset, self.log.end_offset, self.log.size_bytes) == (offset, offset, 0)
        self.history.clear()
        self.sequences.clear()
        self.in_transaction = False
        self.durable_offset = self.start_offset = self.start_offset_before = offset
        self._checkpoint()
        self.restarting = False

    def _cut_model(self, end_offset: int) -> None:
        self.history = [batch for batch in self.history if batch.last_offset < end_offset]
        self.durable_offset = min(self.durable_offset, end_offset)
        self._resume_producers()

    def _resume_producers(self) -> None:
        """Producers go on from what the log says it has of them."""
        self.sequences = {
            state.producer_id: state.last_sequence + 1 for state in self.log.producers.active() if state.producer_id < 3
        }
        state = self.log.producers.get(3)
        self.in_transaction = state is not None and state.transaction_first_offset >= 0
        if state is not None:
            self.sequences[3] = state.last_sequence + 1

    def _close_and_open(self) -> None:
        self._note("close")
        directory = LogDirectory(self.disk, ROOT)
        self.log.close(clean=True, now_ms=self.now_ms)
        assert self.log.recovery_point == self.log.end_offset
        self.durable_offset = self.log.end_offset
        self._checkpoint()
        directory.write_clean_shutdown(1)
        self._open(everything_there=True)

    def _run_out_of_space(self) -> None:
        self._note("disk full")
        self.disk.capacity_bytes = self.disk.used_bytes + self.dice.below(120)
        end, size = self.log.end_offset, self.log.size_bytes
        try:
            self._append()
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert (self.log.end_offset, self.log.failure) == (end, None)
            assert self.log.size_bytes == size
            self.in_flight = None
            self._resume_producers()
        self.disk.capacity_bytes = UNLIMITED_BYTES
        self._append()

    def _fail_a_sync(self) -> None:
        self._note("sync fails")
        task = self.log.flush_task()
        if task is None:
            return
        if not task.files:
            task.run()
            self.log.complete_flush(task)
            return
        self.disk.fail_sync(ROOT)
        task.run()
        with contextlib.suppress(KafkaError):
            self.log.complete_flush(task)
            raise AssertionError("a failed sync was not reported")
        for _ in range(2):
            try:
                self.log.append_as_leader(build_batch([Record(0, self.now_ms, b"k", b"v")]), self.epoch, self.now_ms)
                raise AssertionError("an append after a failed sync was taken")
            except KafkaError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert self.log.flush_task() is None
        # The cache now calls pages clean that never reached the platter: only a fresh look at the platter helps.
        self.must_lose_power = True
        raise PowerLoss

    # -- opening and comparing -----------------------------------------------------------------------------------------

    def _open(self, *, everything_there: bool) -> None:
        directory = LogDirectory(self.disk, ROOT)
        clean = directory.was_closed_cleanly()
        lines: list[str] = []
        self.log = PartitionLog.open(
            self.disk,
            DIRECTORY,
            self.config,
            now_ms=self.now_ms,
            recovery_point=directory.read_recovery_points().get(PARTITION, 0),
            start_offset=directory.read_log_start_offsets().get(PARTITION, 0),
            clean=clean,
            topic_id=TOPIC_ID,
            say=lines.append,
        )
        directory.remove_clean_shutdown()
        self._note("open", self.log.start_offset, self.log.end_offset, lines)
        stored = self._read_all()
        if self.restarting:
            self._accept_restart(stored)
        else:
            self._compare(stored, everything_there)
        self._compare_state(stored)
        if self.truncating_to is not None or self.restarting:
            # The operating system writes everything back within seconds; until then a removed tail might return.
            self.disk.sync_directory(DIRECTORY)
            for segment in self.log._segments.all:
                segment.open().sync()
        self._checkpoint()
        self.in_flight = None
        self.truncating_to = None
        self.restarting = False

    def _read_all(self) -> list[Stored]:
        """Every batch from the start, through the same reads that consumers use."""
        stored: list[Stored] = []
        offset, end = self.log.start_offset, self.log.end_offset
        while offset < end:
            piece = self.log.read(offset, 1 + self.dice.below(900), offset_max=end)
            assert piece is not None, f"nothing at {offset} of [{self.log.start_offset}, {end})"
            data = piece.read()
            assert len(data) == piece.size
            for header, batch in iterate_batches(data):
                if stored:
                    assert header.base_offset == stored[-1].last_offset + 1, "offsets are not dense"
                stored.append(Stored(header.base_offset, header.last_offset, bytes(batch)))
            assert stored[-1].last_offset + 1 == piece.next_offset
            assert stored[0].base_offset <= self.log.start_offset
            offset = piece.next_offset
        return stored

    def _accept_restart(self, stored: list[Stored]) -> None:
        """A crash inside of a full truncation: some beginning or end of the old log, or the new empty one."""
        known = {batch.base_offset: batch.data for batch in self.history}
        assert all(known[batch.base_offset] == batch.data for batch in stored)
        self._adopt(stored)

    def _compare(self, stored: list[Stored], everything_there: bool) -> None:
        log = self.log
        known = {batch.base_offset: batch.data for batch in self.history}
        for batch in stored:
            if batch.base_offset in known:
                assert known[batch.base_offset] == batch.data, f"other bytes at offset {batch.base_offset}"
            else:
                assert self.in_flight is not None and self.in_flight.base_offset == batch.base_offset
                assert self.in_flight.last_offset == batch.last_offset
        floor = self.durable_offset
        if everything_there:
            floor = self.history[-1].last_offset + 1 if self.history else self.start_offset
        if self.truncating_to is not None:
            first = min((b.base_offset for b in self.history if b.last_offset >= self.truncating_to), default=floor)
            floor = min(floor, first)
        assert log.end_offset >= floor, f"ends at {log.end_offset}, {floor} was safe"
        if self.truncating_to is None and stored:
            # The name of a first segment that was never synced may be lost with all that it holds, as in Kafka: nothing
            # on the disk tells it from one that was deleted.
            unsynced_start_lost = not everything_there and log.start_offset >= self.durable_offset
            assert log.start_offset in (self.start_offset, self.start_offset_before) or unsynced_start_lost, (
                log.start_offset,
                self.start_offset,
            )
        self._adopt(stored)

    def _adopt(self, stored: list[Stored]) -> None:
        first = stored[0].base_offset if stored else self.log.end_offset
        self.history = [batch for batch in self.history if batch.last_offset < first] + stored
        self.history = [batch for batch in self.history if batch.last_offset < self.log.end_offset]
        self.start_offset = self.start_offset_before = self.log.start_offset
        self.durable_offset = min(self.durable_offset, self.log.end_offset)
        self._resume_producers()

    def _compare_state(self, stored: list[Stored]) -> None:
        log = self.log
        replayed = ProducerStates()
        for batch in self.history:
            header = read_header(batch.data)
            if header.producer_id >= 0:
                replayed.note_stored(header, batch.data)
        whole = self._first_base() == 0 or (self.history and self.history[0].base_offset >= self._first_base())
        for state in replayed.active():
            if state.last_offset < self._first_base():
                continue
            found = log.producers.get(state.producer_id)
            assert found is not None, f"producer {state.producer_id} is forgotten"
            count = 8 if whole else 5
            assert found.snapshot_fields[:count] == state.snapshot_fields[:count]
        for found in log.producers.active():
            assert found.last_offset < log.end_offset
        if whole:
            assert log.producers.first_open_offset == replayed.first_open_offset
        self._compare_epochs(stored)
        self._compare_indexes()
        self._compare_times(stored)

    def _compare_epochs(self, stored: list[Stored]) -> None:
        for batch in stored:
            offset = max(batch.base_offset, self.log.start_offset)
            assert self.log.epochs.epoch_for_offset(offset) == read_header(batch.data).leader_epoch
        if stored:
            assert self.log.epochs.latest == read_header(stored[-1].data).leader_epoch

    def _compare_indexes(self) -> None:
        for segment in self.log._segments.all:
            if segment.size == 0:
                continue
            full = scan_segment(segment.open(), segment.size, segment.base_offset, index_interval_bytes=0)
            assert full.stopped is None and full.valid_bytes == segment.size
            positions = dict(zip(full.offsets.offsets, full.offsets.positions, strict=True))
            if segment.offsets is None:
                segment.load_indexes()
            assert segment.offsets is not None and segment.times is not None
            for relative, position in zip(segment.offsets.offsets, segment.offsets.positions, strict=True):
                assert positions[relative] == position
            assert segment.max_timestamp == full.max_timestamp
            for timestamp, relative in zip(segment.times.timestamps, segment.times.offsets, strict=True):
                assert timestamp <= full.max_timestamp
                assert segment.base_offset + relative < self.log.end_offset

    def _compare_times(self, stored: list[Stored]) -> None:
        records = [
            record
            for batch in stored
            for record in iterate_records(batch.data)
            if record.offset >= self.log.start_offset
        ]
        for _ in range(3):
            timestamp = self.now_ms - self.dice.below(6000)
            wanted = next((record for record in records if record.timestamp >= timestamp), None)
            found = self.log.offset_for_timestamp(timestamp)
            assert (found[:2] if found else None) == ((wanted.offset, wanted.timestamp) if wanted else None)
