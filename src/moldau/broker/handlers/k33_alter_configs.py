"""AlterConfigs (key 33), versions 0 to 2: the legacy form that replaces all configs of a resource at once.

What the request does not name goes back to its default; IncrementalAlterConfigs is the better way.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import decide_alter_configs
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse


async def handle(request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    node = context.node
    asked_broker = node.node_id if context.dispatcher.is_for_clients else None
    return await node.controller.change(
        lambda image: decide_alter_configs(image, request, asked_broker, node.settings.integer)
    )
