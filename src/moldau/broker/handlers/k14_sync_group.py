"""SyncGroup (key 14), versions 0 to 5: the leader hands in the assignment, every member gets its part.

3 has static members; 5 checks type and name of the protocol.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_VERSION_MIN = 5


async def handle(request: SyncGroupRequest, context: Context) -> SyncGroupResponse:
    try:
        if context.version >= PROTOCOL_VERSION_MIN and not (request.protocol_type and request.protocol_name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        response: SyncGroupResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        code = refusal.code
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As Kafka: what was agreed on is not known any more, so join again.
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return SyncGroupResponse(error_code=code)
    return response
