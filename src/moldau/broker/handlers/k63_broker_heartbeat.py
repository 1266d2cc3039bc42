"""BrokerHeartbeat (key 63), versions 0 to 2: a broker is alive, and says how much of the log it has read.

Decided by the active controller; any other answers NOT_CONTROLLER. When the connection on which heartbeats came breaks,
the broker has a short while to be heard of again.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(request: BrokerHeartbeatRequest, context: Context) -> BrokerHeartbeatResponse:
    node = context.node
    node.active.watch(context.connection, request.broker_id, request.broker_epoch)
    response: BrokerHeartbeatResponse = await node.active.answer(request, context.version)
    return response
