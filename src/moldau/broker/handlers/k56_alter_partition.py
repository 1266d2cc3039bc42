"""AlterPartition (key 56), versions 2 and 3: a leader says who is in sync with it (KIP-497).

Version 3 names the epoch of every broker that it adds (KIP-903).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(request: AlterPartitionRequest, context: Context) -> AlterPartitionResponse:
    response: AlterPartitionResponse = await context.node.active.answer(request, context.version)
    return response
