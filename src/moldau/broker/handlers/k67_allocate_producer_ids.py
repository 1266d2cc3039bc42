"""AllocateProducerIds (key 67), version 0: a broker takes the next block of producer ids.

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


async def handle(request: AllocateProducerIdsRequest, context: Context) -> AllocateProducerIdsResponse:
    response: AllocateProducerIdsResponse = await context.node.active.answer(request, context.version)
    return response
