"""FetchSnapshot (key 59), versions 0 and 1: a piece of a snapshot of the metadata log, for who lags behind.

Pieces are bytes of the file, whole batches or not. A snapshot that is not kept any more is SNAPSHOT_NOT_FOUND, a
position outside of it POSITION_OUT_OF_RANGE. Served on controllers' listeners.
"""

from __future__ import annotations

from dataclasses import replace

from moldau.broker.dispatch import Context
from moldau.broker.quorum_answers import has_other_cluster_id, leader_endpoints, names_metadata
from moldau.broker.quorum_messages import METADATA_PARTITION
from moldau.consensus import EpochEnd, ReplicaKey, SnapshotAnswer, SnapshotRequest
from moldau.kernel import METADATA_TOPIC, ErrorCode
from moldau.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse

PIECE_BYTES_MAX = 8 << 20


async def handle(message: FetchSnapshotRequest, context: Context) -> FetchSnapshotResponse:
    node = context.node
    if has_other_cluster_id(message.cluster_id, node):
        return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if not names_metadata((topic.name, topic.partitions) for topic in message.topics):
        return FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted = message.topics[0].partitions[0]
    request = SnapshotRequest(
        wanted.current_leader_epoch,
        ReplicaKey(message.replica_id, wanted.replica_directory_id),
        EpochEnd(wanted.snapshot_id.epoch, wanted.snapshot_id.end_offset),
        wanted.position,
    )
    effects, answer = node.controller.quorum.on_snapshot(request, node.clock.monotonic_ms())
    if answer.error == ErrorCode.NONE:
        answer = _piece(request, answer, min(message.max_bytes, PIECE_BYTES_MAX), context)
    node.controller.step(effects)
    partition = FetchSnapshotResponse.PartitionSnapshot(
        METADATA_PARTITION,
        answer.error,
        FetchSnapshotResponse.SnapshotId(request.snapshot.end_offset, request.snapshot.epoch),
        FetchSnapshotResponse.LeaderIdAndEpoch(answer.leader_id, answer.epoch),
        answer.size,
        answer.position,
        answer.data,
    )
    return FetchSnapshotResponse(
        topics=[FetchSnapshotResponse.TopicSnapshot(METADATA_TOPIC, [partition])],
        node_endpoints=leader_endpoints(FetchSnapshotResponse, node) if context.version >= 1 else [],
    )


def _piece(request: SnapshotRequest, answer: SnapshotAnswer, bytes_max: int, context: Context) -> SnapshotAnswer:
    if request.position < 0:
        return replace(answer, error=ErrorCode.POSITION_OUT_OF_RANGE)
    found = context.node.controller.log.read_snapshot_bytes(request.snapshot, request.position, max(bytes_max, 1))
    if found is None:
        return replace(answer, error=ErrorCode.SNAPSHOT_NOT_FOUND)
    size, data = found
    if request.position >= size:
        return replace(answer, error=ErrorCode.POSITION_OUT_OF_RANGE)
    return replace(answer, size=size, data=data)
