"""FindCoordinator (key 10), versions 0 to 6: which broker looks after a group, or after a transactional id.

The internal topics are made on first use (trap 25); the coordinator is the leader of the partition that the id hashes
to. 1 has key types, 4 asks for several keys at once, 6 has share groups, which are refused.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.coordinator import Coordinator as Shards
from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
BATCHED_VERSION_MIN = 4
_NOT_SERVED = "Share groups are not served by this version of Moldau."
Coordinator = FindCoordinatorResponse.Coordinator


async def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= BATCHED_VERSION_MIN else [request.key]
    problem: KafkaError | None = None
    node = context.node
    owner = node.transactions if request.key_type == TRANSACTION else node.groups
    if request.key_type not in (GROUP, TRANSACTION):
        problem = KafkaError(ErrorCode.INVALID_REQUEST, _NOT_SERVED)
    elif keys:
        try:
            await owner.ensure_topic()
        except KafkaError as refusal:
            problem = refusal
    found = [_find(key, owner.coordinator, context) if problem is None else _refused(key, problem) for key in keys]
    if context.version >= BATCHED_VERSION_MIN:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    response = FindCoordinatorResponse(error_code=only.error_code, node_id=only.node_id, host=only.host, port=only.port)
    if context.version >= 1:
        response.error_message = only.error_message or "NONE"  # Kafka's word for no error, until version 4
    return response


def _find(key: str, shards: Shards[Any], context: Context) -> Coordinator:
    node = context.node
    try:
        index = shards.index_of(key)
    except KafkaError:
        return _refused(key, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    leader = node.image.topics[shards.topic].partitions[index].leader
    broker = node.image.brokers.get(leader)
    endpoint = None if broker is None else node.listeners.endpoint_for(broker, context)
    if endpoint is None:
        return _refused(key, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return Coordinator(key=key, node_id=leader, host=endpoint.host, port=endpoint.port, error_message="")


def _refused(key: str, refusal: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=refusal.code, error_message=refusal.message)
