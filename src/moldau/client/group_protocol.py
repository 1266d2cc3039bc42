"""What members of a classic group tell each other through the coordinator: subscriptions and assignments, as bytes.

The coordinator does not read them; the leader's assignor does. Kafka's own versions, so that our members and Java's can
share a group. The sticky assignors also carry what they gave out before, in a form of their own.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable

from moldau.client.assignors import NO_GENERATION, Subscription
from moldau.kernel import TopicPartition
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.wire import ProtocolError

PROTOCOL_TYPE = "consumer"
_VERSION = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for where in sorted(partitions):
        topics[where.topic].append(where.partition)
    return topics


def encode_subscription(subscription: Subscription, user_data: bytes | None) -> bytes:
    version = ConsumerProtocolSubscription.VERSION_MAX
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic, partitions)
            for topic, partitions in by_topic(subscription.owned).items()
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack or None,
    )
    return _VERSION.pack(version) + message.encode(version)


def decode_subscription(data: bytes, assignor: str, instance_id: str | None) -> Subscription:
    """What a member wrote for an assignor; newer versions are read as far as we know them."""
    message, _ = ConsumerProtocolSubscription.decode_from(data, _VERSION.size, _known(data, message_max=3))
    owned = tuple(TopicPartition(one.topic, number) for one in message.owned_partitions for number in one.partitions)
    generation = message.generation_id
    user_data = bytes(message.user_data or b"")
    if assignor == "sticky":
        # Its members have given everything up when they join: what they had is in the user data.
        owned, generation = decode_sticky_data(user_data)
    elif assignor == "cooperative-sticky" and generation == NO_GENERATION and len(user_data) == _INT32.size:
        (generation,) = _INT32.unpack(user_data)
    return Subscription(frozenset(message.topics), owned, generation, instance_id, message.rack_id or None)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    version = ConsumerProtocolAssignment.VERSION_MAX
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic, numbers) for topic, numbers in by_topic(partitions).items()
        ],
        user_data=None,
    )
    return _VERSION.pack(version) + message.encode(version)


def decode_assignment(data: bytes) -> set[TopicPartition]:
    """Empty bytes: the leader gave this member nothing."""
    if not data:
        return set()
    message, _ = ConsumerProtocolAssignment.decode_from(data, _VERSION.size, _known(data, message_max=3))
    return {TopicPartition(one.topic, number) for one in message.assigned_partitions for number in one.partitions}


def _known(data: bytes, message_max: int) -> int:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are no message of a group")
    (version,) = _VERSION.unpack_from(data)
    return min(int(version), message_max)


def encode_sticky_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    topics = by_topic(partitions)
    out = bytearray(_INT32.pack(len(topics)))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += _INT16.pack(len(name)) + name + _INT32.pack(len(numbers))
        out += b"".join(map(_INT32.pack, numbers))
    return bytes(out + _INT32.pack(generation))


def encode_generation(generation: int) -> bytes:
    return _INT32.pack(generation)


def decode_sticky_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """What a member had, and in which generation (the oldest form does not say); nothing when it cannot be read."""
    owned: list[TopicPartition] = []
    try:
        (count,) = _INT32.unpack_from(data)
        at = _INT32.size
        for _ in range(count):
            (size,) = _INT16.unpack_from(data, at)
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (length,) = _INT32.unpack_from(data, at)
            numbers = struct.unpack_from(f">{length}i", data, at + 4)
            at += 4 + 4 * length
            owned += [TopicPartition(topic, number) for number in numbers]
        generation = _INT32.unpack_from(data, at)[0] if at < len(data) else NO_GENERATION
    except (struct.error, UnicodeDecodeError):
        return (), NO_GENERATION
    return tuple(owned), generation
