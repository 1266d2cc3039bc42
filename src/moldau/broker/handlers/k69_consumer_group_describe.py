"""ConsumerGroupDescribe (key 69), versions 0 and 1: members, assignments and targets of consumer groups (KIP-848).

A group that nobody knows, or a classic one, is GROUP_ID_NOT_FOUND; all are UNSUPPORTED_VERSION while
`group.coordinator.rebalance.protocols` has no `consumer`. 1 says which protocol a member speaks. Our own
clients are told the last rebalances too, in a tagged field (`coordination/groups/history.py`).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.handlers.k03_metadata import GROUP_OPERATIONS
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)


async def handle(request: ConsumerGroupDescribeRequest, context: Context) -> ConsumerGroupDescribeResponse:
    described = []
    for group_id in request.group_ids:
        try:
            context.node.groups.require_consumer_protocol()
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            asked = ConsumerGroupDescribeRequest(group_ids=[group_id])
            answer: ConsumerGroupDescribeResponse = await context.node.groups.ask(group_id, asked, context)
            for group in answer.groups:
                if not context.is_own_client:
                    group.unknown_tags = ()
                if request.include_authorized_operations:
                    group.authorized_operations = GROUP_OPERATIONS
            described += answer.groups
        except KafkaError as refusal:
            described.append(
                ConsumerGroupDescribeResponse.DescribedGroup(
                    error_code=refusal.code, error_message=refusal.message, group_id=group_id
                )
            )
    return ConsumerGroupDescribeResponse(groups=described)
