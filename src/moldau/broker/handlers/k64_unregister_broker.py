"""UnregisterBroker (key 64), version 0: a broker is forgotten for good. Its replicas stay assigned to it, offline.

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(request: UnregisterBrokerRequest, context: Context) -> UnregisterBrokerResponse:
    response: UnregisterBrokerResponse = await context.node.active.answer(request, context.version)
    return response
