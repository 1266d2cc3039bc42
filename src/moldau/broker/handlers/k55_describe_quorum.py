"""DescribeQuorum (key 55), versions 0 to 2: who leads the metadata log and how far each voter is.

Version 1 adds fetch times, version 2 directory ids and addresses (KIP-853).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import METADATA_TOPIC, ZERO_UUID, ErrorCode
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse


async def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    node = context.node
    wanted = [(topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in request.topics]
    if wanted != [(METADATA_TOPIC, [0])]:
        return _unknown(request)
    quorum = node.controller.quorum
    now_ms = node.clock.now_ms()
    voters = [
        DescribeQuorumResponse.ReplicaState(
            replica_id=voter,
            replica_directory_id=node.voter_directory_id(voter) if context.version >= 2 else ZERO_UUID,
            log_end_offset=quorum.end_offsets.get(voter, -1),
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        for voter in quorum.voters
    ]
    partition = DescribeQuorumResponse.PartitionData(
        partition_index=0,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        current_voters=voters,
    )
    nodes = [
        DescribeQuorumResponse.Node(
            controller.node_id,
            [DescribeQuorumResponse.Listener(point.listener, point.host, point.port) for point in controller.endpoints],
        )
        for controller in node.image.controllers.values()
    ]
    topic = DescribeQuorumResponse.TopicData(METADATA_TOPIC, [partition])
    return DescribeQuorumResponse(topics=[topic], nodes=nodes if context.version >= 2 else [])


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.TopicData(
                topic.topic_name,
                [
                    DescribeQuorumResponse.PartitionData(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="This server does not host this topic-partition.",
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
