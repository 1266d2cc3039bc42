"""OffsetCommit (key 8), versions 2 to 10: remember how far a group has read.

2 to 4 may carry a retention of their own; 6 has leader epochs; 7 static members; 9 member epochs (KIP-848); 10 names
topics by id. Topics that do not exist are answered one by one, the rest is committed (trap 27 has who may).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ZERO_UUID, ErrorCode, KafkaError
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

TOPIC_IDS_VERSION_MIN = 10
Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition
TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic


async def handle(request: OffsetCommitRequest, context: Context) -> OffsetCommitResponse:
    image = context.node.image
    wanted, refused = [], []
    for topic in request.topics:
        if context.version >= TOPIC_IDS_VERSION_MIN:
            topic.name = image.topic_names.get(topic.topic_id, "")
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = image.topics.get(topic.name)
        if known is None:
            refused.append(_refused(topic, topic.partitions, missing))
            continue
        count = len(known.partitions)
        valid = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if len(valid) < len(topic.partitions):
            beyond = [each for each in topic.partitions if not 0 <= each.partition_index < count]
            refused.append(_refused(topic, beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if valid:
            wanted.append(Topic(topic.name, known.id, valid))
    if not wanted:
        return OffsetCommitResponse(topics=refused)
    whole, request.topics = request.topics, wanted
    try:
        response: OffsetCommitResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        return OffsetCommitResponse(topics=[_refused(topic, topic.partitions, refusal.code) for topic in whole])
    if context.version < TOPIC_IDS_VERSION_MIN:
        for answered in response.topics:
            answered.topic_id = ZERO_UUID
    response.topics = _joined(response.topics, refused)
    return response


def _refused(topic: Topic, partitions: list[Partition], code: int) -> TopicAnswer:
    answers = [
        OffsetCommitResponse.OffsetCommitResponsePartition(partition.partition_index, code) for partition in partitions
    ]
    return TopicAnswer(topic.name, topic.topic_id, answers)


def _joined(accepted: list[TopicAnswer], refused: list[TopicAnswer]) -> list[TopicAnswer]:
    """One answer per topic, also where some of its partitions do not exist."""
    topics = {(topic.name, topic.topic_id): topic for topic in accepted}
    for topic in refused:
        known = topics.setdefault((topic.name, topic.topic_id), topic)
        if known is not topic:
            known.partitions += topic.partitions
    return list(topics.values())
