"""What consumers put into a classic group's opaque bytes: the topics that they want, the partitions that they get.

A version and a message of Kafka's own, so that our members and Java's share a group. Only groups of protocol type
`consumer` follow these formats, and only by convention. A version newer than ours begins like ours: what follows is
left unread, as Kafka does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from moldau.kernel import Buffer
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.wire import ProtocolError

_VERSION = struct.Struct(">h")


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription | None:
    """None when it does not read."""
    try:
        version = min(_VERSION.unpack_from(data)[0], ConsumerProtocolSubscription.VERSION_MAX)
        return ConsumerProtocolSubscription.decode_from(data, _VERSION.size, version)[0] if version >= 0 else None
    except (ProtocolError, struct.error):
        return None


def write_subscription(subscription: ConsumerProtocolSubscription) -> bytes:
    version = ConsumerProtocolSubscription.VERSION_MAX
    return _VERSION.pack(version) + subscription.encode(version)


def read_assignment(data: Buffer) -> ConsumerProtocolAssignment | None:
    """None when it does not read; one without partitions when there are no bytes, as leaders send it."""
    if not data:
        return ConsumerProtocolAssignment()
    try:
        version = min(_VERSION.unpack_from(data)[0], ConsumerProtocolAssignment.VERSION_MAX)
        return ConsumerProtocolAssignment.decode_from(data, _VERSION.size, version)[0] if version >= 0 else None
    except (ProtocolError, struct.error):
        return None


def write_assignment(
    partitions: Mapping[str, Sequence[int]], version: int = ConsumerProtocolAssignment.VERSION_MAX
) -> bytes:
    version = min(version, ConsumerProtocolAssignment.VERSION_MAX)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic, list(indexes)) for topic, indexes in partitions.items()
        ],
        user_data=None,
    )
    return _VERSION.pack(version) + assignment.encode(version)
