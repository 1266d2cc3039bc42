"""What the client knows about a cluster: nodes, topics, leaders. Values, and the rule by which news replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as Metadata shows it; `partitions` is ordered and indexed by partition number."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]


def metadata_from(response: Any) -> ClusterMetadata:
    """Read a MetadataResponse of any version."""
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
    topics = {topic.name: _topic_from(topic) for topic in response.topics if topic.name is not None}
    return ClusterMetadata(response.cluster_id, response.controller_id, nodes, topics)


def _topic_from(topic: Any) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionInfo(
                topic.name,
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
                ErrorCode(partition.error_code),
            )
            for partition in partitions
        ),
        ErrorCode(topic.error_code),
    )


def merge_topic(known: TopicInfo | None, news: TopicInfo) -> TopicInfo:
    """Take the news, except a leader that is older than the one we know: brokers lag behind each other (KIP-320)."""
    if known is None or known.topic_id != news.topic_id or known.topic_id == ZERO_UUID or news.error:
        return news
    if all(old.leader_epoch <= new.leader_epoch for old, new in zip(known.partitions, news.partitions, strict=False)):
        return news
    kept = [
        known.partitions[new.partition]
        if new.partition < len(known.partitions) and known.partitions[new.partition].leader_epoch > new.leader_epoch
        else new
        for new in news.partitions
    ]
    return replace(news, partitions=tuple(kept))


def with_leader(topic: TopicInfo, partition: int, leader: int, leader_epoch: int) -> TopicInfo:
    """The topic after a broker's hint who leads a partition now (KIP-951); older hints change nothing."""
    if not 0 <= partition < len(topic.partitions) or topic.partitions[partition].leader_epoch >= leader_epoch:
        return topic
    if leader == NO_LEADER:
        return topic
    partitions = list(topic.partitions)
    partitions[partition] = replace(
        partitions[partition], leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE
    )
    return replace(topic, partitions=tuple(partitions))
