"""OffsetDelete (key 47), version 0: forget offsets of topics that the group does not read any more."""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

PartitionAnswer = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(request: OffsetDeleteRequest, context: Context) -> OffsetDeleteResponse:
    image = context.node.image
    unknown: dict[str, list[PartitionAnswer]] = {}
    for topic in request.topics:
        known = image.topics.get(topic.name)
        count = 0 if known is None else len(known.partitions)
        beyond = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count]
        topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
        unknown[topic.name] = [PartitionAnswer(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for index in beyond]
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        response: OffsetDeleteResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        return OffsetDeleteResponse(error_code=refusal.code)
    for answered in response.topics:
        answered.partitions += unknown[answered.name]
    return response
