"""Vote (key 52), versions 0 to 2: a candidate for the lead of the metadata quorum asks for this node's vote.

Version 1 names the voter that is meant and directories (KIP-853), version 2 asks beforehand (pre-vote, KIP-996). Checks
in Kafka's order: cluster id, the one topic and partition there is, epochs that fit together. The vote is on disk before
the answer leaves. Served on controllers' listeners.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.quorum_answers import has_other_cluster_id, leader_endpoints, names_metadata
from moldau.broker.quorum_messages import METADATA_PARTITION, vote_request
from moldau.consensus import VoteAnswer, VoteRequest
from moldau.kernel import METADATA_TOPIC, ErrorCode
from moldau.protocol.messages import vote


async def handle(message: vote.VoteRequest, context: Context) -> vote.VoteResponse:
    node = context.node
    if has_other_cluster_id(message.cluster_id, node):
        return vote.VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if not names_metadata((topic.topic_name, topic.partitions) for topic in message.topics):
        return vote.VoteResponse(error_code=ErrorCode.INVALID_REQUEST)
    request = vote_request(message, context.version)
    quorum = node.controller.quorum
    if _makes_sense(request):
        effects, answer = quorum.on_vote(request, node.clock.monotonic_ms())
        node.controller.step(effects)
    else:
        answer = VoteAnswer(quorum.epoch, quorum.leader_id, ErrorCode.INVALID_REQUEST)
    partition = vote.VoteResponse.PartitionData(
        METADATA_PARTITION, answer.error, answer.leader_id, answer.epoch, answer.granted
    )
    return vote.VoteResponse(
        topics=[vote.VoteResponse.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=leader_endpoints(vote.VoteResponse, node) if context.version >= 1 else [],
    )


def _makes_sense(request: VoteRequest) -> bool:
    """A candidate's log ends before the epoch that it stands for; one that only asks is still in its own."""
    if request.last_epoch < 0 or request.end_offset < 0:
        return False
    return request.last_epoch <= request.epoch if request.is_pre_vote else request.last_epoch < request.epoch
