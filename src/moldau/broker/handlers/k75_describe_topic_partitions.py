"""DescribeTopicPartitions (key 75), version 0: topics page by page (KIP-966, trap 37).

Topics are answered in the order of their names; an empty list means all. At most `response_partition_limit` partitions
(and never more than `max.request.partition.size.limit`) are returned; the cursor says where the next page starts. A
cursor must stand at a topic that was asked for, or anywhere when all are.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.handlers.k03_metadata import TOPIC_OPERATIONS
from moldau.cluster import INTERNAL_TOPICS, TopicImage, topic_name_problem
from moldau.kernel import NO_LEADER, ErrorCode
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Cursor = DescribeTopicPartitionsResponse.Cursor


async def handle(request: DescribeTopicPartitionsRequest, context: Context) -> DescribeTopicPartitionsResponse:
    image = context.node.image
    alive = {broker.node_id for broker in image.alive_brokers}
    names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(image.topics)
    start = 0
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            return _refused(request)
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            start = cursor.partition_index
    limit = context.node.settings.integer("max.request.partition.size.limit")
    left = max(1, min(request.response_partition_limit, limit))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left == 0:
            response.next_cursor = Cursor(name, 0)
            break
        topic = image.topics.get(name)
        if topic is None:
            problem = topic_name_problem(name)
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if problem else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(Topic(error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS))
            continue
        start = min(start, len(topic.partitions))
        stop = min(len(topic.partitions), start + left)
        response.topics.append(_describe(topic, start, stop, alive, context))
        left -= stop - start
        if stop < len(topic.partitions):
            response.next_cursor = Cursor(name, stop)
            break
        start = 0
    return response


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[Topic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name) for topic in request.topics]
    )


def _describe(topic: TopicImage, start: int, stop: int, alive: set[int], context: Context) -> Topic:
    partitions = [
        DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=list(partition.last_known_elr),
            offline_replicas=context.node.replicas.offline_of(topic.name, index, partition, alive),
        )
        for index, partition in enumerate(topic.partitions[start:stop], start)
    ]
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
