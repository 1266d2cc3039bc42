"""What must hold for every partition of a simulated cluster, after each step of a node.

- High watermarks never fall while a node lives, and are never beyond its log.
- Below them all replicas have the same bytes, for ever: what one of them showed is committed.
- The coordinators of a producer's markers follow one another: none comes back once a later one has written.
- An epoch has one leader, and whoever begins to lead has all that is committed.
- Whoever is in sync or eligible, and whoever its leader waits for, has all that is committed, from the first record on:
  nothing outlives its retention here.
- The leader waits for everybody who may be elected without it.
- Nothing is acknowledged that is not committed.

A node that lost what it had not synced is excused from being complete until it is in sync again; never from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moldau.broker import Node
from moldau.cluster import MetadataImage, PartitionImage
from moldau.testing.history import Partition
from moldau.testing.simulation.clusters.committed import Committed
from moldau.testing.simulation.clusters.nodes import ClusterNode

Key = tuple[bytes, int]


class _Seen:
    """A replica in one life of its node."""

    __slots__ = ("compared_to", "high_watermark", "leader_epoch", "led", "log", "start_offset", "state")

    def __init__(self, log: Any) -> None:
        self.log = log
        self.start_offset = log.start_offset
        self.high_watermark = -1
        # Up to here its bytes are the committed ones.
        self.compared_to = log.start_offset
        # The last epoch that it led.
        self.leader_epoch = -1
        self.led = False
        # What it looked like when it was last looked at.
        self.state: tuple[Any, ...] = ()


class PartitionRules:
    def __init__(self, nodes: Mapping[int, ClusterNode], violate: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._violate = violate
        self.committed: dict[Key, Committed] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._seen: dict[int, tuple[Node, dict[Key, _Seen]]] = {}
        self._image = MetadataImage()

    # -- after a step --------------------------------------------------------------------------------------------------

    def check(self, node_id: int, node: Node) -> None:
        known = self._seen.get(node_id)
        if known is None or known[0] is not node:
            known = self._seen[node_id] = node, {}
        seen = known[1]
        if not hasattr(node, "replicas"):
            return
        for partition in node.replicas:
            if partition.is_removed:
                continue
            leader, log = partition.leader, partition.log
            state = (
                partition.high_watermark,
                log.end_offset,
                log.start_offset,
                partition.leader_epoch,
                None if leader is None else leader.maximal_isr,
                None if leader is None else leader.proposal,
            )
            key = partition.topic_id, partition.index
            each = seen.get(key)
            # A log that begins earlier than it did was begun anew; whether it might is seen by who may be elected.
            if each is None or each.log is not log or log.start_offset < each.start_offset:
                each = seen[key] = _Seen(log)
            if each.state != state:
                each.state = state
                self._check_replica(node_id, partition, each, key)

    def _check_replica(self, node_id: int, partition: Any, seen: _Seen, key: Key) -> None:
        log, high_watermark = partition.log, partition.high_watermark
        where = f"{partition} on node {node_id}"
        committed = self.committed.get(key)
        if committed is None:
            committed = self.committed[key] = Committed()
        if high_watermark > log.end_offset:
            self._violate(f"{where}: the high watermark {high_watermark} is beyond the end {log.end_offset}")
            return
        if high_watermark < seen.high_watermark:
            self._violate(f"{where}: the high watermark fell from {seen.high_watermark} to {high_watermark}")
        seen.high_watermark = high_watermark
        if log.end_offset < seen.compared_to:
            self._violate(f"{where}: cut at {log.end_offset}, what lies below {seen.compared_to} is committed")
            seen.compared_to = log.end_offset
        before = committed.end_offset
        led, seen.led = seen.led, partition.leader is not None
        # Within one step a leader may commit something and cease to lead.
        if high_watermark > before and not led and not seen.led:
            self._violate(f"{where}: a follower shows {high_watermark}, committed is {before}")
        self._compare(where, committed, seen, high_watermark)
        if partition.leader is not None:
            self._check_leader(node_id, partition, seen, committed, key)
            if committed.end_offset > before:
                self._check_awaited(partition, committed, key)
        self._check_candidate(node_id, key, committed, log.end_offset)

    def _compare(self, where: str, committed: Committed, seen: _Seen, end: int) -> None:
        start = max(seen.compared_to, seen.log.start_offset)
        if start < end:
            problem = committed.compare(seen.log, start, end)
            if problem is not None:
                self._violate(f"{where}: {problem}")
            seen.compared_to = end

    def _check_leader(self, node_id: int, partition: Any, seen: _Seen, committed: Committed, key: Key) -> None:
        leader, where = partition.leader, f"{partition} on node {node_id}"
        epoch = leader.leader_epoch
        if seen.leader_epoch != epoch:
            seen.leader_epoch = epoch
            other = self._leaders.setdefault((*key, epoch), node_id)
            if other != node_id:
                self._violate(f"{where}: it leads in epoch {epoch}, and so does node {other}")
            if self._image_of(key) is not None and self._is_newest(key, epoch):
                log = partition.log
                if log.start_offset or log.end_offset < committed.end_offset:
                    self._violate(
                        f"{where}: it leads in epoch {epoch} with a log from {log.start_offset} to {log.end_offset},"
                        f" committed is {committed.end_offset}"
                    )
                else:
                    self._compare(where, committed, seen, committed.end_offset)
        if leader.proposal is None and set(leader.maximal_isr) != set(leader.isr):
            self._violate(f"{where}: without a proposal it waits for {leader.maximal_isr}, in sync are {leader.isr}")
        self._check_superset(where, partition, key)

    def _check_superset(self, where: str, partition: Any, key: Key) -> None:
        """Within an epoch nobody comes into sync but whom its leader proposed, and until it knows better it waits."""
        leader, assigned = partition.leader, self._image_of(key)
        if assigned is None or assigned.leader_epoch != leader.leader_epoch or len(leader.isr) < leader.min_in_sync:
            return
        missing = {*assigned.isr, *assigned.elr} - set(leader.maximal_isr)
        if missing:
            self._violate(f"{where}: it does not wait for {sorted(missing)}, which may be elected")

    def _check_awaited(self, partition: Any, committed: Committed, key: Key) -> None:
        """The high watermark moved: everybody whom the leader waits for, or who may be elected, has what is below."""
        assigned = self._image_of(key)
        candidates = set() if assigned is None else {*assigned.isr, *assigned.elr}
        for node_id in sorted({*partition.leader.maximal_isr, *candidates}):
            self._check_complete(node_id, key, committed, "is waited for, or may be elected,")

    def _check_candidate(self, node_id: int, key: Key, committed: Committed, end_offset: int) -> None:
        assigned = self._image_of(key)
        if assigned is None or (node_id not in assigned.isr and node_id not in assigned.elr):
            return
        if end_offset < committed.end_offset:
            self._check_complete(node_id, key, committed, "may be elected")

    def _check_complete(self, node_id: int, key: Key, committed: Committed, why: str) -> None:
        partition = self._partition_of(node_id, key)
        if partition is None or self._nodes[node_id].is_lossy:
            return
        log = partition.log
        if log.start_offset or log.end_offset < committed.end_offset:
            self._violate(
                f"{partition} on node {node_id}: it {why} and has {log.start_offset} to {log.end_offset}, committed is"
                f" {committed.end_offset}"
            )

    def _partition_of(self, node_id: int, key: Key) -> Any:
        """The replica on a node that runs."""
        simulated = self._nodes.get(node_id)
        node = None if simulated is None else simulated.node
        if node is None or not hasattr(node, "replicas"):
            return None
        partitions = node.replicas.by_id(key[0])
        partition = partitions[key[1]] if partitions is not None and key[1] < len(partitions) else None
        return None if partition is None or partition.is_removed else partition

    # -- the metadata --------------------------------------------------------------------------------------------------

    def on_image(self, image: MetadataImage) -> None:
        """The newest that anybody published."""
        self._image = image
        for topic in image.topics.values():
            for index, assigned in enumerate(topic.partitions):
                committed = self.committed.get((topic.id, index))
                if committed is not None:
                    for node_id in (*assigned.isr, *assigned.elr):
                        self._check_complete(node_id, (topic.id, index), committed, "may be elected")
                    leading = self._partition_of(assigned.leader, (topic.id, index))
                    if leading is not None and leading.leader is not None:
                        self._check_superset(f"{leading} on node {assigned.leader}", leading, (topic.id, index))

    def _image_of(self, key: Key) -> PartitionImage | None:
        topic = self._image.topic_by_id(key[0])
        return topic.partitions[key[1]] if topic is not None and key[1] < len(topic.partitions) else None

    def _is_newest(self, key: Key, epoch: int) -> bool:
        assigned = self._image_of(key)
        return assigned is not None and assigned.leader_epoch == epoch

    # -- clients -------------------------------------------------------------------------------------------------------

    def on_acknowledged(self, partition: Partition, offset: int) -> None:
        topic = self._image.topics.get(partition[0])
        committed = None if topic is None else self.committed.get((topic.id, partition[1]))
        if topic is not None and (committed is None or offset >= committed.end_offset):
            end = 0 if committed is None else committed.end_offset
            self._violate(f"{partition}: offset {offset} was acknowledged, committed is {end}")
