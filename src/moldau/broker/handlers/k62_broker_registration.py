"""BrokerRegistration (key 62), versions 0 to 4: a broker asks to be a member of the cluster; its epoch comes back.

Version 2 names log directories (KIP-858), version 3 the epoch of a life that ended in good order (KIP-966).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse


async def handle(request: BrokerRegistrationRequest, context: Context) -> BrokerRegistrationResponse:
    response: BrokerRegistrationResponse = await context.node.active.answer(request, context.version)
    return response
