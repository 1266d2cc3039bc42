"""DeleteGroups (key 42), versions 0 to 2: forget groups and their offsets; NON_EMPTY_GROUP while one has members."""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import KafkaError
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse


async def handle(request: DeleteGroupsRequest, context: Context) -> DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            asked = DeleteGroupsRequest(groups_names=[group_id])
            answer: DeleteGroupsResponse = await context.node.groups.ask(group_id, asked, context)
            results += answer.results
        except KafkaError as refusal:
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id, refusal.code))
    return DeleteGroupsResponse(results=results)
