"""Metadata (key 3), versions 0 to 13.

Brokers, topics, partitions and leaders as this broker knows them, with the addresses of the listener that was asked.
- Which topics (trap 8): null means all, an empty list none; version 0 has no null, there an empty list means all.
- From 10 on topics have ids, from 12 on they may be asked for by id; an unknown one is UNKNOWN_TOPIC_ID. A request
  that names ids means those only: names beside them are not looked at. A topic asked for twice is answered once.
- Auto-creation (trap 25): unless the request forbids it (4) or `auto.create.topics.enable` is off, an unknown topic is
  created with the broker's defaults. Kafka answers LEADER_NOT_AVAILABLE and lets the client ask again; here the topic
  is ready when it is created, so the answer has it.
- Authorized operations (8 to 10 for the cluster) are every operation while there is no authorizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.dispatch import Context
from moldau.cluster import INTERNAL_TOPICS, TopicImage, topic_name_problem
from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse

# Bits of the operations on a topic, a group and the cluster (Read 3, Write 4, Create 5, Delete 6, Alter 7, Describe 8).
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED_FOR = -(2**31)
BY_ID_VERSION_MIN = 12

Topic = MetadataResponse.MetadataResponseTopic


async def handle(request: MetadataRequest, context: Context) -> MetadataResponse:
    node, version = context.node, context.version
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [_topic(image, request, context) for _, image in sorted(node.image.topics.items())]
    elif not _is_named_well(wanted, version):
        return _refused(wanted, version)
    elif ids := dict.fromkeys(each.topic_id for each in wanted if each.topic_id != ZERO_UUID):
        topics = [_topic_by_id(topic_id, request, context) for topic_id in ids]
    else:
        names = list(dict.fromkeys(each.name for each in wanted if each.name is not None))
        if (version < 4 or request.allow_auto_topic_creation) and node.settings.auto_create_topics:
            await _create_missing(names, context)
        topics = [_named_topic(name, request, context) for name in names]
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(broker.node_id, endpoint.host, endpoint.port, broker.rack)
            for broker in node.image.alive_brokers
            if (endpoint := node.listeners.endpoint_for(broker, context)) is not None
        ],
        cluster_id=node.cluster_id,
        controller_id=node.controller_id_for_clients(),
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


def _is_named_well(wanted: Sequence[MetadataRequest.MetadataRequestTopic], version: int) -> bool:
    if version < BY_ID_VERSION_MIN:
        return all(each.name is not None and each.topic_id == ZERO_UUID for each in wanted)
    return all(each.name is not None or each.topic_id != ZERO_UUID for each in wanted)


def _refused(wanted: Sequence[MetadataRequest.MetadataRequestTopic], version: int) -> MetadataResponse:
    error = ErrorCode.INVALID_REQUEST
    return MetadataResponse(
        controller_id=-1,
        topics=[Topic(error_code=error, name=each.name or "", topic_id=each.topic_id) for each in wanted],
        error_code=error if version >= 13 else ErrorCode.NONE,
    )


async def _create_missing(names: Sequence[str], context: Context) -> None:
    image = context.node.image
    missing = [name for name in names if name not in image.topics and topic_name_problem(name) is None]
    if missing:
        await context.node.create_topics(
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
                    for name in missing
                ]
            )
        )


def _topic_by_id(topic_id: bytes, request: MetadataRequest, context: Context) -> Topic:
    topic = context.node.image.topic_by_id(topic_id)
    if topic is None:
        return Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id, name=None)
    return _topic(topic, request, context)


def _named_topic(name: str, request: MetadataRequest, context: Context) -> Topic:
    found = context.node.image.topics.get(name)
    if found is not None:
        return _topic(found, request, context)
    invalid = topic_name_problem(name) is not None
    return Topic(
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=_operations(request),
    )


def _operations(request: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED_FOR


def _topic(topic: TopicImage, request: MetadataRequest, context: Context) -> Topic:
    alive = {broker.node_id for broker in context.node.image.alive_brokers}
    partitions = [
        MetadataResponse.MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=context.node.replicas.offline_of(topic.name, index, partition, alive),
        )
        for index, partition in enumerate(topic.partitions)
    ]
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=_operations(request),
    )
