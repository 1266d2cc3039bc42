"""DescribeQuorum (key 55), versions 0 to 2: who leads the metadata log and how far each voter is.

Version 1 adds fetch times, version 2 directory ids and addresses (KIP-853).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.consensus import Progress, ReplicaKey
from moldau.kernel import METADATA_TOPIC, ZERO_UUID, ErrorCode
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse


async def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    node = context.node
    wanted = [(topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in request.topics]
    if wanted != [(METADATA_TOPIC, [0])]:
        return _unknown(request)
    partition = _describe(context)
    endpoints = {
        controller.node_id: [(point.listener, point.host, point.port) for point in controller.endpoints]
        for controller in node.image.controllers.values()
    }
    voters = node.controller.quorum.voters.all
    endpoints = {voter.key.node_id: list(voter.endpoints) or endpoints.get(voter.key.node_id, []) for voter in voters}
    nodes = [
        DescribeQuorumResponse.Node(node_id, [DescribeQuorumResponse.Listener(*point) for point in points])
        for node_id, points in sorted(endpoints.items())
    ]
    topic = DescribeQuorumResponse.TopicData(METADATA_TOPIC, [partition])
    return DescribeQuorumResponse(topics=[topic], nodes=nodes if context.version >= 2 else [])


def _describe(context: Context) -> DescribeQuorumResponse.PartitionData:
    """Only the leader knows how far the others are."""
    node = context.node
    quorum = node.controller.quorum
    partition = DescribeQuorumResponse.PartitionData(
        partition_index=0, leader_id=quorum.leader_id, leader_epoch=quorum.epoch, high_watermark=quorum.high_watermark
    )
    leadership = quorum.leadership
    if leadership is None:
        return DescribeQuorumResponse.PartitionData(
            partition_index=0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message="For requests intended only for the leader, this error indicates that the broker is not the"
            " current leader.",
            leader_id=quorum.leader_id,
            leader_epoch=quorum.epoch,
        )
    now_ms, ahead_ms = node.clock.now_ms(), node.clock.now_ms() - node.clock.monotonic_ms()
    has_directories = context.version >= 2 and node.controller.log.voters.kraft_version > 0

    def state(key: ReplicaKey, progress: Progress | None) -> DescribeQuorumResponse.ReplicaState:
        if key.node_id == quorum.node_id:
            end_offset, fetched_ms, caught_up_ms = leadership.flushed_offset, now_ms, now_ms
        elif progress is None:
            end_offset = fetched_ms = caught_up_ms = -1
        else:
            end_offset, fetched_ms = progress.end_offset, progress.last_fetch_ms + ahead_ms
            caught_up_ms = progress.last_caught_up_ms + ahead_ms if progress.last_caught_up_ms >= 0 else -1
        directory_id = key.directory_id if has_directories else ZERO_UUID
        return DescribeQuorumResponse.ReplicaState(key.node_id, directory_id, end_offset, fetched_ms, caught_up_ms)

    partition.current_voters = [
        state(voter.key, leadership.voters.get(voter.key.node_id)) for voter in quorum.voters.all
    ]
    partition.observers = [state(key, progress) for key, progress in sorted(leadership.observers.items())]
    return partition


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
