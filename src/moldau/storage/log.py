"""One partition's log: what the broker appends to and reads from.

Appends are per batch: one header is unpacked, one checksum computed, base offset and leader epoch are set in place
(both lie outside of the checksum, trap 14), and one write is made. Reads give ranges of a file, so that the bytes
need not pass through this process. The log does not know who leads, how far readers may see, or when the clock ticks:
epochs, limits and `now_ms` are arguments. It waits for nothing: syncing is handed out as a `FlushTask`. The one
exception is truncation, which is durable when it returns; it happens only when a replica has to give up a tail.

What the caller owes: persist `start_offset` before calling `delete_records_before` with it, and `recovery_point`
after every truncation, before the next append (both are checkpoints of the log directory).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from moldau.kernel import Buffer, Disk, ErrorCode, KafkaError
from moldau.protocol.batches import (
    ATTRIBUTES_POSITION,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    iterate_batches,
    read_header,
    set_log_append_time,
)
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import Compression
from moldau.storage.checkpoints import (
    CorruptCheckpointError,
    epochs_text,
    parse_partition_metadata,
    partition_metadata_text,
)
from moldau.storage.config import INT64_MAX, LOG_APPEND_TIME, LogConfig
from moldau.storage.flush import FlushTask, Unsynced
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.loading import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    LoadedLog,
    Say,
    load,
    remove_segment,
    replay_producers,
)
from moldau.storage.producer_state import ProducerStates, read_marker
from moldau.storage.rolling import RollLimits, should_roll
from moldau.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, write_whole
from moldau.storage.segments import LogSlice, Segments
from moldau.storage.snapshots import Snapshots
from moldau.storage.transaction_index import AbortedTransaction
from moldau.storage.validation import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    check_checksum,
    check_client_header,
    check_records,
    codec_level,
    needs_open_records,
    recompress,
    refuse_malformed,
    target_codec,
)

PARTITION_METADATA_FILE = "partition.metadata"
# A full disk is a state that passes; any other failed write takes the log out of service.
_PASSING_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED_BITS = CONTROL_BIT | LOG_APPEND_TIME_BIT
_NEVER = -1

_unpack_header = struct.Struct(">qiibIhiqqqhii").unpack_from
_pack_offset = struct.Struct(">q").pack_into
_pack_epoch = struct.Struct(">i").pack_into


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    # -1 unless the topic's timestamps are the broker's.
    log_append_time_ms: int
    log_start_offset: int
    # The offsets are those of an earlier append of the same batch; nothing was written.
    duplicate: bool


def _say_nothing(line: str) -> None:
    pass


class PartitionLog:
    """Open one with `PartitionLog.open`. Attributes without underscore are for reading only."""

    __slots__ = (
        "_codec",
        "_failure",
        "_limits",
        "_message_bytes_max",
        "_opens_records",
        "_pending_deletions",
        "_say",
        "_segments",
        "_snapshots",
        "_stamps",
        "_timestamp_after_ms",
        "_unsynced",
        "config",
        "directory",
        "disk",
        "end_offset",
        "epochs",
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
        self.end_offset = loaded.end_offset
        self.recovery_point = loaded.recovery_point
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self._say = say
        self._segments = Segments(loaded.segments)
        self._snapshots = loaded.snapshots
        self._limits = RollLimits()
        self._pending_deletions: list[tuple[int, str]] = []
        self._failure: str | None = None
        self._unsynced = Unsynced(loaded.end_offset - loaded.recovery_point)
        for segment in loaded.unsynced:
            self._unsynced.directory = True
            if segment is not self._segments.active:
                self._unsynced.segments.append((segment, None))
                self._unsynced.paths += [segment.stem + suffix for suffix in INDEX_SUFFIXES]
        self.config = config
        self.apply_config(config)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        recovery_point: int = 0,
        start_offset: int = 0,
        clean: bool = False,
        topic_id: bytes | None = None,
        say: Callable[[str], None] | None = None,
    ) -> PartitionLog:
        """The log in `directory`, which is made when it is missing.

        `recovery_point` and `start_offset` come from the log directory's checkpoints; `clean` says that the last broker
        closed this log. OSError when the disk fails; INCONSISTENT_TOPIC_ID when the directory is another topic's.
        """
        say = say or _say_nothing
        try:
            names = disk.list(directory)
        except FileNotFoundError:
            return cls._create(disk, directory, config, now_ms, start_offset, topic_id, say)
        stored_id = _stored_topic_id(disk, directory, names, say)
        if stored_id is not None and topic_id is not None and stored_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{directory} holds a topic of the same name with another id"
            )
        loaded = load(
            disk,
            directory,
            names,
            config,
            now_ms=now_ms,
            recovery_point=recovery_point,
            start_offset=start_offset,
            clean=clean,
            say=say,
        )
        log = cls(disk, directory, config, loaded, stored_id or topic_id, say)
        if stored_id is None and topic_id is not None:
            log._write_partition_metadata(topic_id)
        log.producers.expire(now_ms, config.producer_id_expiration_ms)
        return log

    @classmethod
    def _create(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        now_ms: int,
        start_offset: int,
        topic_id: bytes | None,
        say: Say,
    ) -> PartitionLog:
        disk.make_directories(directory)
        segment = Segment(disk, directory, start_offset, 0, config.index_interval_bytes, now_ms)
        if start_offset:
            segment.open()
        loaded = LoadedLog(
            [segment],
            start_offset,
            start_offset,
            start_offset,
            LeaderEpochs(),
            ProducerStates(),
            Snapshots(disk, directory, []),
        )
        log = cls(disk, directory, config, loaded, topic_id, say)
        log._unsynced.directory = log._unsynced.parent = True
        if topic_id is not None:
            log._write_partition_metadata(topic_id)
        return log

    def _write_partition_metadata(self, topic_id: bytes) -> None:
        # Durable with the first flush, so before any batch of this topic is.
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        write_whole(self.disk, path, partition_metadata_text(topic_id))
        self._unsynced.note_path(path)

    # -- configuration -------------------------------------------------------------------------------------------------

    def apply_config(self, config: LogConfig) -> None:
        """Takes effect with the next append."""
        self.config = config
        self._message_bytes_max = config.max_message_bytes
        self._stamps = config.message_timestamp_type == LOG_APPEND_TIME
        self._timestamp_after_ms = INT64_MAX if self._stamps else config.message_timestamp_after_max_ms
        self._opens_records = needs_open_records(config)
        self._codec = target_codec(config.compression_type)
        self._segments.active.interval_bytes = config.index_interval_bytes
        self._limits.disarm()

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_base_offsets(self) -> list[int]:
        return self._segments.bases.copy()

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends, or None."""
        return self._failure

    @property
    def last_stable_offset_bound(self) -> int | None:
        """First offset of the oldest open transaction: readers of committed records stop before it."""
        first_open = self.producers.first_open_offset
        return None if first_open is None else max(first_open, self.start_offset)

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory!r}, [{self.start_offset}, {self.end_offset}))"

    # -- appending -----------------------------------------------------------------------------------------------------

    def append_as_leader(self, batch: bytearray | memoryview, leader_epoch: int, now_ms: int) -> AppendResult:
        """One batch from a client; offset and epoch are set in `batch` itself. KafkaError when it is refused."""
        size = len(batch)
        if size < HEADER_BYTES:
            raise refuse_malformed(batch)
        (
            base_offset,
            length,
            _,
            magic,
            checksum,
            attributes,
            offset_delta,
            _,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = _unpack_header(batch)
        if length != size - LENGTH_OVERHEAD_BYTES or magic != MAGIC:
            raise refuse_malformed(batch)
        if size > self._message_bytes_max:
            raise self._too_large(size)
        if crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]) != checksum:
            check_checksum(batch, checksum)
        if (
            base_offset
            or attributes & _REFUSED_BITS
            or offset_delta != count - 1
            or offset_delta < 0
            or attributes & CODEC_MASK > 4
            or (producer_id >= 0 and base_sequence < 0)
        ):
            check_client_header(read_header(batch))
        if max_timestamp > now_ms + self._timestamp_after_ms or self._opens_records:
            check_records(batch, read_header(batch), self.config, now_ms)
        if producer_id >= 0:
            producers = self.producers
            written = producers.find_duplicate(producer_id, producer_epoch, base_sequence, offset_delta)
            if written is not None:
                return AppendResult(
                    written.first_offset, written.last_offset, written.timestamp, self.start_offset, True
                )
            producers.check(producer_id, producer_epoch, base_sequence, bool(attributes & TRANSACTIONAL_BIT))
        if self._codec is not None and attributes & CODEC_MASK != self._codec:
            batch = self._recompress(batch, self._codec)
            size = len(batch)
        append_time = -1
        if self._stamps:
            set_log_append_time(batch, now_ms)
            max_timestamp = append_time = now_ms
        base_offset = self.end_offset
        last_offset = base_offset + offset_delta
        segment, limits = self._segments.active, self._limits
        if segment.size + size > limits.bytes or max_timestamp > limits.timestamp or last_offset > limits.offset:
            if size > self.config.segment_bytes:
                raise self._too_large_for_segment(size)
            segment = self._make_room(size, max_timestamp, last_offset, now_ms)
        _pack_offset(batch, 0, base_offset)
        _pack_epoch(batch, 12, leader_epoch)
        try:
            segment.file.write(segment.size, (batch,))  # type: ignore[union-attr]
        except OSError as error:
            self._write_failed(segment, error)
        self.end_offset = last_offset + 1
        if segment.note_append(size, last_offset, max_timestamp):
            limits.disarm_if_full(segment, self.config)
        self._unsynced.messages += count
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            self.producers.note_batch(
                producer_id,
                producer_epoch,
                base_sequence,
                offset_delta,
                base_offset,
                max_timestamp,
                bool(attributes & TRANSACTIONAL_BIT),
            )
        return AppendResult(base_offset, last_offset, append_time, self.start_offset, False)

    def append_control(self, batch: bytearray | memoryview, leader_epoch: int, now_ms: int) -> AppendResult:
        """A control batch that the broker itself made, such as a transaction's end."""
        header = read_header(batch)
        assert header.is_control and header.size == len(batch)
        marker = read_marker(batch) if header.producer_id >= 0 else None
        if marker is not None:
            self.producers.check_marker(header.producer_id, header.producer_epoch, marker[0])
        base_offset, last_offset = self.end_offset, self.end_offset + header.last_offset_delta
        segment = self._make_room(len(batch), header.max_timestamp, last_offset, now_ms)
        _pack_offset(batch, 0, base_offset)
        _pack_epoch(batch, 12, leader_epoch)
        try:
            segment.open().write(segment.size, (batch,))
        except OSError as error:
            self._write_failed(segment, error)
        self._note_stored(segment, read_header(batch), batch)
        return AppendResult(base_offset, last_offset, -1, self.start_offset, False)

    def append_as_follower(self, batches: Buffer) -> None:
        """Batches as a leader wrote them, offsets and epochs included. An incomplete one at the end is left out.

        CORRUPT_MESSAGE or OFFSET_OUT_OF_RANGE when one is damaged or does not follow; those before it are in the log.
        """
        waiting: list[tuple[BatchHeader, memoryview]] = []
        waiting_bytes, next_offset = 0, self.end_offset
        segment, limits = self._segments.active, self._limits
        for header, batch in iterate_batches(batches):
            try:
                if header.magic != MAGIC:
                    raise refuse_malformed(batch)
                check_checksum(batch, header.crc)
                if header.base_offset < next_offset or header.last_offset_delta < 0:
                    raise KafkaError(
                        ErrorCode.OFFSET_OUT_OF_RANGE,
                        f"batch [{header.base_offset}, {header.last_offset}] does not follow offset {next_offset - 1}",
                    )
            except KafkaError:
                self._write_stored(segment, waiting)
                raise
            if (
                segment.size + waiting_bytes + header.size > limits.bytes
                or header.max_timestamp > limits.timestamp
                or header.last_offset > limits.offset
            ):
                self._write_stored(segment, waiting)
                waiting, waiting_bytes = [], 0
                segment = self._make_room(header.size, header.max_timestamp, header.last_offset, segment.created_ms)
            waiting.append((header, batch))
            waiting_bytes += header.size
            next_offset = header.next_offset
        self._write_stored(segment, waiting)

    def _write_stored(self, segment: Segment, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        if not batches:
            return
        try:
            segment.open().write(segment.size, [batch for _, batch in batches])
        except OSError as error:
            self._write_failed(segment, error)
        for header, batch in batches:
            self._note_stored(segment, header, batch)

    def _note_stored(self, segment: Segment, header: BatchHeader, batch: Buffer) -> None:
        self.end_offset = header.next_offset
        if segment.note_append(header.size, header.last_offset, header.max_timestamp):
            self._limits.disarm_if_full(segment, self.config)
        self._unsynced.messages += max(header.record_count, 0)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            completed = self.producers.note_stored(header, batch)
            if completed is not None and completed.aborted:
                segment.note_aborted(self.producers.aborted_entry(completed))

    def _recompress(self, batch: bytearray | memoryview, codec: Compression) -> bytearray:
        recompressed = recompress(batch, read_header(batch), codec, codec_level(codec, self.config))
        if len(recompressed) > self._message_bytes_max:
            raise self._too_large(len(recompressed))
        return recompressed

    def _too_large(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"record batch has {size} bytes, max.message.bytes is {self._message_bytes_max}",
        )

    def _too_large_for_segment(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"record batch has {size} bytes, segment.bytes is {self.config.segment_bytes}",
        )

    # -- rolling -------------------------------------------------------------------------------------------------------

    def _make_room(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> Segment:
        """The segment to write to, open, rolled if the batch must not go into the present one."""
        self._check_in_service()
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
            raise self._storage_error("the segment could not be opened or rolled", error) from error
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
            raise self._storage_error("the segment could not be rolled", error) from error

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

    # -- faults --------------------------------------------------------------------------------------------------------

    def _check_in_service(self) -> None:
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._failure)

    def _write_failed(self, segment: Segment, error: OSError) -> NoReturn:
        """Take back what a failed write may have left behind, so that the next append finds the end."""
        if error.errno in _PASSING_ERRORS:
            try:
                segment.open().truncate(segment.size)
            except OSError as second:
                self._fail(f"a partial batch could not be cut off: {second}")
        else:
            self._fail(f"writing failed: {error}")
        raise self._storage_error("the batch could not be written", error) from error

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = f"{self.directory}: {reason}"
            self._say(f"log_failed {self._name} reason={reason.replace(' ', '_')}")
        self._limits.disarm()

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {what}: {error}")

    @property
    def _name(self) -> str:
        topic, _, partition = self.directory.rsplit("/", 1)[-1].rpartition("-")
        return f"topic={topic} partition={partition}"

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, *, offset_max: int, at_least_one: bool = True) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, of one segment, all below `offset_max` (trap 16).

        The first may begin before `offset`, and be larger than `bytes_max` if `at_least_one`. None when there is
        nothing to give; OFFSET_OUT_OF_RANGE outside of [start, end].
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside of [{self.start_offset}, {end_offset}]"
            )
        if offset_max > end_offset:
            offset_max = end_offset
        if offset >= offset_max:
            return None
        return self._segments.read(offset, bytes_max, offset_max, end_offset, at_least_one)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record that is not older."""
        return self._segments.offset_for_timestamp(timestamp_ms, self.start_offset)

    def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp."""
        return self._segments.max_timestamp()

    def aborted_transactions(self, first_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Transactions whose records in [first, upper) a reader of committed records must drop."""
        return self._segments.aborted_transactions(first_offset, upper_offset)

    # -- cutting -------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Give up everything from `offset` on; durable when it returns. A batch that holds `offset` goes whole."""
        if offset >= self.end_offset:
            return
        if offset < self._segments.bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        self._check_in_service()
        segments, unsynced = self._segments, self._unsynced
        removed = segments.above(offset)
        bytes_cut = sum(segment.size for segment in removed)
        try:
            self._remove_for_good(removed)
            segments.cut_above(offset)
            unsynced.forget_segments([*removed, segments.active])
            segments.load_transactions(segments.active)
            end_offset, bytes_of_active = segments.active.truncate_to(offset)
            segments.active.open().sync()
            self._settle_truncation(end_offset)
        except OSError as error:
            self._fail(f"truncation failed: {error}")
            raise self._storage_error("the log could not be truncated", error) from error
        bytes_cut += bytes_of_active
        if end_offset < self.start_offset:
            # The cut batch reached below the log's start, which never goes back.
            self.truncate_fully_and_start_at(self.start_offset)
            return
        self._say(f"log_truncated {self._name} offset={end_offset} bytes_cut={bytes_cut} reason=asked")

    def _remove_for_good(self, segments: list[Segment]) -> None:
        """From the last to the first, each durably: a power cut in between leaves a shorter log, not one with a hole."""
        for segment in reversed(segments):
            remove_segment(self.disk, segment)
            self.disk.sync_directory(self.directory)

    def _settle_truncation(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        self._unsynced.generation += 1
        self._unsynced.messages = end_offset - self.recovery_point
        self._limits.disarm()
        self.epochs.truncate_from_end(end_offset)
        self._snapshots.drop_above(end_offset)
        self.producers, replay_from, _ = self._snapshots.load_newest()
        replay_producers(self._segments.all, self.producers, replay_from, end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Give up everything and go on, empty, at `offset`; durable when it returns."""
        self._check_in_service()
        bytes_cut = self.size_bytes
        first, *others = self._segments.all
        segment = Segment(self.disk, self.directory, offset, 0, self.config.index_interval_bytes, 0)
        try:
            self._remove_for_good(others)
            # The last file is emptied and renamed, so that the directory names an offset at every moment.
            file = first.open()
            file.truncate(0)
            file.sync()
            if first.stem != segment.stem:
                self.disk.rename(first.stem + LOG_SUFFIX, segment.stem + LOG_SUFFIX)
            remove_segment(self.disk, first, INDEX_SUFFIXES)
            self._snapshots.drop_above(-1)
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self._fail(f"truncation failed: {error}")
            raise self._storage_error("the log could not be truncated", error) from error
        self._segments.restart(segment)
        self._unsynced.segments.clear()
        self._unsynced.generation += 1
        self._unsynced.messages = 0
        self._limits.disarm()
        self.start_offset = self.end_offset = self.recovery_point = offset
        self.epochs.clear()
        self.producers.clear()
        self._say(f"log_truncated {self._name} offset={offset} bytes_cut={bytes_cut} reason=asked")

    def delete_records_before(self, offset: int) -> None:
        """Let the log start at `offset`. Segments that lie below it are marked deleted: see `take_deletions`."""
        if offset > self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is beyond the log's end {self.end_offset}"
            )
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        # The recovery point stays: the segment in which the log now starts need not be durable yet.
        self.epochs.truncate_from_start(offset)
        self._drop_segments_below_start()

    def _drop_segments_below_start(self) -> None:
        dropped = self._segments.drop_below(self.start_offset)
        if not dropped:
            return
        if self._segments.active.size == 0:
            # It alone keeps the next offset once the others are gone.
            self._segments.active.open()
        # Oldest first: a crash in between leaves no gap.
        for segment in dropped:
            for suffix in SEGMENT_SUFFIXES:
                path = segment.stem + suffix
                try:
                    self.disk.rename(path, path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                self._pending_deletions.append((_NEVER, path + DELETED_SUFFIX))
        self._unsynced.forget_segments(dropped)
        self._unsynced.directory = True

    def take_deletions(self, now_ms: int) -> list[str]:
        """Files marked deleted whose delay is over, each given once; the caller removes them."""
        if not self._pending_deletions:
            return []
        due_ms = now_ms + self.config.file_delete_delay_ms
        stamped = [(due_ms if due == _NEVER else due, path) for due, path in self._pending_deletions]
        self._pending_deletions = [(due, path) for due, path in stamped if due > now_ms]
        return [path for due, path in stamped if due <= now_ms]

    def expire_producers(self, now_ms: int) -> None:
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # -- durability ----------------------------------------------------------------------------------------------------

    def flush_is_due(self, now_ms: int) -> bool:
        """By flush.messages, or flush.ms after the first look at unflushed ones; rolled segments are due at once."""
        unsynced = self._unsynced
        if unsynced.segments:
            return not unsynced.under_way
        if unsynced.messages <= 0:
            return False
        if unsynced.messages >= self.config.flush_messages:
            return True
        if unsynced.since_ms < 0:
            unsynced.since_ms = now_ms
        return now_ms - unsynced.since_ms >= self.config.flush_ms

    def flush_task(self) -> FlushTask | None:
        """What has to be synced now; None when nothing is, or a task is under way."""
        unsynced = self._unsynced
        if unsynced.under_way or self._failure is not None or self.end_offset == 0:
            return None
        if self.recovery_point >= self.end_offset and not unsynced.segments and not unsynced.paths:
            return None
        epochs = epochs_text(self.epochs.entries) if self.epochs.dirty else None
        self.epochs.dirty = False
        epochs_path = f"{self.directory}/{EPOCHS_FILE}"
        return unsynced.take(self.disk, self.directory, self.end_offset, self._segments.active, epochs_path, epochs)

    def complete_flush(self, task: FlushTask) -> None:
        """The task has run. KAFKA_STORAGE_ERROR when it failed: then nothing more is appended, nothing synced again."""
        unsynced = self._unsynced
        unsynced.under_way = False
        if task.error is not None:
            self._fail(f"sync failed: {task.error}")
            raise self._storage_error("the log could not be synced", task.error)
        if task.generation == unsynced.generation:
            self.recovery_point = max(self.recovery_point, task.offset)
        else:
            # The log was cut meanwhile: the checkpoint may speak of epochs that are gone.
            self.epochs.dirty = True
            unsynced.messages = self.end_offset - self.recovery_point

    def close(self, clean: bool, now_ms: int) -> None:
        """With `clean`, everything is on disk and the next open need not look at it. The log is not used afterwards."""
        assert not (clean and self._unsynced.under_way), "a flush is under way: complete it first"
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


def _stored_topic_id(disk: Disk, directory: str, names: list[str], say: Say) -> bytes | None:
    if PARTITION_METADATA_FILE not in names:
        return None
    try:
        return parse_partition_metadata(disk.read_file(f"{directory}/{PARTITION_METADATA_FILE}"))
    except CorruptCheckpointError as error:
        # Written without a sync at creation, so a power cut may leave it empty; nothing durable depends on it yet.
        say(f"partition_metadata_ignored directory={directory} reason={str(error).replace(' ', '_')}")
        return None
