"""LeaveGroup (key 13), versions 0 to 5: members go, and the others need not wait for their session to end.

0 to 2 name one member, 3 several, with instance ids; 5 has reasons.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

SEVERAL_VERSION_MIN = 3


async def handle(request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse:
    is_one = context.version < SEVERAL_VERSION_MIN
    if is_one:
        request.members = [LeaveGroupRequest.MemberIdentity(request.member_id)]
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        response: LeaveGroupResponse = await context.node.groups.ask(request.group_id, request, context)
    except KafkaError as refusal:
        if refusal.code != ErrorCode.UNKNOWN_MEMBER_ID or is_one:
            return LeaveGroupResponse(error_code=refusal.code)
        # The group is unknown, and so is each of its members.
        return LeaveGroupResponse(
            members=[
                LeaveGroupResponse.MemberResponse(each.member_id, each.group_instance_id, refusal.code)
                for each in request.members
            ]
        )
    if is_one:
        return LeaveGroupResponse(error_code=response.members[0].error_code)
    return response
