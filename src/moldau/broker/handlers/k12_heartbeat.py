"""Heartbeat (key 12), versions 0 to 4: a classic member is alive; REBALANCE_IN_PROGRESS tells it to join again.

3 has static members.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        response: HeartbeatResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        if refusal.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As Kafka: a member need not know that we have just come up; its session begins anew when we have loaded.
            return HeartbeatResponse()
        return HeartbeatResponse(error_code=refusal.code)
    return response
