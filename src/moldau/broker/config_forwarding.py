"""Changes of configurations on their way to the controller: a broker's own keys are set by asking that broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.cluster import for_other_brokers
from moldau.protocol.messages.registry import response_class

if TYPE_CHECKING:
    from moldau.broker.node import Node


async def forward_configs(node: Node, request: Any, version: int) -> Any:
    """What this broker may be asked is handed on; the answers are in the order of the request."""
    refused = for_other_brokers(request.resources, node.node_id)
    if not refused:
        return await node.channel.forward(request, version)
    response: Any = response_class(request.API_KEY)
    answers = {answer[2:]: response.AlterConfigsResourceResponse(*answer) for answer in refused}
    asked = request.resources
    left = [each for each in asked if (each.resource_type, each.resource_name) not in answers]
    if left:
        handed_on = type(request)(resources=left, validate_only=request.validate_only)
        for each in (await node.channel.forward(handed_on, version)).responses:
            answers[each.resource_type, each.resource_name] = each
    return response(responses=[answers[each.resource_type, each.resource_name] for each in asked])
