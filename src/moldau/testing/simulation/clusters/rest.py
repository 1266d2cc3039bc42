"""What a cluster looks like when everything is over: whole, and the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.cluster import MetadataImage
from moldau.testing.simulation.clusters.metadata_rules import told
from moldau.testing.simulation.clusters.nodes import ClusterNode
from moldau.testing.simulation.invariants import unfinished


def rest_problems(nodes: Mapping[int, ClusterNode], image: MetadataImage) -> list[str]:
    """What is missing."""
    problems = []
    for node_id, simulated in nodes.items():
        node = simulated.node
        if node is None or not simulated.is_ready:
            problems.append(f"node {node_id} is not up")
            continue
        if node.image.offset != image.offset:
            problems.append(f"node {node_id} has metadata to {node.image.offset}, others to {image.offset}")
        if simulated.is_broker:
            problems += [f"node {node_id}: {each}" for each in unfinished(node)]
            if image.brokers[node_id].fenced:
                problems.append(f"node {node_id} is fenced")
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            problems += [f"{topic.name}-{index} {each}" for each in _partition_problems(nodes, image, topic.id, index)]
    return problems


def _partition_problems(
    nodes: Mapping[int, ClusterNode], image: MetadataImage, topic_id: bytes, index: int
) -> list[str]:
    topic = image.topic_by_id(topic_id)
    assert topic is not None
    assigned = topic.partitions[index]
    if not assigned.has_leader:
        return [f"has no leader: {told(assigned)}"]
    if set(assigned.isr) != set(assigned.replicas) or assigned.adding or assigned.removing:
        return [f"is not whole: {told(assigned)}"]
    ends = {}
    for node_id in assigned.replicas:
        node = nodes[node_id].node
        partitions = None if node is None else node.replicas.by_id(topic_id)
        partition = partitions[index] if partitions is not None else None
        if partition is None:
            return [f"has no replica on node {node_id}"]
        ends[node_id] = partition.log.start_offset, partition.high_watermark, partition.log.end_offset
    if len(set(ends.values())) > 1 or any(end[1] != end[2] for end in ends.values()):
        return [f"is not the same everywhere: (start, high watermark, end) are {ends}"]
    return []
