"""Agreement on the metadata log. Pure: no clock, file or socket; the broker's shell acts on its effects."""

from moldau.consensus.quorum import (
    AdvanceHighWatermark,
    AppendLeaderChange,
    Effect,
    PersistState,
    Quorum,
    QuorumState,
    RequestVotes,
    Role,
    majority_offset,
)

__all__ = [
    "AdvanceHighWatermark",
    "AppendLeaderChange",
    "Effect",
    "PersistState",
    "Quorum",
    "QuorumState",
    "RequestVotes",
    "Role",
    "majority_offset",
]
