"""One segment: a file of batches, `<base offset>.log`, and its indexes.

The active segment keeps its indexes in memory and writes them when it is rolled or closed; after a crash they are
made again from the batches. Others load theirs when a look-up needs them. Files are opened when first touched and
closed when nobody holds them any more, so a slice that is being sent stays readable after its segment is gone. Knows
nothing of leadership, producers or other segments.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.kernel import Disk, File
from moldau.protocol.batches import BatchHeader, Record, iterate_records, read_header
from moldau.storage.indexes import NO_TIMESTAMP, RELATIVE_OFFSET_MAX, CorruptIndexError, OffsetIndex, TimeIndex
from moldau.storage.scan import SegmentScan, Step, scan_segment, walk
from moldau.storage.transaction_index import AbortedTransaction, TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """A file with exactly this content, not yet durable."""
    file = disk.open(path, create=True)
    file.write(0, (data,))
    file.truncate(len(data))
    file.close()


class Segment:
    """`end_offset` is that of a segment no longer written to; the active one's is the log's."""

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "disk",
        "end_offset",
        "file",
        "first_timestamp",
        "indexes_dirty",
        "interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "size",
        "stem",
        "swap_suffix",
        "times",
        "transactions",
        "transactions_dirty",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, interval_bytes: int, now_ms: int
    ) -> None:
        self.disk = disk
        self.stem = f"{directory}/{base_offset:020d}"
        # While a cleaned segment takes the place of others, its files have names of their own.
        self.swap_suffix = ""
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = size
        self.interval_bytes = interval_bytes
        self.created_ms = now_ms
        self.file: File | None = None
        # None until a look-up or an append needs them.
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.transactions: TransactionIndex | None = None
        self.indexes_dirty = False
        self.transactions_dirty = False
        self.bytes_since_index = 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1

    # -- files ---------------------------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        return self.stem + suffix + self.swap_suffix

    def open(self) -> File:
        file = self.file
        if file is None:
            file = self.file = self.disk.open(self.path(LOG_SUFFIX), create=True)
        return file

    def prepare_append(self) -> File:
        """The file and the indexes, ready for `note_append`."""
        if self.offsets is None:
            self.load_indexes()
        return self.open()

    def forget_indexes(self) -> None:
        """Give back the memory of a segment that is no longer written to."""
        assert not self.indexes_dirty
        self.offsets = self.times = self.transactions = None

    def write_indexes(self) -> list[str]:
        """Put the indexes into their files, not yet durably; the paths of what was written."""
        if not self.indexes_dirty:
            return []
        if self.offsets is None or self.times is None:
            self.load_indexes()
        assert self.offsets is not None and self.times is not None
        if self.max_timestamp_offset >= 0:
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        write_whole(self.disk, self.path(INDEX_SUFFIX), self.offsets.to_bytes())
        write_whole(self.disk, self.path(TIME_INDEX_SUFFIX), self.times.to_bytes())
        written = [self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)]
        if self.transactions_dirty:
            written += self._write_transactions()
        self.indexes_dirty = False
        return written

    # -- indexes -------------------------------------------------------------------------------------------------------

    def load_indexes(self) -> None:
        """From their files, or from the batches when the files are missing or cannot be right."""
        if self.size == 0:
            self.offsets, self.times = OffsetIndex(), TimeIndex()
            return
        try:
            self.offsets = OffsetIndex.from_bytes(self.disk.read_file(self.path(INDEX_SUFFIX)), self.size)
            self.times = TimeIndex.from_bytes(self.disk.read_file(self.path(TIME_INDEX_SUFFIX)))
        except (FileNotFoundError, CorruptIndexError):
            self.adopt(self._scan())
            return
        self._resume()

    def _scan(self) -> SegmentScan:
        return scan_segment(
            self.open(), self.size, self.base_offset, index_interval_bytes=self.interval_bytes, verify=False
        )

    def adopt(self, found: SegmentScan) -> None:
        """Take the indexes that a scan has made."""
        self.offsets, self.times = found.offsets, found.times
        self.bytes_since_index = found.bytes_since_index
        self.first_timestamp = found.first_timestamp
        self.max_timestamp = found.max_timestamp
        self.max_timestamp_offset = found.max_timestamp_offset
        self.indexes_dirty = True

    def _resume(self) -> None:
        """What the indexes do not hold: the batches after the last entry, and the first one."""
        offsets, times, base = self.offsets, self.times, self.base_offset
        assert offsets is not None and times is not None
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, -1
        if times.offsets:
            self.max_timestamp, self.max_timestamp_offset = times.timestamps[-1], base + times.offsets[-1]
        self.first_timestamp = NO_TIMESTAMP
        self.bytes_since_index = 0
        position = offsets.positions[-1] if offsets.positions else 0
        for step in walk(self.open(), position, self.size):
            if step.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = step.max_timestamp, step.last_offset
            self.bytes_since_index += step.size
        if self.size:
            for step in walk(self.open(), 0, self.size):
                self.first_timestamp = step.max_timestamp
                break

    def note_append(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        """A batch was written at the end, the indexes being loaded (`prepare_append`). Whether it made an entry."""
        position, indexed = self.size, False
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        since = self.bytes_since_index
        if since > self.interval_bytes:
            self.offsets.append(last_offset - self.base_offset, position)  # type: ignore[union-attr]
            if self.max_timestamp_offset >= 0:
                self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)  # type: ignore[union-attr]
            since, indexed = 0, True
        elif position == 0:
            self.first_timestamp = max_timestamp
        self.bytes_since_index = since + size
        self.size = position + size
        self.indexes_dirty = True
        return indexed

    def index_is_full(self, index_bytes: int) -> bool:
        offsets, times = self.offsets, self.times
        return (offsets is not None and len(offsets) >= index_bytes // 8) or (
            # The last entry is kept free for the roll.
            times is not None and len(times) >= index_bytes // 12 - 1
        )

    # -- transactions --------------------------------------------------------------------------------------------------

    def load_transactions(self) -> TransactionIndex:
        if self.transactions is None:
            try:
                self.transactions = TransactionIndex.from_bytes(
                    self.disk.read_file(self.path(TRANSACTION_INDEX_SUFFIX))
                )
            except FileNotFoundError:
                self.transactions = TransactionIndex()
        return self.transactions

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        self.load_transactions().append(aborted)
        self.transactions_dirty = self.indexes_dirty = True

    def replace_transactions(self, transactions: TransactionIndex) -> None:
        """After a scan: these and no others."""
        self.transactions = transactions
        self.transactions_dirty = self.indexes_dirty = True

    def _write_transactions(self) -> list[str]:
        path = self.path(TRANSACTION_INDEX_SUFFIX)
        transactions = self.load_transactions()
        if transactions.entries:
            write_whole(self.disk, path, transactions.to_bytes())
        elif self.disk.exists(path):
            self.disk.remove(path)
        self.transactions_dirty = False
        return [path]

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def walk_from_offset(self, offset: int) -> Iterator[Step]:
        """Batches from the first that ends at or after `offset`."""
        if self.offsets is None:
            self.load_indexes()
        assert self.offsets is not None
        relative = min(offset - self.base_offset, RELATIVE_OFFSET_MAX)
        for step in walk(self.open(), self.offsets.position_for_offset(relative), self.size):
            if step.last_offset >= offset:
                yield step

    def last_boundary(
        self, position: int, bytes_max: int, offset_max: int, first_offset: int, at_least_one: bool
    ) -> tuple[int, int]:
        """Where a read from `position` must end, and the offset that follows.

        Only whole batches that end below `offset_max`, no more than `bytes_max`; a first batch that alone is larger is
        given if `at_least_one`. The position itself comes back when nothing may be given.
        """
        if self.offsets is None:
            self.load_indexes()
        assert self.offsets is not None
        limit = position + bytes_max
        start = self.offsets.position_at_or_before(limit)
        if offset_max - self.base_offset <= RELATIVE_OFFSET_MAX:
            start = min(start, self.offsets.position_for_offset(offset_max - self.base_offset))
        start = max(start, position)
        end, next_offset = position, first_offset
        for step in walk(self.open(), start, self.size):
            end = step.position
            next_offset = step.base_offset if end > position else first_offset
            if step.last_offset >= offset_max:
                return end, next_offset
            if end + step.size > limit:
                if end == position and at_least_one:
                    return end + step.size, step.last_offset + 1
                return end, next_offset
            end += step.size
            next_offset = step.last_offset + 1
        return end, next_offset

    def read_batch(self, step: Step) -> bytes:
        return self.open().read(step.position, step.size)

    def first_record_at_or_after(self, timestamp: int, start_offset: int) -> tuple[Record, int] | None:
        """The first record of that time or later from `start_offset` on, with its batch's leader epoch."""
        if self.times is None:
            self.load_indexes()
        assert self.times is not None
        if self.max_timestamp < timestamp:
            return None
        offset = max(self.base_offset + self.times.offset_for(timestamp - 1), start_offset)
        for step in self.walk_from_offset(offset):
            if step.max_timestamp < timestamp:
                continue
            for record in iterate_records(self.read_batch(step)):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return record, step.leader_epoch
        return None

    def largest_timestamp(self) -> int:
        if self.size and self.max_timestamp < 0 and self.offsets is None:
            self.load_indexes()
        return self.max_timestamp

    def first_batch_timestamp(self) -> int:
        if self.size and self.first_timestamp < 0 and self.offsets is None:
            self.load_indexes()
        return self.first_timestamp

    def record_of_largest_timestamp(self) -> Record | None:
        timestamp = self.largest_timestamp()
        for step in self.walk_from_offset(self.max_timestamp_offset):
            if step.max_timestamp >= timestamp:
                for record in iterate_records(self.read_batch(step)):
                    if record.timestamp >= timestamp:
                        return record
        return None

    def header_at(self, position: int) -> BatchHeader:
        return read_header(self.open().read(position, 61))

    # -- cutting -------------------------------------------------------------------------------------------------------

    def place_of_cut(self, offset: int) -> tuple[int, int]:
        """(size, end offset) without the batch that holds `offset` and all after it."""
        for step in self.walk_from_offset(offset):
            return step.position, min(offset, step.base_offset)
        return self.size, offset

    def forget_above(self, size: int, end_offset: int) -> None:
        """What lies from `size` on is no part of the segment any more; the file itself is yet to be cut."""
        if size == self.size:
            return
        self.size = size
        assert self.offsets is not None and self.times is not None
        self.offsets.truncate(size)
        self.times.truncate(end_offset - self.base_offset)
        self.indexes_dirty = True
        self._resume()
        self.transactions_dirty |= self.load_transactions().truncate(end_offset)
