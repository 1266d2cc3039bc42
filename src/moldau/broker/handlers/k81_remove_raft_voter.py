"""RemoveRaftVoter (key 81), version 0: one voter less in the metadata quorum (KIP-853).

A leader that removes itself resigns when the others have agreed.

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


async def handle(request: RemoveRaftVoterRequest, context: Context) -> RemoveRaftVoterResponse:
    response: RemoveRaftVoterResponse = await context.node.active.answer(request, context.version)
    return response
