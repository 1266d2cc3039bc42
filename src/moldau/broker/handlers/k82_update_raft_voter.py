"""UpdateRaftVoter (key 82), version 0: a voter listens somewhere else now (KIP-853).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse


async def handle(request: UpdateRaftVoterRequest, context: Context) -> UpdateRaftVoterResponse:
    response: UpdateRaftVoterResponse = await context.node.active.answer(request, context.version)
    return response
