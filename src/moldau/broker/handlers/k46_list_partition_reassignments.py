"""ListPartitionReassignments (key 46), version 0: which partitions are changing their replicas (KIP-455).

Decided by the active controller; any other answers NOT_CONTROLLER.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(request: ListPartitionReassignmentsRequest, context: Context) -> ListPartitionReassignmentsResponse:
    response: ListPartitionReassignmentsResponse = await context.node.active.answer(request, context.version)
    return response
