"""A log as it lies on disk: its files, what of them is durable, when it begins a new segment, and how it is cut.

`PartitionLog` adds what may be appended and how it is read. Nothing here opens a batch. It waits for nothing: syncing
is handed out as a `FlushTask`, cutting as a `CutTask`. Who serves nobody meanwhile may have the log cut on the spot.

What the caller owes, both being checkpoints of the log directory: persist a new `start_offset` before calling
`delete_records_before` with it, and before a truncation a recovery point that is not above what it leaves: a log that
ends below what the checkpoint says is taken for damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, NoReturn

from moldau.kernel import Disk, ErrorCode, KafkaError
from moldau.storage.checkpoints import epochs_text, partition_metadata_text
from moldau.storage.cleaning.swap import settle
from moldau.storage.config import LogConfig
from moldau.storage.cutting import CutTask
from moldau.storage.faults import is_full, is_passing
from moldau.storage.flush import FlushTask, Unsynced
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.loading import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    SWAP_SUFFIX,
    LoadedLog,
    Say,
    replay_producers,
)
from moldau.storage.producer_state import ProducerStates
from moldau.storage.rolling import RollLimits, should_roll
from moldau.storage.segment import INDEX_SUFFIXES, SEGMENT_SUFFIXES, Segment, write_whole
from moldau.storage.segments import Segments

PARTITION_METADATA_FILE = "partition.metadata"


class Switched(NamedTuple):
    """A cleaned segment and those whose place it took."""

    segment: Segment
    old: list[Segment]


class StoredLog:
    """Attributes without underscore are for reading only."""

    __slots__ = (
        "_deletions_due",
        "_failure",
        "_held",
        "_is_cut",
        "_limits",
        "_marked_deleted",
        "_say",
        "_segments",
        "_snapshots",
        "_unsynced",
        "config",
        "directory",
        "disk",
        "end_offset",
        "epochs",
        "head_missing_from",
        "on_failed",
        "on_full",
        "producers",
        "recovery_point",
        "start_offset",
        "topic_id",
    )

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, loaded: LoadedLog, topic_id: bytes | None, say: Say
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.topic_id = topic_id
        self.start_offset = loaded.start_offset
        # Not None: names in a directory that was not synced survive a crash, or do not, each for itself, and the first
        # ones may be gone. Only another replica knows whether anything was there.
        self.head_missing_from: int | None = loaded.head_missing_from
        self.end_offset = loaded.end_offset
        self.recovery_point = loaded.recovery_point
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self._say = say
        self._segments = Segments(loaded.segments)
        self._snapshots = loaded.snapshots
        self._limits = RollLimits()
        # Files marked deleted: those that came since the last look, and with the time when they may go.
        self._marked_deleted: list[str] = []
        self._deletions_due: list[tuple[int, list[str]]] = []
        self._failure: str | None = None
        self._held: Callable[[], str | None] | None = None
        # Its files still have what the log has given up: nothing may be written to them.
        self._is_cut = False
        # Told, in the middle of what the log does, that it is out of service, or that a batch found no room.
        self.on_failed: Callable[[str], None] | None = None
        self.on_full: Callable[[], None] | None = None
        self._unsynced = Unsynced(loaded.end_offset - loaded.recovery_point)
        for segment in loaded.unsynced:
            self._unsynced.directory = True
            if segment is not self._segments.active:
                self._unsynced.segments.append((segment, None))
                self._unsynced.paths += [segment.path(suffix) for suffix in INDEX_SUFFIXES]
        self.config = config

    def _write_partition_metadata(self, topic_id: bytes) -> None:
        # Durable with the first flush, so before any batch of this topic is.
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        write_whole(self.disk, path, partition_metadata_text(topic_id))
        self._unsynced.note_path(path)

    @property
    def vouched_start_offset(self) -> int:
        """Where the log starts, as a checkpoint may say it."""
        return self.start_offset if self.head_missing_from is None else self.head_missing_from

    @property
    def is_active_segment_empty(self) -> bool:
        """If not, the last batch of the log is in it, and whatever lies below the end offset can be read."""
        return self._segments.active.size == 0

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_base_offsets(self) -> list[int]:
        return self._segments.bases.copy()

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    def timestamps(self) -> tuple[int, int]:
        """(of the first batch, the largest in the active segment); -1 where there is none."""
        segments = self._segments
        return segments.all[0].first_batch_timestamp(), segments.active.largest_timestamp()

    @property
    def generation(self) -> int:
        """Another one after every cut: below its end the log may have been written anew."""
        return self._unsynced.generation

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends, or None."""
        return self._failure

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, [{self.start_offset}, {self.end_offset}))"

    # -- rolling -------------------------------------------------------------------------------------------------------

    def _make_room(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> Segment:
        """The segment to write to, open, rolled if the batch must not go into the present one."""
        self._check_in_service()
        if self._held is not None and (reason := self._held()) is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {reason}")
        segment = self._segments.active
        try:
            if segment.size == 0 and segment.file is None:
                self._unsynced.directory = True
            segment.prepare_append()
            if should_roll(segment, self.config, size, max_timestamp, last_offset, now_ms):
                segment = self._roll(now_ms)
                segment.prepare_append()
        except OSError as error:
            # Nothing that was acknowledged has changed.
            raise self._roll_failed("the segment could not be opened or rolled", error) from error
        self._limits.arm(segment, self.config, max_timestamp)
        return segment

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the present one is empty."""
        self._check_in_service()
        if self._segments.active.size == 0:
            return
        try:
            self._segments.active.prepare_append()
            self._roll(now_ms)
        except OSError as error:
            raise self._roll_failed("the segment could not be rolled", error) from error

    def roll_if_older(self, age_ms: int, now_ms: int) -> None:
        """Begin a new segment when the present one began so long ago, though nobody writes."""
        active = self._segments.active
        if active.size and 0 <= active.first_batch_timestamp() < now_ms - age_ms:
            self.roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        """Indexes and producers are written first: should one not fit on the disk, nothing has changed."""
        old, unsynced = self._segments.active, self._unsynced
        self._write_indexes(old)
        self._write_snapshot()
        unsynced.segments.append((old, old.file))
        unsynced.directory = True
        segment = Segment(self.disk, self.directory, self.end_offset, 0, self.config.index_interval_bytes, now_ms)
        self._segments.roll(segment)
        self._limits.disarm()
        return segment

    def _write_indexes(self, segment: Segment) -> None:
        for path in segment.write_indexes():
            self._unsynced.note_path(path)

    def _write_snapshot(self) -> None:
        recovery_base = self._segments.recovery_base(self.recovery_point)
        for path in self._snapshots.write(self.end_offset, self.producers, recovery_base):
            self._unsynced.note_path(path)

    # -- cutting -------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Give up everything from `offset` on; durable when it returns. A batch that holds `offset` goes whole."""
        self._cut_now(self.begin_truncation(offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Give up everything and go on, empty, at `offset`; durable when it returns."""
        self._cut_now(self.begin_restart(offset))

    def _cut_now(self, task: CutTask | None) -> None:
        if task is not None:
            task.run()
            self.complete_cut(task)

    def begin_truncation(self, offset: int) -> CutTask | None:
        """The log ends at `offset` from now on; appends are refused until the task has run and is completed.

        None when there is nothing to cut. No flush begins before the task is completed.
        """
        if offset >= self.end_offset:
            # An epoch in which nothing was written yet goes all the same: it was a leader's who wrote nothing.
            self.epochs.truncate_from_end(self.end_offset)
            return None
        segments, unsynced = self._segments, self._unsynced
        if offset < segments.bases[0]:
            return self.begin_restart(offset)
        self._check_in_service()
        removed = segments.above(offset)
        segment = segments.all[-1 - len(removed)]
        try:
            size, end_offset = segment.place_of_cut(offset)
            if end_offset < self.start_offset:
                # The cut batch reaches below the log's start, which never goes back.
                return self.begin_restart(self.start_offset)
            bytes_cut = sum(each.size for each in removed) + segment.size - size
            segments.cut_above(offset)
            unsynced.forget_segments([*removed, segment])
            segments.load_transactions(segment)
            segment.forget_above(size, end_offset)
            self._settle_truncation(end_offset)
            task = CutTask(self.disk, self.directory, end_offset, bytes_cut, removed[::-1], segment.open(), size)
        except OSError as error:
            raise self._cut_failed(error) from error
        self._begin_cut()
        return task

    def _settle_truncation(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        self._unsynced.messages = end_offset - self.recovery_point
        self.epochs.truncate_from_end(end_offset)
        self._snapshots.drop_above(end_offset)
        self.producers, replay_from, _ = self._snapshots.load_newest()
        replay_producers(self._segments.all, self.producers, replay_from, end_offset)

    def begin_restart(self, offset: int) -> CutTask:
        """The log is empty and goes on at `offset`; the rest as for `begin_truncation`."""
        self._check_in_service()
        bytes_cut = self.size_bytes
        first, *others = self._segments.all
        segment = Segment(self.disk, self.directory, offset, 0, self.config.index_interval_bytes, 0)
        try:
            # The last file is emptied and renamed, so that the directory names an offset at every moment.
            segment.file = file = first.open()
            self._snapshots.drop_above(-1)
        except OSError as error:
            raise self._cut_failed(error) from error
        task = CutTask(self.disk, self.directory, offset, bytes_cut, others[::-1], file, 0, first, segment)
        self._segments.restart(segment)
        self._unsynced.segments.clear()
        self._unsynced.messages = 0
        self.start_offset = self.end_offset = self.recovery_point = offset
        self.head_missing_from = None
        self.epochs.clear()
        self.producers.clear()
        self._begin_cut()
        return task

    def _begin_cut(self) -> None:
        self._unsynced.generation += 1
        self._is_cut = True
        self._limits.disarm()

    def complete_cut(self, task: CutTask) -> None:
        """The task has run. KAFKA_STORAGE_ERROR when it failed: then nothing more is appended."""
        self._is_cut = False
        if task.error is not None:
            raise self._cut_failed(task.error) from task.error
        self._say(f"log_truncated {self._name} offset={task.end_offset} bytes_cut={task.bytes_cut} reason=asked")

    def _cut_failed(self, error: OSError) -> KafkaError:
        self._fail(f"truncation failed: {error}")
        return self._storage_error("the log could not be truncated", error)

    def delete_records_before(self, offset: int) -> None:
        """Let the log start at `offset`. Segments that lie below it are marked deleted: see `take_deletions`."""
        if offset > self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is beyond the log's end {self.end_offset}"
            )
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.head_missing_from = None
        # The recovery point stays: the segment in which the log now starts need not be durable yet.
        self.epochs.truncate_from_start(offset)
        self._drop_segments_below_start()

    def _drop_segments_below_start(self) -> None:
        dropped = self._segments.drop_below(self.start_offset)
        if not dropped:
            return
        if self._segments.active.size == 0:
            # It alone keeps the next offset once the others are gone. Apache Kafka expects indexes beside it.
            self._segments.active.open()
            self._segments.active.indexes_dirty = True
        # Oldest first: a crash in between leaves no gap.
        for segment in dropped:
            for suffix in SEGMENT_SUFFIXES:
                path = segment.path(suffix)
                try:
                    self.disk.rename(path, path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                self._marked_deleted.append(path + DELETED_SUFFIX)
        self._unsynced.forget_segments(dropped)
        self._unsynced.directory = True

    # -- cleaning ------------------------------------------------------------------------------------------------------

    def switch_to_cleaned(self, old_bases: Sequence[int], size: int, now_ms: int) -> Switched | None:
        """From now on the log reads the segment that `swap.announce` named; None when the old ones are gone."""
        segment = Segment(self.disk, self.directory, old_bases[0], size, self.config.index_interval_bytes, now_ms)
        segment.swap_suffix = SWAP_SUFFIX
        old = self._segments.replace(old_bases, segment)
        if old is None:
            return None
        segment.end_offset = old[-1].end_offset
        self._unsynced.forget_segments(old)
        return Switched(segment, old)

    def settle_cleaned(self, switched: Switched, marked: list[str]) -> None:
        """The old files are marked deleted (`swap.retire`): the new ones get their names."""
        self._marked_deleted += marked
        if switched.segment in self._segments.all:
            settle(self.disk, switched.segment)
        self._unsynced.directory = True

    def take_deletions(self, now_ms: int) -> list[str]:
        """Files marked deleted whose delay is over, each given once; the caller removes them."""
        if self._marked_deleted:
            # All together: looking at each of very many files, every second of the delay, would hold up requests.
            self._deletions_due.append((now_ms + self.config.file_delete_delay_ms, self._marked_deleted))
            self._marked_deleted = []
        due = [paths for due_ms, paths in self._deletions_due if due_ms <= now_ms]
        if due:
            self._deletions_due = [each for each in self._deletions_due if each[0] > now_ms]
        return list(chain.from_iterable(due))

    # -- durability ----------------------------------------------------------------------------------------------------

    def flush_is_due(self, now_ms: int) -> bool:
        """By flush.messages, or flush.ms after the first look at unflushed ones; rolled segments are due at once."""
        unsynced = self._unsynced
        # First: whoever asks for flush.messages waits also while another flush is under way.
        if unsynced.messages >= self.config.flush_messages:
            return True
        if unsynced.segments:
            return not unsynced.under_way
        if unsynced.messages <= 0:
            return False
        if unsynced.since_ms < 0:
            unsynced.since_ms = now_ms
        return now_ms - unsynced.since_ms >= self.config.flush_ms

    def flush_task(self) -> FlushTask | None:
        """What has to be synced now; None when nothing is, or a task is under way. OSError: a file does not open."""
        unsynced = self._unsynced
        if unsynced.under_way or self._is_cut or self._failure is not None or self.end_offset == 0:
            return None
        if self.recovery_point >= self.end_offset and not unsynced.segments and not unsynced.paths:
            return None
        epochs = epochs_text(self.epochs.entries) if self.epochs.dirty else None
        epochs_path = f"{self.directory}/{EPOCHS_FILE}"
        try:
            task = unsynced.take(self.disk, self.directory, self.end_offset, self._segments.active, epochs_path, epochs)
        except OSError as error:
            if not is_passing(error):
                self._fail(f"a file could not be opened to sync it: {error}")
            raise
        self.epochs.dirty = False
        return task

    def complete_flush(self, task: FlushTask) -> None:
        """The task has run. KAFKA_STORAGE_ERROR when it failed: then nothing more is appended, nothing synced again.

        Also when something was not there to do it with (room, a descriptor): then the next flush does it.
        """
        unsynced = self._unsynced
        unsynced.under_way = False
        if task.error is not None:
            self._fail(f"sync failed: {task.error}")
            raise self._storage_error("the log could not be synced", task.error)
        if task.postponed is not None:
            unsynced.take_back(task, self.end_offset - self.recovery_point)
            self.epochs.dirty = True
            if is_full(task.postponed) and self.on_full is not None:
                self.on_full()
            raise self._storage_error("the log could not be synced yet", task.postponed)
        if task.generation == unsynced.generation:
            self.recovery_point = max(self.recovery_point, task.offset)
        else:
            # The log was cut meanwhile: the checkpoint may speak of epochs that are gone.
            self.epochs.dirty = True
            unsynced.messages = self.end_offset - self.recovery_point

    def close(self, clean: bool, now_ms: int) -> None:
        """With `clean`, everything is on disk and the next open need not look at it. The log is not used afterwards."""
        assert not (clean and self._unsynced.under_way), "a flush is under way: complete it first"
        assert not (clean and self._is_cut), "the log is being cut: complete that first"
        # Whoever closes the log is told by the exception, and may be in any thread.
        self.on_failed = self.on_full = None
        try:
            if clean and self._failure is None:
                self._settle()
        finally:
            self._segments.close_files()
            self._unsynced.segments.clear()
            if self._failure is None:
                self._failure = f"{self.directory}: the log is closed"
            self._limits.disarm()

    def _settle(self) -> None:
        try:
            if self._segments.active.size:
                self._write_snapshot()
            for segment in self._segments.all:
                self._write_indexes(segment)
            task = self.flush_task()
        except OSError as error:
            self._fail(f"closing failed: {error}")
            raise self._storage_error("the log could not be closed cleanly", error) from error
        if task is not None:
            task.run()
            self.complete_flush(task)

    # -- another place -------------------------------------------------------------------------------------------------

    def rehome(self, directory: str) -> None:
        """Go on in another directory, which holds a copy of the files: durable as far as `_unsynced` says of these."""
        assert not self._unsynced.under_way, "a flush is under way: complete it first"
        assert not self._is_cut, "the log is being cut: complete that first"
        old, self.directory = self.directory, directory
        self._segments.rehome(directory)
        self._snapshots.rehome(directory)
        self._unsynced.segments = [(segment, None) for segment, _ in self._unsynced.segments]
        self._unsynced.paths = [directory + path.removeprefix(old) for path in self._unsynced.paths]
        self._unsynced.directory = True
        self.epochs.dirty = True
        # Files marked deleted were not copied.
        self._marked_deleted.clear()
        self._deletions_due.clear()
        self._limits.disarm()

    # -- faults --------------------------------------------------------------------------------------------------------

    def _check_in_service(self) -> None:
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._failure)
        if self._is_cut:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: the log is being cut")

    def hold(self, reason: Callable[[], str | None]) -> None:
        """Refuse appends until `release`; each asks for the reason anew, and succeeds when there is none any more."""
        self._held = reason
        self._limits.disarm()

    def release(self) -> None:
        self._held = None

    def fail(self, reason: str) -> None:
        """What the log lies on is out of service, so the log is."""
        self.on_failed = None
        self._fail(reason)

    def _roll_failed(self, what: str, error: OSError) -> KafkaError:
        if is_full(error) and self.on_full is not None:
            self.on_full()
        elif not is_passing(error):
            self._fail(f"{what}: {error}")
        return self._storage_error(what, error)

    def _write_failed(self, segment: Segment, error: OSError) -> NoReturn:
        """Take back what a failed write may have left behind, so that the next append finds the end."""
        if is_full(error):
            try:
                segment.open().truncate(segment.size)
            except OSError as second:
                self._fail(f"a partial batch could not be cut off: {second}")
            if self.on_full is not None:
                self.on_full()
        else:
            self._fail(f"writing failed: {error}")
        raise self._storage_error("the batch could not be written", error) from error

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = f"{self.directory}: {reason}"
            self._say(f"log_failed {self._name} reason={reason.replace(' ', '_')}")
            if self.on_failed is not None:
                self.on_failed(reason)
        self._limits.disarm()

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {what}: {error}")

    @property
    def _name(self) -> str:
        topic, _, partition = self.directory.rsplit("/", 1)[-1].rpartition("-")
        return f"topic={topic} partition={partition}"
