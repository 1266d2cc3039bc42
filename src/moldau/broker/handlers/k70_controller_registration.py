"""ControllerRegistration (key 70), version 0: a controller says where it listens and what it can do (KIP-919).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


async def handle(request: ControllerRegistrationRequest, context: Context) -> ControllerRegistrationResponse:
    response: ControllerRegistrationResponse = await context.node.active.answer(request, context.version)
    return response
