"""What only the leader of the quorum knows: how far everybody is, hence what is agreed. Pure.

A voter's fetch offset is what it holds on disk, the leader's own part is what it flushed. The agreed offset is the
largest that a majority of the voters holds, and counts only once it lies beyond the first record of the leader's epoch:
records of an earlier epoch are agreed through it and never by being counted (Raft's figure 8).
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.consensus.voters import ReplicaKey, Voters, majority_offset, same_directory

# Observers that fetched nothing for so long are forgotten.
OBSERVER_MS_MAX = 5 * 60_000


@dataclass(slots=True)
class Progress:
    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    # What it knows to be agreed, hence has acted on.
    high_watermark: int = 0


class Leadership:
    def __init__(self, key: ReplicaKey, epoch_start_offset: int, now_ms: int, *, fetch_timeout_ms: int) -> None:
        self.key = key
        self.epoch_start_offset = epoch_start_offset
        self.flushed_offset = 0
        self.voters: dict[int, Progress] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self._check_ms = fetch_timeout_ms * 3 // 2
        self._has_followers = False
        self.check_at_ms = now_ms + self._check_ms
        self._heard: set[int] = set()

    def note_fetch(
        self, key: ReplicaKey, offset: int, high_watermark: int, end_offset: int, now_ms: int, *, is_voter: bool
    ) -> None:
        known = self.voters.get(key.node_id) if is_voter else self.observers.get(key)
        if known is None or not same_directory(known.key.directory_id, key.directory_id):
            known = Progress(key, 0, now_ms, -1)
            if is_voter:
                self.voters[key.node_id] = known
                self.observers.pop(key, None)
            else:
                self.observers[key] = known
        known.end_offset = max(known.end_offset, offset)
        known.high_watermark = max(known.high_watermark, high_watermark)
        known.last_fetch_ms = now_ms
        if offset >= end_offset:
            known.last_caught_up_ms = now_ms
        if is_voter:
            self._heard.add(key.node_id)
        else:
            late = [each.key for each in self.observers.values() if each.last_fetch_ms < now_ms - OBSERVER_MS_MAX]
            for key in late:
                del self.observers[key]

    def note_alive(self, node_id: int, _voters: Voters, _now_ms: int) -> None:
        """It loads a snapshot, which takes its time."""
        self._heard.add(node_id)

    def note_flushed(self, end_offset: int) -> None:
        self.flushed_offset = max(self.flushed_offset, end_offset)

    def agreed_offset(self, voters: Voters) -> int:
        ends = {node_id: progress.end_offset for node_id, progress in self.voters.items()}
        ends[self.key.node_id] = self.flushed_offset
        agreed = majority_offset(ends, voters.ids)
        return agreed if agreed > self.epoch_start_offset else 0

    def has_lost_majority(self, voters: Voters, now_ms: int) -> bool:
        """Check quorum: no majority fetched for one and a half fetch timeouts; others may have elected another."""
        if voters.is_majority({*self._heard, self.key.node_id}):
            self._heard.clear()
            self.check_at_ms = now_ms + self._check_ms
        return now_ms >= self.check_at_ms

    def successors(self, voters: Voters) -> tuple[ReplicaKey, ...]:
        others = [voter.key for voter in voters.all if voter.key.node_id != self.key.node_id]
        return tuple(sorted(others, key=lambda key: (-self._end_of(key.node_id), key.node_id)))

    def _end_of(self, node_id: int) -> int:
        progress = self.voters.get(node_id)
        return 0 if progress is None else progress.end_offset

    def acted_on(self, node_id: int) -> int:
        """The offset up to which a node has followed."""
        found = [each for each in (*self.voters.values(), *self.observers.values()) if each.key.node_id == node_id]
        return max((each.high_watermark for each in found), default=0)

    def has_caught_up(self, key: ReplicaKey, offset: int) -> bool:
        progress = self.observers.get(key)
        return progress is not None and progress.end_offset >= offset
