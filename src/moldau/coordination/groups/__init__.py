"""Consumer groups, classic and next generation, and committed offsets: pure machines for `coordination.Shard`."""

from moldau.coordination.groups.classic import ClassicGroup
from moldau.coordination.groups.events import Asked, Caller, EndOffsets, GroupSettings, TopicsChanged
from moldau.coordination.groups.history import Rebalance
from moldau.coordination.groups.machine import GroupMachine

__all__ = [
    "Asked",
    "Caller",
    "ClassicGroup",
    "EndOffsets",
    "GroupMachine",
    "GroupSettings",
    "Rebalance",
    "TopicsChanged",
]
