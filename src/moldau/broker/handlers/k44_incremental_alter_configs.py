"""IncrementalAlterConfigs (key 44), versions 0 and 1: set, delete, append to or subtract from single keys (KIP-339).

Each resource succeeds or fails on its own. A change is in force when the answer leaves: logs obey, Describe shows it.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import decide_incremental_alter_configs
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(request: IncrementalAlterConfigsRequest, context: Context) -> IncrementalAlterConfigsResponse:
    node = context.node
    asked_broker = node.node_id if context.dispatcher.is_for_clients else None
    return await node.controller.change(
        lambda image: decide_incremental_alter_configs(image, request, asked_broker, node.settings.integer)
    )
