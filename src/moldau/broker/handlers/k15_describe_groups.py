"""DescribeGroups (key 15), versions 0 to 6: members and assignments of classic groups.

A group that nobody knows is Dead; 6 says GROUP_ID_NOT_FOUND as well. 4 has instance ids.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.handlers.k03_metadata import GROUP_OPERATIONS
from moldau.kernel import KafkaError
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse


async def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
    described = []
    for group_id in request.groups:
        try:
            asked = DescribeGroupsRequest(groups=[group_id])
            answer: DescribeGroupsResponse = await context.node.groups.ask(group_id, asked, context)
            described += answer.groups
            if request.include_authorized_operations:
                for group in answer.groups:
                    if group.error_code == 0:
                        group.authorized_operations = GROUP_OPERATIONS
        except KafkaError as refusal:
            described.append(DescribeGroupsResponse.DescribedGroup(error_code=refusal.code, group_id=group_id))
    return DescribeGroupsResponse(groups=described)
