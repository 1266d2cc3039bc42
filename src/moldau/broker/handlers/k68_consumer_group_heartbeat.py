"""ConsumerGroupHeartbeat (key 68), versions 0 and 1: join, stay in, change and leave a consumer group (KIP-848).

1 wants a member id that the client made, and has subscriptions by regular expression. Epoch 0 joins, -1 leaves, -2 is a
static member that will be back. UNSUPPORTED_VERSION while `group.coordinator.rebalance.protocols` has no `consumer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

MEMBER_ID_VERSION_MIN = 1
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2


async def handle(request: ConsumerGroupHeartbeatRequest, context: Context) -> ConsumerGroupHeartbeatResponse:
    try:
        context.node.groups.require_consumer_protocol()
        _require_valid(request, context.version)
        _require_assignor(request.server_assignor, context.node.settings.items("group.consumer.assignors"))
        response: ConsumerGroupHeartbeatResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        response = ConsumerGroupHeartbeatResponse(error_code=refusal.code, error_message=refusal.message)
    return response


def _require_valid(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    epoch = request.member_epoch
    if version >= MEMBER_ID_VERSION_MIN or epoch > 0 or epoch == LEAVE_EPOCH:
        _require_text(request.member_id, "MemberId can't be empty.")
    _require_text(request.group_id, "GroupId can't be empty.")
    _require_text(request.instance_id, "InstanceId can't be empty.")
    _require_text(request.rack_id, "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _require(request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        _require(request.topic_partitions == [], "TopicPartitions must be empty when (re-)joining.")
        _require(
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    elif epoch == LEAVE_STATIC_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    else:
        _require(epoch > LEAVE_STATIC_EPOCH, "MemberEpoch is invalid.")


def _require_text(value: str | None, message: str) -> None:
    _require(value is None or bool(value.strip()), message)


def _require(is_valid: bool, message: str) -> None:
    if not is_valid:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _require_assignor(name: str | None, supported: Sequence[str]) -> None:
    if name is not None and name not in supported:
        message = f"ServerAssignor {name} is not supported. Supported assignors: {', '.join(supported)}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
