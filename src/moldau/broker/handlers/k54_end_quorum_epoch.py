"""EndQuorumEpoch (key 54), versions 0 and 1: the leader of the metadata quorum resigns and names who should follow it.

The first one named stands at once, the others after a while. Version 1 names directories as well (KIP-853). Served on
controllers' listeners.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.quorum_answers import has_other_cluster_id, leader_endpoints, names_metadata
from moldau.broker.quorum_messages import METADATA_PARTITION, end_request
from moldau.kernel import METADATA_TOPIC, ErrorCode
from moldau.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse


async def handle(message: EndQuorumEpochRequest, context: Context) -> EndQuorumEpochResponse:
    node = context.node
    if has_other_cluster_id(message.cluster_id, node):
        return EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if not names_metadata((topic.topic_name, topic.partitions) for topic in message.topics):
        return EndQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST)
    request = end_request(message, context.version)
    effects, answer = node.controller.quorum.on_end_epoch(request, node.clock.monotonic_ms())
    node.controller.step(effects)
    partition = EndQuorumEpochResponse.PartitionData(METADATA_PARTITION, answer.error, answer.leader_id, answer.epoch)
    return EndQuorumEpochResponse(
        topics=[EndQuorumEpochResponse.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=leader_endpoints(EndQuorumEpochResponse, node) if context.version >= 1 else [],
    )
