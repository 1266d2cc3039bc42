"""State machines on a log: one runtime, and the machines of groups and of transactions."""

from moldau.coordination.hashing import partition_of
from moldau.coordination.shard import (
    TURN_BYTES_MAX,
    Answer,
    InTransaction,
    Logged,
    Machine,
    Moment,
    Shard,
    ShardState,
    Step,
    TransactionEnd,
)

__all__ = [
    "TURN_BYTES_MAX",
    "Answer",
    "InTransaction",
    "Logged",
    "Machine",
    "Moment",
    "Shard",
    "ShardState",
    "Step",
    "TransactionEnd",
    "partition_of",
]
