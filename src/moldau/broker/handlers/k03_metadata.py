"""Metadata (key 3), versions 0 to 13.

Brokers, topics, partitions and leaders as this broker knows them, with the addresses of the listener that was asked.
- Which topics (trap 8): null means all, an empty list none; version 0 has no null, there an empty list means all.
- From 10 on topics have ids, from 12 on they may be asked for by id alone; an unknown one is UNKNOWN_TOPIC_ID.
- Auto-creation (trap 25): unless the request forbids it (4) or `auto.create.topics.enable` is off, an unknown topic is
  created with the broker's defaults. Kafka answers LEADER_NOT_AVAILABLE and lets the client ask again; here the topic
  is ready when it is created, so the answer has it.
- Authorized operations (8 to 10 for the cluster) are every operation while there is no authorizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.dispatch import Context
from moldau.cluster import INTERNAL_TOPICS, MetadataImage, TopicImage, topic_name_problem
from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse

# Bits of the operations on a topic and on the cluster (Read 3, Write 4, Create 5, Delete 6, Alter 7, Describe 8, ...).
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))

Topic = MetadataResponse.MetadataResponseTopic


async def handle(request: MetadataRequest, context: Context) -> MetadataResponse:
    node, version = context.node, context.version
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [_topic(image, request, node.image) for _, image in sorted(node.image.topics.items())]
    else:
        may_create = (version < 4 or request.allow_auto_topic_creation) and node.settings.auto_create_topics
        if may_create:
            await _create_missing(wanted, context)
        topics = [_named_topic(each, request, node.image) for each in wanted]
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(broker.node_id, endpoint.host, endpoint.port, broker.rack)
            for broker in node.image.alive_brokers
            if (endpoint := node.endpoint_for(broker, context)) is not None
        ],
        cluster_id=node.cluster_id,
        controller_id=node.controller_id_for_clients(),
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -(2**31)
        ),
    )


async def _create_missing(wanted: Sequence[MetadataRequest.MetadataRequestTopic], context: Context) -> None:
    image = context.node.image
    missing = dict.fromkeys(
        topic.name
        for topic in wanted
        if topic.name and topic.name not in image.topics and topic_name_problem(topic.name) is None
    )
    if missing:
        await context.node.create_topics(
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
                    for name in missing
                ]
            )
        )


def _named_topic(wanted: MetadataRequest.MetadataRequestTopic, request: MetadataRequest, image: MetadataImage) -> Topic:
    if wanted.name is None:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is None:
            return Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=wanted.topic_id, name=None)
        return _topic(topic, request, image)
    found = image.topics.get(wanted.name)
    if found is not None:
        return _topic(found, request, image)
    problem = topic_name_problem(wanted.name)
    error = ErrorCode.INVALID_TOPIC_EXCEPTION if problem else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Topic(error_code=error, name=wanted.name, topic_id=ZERO_UUID, is_internal=wanted.name in INTERNAL_TOPICS)


def _topic(topic: TopicImage, request: MetadataRequest, image: MetadataImage) -> Topic:
    alive = {broker.node_id for broker in image.alive_brokers}
    partitions = [
        MetadataResponse.MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=[replica for replica in partition.replicas if replica not in alive],
        )
        for index, partition in enumerate(topic.partitions)
    ]
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else -(2**31),
    )
