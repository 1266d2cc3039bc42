"""OffsetFetch (key 9), versions 1 to 10: how far groups have read.

1 to 7 ask for one group, 8 for several; no topics (null, from 2) means all that are committed. 7 may ask for stable
offsets only: one that an open transaction may yet change is UNSTABLE_OFFSET_COMMIT. 9 has
member epochs; 10 names topics by id.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

SEVERAL_VERSION_MIN, TOPIC_IDS_VERSION_MIN = 8, 10
NO_OFFSET, NO_EPOCH = -1, -1
Group = OffsetFetchRequest.OffsetFetchRequestGroup
GroupAnswer = OffsetFetchResponse.OffsetFetchResponseGroup
TopicAnswer = OffsetFetchResponse.OffsetFetchResponseTopics
PartitionAnswer = OffsetFetchResponse.OffsetFetchResponsePartitions


async def handle(request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse:
    if context.version >= SEVERAL_VERSION_MIN:
        return OffsetFetchResponse(
            groups=[await _fetch(group, request.require_stable, context) for group in request.groups]
        )
    topics = (
        None
        if request.topics is None
        else [
            OffsetFetchRequest.OffsetFetchRequestTopics(topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    )
    group = await _fetch(Group(request.group_id, topics=topics), request.require_stable, context)
    return _as_single(request, group, context.version)


async def _fetch(group: Group, require_stable: bool, context: Context) -> GroupAnswer:
    by_id = context.version >= TOPIC_IDS_VERSION_MIN
    image = context.node.image
    unknown: list[TopicAnswer] = []
    if by_id and group.topics is not None:
        known = []
        for topic in group.topics:
            topic.name = image.topic_names.get(topic.topic_id, "")
            if topic.name:
                known.append(topic)
            else:
                unknown.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        group.topics = known
    try:
        asked = OffsetFetchRequest(groups=[group], require_stable=require_stable)
        answer: GroupAnswer = await context.node.groups.ask(group.group_id, asked, context)
    except KafkaError as refusal:
        return GroupAnswer(group.group_id, [], refusal.code)
    if by_id:
        for found in answer.topics:
            topic_image = image.topics.get(found.name)
            found.topic_id = found.topic_id if topic_image is None else topic_image.id
        # A topic that is gone has no id to be named by.
        answer.topics = [topic for topic in answer.topics if any(topic.topic_id)]
    answer.topics += unknown
    return answer


def _refused(topic: OffsetFetchRequest.OffsetFetchRequestTopics, code: int) -> TopicAnswer:
    partitions = [PartitionAnswer(index, NO_OFFSET, NO_EPOCH, "", code) for index in topic.partition_indexes]
    return TopicAnswer(topic.name, topic.topic_id, partitions)


def _as_single(request: OffsetFetchRequest, group: GroupAnswer, version: int) -> OffsetFetchResponse:
    """The same in the shape of versions 1 to 7; an error of the group is each partition's, in version 1 only there."""
    topics = group.topics
    if group.error_code:
        topics = [
            TopicAnswer(
                topic.name,
                partitions=[
                    PartitionAnswer(index, NO_OFFSET, NO_EPOCH, "", group.error_code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.metadata,
                        each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
        error_code=group.error_code if version >= 2 else ErrorCode.NONE,
    )
