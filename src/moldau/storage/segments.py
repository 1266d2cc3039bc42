"""A log's segments in the order of their offsets, and finding one's way in them.

Reads give ranges of one file. Where a reader stopped is remembered, so that the next read of a tailing consumer needs
neither index nor header. Does not write, and does not know how far a reader may see: that comes as an argument.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moldau.kernel import File
from moldau.storage.loading import replay_segment
from moldau.storage.producer_state import ProducerStates
from moldau.storage.segment import Segment
from moldau.storage.transaction_index import AbortedTransaction, CorruptTransactionIndexError, TransactionIndex

# Places where readers stopped.
HINTS_MAX = 64
# Segments other than the active one whose file and indexes stay at hand.
IDLE_OPEN_MAX = 2


@dataclass(slots=True)
class LogSlice:
    """Whole batches of one segment. Holds the open file, so it stays readable whatever happens to the segment."""

    file: File
    position: int
    size: int
    first_offset: int
    next_offset: int
    # Told when the file does not give its bytes while they are sent, which is after the answer was made.
    on_read_error: Callable[[OSError], None] | None = None

    def read(self) -> bytes:
        return self.file.read(self.position, self.size)


class Segments:
    """Never empty; the last one is `active`, the only one that grows."""

    __slots__ = ("_hints", "_idle_open", "active", "all", "bases")

    def __init__(self, segments: list[Segment]) -> None:
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._idle_open: list[Segment] = []

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    def recovery_base(self, recovery_point: int) -> int:
        """The base offset of the segment with which a recovery from that point begins (see `loading`)."""
        return self.bases[max(bisect_left(self.bases, recovery_point) - 1, 0)]

    # -- changes -------------------------------------------------------------------------------------------------------

    def roll(self, segment: Segment) -> None:
        old = self.active
        old.end_offset = segment.base_offset
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._keep_open(old)
        if segment.base_offset in self._hints:
            # A reader waits at the end, which is now the start of this one.
            self._hints[segment.base_offset] = (segment, 0)

    def above(self, offset: int) -> list[Segment]:
        """Segments that begin after the offset."""
        return self.all[bisect_right(self.bases, offset) :]

    def cut_above(self, offset: int) -> None:
        """The segment that holds the offset becomes the active one; those after it are gone."""
        place = bisect_right(self.bases, offset)
        del self.all[place:], self.bases[place:]
        self.active = self.all[-1]
        self.forget_places()

    def restart(self, segment: Segment) -> None:
        self.all[:] = [segment]
        self.bases[:] = [segment.base_offset]
        self.active = segment
        self.forget_places()

    def drop_below(self, offset: int) -> list[Segment]:
        """Take out the segments that end at or below the offset; the active one stays."""
        count = bisect_right(self.bases, offset) - 1
        if count <= 0:
            return []
        dropped = self.all[:count]
        del self.all[:count], self.bases[:count]
        self._hints.clear()
        self._idle_open = [segment for segment in self._idle_open if segment not in dropped]
        for segment in dropped:
            segment.file = None
        return dropped

    def replace(self, old_bases: Sequence[int], segment: Segment) -> list[Segment] | None:
        """Put one in the place of neighbours; those, or None when they are not all there any more."""
        place = bisect_left(self.bases, old_bases[0])
        end = place + len(old_bases)
        if self.bases[place:end] != list(old_bases) or end >= len(self.all):
            return None
        old = self.all[place:end]
        self.all[place:end] = [segment]
        self.bases[place:end] = [segment.base_offset]
        self._hints.clear()
        self._idle_open = [each for each in self._idle_open if each not in old]
        for each in old:
            each.file = None
        return old

    def forget_places(self) -> None:
        self._hints.clear()
        self._idle_open.clear()

    def close_files(self) -> None:
        """Slices that are still held keep theirs."""
        self.forget_places()
        for segment in self.all:
            segment.file = None

    def rehome(self, directory: str) -> None:
        """The same files, copied to another directory."""
        self.close_files()
        for segment in self.all:
            segment.stem = f"{directory}/{segment.base_offset:020d}"

    def _keep_open(self, segment: Segment) -> None:
        """A segment that is only read keeps its file and indexes while it is among the last few used."""
        idle = self._idle_open
        if segment is self.active or segment in idle:
            return
        idle.append(segment)
        if len(idle) > IDLE_OPEN_MAX:
            oldest = idle.pop(0)
            oldest.file = None
            if not oldest.indexes_dirty:
                oldest.forget_indexes()

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int, offset_max: int, end_offset: int, at_least_one: bool
    ) -> LogSlice | None:
        """See `PartitionLog.read`; here the offset is below `offset_max`, and that not beyond the end."""
        hints = self._hints
        hint = hints.get(offset)
        if hint is not None:
            segment, position = hint
            first_offset = offset
        else:
            place = self._locate(offset)
            if place is None:
                return None
            segment, position, first_offset = place
        is_active = segment is self.active
        end, next_offset = segment.size, end_offset if is_active else segment.end_offset
        if end - position > bytes_max or next_offset > offset_max:
            limit = hints.get(offset_max)
            if limit is not None and limit[0] is segment and limit[1] - position <= bytes_max:
                end, next_offset = limit[1], offset_max
            else:
                end, next_offset = segment.last_boundary(position, bytes_max, offset_max, first_offset, at_least_one)
        if end <= position:
            return None
        if (is_active or end < segment.size) and next_offset not in hints:
            if len(hints) >= HINTS_MAX:
                del hints[next(iter(hints))]
            hints[next_offset] = (segment, end)
        return LogSlice(segment.file or segment.open(), position, end - position, first_offset, next_offset)

    def _locate(self, offset: int) -> tuple[Segment, int, int] | None:
        """The batch that holds the offset, or the next one where compaction left a gap."""
        for place in range(bisect_right(self.bases, offset) - 1, len(self.all)):
            segment = self.all[place]
            self._keep_open(segment)
            for step in segment.walk_from_offset(offset):
                return segment, step.position, step.base_offset
        return None

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int) -> tuple[int, int, int] | None:
        for segment in self.all:
            if segment.size == 0 or (segment is not self.active and segment.end_offset <= start_offset):
                continue
            self._keep_open(segment)
            if segment.largest_timestamp() >= timestamp_ms:
                found = segment.first_record_at_or_after(timestamp_ms, start_offset)
                if found is not None:
                    record, leader_epoch = found
                    return record.offset, record.timestamp, leader_epoch
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        best: Segment | None = None
        best_timestamp = -1
        for segment in self.all:
            if segment.size:
                self._keep_open(segment)
                timestamp = segment.largest_timestamp()
                if timestamp > best_timestamp:
                    best, best_timestamp = segment, timestamp
        record = None if best is None else best.record_of_largest_timestamp()
        return None if record is None else (record.offset, record.timestamp)

    def aborted_transactions(self, first_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        aborted: list[AbortedTransaction] = []
        for place in range(max(bisect_right(self.bases, first_offset) - 1, 0), len(self.all)):
            found, complete = self.load_transactions(self.all[place]).collect(first_offset, upper_offset)
            aborted += found
            if complete:
                break
        return aborted

    def load_transactions(self, segment: Segment) -> TransactionIndex:
        """A segment's aborted transactions; when their file is damaged, the batches from the log's first on tell."""
        try:
            return segment.load_transactions()
        except CorruptTransactionIndexError:
            producers, aborted = ProducerStates(), TransactionIndex()
            for earlier in self.all[: self.all.index(segment)]:
                replay_segment(earlier, producers, 0, None)
            replay_segment(segment, producers, 0, aborted)
            segment.replace_transactions(aborted)
            return aborted
