"""One partition's log: what the broker appends to and reads from.

Appends are per batch: one header is unpacked, one checksum computed, base offset and leader epoch are set in place
(both lie outside of the checksum, trap 14), and one write is made. Reads give ranges of a file, so that the bytes need
not pass through this process. The log does not know who leads, how far readers may see, or when the clock ticks:
epochs, limits and `now_ms` are arguments. What lies on disk and when it is safe there is `stored_log`'s part.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
from moldau.protocol.markers import read_marker
from moldau.storage.checkpoints import CorruptCheckpointError, parse_partition_metadata
from moldau.storage.cleaning.job import CleaningJob, OldSegment
from moldau.storage.cleaning.rules import LastOfProducer
from moldau.storage.cleaning.selection import Dirt, dirt_of
from moldau.storage.config import INT64_MAX, LOG_APPEND_TIME, LogConfig
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.loading import LoadedLog, Say, load
from moldau.storage.producer_state import CompletedTransaction, ProducerStates
from moldau.storage.retention import Outlived, outlived
from moldau.storage.segment import Segment
from moldau.storage.segments import LogSlice
from moldau.storage.snapshots import Snapshots
from moldau.storage.stored_log import PARTITION_METADATA_FILE, StoredLog
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

_REFUSED_BITS = CONTROL_BIT | LOG_APPEND_TIME_BIT

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
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


class PartitionLog(StoredLog):
    """Open one with `PartitionLog.open`."""

    __slots__ = ("_codec", "_message_bytes_max", "_opens_records", "_stamps", "_timestamp_after_ms", "ended")

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, loaded: LoadedLog, topic_id: bytes | None, say: Say
    ) -> None:
        super().__init__(disk, directory, config, loaded, topic_id, say)
        # Transactions whose markers were appended, until someone takes note.
        self.ended: list[CompletedTransaction] = []
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
        if not clean and loaded.recovery_point == 0:
            # Nothing of this log was ever known to be durable, so neither is its directory's name.
            log._unsynced.directory = log._unsynced.parent = True
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

    # -- appending -----------------------------------------------------------------------------------------------------

    def append_as_leader(self, batch: bytearray | memoryview, leader_epoch: int, now_ms: int) -> AppendResult:
        """One batch from a client; offset and epoch are set in `batch` itself.

        KafkaError when it is refused; `batch` is then as it came, so that whoever tries again judges the same bytes.
        """
        size = len(batch)
        if size < HEADER_BYTES:
            raise refuse_malformed(batch)
        header = _unpack_header(batch)
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
        ) = header
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
            max_timestamp = append_time = now_ms
        base_offset = self.end_offset
        last_offset = base_offset + offset_delta
        segment, limits = self._segments.active, self._limits
        if segment.size + size > limits.bytes or max_timestamp > limits.timestamp or last_offset > limits.offset:
            if size > self.config.segment_bytes:
                raise self._too_large_for_segment(size)
            segment = self._make_room(size, max_timestamp, last_offset, now_ms)
        if self._stamps:
            set_log_append_time(batch, now_ms)
        _pack_offset(batch, 0, base_offset)
        _pack_epoch(batch, 12, leader_epoch)
        try:
            segment.file.write(segment.size, (batch,))  # type: ignore[union-attr]
        except OSError as error:
            _HEADER.pack_into(batch, 0, *header)
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

    def append_own(self, batch: bytearray, count: int, timestamp_ms: int, leader_epoch: int, now_ms: int) -> None:
        """A batch that the broker itself just made of `count` records with keys, without a producer.

        Nothing in it need be checked, opened or looked up again; only its size and the disk may refuse it.
        """
        if self._stamps or (self._codec is not None and batch[ATTRIBUTES_POSITION + 1] & CODEC_MASK != self._codec):
            # The topic changes what it stores: the long way knows how.
            self.append_as_leader(batch, leader_epoch, now_ms)
            return
        size = len(batch)
        if size > self._message_bytes_max:
            raise self._too_large(size)
        base_offset = self.end_offset
        last_offset = base_offset + count - 1
        segment, limits = self._segments.active, self._limits
        if segment.size + size > limits.bytes or timestamp_ms > limits.timestamp or last_offset > limits.offset:
            if size > self.config.segment_bytes:
                raise self._too_large_for_segment(size)
            segment = self._make_room(size, timestamp_ms, last_offset, now_ms)
        _pack_offset(batch, 0, base_offset)
        _pack_epoch(batch, 12, leader_epoch)
        try:
            segment.file.write(segment.size, (batch,))  # type: ignore[union-attr]
        except OSError as error:
            self._write_failed(segment, error)
        self.end_offset = last_offset + 1
        if segment.note_append(size, last_offset, timestamp_ms):
            limits.disarm_if_full(segment, self.config)
        self._unsynced.messages += count
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)

    def append_control(
        self, batch: bytearray | memoryview, leader_epoch: int, now_ms: int, *, transaction_version: int = 0
    ) -> AppendResult:
        """A control batch that the broker itself made, such as a transaction's end."""
        header = read_header(batch)
        assert header.is_control and header.size == len(batch)
        marker = read_marker(batch) if header.producer_id >= 0 else None
        if marker is not None:
            self.producers.check_marker(
                header.producer_id, header.producer_epoch, marker.coordinator_epoch, transaction_version
            )
        return self._append_made(batch, header, leader_epoch, now_ms)

    def append_in_transaction(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        """Offsets that a group coordinator made into a batch of a producer's transaction; the producer's id."""
        header = read_header(batch)
        assert header.is_transactional and not header.is_control and header.size == len(batch)
        if len(batch) > self._message_bytes_max:
            raise self._too_large(len(batch))
        self.producers.check_coordinators_batch(header.producer_id, header.producer_epoch)
        self._append_made(batch, header, leader_epoch, now_ms)
        return header.producer_id

    def _append_made(
        self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> AppendResult:
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
            if completed is not None:
                self.ended.append(completed)
                if completed.aborted:
                    segment.note_aborted(self.producers.aborted_entry(completed))

    def take_ended(self) -> list[CompletedTransaction]:
        """Transactions that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

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

    @property
    def last_stable_offset_bound(self) -> int | None:
        """First offset of the oldest open transaction: readers of committed records stop before it."""
        first_open = self.producers.first_open_offset
        return None if first_open is None else max(first_open, self.start_offset)

    # -- retention -----------------------------------------------------------------------------------------------------

    def outlived(self, high_watermark: int, now_ms: int) -> Iterator[Outlived]:
        """Segments that need not be kept, oldest first, as the log is now (see `retention`)."""
        return outlived(self._segments.all.copy(), self.end_offset, high_watermark, self.config, now_ms)

    def give_up_before(self, offset: int, now_ms: int) -> None:
        """As `delete_records_before`; an active segment of which nothing is left goes too."""
        if offset == self.end_offset:
            self.roll(now_ms)
        self.delete_records_before(offset)

    # -- compaction ----------------------------------------------------------------------------------------------------

    def dirt(self, cleaned_to: int | None, last_stable_offset: int, now_ms: int) -> Dirt:
        """What a cleaner would find to do (see `cleaning.selection`)."""
        segments = self._segments.all
        return dirt_of(
            segments, self.start_offset, self.end_offset, cleaned_to, last_stable_offset, self.config, now_ms
        )

    def cleaning_job(self, dirt: Dirt, now_ms: int, map_bytes_max: int) -> CleaningJob:
        """The order for a cleaner, as the log is now."""
        limit = dirt.first_uncleanable_offset
        below = [segment for segment in self._segments.all[:-1] if segment.base_offset < limit]
        config = self.config
        return CleaningJob(
            self.directory,
            tuple(OldSegment(segment.base_offset, segment.end_offset, segment.size) for segment in below),
            dirt.first_dirty_offset,
            limit,
            # Behind the limit too, as far as the last segment goes: it is written anew as a whole.
            tuple(self.aborted_transactions(self._segments.bases[0], below[-1].end_offset if below else limit)),
            {
                state.producer_id: LastOfProducer(state.epoch, state.last_offset if state.batches else None)
                for state in self.producers.active()
            },
            now_ms,
            config.delete_retention_ms,
            config.segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
            map_bytes_max,
        )

    def expire_producers(self, now_ms: int) -> None:
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)


def _stored_topic_id(disk: Disk, directory: str, names: list[str], say: Say) -> bytes | None:
    if PARTITION_METADATA_FILE not in names:
        return None
    try:
        return parse_partition_metadata(disk.read_file(f"{directory}/{PARTITION_METADATA_FILE}"))
    except CorruptCheckpointError as error:
        # Written without a sync at creation, so a power cut may leave it empty; nothing durable depends on it yet.
        say(f"partition_metadata_ignored directory={directory} reason={str(error).replace(' ', '_')}")
        return None
