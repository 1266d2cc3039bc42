"""ListGroups (key 16), versions 0 to 5: all groups of this coordinator. 4 filters by state, 5 by type."""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import KafkaError
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


async def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    try:
        answers = [await answer for answer in context.node.groups.ask_all(request, context)]
    except KafkaError as refusal:
        return ListGroupsResponse(error_code=refusal.code)
    return ListGroupsResponse(groups=[group for answer in answers for group in answer.groups])
