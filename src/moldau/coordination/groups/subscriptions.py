"""What consumers put into a classic group's opaque bytes: topics that they want, partitions that they get.

Only groups of protocol type `consumer` follow these formats, and only by convention: whatever does not read is no
error of the group, just unknown to us.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.wire import ProtocolError

_VERSION = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """None when it does not read."""
    subscription = read_subscription(metadata)
    return None if subscription is None else subscription.topics


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """A version newer than ours begins like ours."""
    try:
        version: int = _VERSION.unpack_from(metadata)[0]
        if version < 0:
            return None
        return ConsumerProtocolSubscription.decode(
            metadata[_VERSION.size :], min(version, ConsumerProtocolSubscription.VERSION_MAX)
        )
    except (ProtocolError, struct.error):
        return None


def read_assignment(data: bytes) -> dict[str, list[int]] | None:
    """Partitions by topic; None when it does not read, none when there are no bytes."""
    if not data:
        return {}
    try:
        version: int = _VERSION.unpack_from(data)[0]
        if version < 0:
            return None
        version = min(version, ConsumerProtocolAssignment.VERSION_MAX)
        assignment = ConsumerProtocolAssignment.decode(data[_VERSION.size :], version)
    except (ProtocolError, struct.error):
        return None
    return {topic.topic: list(topic.partitions) for topic in assignment.assigned_partitions}


def write_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    version = min(version, ConsumerProtocolAssignment.VERSION_MAX)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic, list(indexes)) for topic, indexes in partitions.items()
        ],
        user_data=None,
    )
    return _VERSION.pack(version) + assignment.encode(version)
