"""AddRaftVoter (key 80), versions 0 and 1: one more voter for the metadata quorum (KIP-853).

Only a controller that has caught up, and one change at a time. Version 1 may be answered before it is agreed.

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


async def handle(request: AddRaftVoterRequest, context: Context) -> AddRaftVoterResponse:
    response: AddRaftVoterResponse = await context.node.active.answer(request, context.version)
    return response
