"""Records of a consumer group, in the formats and the orders of Kafka 4.3.1: a key and a value, or none to delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moldau.coordination.groups.consumer import (
    ConsumerGroup,
    Holding,
    MemberAbout,
    Partitions,
    ResolvedExpression,
    Target,
)
from moldau.coordination.prefixed import VERSION_BYTES, encode_key, encode_value, kind_of, version_of
from moldau.protocol.message import Message
from moldau.protocol.messages.coordinator.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from moldau.protocol.messages.coordinator.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from moldau.protocol.messages.coordinator.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from moldau.protocol.messages.coordinator.consumer_group_partition_metadata import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from moldau.protocol.messages.coordinator.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from moldau.protocol.messages.coordinator.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from moldau.protocol.messages.coordinator.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

VALUE_VERSION = 0

_FORMATS: dict[int, tuple[type[Message], type[Message]]] = {
    key.API_KEY: (key, value)
    for key, value in (
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    )
}
CONSUMER_KINDS = frozenset(_FORMATS)


class ConsumerRecord(NamedTuple):
    key: Message
    value: Message | None

    def encode(self) -> tuple[bytes, bytes | None]:
        value = None if self.value is None else encode_value(self.value, VALUE_VERSION)
        return encode_key(self.key), value


def decode(key: bytes, value: bytes | None) -> ConsumerRecord:
    """Of a kind in CONSUMER_KINDS."""
    key_format, value_format = _FORMATS[kind_of(key)]
    decoded_key = key_format.decode(key[VERSION_BYTES:], 0)
    if value is None:
        return ConsumerRecord(decoded_key, None)
    return ConsumerRecord(decoded_key, value_format.decode(value[VERSION_BYTES:], version_of(value)))


def epoch_record(group: str, epoch: int, metadata_hash: int) -> ConsumerRecord:
    return ConsumerRecord(ConsumerGroupMetadataKey(group), ConsumerGroupMetadataValue(epoch, metadata_hash))


def member_record(group: str, member: str, about: MemberAbout) -> ConsumerRecord:
    classic = about.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=about.instance_id,
        rack_id=about.rack_id,
        client_id=about.client_id,
        client_host=about.client_host,
        subscribed_topic_names=sorted(about.topics),
        subscribed_topic_regex=about.expression,
        rebalance_timeout_ms=about.rebalance_timeout_ms,
        server_assignor=about.assignor,
        classic_member_metadata=None
        if classic is None
        else ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            classic.session_timeout_ms,
            [ConsumerGroupMemberMetadataValue.ClassicProtocol(*each) for each in classic.protocols],
        ),
    )
    return ConsumerRecord(ConsumerGroupMemberMetadataKey(group, member), value)


def target_record(group: str, member: str, target: Target) -> ConsumerRecord:
    topics = [
        ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id, sorted(target[topic_id]))
        for topic_id in sorted(target)
    ]
    key = ConsumerGroupTargetAssignmentMemberKey(group, member)
    return ConsumerRecord(key, ConsumerGroupTargetAssignmentMemberValue(topics))


def target_epoch_record(group: str, epoch: int, wall_ms: int) -> ConsumerRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(epoch, wall_ms)
    return ConsumerRecord(ConsumerGroupTargetAssignmentMetadataKey(group), value)


def holding_record(group: str, member: str, holding: Holding) -> ConsumerRecord:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        holding.epoch,
        holding.previous_epoch,
        int(holding.state),
        _topic_partitions(holding.assigned),
        _topic_partitions(holding.revoking),
    )
    return ConsumerRecord(ConsumerGroupCurrentMemberAssignmentKey(group, member), value)


def _topic_partitions(partitions: Partitions) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    topics = []
    for topic_id in sorted(partitions):
        epochs = partitions[topic_id]
        indexes = sorted(epochs)
        topics.append(
            ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id, indexes, [epochs[index] for index in indexes]
            )
        )
    return topics


def expression_record(group: str, expression: str, resolved: ResolvedExpression) -> ConsumerRecord:
    value = ConsumerGroupRegularExpressionValue(sorted(resolved.topics), resolved.version, resolved.timestamp_ms)
    return ConsumerRecord(ConsumerGroupRegularExpressionKey(group, expression), value)


def expression_tombstone(group: str, expression: str) -> ConsumerRecord:
    return ConsumerRecord(ConsumerGroupRegularExpressionKey(group, expression), None)


def partition_metadata_tombstone(group: str) -> ConsumerRecord:
    return ConsumerRecord(ConsumerGroupPartitionMetadataKey(group), None)


def member_tombstones(group: str, member: str) -> list[ConsumerRecord]:
    """In an order that a reader may stop at anywhere: what a member has goes before the member."""
    return [
        ConsumerRecord(ConsumerGroupCurrentMemberAssignmentKey(group, member), None),
        ConsumerRecord(ConsumerGroupTargetAssignmentMemberKey(group, member), None),
        ConsumerRecord(ConsumerGroupMemberMetadataKey(group, member), None),
    ]


def group_tombstones(group: ConsumerGroup) -> Iterator[ConsumerRecord]:
    for member_id in group.members:
        yield ConsumerRecord(ConsumerGroupCurrentMemberAssignmentKey(group.id, member_id), None)
    for member_id in group.members:
        yield ConsumerRecord(ConsumerGroupTargetAssignmentMemberKey(group.id, member_id), None)
    yield ConsumerRecord(ConsumerGroupTargetAssignmentMetadataKey(group.id), None)
    for member_id in group.members:
        yield ConsumerRecord(ConsumerGroupMemberMetadataKey(group.id, member_id), None)
    for expression in group.resolved:
        yield expression_tombstone(group.id, expression)
    yield partition_metadata_tombstone(group.id)
    yield ConsumerRecord(ConsumerGroupMetadataKey(group.id), None)
