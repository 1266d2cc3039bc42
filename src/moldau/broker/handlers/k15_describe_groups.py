"""DescribeGroups (key 15), versions 0 to 6: members and assignments of classic groups.

A group that nobody knows is Dead; 6 says GROUP_ID_NOT_FOUND as well. 4 has instance ids. Our own clients are told the
last rebalances too, in a tagged field (`coordination/groups/history.py`).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.handlers.k03_metadata import GROUP_OPERATIONS
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

FLEXIBLE_VERSION_MIN = 5


async def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
    described = []
    for group_id in request.groups:
        try:
            asked = DescribeGroupsRequest(groups=[group_id])
            answer: DescribeGroupsResponse = await context.node.groups.ask(group_id, asked, context)
            for group in answer.groups:
                if context.version < FLEXIBLE_VERSION_MIN or not context.is_own_client:
                    group.unknown_tags = ()
                if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                    group.authorized_operations = GROUP_OPERATIONS
            described += answer.groups
        except KafkaError as refusal:
            described.append(DescribeGroupsResponse.DescribedGroup(error_code=refusal.code, group_id=group_id))
    return DescribeGroupsResponse(groups=described)
