"""FindCoordinator (key 10), versions 0 to 6: one node is the coordinator of every group.

The group APIs themselves are not served yet and not advertised, so a client that subscribes is told by its own library
that the broker lacks them, and a client that assigns partitions is not disturbed. The key must be there: librdkafka
reads from its presence whether a broker knows lz4. Transactional ids (key type 1) and share groups (2) are refused.
Versions: 1 has key types, 4 asks for several keys at once, 6 has share groups.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
BATCHED_VERSION_MIN = 4
_NOT_SERVED = "Transactions and share groups are not served by this version of Moldau."


async def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= BATCHED_VERSION_MIN else [request.key]
    found = [_find(key, request.key_type, context) for key in keys]
    if context.version >= BATCHED_VERSION_MIN:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    response = FindCoordinatorResponse(error_code=only.error_code, node_id=only.node_id, host=only.host, port=only.port)
    if context.version >= 1:
        response.error_message = only.error_message or "NONE"  # Kafka's word for no error, until version 4
    return response


def _find(key: str, key_type: int, context: Context) -> FindCoordinatorResponse.Coordinator:
    node = context.node
    endpoint = node.endpoint_for(node.image.brokers[node.node_id], context)
    if key_type != GROUP or endpoint is None:
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, port=-1, error_code=ErrorCode.INVALID_REQUEST, error_message=_NOT_SERVED
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=node.node_id, host=endpoint.host, port=endpoint.port, error_message=""
    )
