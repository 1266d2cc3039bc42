"""What members of the quorum say to each other, and what a member asks of its shell. Values only.

Requests and answers carry what Raft needs; names of clusters and topics, listeners and versions are the shell's affair.
Effects are carried out in the order in which they are listed: a vote is persisted before anything is said about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from moldau.consensus.voters import NO_DIRECTORY, ReplicaKey, Voters
from moldau.kernel import ErrorCode

NO_VOTE = -1
NO_LEADER = -1


class AgreedRecordsLostError(Exception):
    """The leader does not have what this member knows to be agreed. Only people can say which of the two counts."""

    def __init__(self, leader_id: int, epoch: int, end_offset: int, high_watermark: int) -> None:
        super().__init__(
            f"the metadata quorum lost what it had agreed on: the log of node {leader_id}, which leads epoch {epoch},"
            f" parts from ours at offset {end_offset}, and everything below {high_watermark} was agreed. Most voters"
            " must have lost their disks. Nothing was cut here; while no node is started again, this one's metadata"
            " directory can be copied to the others"
        )


class EpochEnd(NamedTuple):
    """A position in the log: the offset at which an epoch ends. It also names a snapshot."""

    epoch: int
    end_offset: int


class QuorumLog(Protocol):
    """What the quorum must know of the log; the shell changes it."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Of the last record, or of the snapshot that the log starts with; 0 for nothing at all."""
        ...

    @property
    def snapshot(self) -> EpochEnd | None:
        """The newest snapshot; None when there is none, or only the one that formatting made."""
        ...

    @property
    def first_snapshot(self) -> EpochEnd | None:
        """The oldest snapshot that is kept: the log starts at or before it."""
        ...

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch of the log that is not above this one, and where it ends."""
        ...


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must survive a crash (`quorum-state`)."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_id: int = NO_VOTE
    voted_directory_id: bytes = NO_DIRECTORY


# -- requests and answers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VoteRequest:
    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    end_offset: int
    is_pre_vote: bool
    # The voter as the candidate knows it; a voter with another directory is not the one that is meant.
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class BeginEpochRequest:
    epoch: int
    leader_id: int
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class EndEpochRequest:
    epoch: int
    leader_id: int
    # Who should stand for leader, the one with the longest log first.
    successors: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    epoch: int
    replica: ReplicaKey
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    epoch: int
    replica: ReplicaKey
    snapshot: EpochEnd
    position: int


Request = VoteRequest | BeginEpochRequest | EndEpochRequest | FetchRequest | SnapshotRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """To any request: an error if there is one, and what the member knows of epoch and leader."""

    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class VoteAnswer(Answer):
    granted: bool = False


@dataclass(frozen=True, slots=True)
class FetchAnswer(Answer):
    """Either a place to go back to, or a snapshot to load first, or records (as the shell keeps them)."""

    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: EpochEnd | None = None
    records: Any = None


@dataclass(frozen=True, slots=True)
class SnapshotAnswer(Answer):
    size: int = 0
    position: int = 0
    data: Any = b""


# -- effects -----------------------------------------------------------------------------------------------------------


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
class AppendVoters:
    """The next voter set, written by the leader; in force from now on."""

    voters: Voters


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append what the leader sent, flush it when this node votes, and report with `flushed`."""

    records: Any


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Our log and the leader's part here: drop everything from this offset on."""

    offset: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """A piece of a snapshot that is being loaded."""

    snapshot: EpochEnd
    position: int
    data: Any


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The snapshot is whole: the log starts anew at its end."""

    snapshot: EpochEnd


@dataclass(frozen=True, slots=True)
class Send:
    """To a voter by its id, or to a node of which only the address is known (ids below -1)."""

    to: int
    request: Request


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    offset: int


Effect = (
    PersistState
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | TruncateTo
    | WriteSnapshot
    | InstallSnapshot
    | Send
    | AdvanceHighWatermark
)
