"""Who leads the metadata log, and how much of it is agreed: KRaft's Raft as a pure machine.

State: epoch, vote, known leader, role, and the end offset up to which each voter is known to hold durable records.
Events come in by method, with everything they need as arguments; effects come out as a list in the order in which the
shell must carry them out (a vote is persisted before anything is said about it).

    start, election timeout --> candidate (epoch + 1, vote for itself) --majority--> leader --> LeaderChange record
    leader: every durable append moves that voter's end offset; the high watermark is the largest offset that a majority
    holds, and only once it lies beyond the first record of the leader's own epoch.

Knows no clock, file or socket. A quorum of one takes the same steps as a quorum of five: it is its own majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

NO_VOTE = -1
NO_LEADER = -1


class Role(Enum):
    UNATTACHED = "unattached"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Voter:
    node_id: int
    directory_id: bytes


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must survive a crash (`quorum-state`)."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_id: int = NO_VOTE
    voted_directory_id: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class PersistState:
    """Write `quorum-state` durably before the next effect."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """First record of the epoch; nothing of the epoch counts as committed before it does."""

    epoch: int
    leader_id: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestVotes:
    epoch: int
    voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    offset: int


Effect = PersistState | AppendLeaderChange | RequestVotes | AdvanceHighWatermark


def majority_offset(end_offsets: Mapping[int, int], voters: Iterable[int]) -> int:
    """The largest offset that more than half of the voters have reached."""
    reached = sorted((end_offsets.get(voter, 0) for voter in voters), reverse=True)
    return reached[len(reached) // 2]


class Quorum:
    """One voter's view of the metadata quorum."""

    def __init__(self, node_id: int, directory_id: bytes, voters: tuple[int, ...], state: QuorumState) -> None:
        assert node_id in voters, "observers come with clusters"
        self.node_id = node_id
        self.directory_id = directory_id
        self.voters = voters
        self.epoch = state.epoch
        self.leader_id = NO_LEADER
        self.voted_id = state.voted_id
        self.role = Role.UNATTACHED
        self.high_watermark = 0
        self._epoch_start_offset = 0
        self._granted: set[int] = set()
        self._end_offsets: dict[int, int] = {}

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def end_offsets(self) -> Mapping[int, int]:
        return self._end_offsets

    def elect(self) -> list[Effect]:
        """An election timeout passed (or the node starts as the only voter): stand for leader in the next epoch."""
        self.role = Role.CANDIDATE
        self.epoch += 1
        self.leader_id = NO_LEADER
        self.voted_id = self.node_id
        self._granted = {self.node_id}
        effects: list[Effect] = [PersistState(self._state())]
        if self._has_majority():
            return effects + self._lead()
        others = tuple(voter for voter in self.voters if voter != self.node_id)
        return [*effects, RequestVotes(self.epoch, others)]

    def record_vote(self, voter: int, epoch: int, granted: bool) -> list[Effect]:
        """A voter's answer to our request."""
        if self.role is not Role.CANDIDATE or epoch != self.epoch or not granted or voter not in self.voters:
            return []
        self._granted.add(voter)
        return self._lead() if self._has_majority() else []

    def begin_epoch_at(self, offset: int) -> None:
        """The LeaderChange record of our epoch got this offset."""
        assert self.is_leader
        self._epoch_start_offset = offset

    def record_durable(self, voter: int, end_offset: int) -> list[Effect]:
        """A voter (ourselves included) holds everything below `end_offset` on disk."""
        assert self.is_leader
        if end_offset <= self._end_offsets.get(voter, 0):
            return []
        self._end_offsets[voter] = end_offset
        agreed = majority_offset(self._end_offsets, self.voters)
        if agreed <= self._epoch_start_offset or agreed <= self.high_watermark:
            return []
        self.high_watermark = agreed
        return [AdvanceHighWatermark(agreed)]

    def _lead(self) -> list[Effect]:
        self.role = Role.LEADER
        self.leader_id = self.node_id
        # As Kafka writes it: a known leader says more than a vote, and nobody else is voted for in this epoch.
        self.voted_id = NO_VOTE
        granting = tuple(sorted(self._granted))
        return [PersistState(self._state()), AppendLeaderChange(self.epoch, self.node_id, self.voters, granting)]

    def _has_majority(self) -> bool:
        return len(self._granted) > len(self.voters) // 2

    def _state(self) -> QuorumState:
        voted_directory = self.directory_id if self.voted_id == self.node_id else bytes(16)
        return QuorumState(self.epoch, self.leader_id, self.voted_id, voted_directory)
