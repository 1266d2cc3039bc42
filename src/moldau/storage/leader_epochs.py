"""Which leader wrote which part of a log: (epoch, first offset) pairs, rising in both (KIP-101).

Followers and consumers ask it where an epoch ends, to find the point up to which two logs agree. Knows no file: the
log keeps the text of `leader-epoch-checkpoint`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """`dirty` is set by every change; the log clears it when the checkpoint is on disk."""

    __slots__ = ("_epochs", "_starts", "dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNDEFINED_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]

    def assign(self, epoch: int, start_offset: int) -> None:
        """A leader of `epoch` writes from `start_offset` on. What it contradicts was never committed and goes."""
        if epoch < 0:
            return
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return
        self._keep(min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset)))
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above the asked one, and where it ends; (-1, -1) when this log cannot tell."""
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        # Older than all we know: the asked epoch ended where our first one starts.
        floor = self._epochs[index - 1] if index else epoch
        return floor, self._starts[index]

    def epoch_for_offset(self, offset: int) -> int:
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: epochs that start there or later are gone."""
        self._keep(bisect_left(self._starts, end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: the epoch that covers it starts there too."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:index]
        del self._starts[:index]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        self._keep(0)

    def _keep(self, count: int) -> None:
        if count == len(self._epochs):
            return
        del self._epochs[count:]
        del self._starts[count:]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        self.dirty = True
