"""State machines on a log: one runtime, and the machines of groups (later of transactions)."""

from moldau.coordination.hashing import partition_of
from moldau.coordination.shard import Answer, Logged, Machine, Moment, Shard, ShardState, Step

__all__ = [
    "Answer",
    "Logged",
    "Machine",
    "Moment",
    "Shard",
    "ShardState",
    "Step",
    "partition_of",
]
