"""What our members of a classic group tell each other: `protocol/consumer_protocol` in the assignors' own terms.

The sticky assignors also carry what they gave out before, in a form of their own.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable

from moldau.client.assignors import NO_GENERATION, Subscription
from moldau.kernel import TopicPartition
from moldau.protocol.consumer_protocol import read_assignment, read_subscription, write_assignment, write_subscription
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.wire import ProtocolError

PROTOCOL_TYPE = "consumer"
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for where in sorted(partitions):
        topics[where.topic].append(where.partition)
    return topics


def encode_subscription(subscription: Subscription, user_data: bytes | None) -> bytes:
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
    return write_subscription(message)


def decode_subscription(data: bytes, assignor: str, instance_id: str | None) -> Subscription:
    """What a member wrote for an assignor."""
    message = read_subscription(data)
    if message is None:
        raise ProtocolError(f"{len(data)} bytes are no subscription of a consumer")
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
    return write_assignment(by_topic(partitions))


def decode_assignment(data: bytes) -> set[TopicPartition]:
    """Empty bytes: the leader gave this member nothing."""
    message = read_assignment(data)
    if message is None:
        raise ProtocolError(f"{len(data)} bytes are no assignment of a consumer")
    return {TopicPartition(one.topic, number) for one in message.assigned_partitions for number in one.partitions}


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
