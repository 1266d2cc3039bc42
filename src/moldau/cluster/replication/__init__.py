"""Replication of one partition: what its leader and its followers decide.

Knows no file, socket, clock or image: offsets, times and answers come in, high watermarks, proposals and truncation
points come out. Read `leader` first; who sends and stores what is said here is `moldau.broker`'s affair.
"""

from moldau.cluster.replication.follower import PartitionFollower, truncation_offset
from moldau.cluster.replication.leader import (
    UNKNOWN_OFFSET,
    FollowerState,
    InSyncProposal,
    PartitionLeader,
    divergence,
)
from moldau.cluster.replication.throttle import Throttle, is_listed

__all__ = [
    "UNKNOWN_OFFSET",
    "FollowerState",
    "InSyncProposal",
    "PartitionFollower",
    "PartitionLeader",
    "Throttle",
    "divergence",
    "is_listed",
    "truncation_offset",
]
