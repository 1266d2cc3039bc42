"""A partition as its leader sees it: which replicas are in sync and how far, hence what is committed.

Pure. With one replica the leader is the whole in-sync set, and everything that it appended is committed.
"""

from __future__ import annotations

from moldau.kernel import ErrorCode, KafkaError


class PartitionLeader:
    """State: in-sync replicas, the end offset of each, the high watermark (which never falls)."""

    __slots__ = ("_follower_ends", "high_watermark", "isr", "leader_epoch", "node_id")

    def __init__(self, node_id: int, leader_epoch: int, isr: tuple[int, ...], high_watermark: int) -> None:
        assert node_id in isr
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.high_watermark = high_watermark
        self._follower_ends: dict[int, int] = {}

    def check_in_sync(self, replicas_min: int) -> None:
        """Acks=all is refused before the append when too few replicas are in sync (KAFKA-1555)."""
        if len(self.isr) < replicas_min:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {list(self.isr)} is insufficient to satisfy the min.isr requirement of"
                f" {replicas_min}.",
            )

    def advance(self, local_end_offset: int) -> bool:
        """The leader's log grew; whether the high watermark moved."""
        committed = local_end_offset
        for replica in self.isr:
            if replica != self.node_id:
                committed = min(committed, self._follower_ends.get(replica, 0))
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
