"""The throttles of this broker: what it sends to replicas that catch up, and what it fetches to catch up itself.

As in Kafka two settings decide, each with a side: `leader|follower.replication.throttled.rate` of the broker, in bytes
per second, and `leader|follower.replication.throttled.replicas` of a topic. Replicas in sync are never held up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from moldau.cluster import ConfigKind, Throttle, is_listed

if TYPE_CHECKING:
    from moldau.broker.node import Node
    from moldau.broker.partition import Partition

NO_RATE = 2**63 - 1


class ReplicationThrottle:
    def __init__(self, node: Node, side: Literal["leader", "follower"]) -> None:
        self._node = node
        self._rate_key = f"{side}.replication.throttled.rate"
        self._replicas_key = f"{side}.replication.throttled.replicas"
        self._throttle = Throttle()

    @property
    def rate(self) -> int:
        return self._node.settings.integer(self._rate_key)

    def applies(self, partition: Partition, follower: int) -> bool:
        """Whether the copy of a partition that a follower gets is one that counts."""
        if self.rate == NO_RATE:
            return False
        node = self._node
        topic = node.image.topics.get(partition.topic)
        # A topic that was made again may have fewer partitions than the one that this replica is of.
        partitions = () if topic is None else topic.partitions[partition.index : partition.index + 1]
        if not partitions or follower in partitions[0].isr:
            return False
        overrides = node.image.config(ConfigKind.TOPIC, partition.topic)
        listed = node.settings.topic_value(self._replicas_key, overrides) or ()
        return is_listed(listed, partition.index, node.node_id)

    def note(self, size: int) -> None:
        self._throttle.note(size, self.rate, self._node.clock.monotonic_ms())

    def wait_ms(self) -> int:
        rate = self.rate
        return 0 if rate == NO_RATE else self._throttle.wait_ms(rate, self._node.clock.monotonic_ms())
