"""What members of the quorum say to each other, in Kafka's messages: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and
FetchSnapshot of `__cluster_metadata-0`. Conversions in both directions; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moldau.consensus import (
    Answer,
    BeginEpochRequest,
    EndEpochRequest,
    EpochEnd,
    FetchAnswer,
    FetchRequest,
    ReplicaKey,
    Request,
    SnapshotAnswer,
    SnapshotRequest,
    VoteAnswer,
    VoterEndpoint,
    VoteRequest,
)
from moldau.kernel import METADATA_TOPIC, METADATA_TOPIC_ID, ErrorCode
from moldau.protocol.message import Message
from moldau.protocol.messages import begin_quorum_epoch as begin
from moldau.protocol.messages import end_quorum_epoch as end
from moldau.protocol.messages import fetch, fetch_snapshot, vote

METADATA_PARTITION = 0


class FetchLimits(NamedTuple):
    wait_ms: int
    bytes_max: int


class Heard(NamedTuple):
    """An answer, and the addresses that came with it."""

    answer: Answer
    addresses: Mapping[int, tuple[str, int]]


def request_message(
    request: Request, to: int, cluster_id: str, endpoints: Sequence[VoterEndpoint], limits: FetchLimits
) -> Message:
    """A request for the wire; `endpoints` are our own, for those who shall find us as their leader."""
    match request:
        case VoteRequest():
            return _vote(request, to, cluster_id)
        case BeginEpochRequest():
            return begin.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter_id=to,
                topics=[
                    begin.BeginQuorumEpochRequest.TopicData(
                        METADATA_TOPIC,
                        [
                            begin.BeginQuorumEpochRequest.PartitionData(
                                METADATA_PARTITION, request.voter.directory_id, request.leader_id, request.epoch
                            )
                        ],
                    )
                ],
                leader_endpoints=[begin.BeginQuorumEpochRequest.LeaderEndpoint(*each) for each in endpoints],
            )
        case EndEpochRequest():
            return end.EndQuorumEpochRequest(
                cluster_id=cluster_id,
                topics=[end.EndQuorumEpochRequest.TopicData(METADATA_TOPIC, [_end_partition(request)])],
                leader_endpoints=[end.EndQuorumEpochRequest.LeaderEndpoint(*each) for each in endpoints],
            )
        case FetchRequest():
            return _fetch(request, cluster_id, limits)
        case SnapshotRequest():
            return _fetch_snapshot(request, cluster_id, limits)


def _vote(request: VoteRequest, to: int, cluster_id: str) -> Message:
    partition = vote.VoteRequest.PartitionData(
        partition_index=METADATA_PARTITION,
        replica_epoch=request.epoch,
        replica_id=request.candidate.node_id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=request.voter.directory_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.is_pre_vote,
    )
    return vote.VoteRequest(cluster_id, to, [vote.VoteRequest.TopicData(METADATA_TOPIC, [partition])])


def _end_partition(request: EndEpochRequest) -> end.EndQuorumEpochRequest.PartitionData:
    return end.EndQuorumEpochRequest.PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_candidates=[end.EndQuorumEpochRequest.ReplicaInfo(*key) for key in request.successors],
    )


def _fetch(request: FetchRequest, cluster_id: str, limits: FetchLimits) -> Message:
    partition = fetch.FetchRequest.FetchPartition(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=limits.bytes_max,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.FetchRequest.ReplicaState(request.replica.node_id),
        max_wait_ms=limits.wait_ms,
        max_bytes=limits.bytes_max,
        topics=[fetch.FetchRequest.FetchTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [partition])],
    )


def _fetch_snapshot(request: SnapshotRequest, cluster_id: str, limits: FetchLimits) -> Message:
    partition = fetch_snapshot.FetchSnapshotRequest.PartitionSnapshot(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.epoch,
        snapshot_id=fetch_snapshot.FetchSnapshotRequest.SnapshotId(request.snapshot.end_offset, request.snapshot.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.node_id,
        max_bytes=limits.bytes_max,
        topics=[fetch_snapshot.FetchSnapshotRequest.TopicSnapshot(METADATA_TOPIC, [partition])],
    )


# -- requests as they come in ------------------------------------------------------------------------------------------


def vote_request(message: vote.VoteRequest, version: int) -> VoteRequest:
    partition = message.topics[0].partitions[0]
    voter_id = message.voter_id if version >= 1 else -1
    return VoteRequest(
        partition.replica_epoch,
        ReplicaKey(partition.replica_id, partition.replica_directory_id),
        partition.last_offset_epoch,
        partition.last_offset,
        partition.pre_vote,
        ReplicaKey(voter_id, partition.voter_directory_id),
    )


def begin_request(message: begin.BeginQuorumEpochRequest) -> BeginEpochRequest:
    partition = message.topics[0].partitions[0]
    voter = ReplicaKey(message.voter_id, partition.voter_directory_id)
    return BeginEpochRequest(partition.leader_epoch, partition.leader_id, voter)


def end_request(message: end.EndQuorumEpochRequest, version: int) -> EndEpochRequest:
    partition = message.topics[0].partitions[0]
    successors: tuple[ReplicaKey, ...] = tuple(ReplicaKey(node_id) for node_id in partition.preferred_successors)
    if version >= 1:
        successors = tuple(
            ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in partition.preferred_candidates
        )
    return EndEpochRequest(partition.leader_epoch, partition.leader_id, successors)


def replica_id_of(message: fetch.FetchRequest) -> int:
    """Version 15 moved the id of the replica (KIP-903)."""
    state = message.replica_state
    return state.replica_id if state is not None and state.replica_id >= 0 else message.replica_id


# -- answers as they come in -------------------------------------------------------------------------------------------


def heard(response: Any) -> Heard:
    """The answer in a response. One that speaks of nothing but an error says nothing of epochs."""
    addresses = {each.node_id: (each.host, each.port) for each in response.node_endpoints}
    if isinstance(response, fetch.FetchResponse):
        return Heard(_heard_fetch(response), addresses)
    if isinstance(response, fetch_snapshot.FetchSnapshotResponse):
        return Heard(_heard_snapshot(response), addresses)
    kind = VoteAnswer if isinstance(response, vote.VoteResponse) else Answer
    if response.error_code or not response.topics:
        return Heard(kind(-1, -1, ErrorCode(response.error_code or ErrorCode.INVALID_REQUEST)), addresses)
    partition = response.topics[0].partitions[0]
    known = (partition.leader_epoch, partition.leader_id, ErrorCode(partition.error_code))
    if isinstance(response, vote.VoteResponse):
        return Heard(VoteAnswer(*known, granted=partition.vote_granted), addresses)
    return Heard(Answer(*known), addresses)


def _heard_fetch(response: fetch.FetchResponse) -> FetchAnswer:
    if response.error_code or not response.responses:
        return FetchAnswer(-1, -1, ErrorCode(response.error_code or ErrorCode.INVALID_REQUEST))
    partition = response.responses[0].partitions[0]
    leader = partition.current_leader
    epoch, leader_id = (-1, -1) if leader is None else (leader.leader_epoch, leader.leader_id)
    diverging, snapshot, records = partition.diverging_epoch, partition.snapshot_id, partition.records
    has_snapshot = snapshot is not None and snapshot.end_offset >= 0
    is_diverging = diverging is not None and diverging.end_offset >= 0
    return FetchAnswer(
        epoch,
        leader_id,
        ErrorCode(partition.error_code),
        partition.high_watermark,
        EpochEnd(diverging.epoch, diverging.end_offset) if is_diverging and diverging is not None else None,
        EpochEnd(snapshot.epoch, snapshot.end_offset) if has_snapshot and snapshot is not None else None,
        records if records is not None and len(records) else None,
    )


def _heard_snapshot(response: fetch_snapshot.FetchSnapshotResponse) -> SnapshotAnswer:
    if response.error_code or not response.topics:
        return SnapshotAnswer(-1, -1, ErrorCode(response.error_code or ErrorCode.INVALID_REQUEST))
    partition = response.topics[0].partitions[0]
    leader = partition.current_leader
    epoch, leader_id = (-1, -1) if leader is None else (leader.leader_epoch, leader.leader_id)
    data = bytes(partition.unaligned_records or b"")
    return SnapshotAnswer(epoch, leader_id, ErrorCode(partition.error_code), partition.size, partition.position, data)
