"""What must hold for the metadata quorum and for what it agrees on, after each step of a node.

- An epoch has one leader in everybody's eyes; nobody goes back to an earlier epoch, not even by dying.
- High watermarks never fall; below them all logs have the same bytes, and who begins to lead has all of them.
- Images of the same offset are the same; epochs of partitions never fall.
- In sync and eligible are replicas, and nobody is both; a leader is in sync, who is fenced is not; while enough are in
  sync nobody else is eligible. A new leader was in sync or eligible before, or the last to lead when nobody is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.broker import Node
from moldau.cluster import MetadataImage, PartitionImage
from moldau.kernel import NO_LEADER
from moldau.testing.simulation.clusters.committed import Committed

MIN_IN_SYNC = 2


class _Seen:
    """The quorum as a node had it in this life."""

    __slots__ = ("compared_to", "image", "leads", "node", "state")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.compared_to = 0
        self.leads = -1
        self.image: MetadataImage | None = None
        self.state: tuple[int, ...] = ()


class MetadataRules:
    def __init__(self, violate: Callable[[str], None], on_image: Callable[[MetadataImage], None]) -> None:
        self._violate = violate
        self._on_image = on_image
        self.committed = Committed()
        self.newest = MetadataImage()
        self._leaders: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._seen: dict[int, _Seen] = {}
        self._images: dict[int, MetadataImage] = {}

    def check(self, node_id: int, node: Node) -> None:
        controller = getattr(node, "controller", None)
        if controller is None or controller.is_closed:
            return  # not yet, or no more: what could not be written down was told to nobody
        seen = self._seen.get(node_id)
        if seen is None or seen.node is not node:
            seen = self._seen[node_id] = _Seen(node)
        quorum = controller.quorum
        state = (quorum.epoch, quorum.leader_id, max(quorum.high_watermark, 0), controller.log.end_offset)
        if state != seen.state:
            self._check_quorum(node_id, quorum, controller.log, seen, state)
            seen.state = state
        if controller.committed is not seen.image:
            seen.image = controller.committed
            self._check_image(node_id, controller.committed)

    # -- the quorum ----------------------------------------------------------------------------------------------------

    def _check_quorum(self, node_id: int, quorum: Any, log: Any, seen: _Seen, state: tuple[int, ...]) -> None:
        epoch, leader_id, high_watermark, end_offset = state
        where = f"metadata on node {node_id}"
        if epoch < self._epochs.get(node_id, 0):
            self._violate(f"{where}: the epoch fell from {self._epochs[node_id]} to {epoch}")
        self._epochs[node_id] = epoch
        if leader_id >= 0:
            other = self._leaders.setdefault(epoch, leader_id)
            if other != leader_id:
                self._violate(f"{where}: node {leader_id} leads epoch {epoch}, elsewhere node {other} does")
        if seen.state and high_watermark < seen.state[2]:
            self._violate(f"{where}: the high watermark fell from {seen.state[2]} to {high_watermark}")
        if end_offset < seen.compared_to:
            self._violate(f"{where}: cut at {end_offset}, what lies below {seen.compared_to} is agreed")
            seen.compared_to = end_offset
        self._compare(where, log, seen, min(high_watermark, end_offset))
        if quorum.is_leader and seen.leads != epoch:
            seen.leads = epoch
            if end_offset < self.committed.end_offset:
                self._violate(f"{where}: it leads epoch {epoch} to {end_offset}, agreed is {self.committed.end_offset}")
            else:
                self._compare(where, log, seen, self.committed.end_offset)

    def _compare(self, where: str, log: Any, seen: _Seen, end: int) -> None:
        start = max(seen.compared_to, log.start_offset)
        if start < end:
            problem = self.committed.compare(log.log, start, end)
            if problem is not None:
                self._violate(f"{where}: {problem}")
            seen.compared_to = end

    # -- images --------------------------------------------------------------------------------------------------------

    def _check_image(self, node_id: int, image: MetadataImage) -> None:
        known = self._images.setdefault(image.offset, image)
        if known is not image and not _are_same(known, image):
            self._violate(f"metadata on node {node_id}: another image at offset {image.offset} than elsewhere")
        before = self.newest
        if image.offset <= before.offset:
            return
        self.newest = image
        for topic in image.topics.values():
            old = before.topic_by_id(topic.id)
            for index, partition in enumerate(topic.partitions):
                earlier = old.partitions[index] if old is not None and index < len(old.partitions) else None
                if earlier is partition and before.brokers is image.brokers:
                    continue
                problem = _problem_of(partition, earlier, image)
                if problem is not None:
                    where = f"metadata at offset {image.offset}: {topic.name}-{index}"
                    self._violate(f"{where}: {problem}: {told(partition)}")
        self._on_image(image)


def told(partition: PartitionImage) -> str:
    """In words, without directories."""
    words = [
        f"replicas {partition.replicas}, leader {partition.leader} in epoch {partition.leader_epoch}, in sync"
        f" {partition.isr}"
    ]
    for name in ("elr", "last_known_elr", "adding", "removing"):
        if getattr(partition, name):
            words.append(f"{name} {getattr(partition, name)}")
    return ", ".join(words)


def _are_same(one: MetadataImage, other: MetadataImage) -> bool:
    return (
        one.topics == other.topics
        and one.brokers == other.brokers
        and one.configs == other.configs
        and one.next_producer_id == other.next_producer_id
    )


def _problem_of(partition: PartitionImage, earlier: PartitionImage | None, image: MetadataImage) -> str | None:
    isr, elr, replicas = set(partition.isr), set(partition.elr), set(partition.replicas)
    if (isr | elr) - replicas:
        return "who is no replica is in sync or eligible"
    if isr & elr:
        return "somebody is in sync and eligible at once"
    if elr and len(isr) >= min(MIN_IN_SYNC, len(replicas)):
        return "enough are in sync, and others are eligible"
    if partition.leader != NO_LEADER and partition.leader not in isr:
        return "the leader is not in sync"
    fenced = {each for each in isr if each in image.brokers and image.brokers[each].fenced}
    if fenced:
        return f"{sorted(fenced)} are in sync and fenced"
    if earlier is None:
        return None
    if partition.leader_epoch < earlier.leader_epoch or partition.partition_epoch < earlier.partition_epoch:
        return f"an epoch fell from {told(earlier)}"
    # Who is added by a reassignment joins with what its leader says, and may lead in the same moment.
    complete = {NO_LEADER, earlier.leader, *earlier.isr, *earlier.elr, *earlier.adding}
    if not earlier.isr and not earlier.elr:
        # All were killed at once, and then the last leader may lead again: nobody's power went with them.
        complete.update(earlier.last_known_elr)
    # Images in between may have been passed over.
    if partition.leader not in complete and partition.partition_epoch == earlier.partition_epoch + 1:
        return f"the leader was neither in sync nor eligible in {told(earlier)}"
    return None
