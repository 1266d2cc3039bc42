"""The topics that coordinators keep their state in, made when they are first needed (trap 25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.create_topics import CreateTopicsRequest

if TYPE_CHECKING:
    from moldau.broker.node import Node


async def ensure_internal_topic(
    node: Node, name: str, *, partitions: int, replicas: int, configs: dict[str, str]
) -> None:
    """Make the topic if it is missing; COORDINATOR_NOT_AVAILABLE when it cannot be."""
    if name in node.image.topics:
        return
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        # One node is a whole cluster: more replicas than brokers could never be placed.
        replication_factor=min(replicas, len(node.image.brokers)),
        configs=[CreateTopicsRequest.CreatableTopicConfig(*config) for config in configs.items()],
    )
    response = await node.create_topics(CreateTopicsRequest(topics=[topic]))
    code = response.topics[0].error_code
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        message = response.topics[0].error_message
        node.say(f"internal_topic_not_made topic={name} error={ErrorCode(code).name} reason={message!r}")
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
