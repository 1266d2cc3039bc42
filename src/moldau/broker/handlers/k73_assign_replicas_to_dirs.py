"""AssignReplicasToDirs (key 73), version 0: a broker says in which of its directories replicas live (KIP-858).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse


async def handle(request: AssignReplicasToDirsRequest, context: Context) -> AssignReplicasToDirsResponse:
    response: AssignReplicasToDirsResponse = await context.node.active.answer(request, context.version)
    return response
