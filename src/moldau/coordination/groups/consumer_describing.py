"""What ConsumerGroupDescribe is told about a consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from moldau.coordination.groups.consumer import NO_TARGET, ConsumerGroup, ConsumerMember, TopicView
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_consumer(
    group: ConsumerGroup, default_assignor: str, topics: TopicView
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group.id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=[_describe_member(group, member, topics) for member in group.members.values()],
        unknown_tags=group.history.tagged(),
    )


def _describe_member(
    group: ConsumerGroup, member: ConsumerMember, topics: TopicView
) -> ConsumerGroupDescribeResponse.Member:
    """What a member is to give up is still its own: nobody else reads it."""
    about, holding = member.about, member.holding
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.id,
        instance_id=about.instance_id,
        rack_id=about.rack_id,
        member_epoch=holding.epoch,
        client_id=about.client_id,
        client_host=about.client_host,
        subscribed_topic_names=sorted(about.topics),
        subscribed_topic_regex=about.expression,
        assignment=_assignment(holding.partitions, topics),
        target_assignment=_assignment(group.targets.get(member.id, NO_TARGET), topics),
        member_type=CLASSIC_MEMBER if member.uses_classic else CONSUMER_MEMBER,
    )


def _assignment(
    partitions: Mapping[bytes, Collection[int]], topics: TopicView
) -> ConsumerGroupDescribeResponse.Assignment:
    described = []
    for topic_id in sorted(partitions):
        name = topics.name_of(topic_id)
        if name is not None:
            indexes = sorted(partitions[topic_id])
            described.append(ConsumerGroupDescribeResponse.TopicPartitions(topic_id, name, indexes))
    return ConsumerGroupDescribeResponse.Assignment(described)
