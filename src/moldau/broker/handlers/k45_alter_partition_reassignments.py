"""AlterPartitionReassignments (key 45), versions 0 and 1: other replicas for partitions, or a stop to that (null).

New replicas are added first; the old ones go when those are in sync. Version 1 can insist on the replication factor.

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


async def handle(request: AlterPartitionReassignmentsRequest, context: Context) -> AlterPartitionReassignmentsResponse:
    response: AlterPartitionReassignmentsResponse = await context.node.active.answer(request, context.version)
    return response
