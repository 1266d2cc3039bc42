"""One cleaning of one log: what to do, as plain values that another process can be given, and doing it.

Two passes. The first goes over the dirty part and notes the last offset of every key, as far as memory allows. The
second goes over the log from its start, group of segments by group, and writes what is left of each into a new segment
beside it, `<base>.log.cleaned` with its indexes, durably. Whoever ordered the job puts it in its place (`swap`).
A batch that does not pass its checksum ends the job: nothing damaged gets a new, valid one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moldau.kernel import Buffer, Disk, File
from moldau.protocol.batches import BatchHeader, CorruptBatchError, crc_is_valid, iterate_batches, read_header
from moldau.storage.cleaning.fields import ReadFields, reader_for
from moldau.storage.cleaning.offset_map import OffsetMap
from moldau.storage.cleaning.rules import LastOfProducer, Rules
from moldau.storage.cleaning.transactions import MetTransactions
from moldau.storage.indexes import RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES
from moldau.storage.loading import CLEANED_SUFFIX, remove_if_there
from moldau.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from moldau.storage.transaction_index import AbortedTransaction, TransactionIndex

PIECE_BYTES = 4 << 20


class OldSegment(NamedTuple):
    base_offset: int
    end_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    directory: str
    # All segments below `limit`, oldest first; the active one is never among them.
    segments: tuple[OldSegment, ...]
    first_dirty_offset: int
    limit: int
    aborted: tuple[AbortedTransaction, ...]
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes_max: int


class CleanedGroup(NamedTuple):
    """Old segments, and the new one that may take their place. `is_same`: nothing changed, and nothing was written."""

    old_bases: tuple[int, ...]
    end_offset: int
    size: int
    bytes_read: int
    records_read: int
    records_kept: int
    is_same: bool


class Cleaned(NamedTuple):
    """The end of a job: the log is clean up to here."""

    cleaned_to: int


Pace = Callable[[int], None]


def no_pace(_bytes: int) -> None:
    """As fast as it goes."""


class RatedPace:
    """`log.cleaner.io.max.bytes.per.second` for one process: sleep when ahead of the rate."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic()
        self._done = 0

    def __call__(self, count: int) -> None:
        self._done += count
        ahead = self._done / self._rate - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)


def run(job: CleaningJob, disk: Disk, pace: Pace = no_pace) -> Iterator[CleanedGroup | Cleaned]:
    """Each group when it is written, last how far the log is clean. CorruptBatchError, OSError: it cannot be."""
    read_fields = reader_for(sum(segment.size for segment in job.segments))
    latest = map_offsets(job, disk, pace, read_fields)
    transactions = MetTransactions(job.aborted)
    rules = Rules(
        latest,
        transactions,
        job.producers,
        now_ms=job.now_ms,
        delete_retention_ms=job.delete_retention_ms,
        read_fields=read_fields,
    )
    below = [segment for segment in job.segments if segment.base_offset < latest.end_offset]
    for group in group_segments(below, job.segment_bytes, job.index_bytes, job.index_interval_bytes):
        yield _clean_group(job, disk, group, rules, transactions, pace)
    yield Cleaned(latest.end_offset)


def map_offsets(job: CleaningJob, disk: Disk, pace: Pace, read_fields: ReadFields | None = None) -> OffsetMap:
    """The last offset of every key in the dirty part, or in as much of it as the map holds: one segment at least."""
    latest = OffsetMap(job.map_bytes_max, job.first_dirty_offset, read_fields)
    # Those that ended below are over: what their producer wrote since is another transaction's.
    transactions = MetTransactions([each for each in job.aborted if each.last_offset >= job.first_dirty_offset])
    mapped_any = False
    for segment in job.segments:
        if segment.end_offset <= job.first_dirty_offset:
            continue
        for header, batch in _batches(disk, job.directory, segment, pace):
            if header.last_offset < job.first_dirty_offset:
                continue
            if header.base_offset >= job.limit or (latest.is_full and mapped_any):
                return latest
            if header.is_control:
                transactions.is_marker_of_nothing(header, batch)
            elif not transactions.is_aborted(header):
                latest.put(header, batch)
            latest.end_offset = header.next_offset
            mapped_any = True
        latest.end_offset = max(latest.end_offset, min(segment.end_offset, job.limit))
    return latest


def group_segments(
    segments: Sequence[OldSegment], segment_bytes: int, index_bytes: int, index_interval_bytes: int
) -> list[list[OldSegment]]:
    """Neighbours that fit into one segment together: cleaning makes segments small, and small ones are merged."""
    entries_bytes_max = index_bytes // TIME_ENTRY_BYTES * max(index_interval_bytes, 1)
    groups: list[list[OldSegment]] = []
    size = 0
    for segment in segments:
        if (
            not groups
            or size + segment.size > min(segment_bytes, entries_bytes_max)
            or segment.end_offset - groups[-1][0].base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.size
    return groups


# -- one group ---------------------------------------------------------------------------------------------------------


def _clean_group(
    job: CleaningJob,
    disk: Disk,
    group: list[OldSegment],
    rules: Rules,
    transactions: MetTransactions,
    pace: Pace,
) -> CleanedGroup:
    writer = _CleanedSegment(job, disk, group[0].base_offset)
    try:
        return _write_group(job, disk, group, writer, rules, transactions, pace)
    except (OSError, CorruptBatchError):
        # What was written takes no room from others, least of all on a full disk.
        writer.give_up()
        raise


def _write_group(
    job: CleaningJob,
    disk: Disk,
    group: list[OldSegment],
    writer: _CleanedSegment,
    rules: Rules,
    transactions: MetTransactions,
    pace: Pace,
) -> CleanedGroup:
    left_before = len(transactions.left)
    bytes_read = records_read = records_kept = 0
    is_same = len(group) == 1
    for segment in group:
        for header, batch in _batches(disk, job.directory, segment, pace):
            bytes_read += header.size
            records_read += header.record_count
            cleaned = rules.clean(header, batch)
            if cleaned is batch:
                records_kept += header.record_count
            else:
                is_same = False
                if cleaned is None:
                    continue
                header = read_header(cleaned)
                records_kept += header.record_count
            writer.append(header, cleaned)
            pace(header.size)
    if is_same:
        writer.give_up()
    else:
        writer.finish(transactions.left[left_before:])
    return CleanedGroup(
        tuple(segment.base_offset for segment in group),
        group[-1].end_offset,
        writer.segment.size,
        bytes_read,
        records_read,
        records_kept,
        is_same,
    )


def _batches(disk: Disk, directory: str, segment: OldSegment, pace: Pace) -> Iterator[tuple[BatchHeader, Buffer]]:
    file = disk.open(f"{directory}/{segment.base_offset:020d}{LOG_SUFFIX}")
    try:
        position, next_offset = 0, segment.base_offset
        piece_bytes = PIECE_BYTES
        while position < segment.size:
            piece = file.read(position, min(piece_bytes, segment.size - position))
            pace(len(piece))
            begin = position
            for header, batch in iterate_batches(piece):
                if not crc_is_valid(batch, header):
                    raise CorruptBatchError(f"the batch at offset {header.base_offset} has a wrong checksum")
                if not next_offset <= header.base_offset <= header.last_offset < segment.end_offset:
                    raise CorruptBatchError(f"offset {header.base_offset} is out of order at position {position}")
                next_offset = header.next_offset
                yield header, batch
                position += header.size
            if position == begin:
                if len(piece) >= segment.size - position:
                    raise CorruptBatchError(f"{segment.size - position} bytes at position {position} are no batch")
                piece_bytes *= 2  # a batch larger than the piece
    finally:
        file.close()


class _CleanedSegment:
    """A segment in the making, under the names that a crash leaves to be swept up."""

    def __init__(self, job: CleaningJob, disk: Disk, base_offset: int) -> None:
        self._disk = disk
        self._directory = job.directory
        self.segment = Segment(disk, job.directory, base_offset, 0, job.index_interval_bytes, job.now_ms)
        self._sweep()
        self.segment.load_indexes()
        self._file: File = disk.open(self._path(LOG_SUFFIX), create=True)
        self.segment.file = self._file
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0

    def _path(self, suffix: str) -> str:
        return self.segment.stem + suffix + CLEANED_SUFFIX

    def append(self, header: BatchHeader, batch: Buffer) -> None:
        # A view of a piece that is read: it lives as long as it waits.
        self._waiting.append(batch)
        self._waiting_bytes += len(batch)
        self.segment.note_append(len(batch), header.last_offset, header.max_timestamp)
        if self._waiting_bytes >= PIECE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._file.write(self.segment.size - self._waiting_bytes, self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    def finish(self, aborted: list[AbortedTransaction]) -> None:
        self._write()
        self._file.sync()
        self._file.close()
        segment = self.segment
        segment.file = None
        assert segment.offsets is not None and segment.times is not None
        if segment.max_timestamp_offset >= 0:
            segment.times.append(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)
        self._put(INDEX_SUFFIX, segment.offsets.to_bytes())
        self._put(TIME_INDEX_SUFFIX, segment.times.to_bytes())
        if aborted:
            self._put(TRANSACTION_INDEX_SUFFIX, TransactionIndex(aborted).to_bytes())
        self._disk.sync_directory(self._directory)

    def _put(self, suffix: str, data: bytes) -> None:
        file = self._disk.open(self._path(suffix), create=True)
        file.write(0, (data,))
        file.sync()
        file.close()

    def give_up(self) -> None:
        self._file.close()
        self.segment.file = None
        self._sweep()

    def _sweep(self) -> None:
        """Also what an earlier job left that did not come to its end."""
        for suffix in SEGMENT_SUFFIXES:
            remove_if_there(self._disk, self._path(suffix))
