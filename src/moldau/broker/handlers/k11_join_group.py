"""JoinGroup (key 11), versions 0 to 9: become a member of a classic group; answered when all have joined.

1 has a rebalance timeout of its own (before, the session timeout stands for both). 4 wants the member id that we give
out first (KIP-394, trap 26). 5 has static members. 7 may answer without a protocol name; before, that is "". 9 tells a
leader that nothing is to be assigned.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

NULL_PROTOCOL_VERSION_MIN = 7


async def handle(request: JoinGroupRequest, context: Context) -> JoinGroupResponse:
    response: JoinGroupResponse
    try:
        if request.group_id:
            # The answer may take long: the request's bytes are copied by who keeps them.
            response = await context.node.groups.ask(request.group_id, request, context)
        else:
            response = JoinGroupResponse(
                error_code=ErrorCode.INVALID_GROUP_ID, member_id=request.member_id, protocol_name=None
            )
    except KafkaError as refusal:
        response = JoinGroupResponse(error_code=refusal.code, protocol_name=None)
    if context.version < NULL_PROTOCOL_VERSION_MIN and response.protocol_name is None:
        response.protocol_name = ""
    return response
