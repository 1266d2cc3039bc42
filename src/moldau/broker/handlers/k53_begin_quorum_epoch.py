"""BeginQuorumEpoch (key 53), versions 0 and 1: a new leader of the metadata quorum says who it is.

Version 1 names the voter that is meant and the leader's addresses (KIP-853). Served on controllers' listeners.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.quorum_answers import has_other_cluster_id, leader_endpoints, names_metadata
from moldau.broker.quorum_messages import METADATA_PARTITION, begin_request
from moldau.kernel import METADATA_TOPIC, ErrorCode
from moldau.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse


async def handle(message: BeginQuorumEpochRequest, context: Context) -> BeginQuorumEpochResponse:
    node = context.node
    if has_other_cluster_id(message.cluster_id, node):
        return BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if not names_metadata((topic.topic_name, topic.partitions) for topic in message.topics):
        return BeginQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST)
    request = begin_request(message)
    for endpoint in message.leader_endpoints[:1]:
        node.addresses.note(request.leader_id, endpoint.host, endpoint.port)
    effects, answer = node.controller.quorum.on_begin_epoch(request, node.clock.monotonic_ms())
    node.controller.step(effects)
    partition = BeginQuorumEpochResponse.PartitionData(METADATA_PARTITION, answer.error, answer.leader_id, answer.epoch)
    return BeginQuorumEpochResponse(
        topics=[BeginQuorumEpochResponse.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=leader_endpoints(BeginQuorumEpochResponse, node) if context.version >= 1 else [],
    )
