"""Fetch of `__cluster_metadata-0` on a controller's listener: how voters and observers follow the metadata log.

Answers with records up to the end of the log, agreed or not, with the place to go back to where the logs part, or with
the snapshot to load first. Waits while there is nothing new: no records, no higher high watermark, no other leader.
"""

from __future__ import annotations

from dataclasses import replace

from moldau.broker.dispatch import Context
from moldau.broker.quorum_answers import has_other_cluster_id, leader_endpoints
from moldau.broker.quorum_messages import METADATA_PARTITION, replica_id_of
from moldau.consensus import FetchAnswer, FetchRequest, ReplicaKey
from moldau.kernel import METADATA_TOPIC, METADATA_TOPIC_ID, ErrorCode
from moldau.protocol.messages import fetch

TOPIC_IDS_VERSION_MIN = 13
ENDPOINTS_VERSION_MIN = 16
HIGH_WATERMARK_VERSION_MIN = 18
BYTES_MAX = 8 << 20


def is_metadata_fetch(message: fetch.FetchRequest, context: Context) -> bool:
    if not context.dispatcher.is_controller or len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        return False
    topic = message.topics[0]
    uses_ids = context.version >= TOPIC_IDS_VERSION_MIN
    is_metadata = topic.topic_id == METADATA_TOPIC_ID if uses_ids else topic.topic == METADATA_TOPIC
    return is_metadata and topic.partitions[0].partition == METADATA_PARTITION


async def answer_metadata_fetch(message: fetch.FetchRequest, context: Context) -> fetch.FetchResponse:
    node, controller = context.node, context.node.controller
    if has_other_cluster_id(message.cluster_id, node):
        return fetch.FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    wanted = message.topics[0].partitions[0]
    quorum, clock = controller.quorum, node.clock
    request = FetchRequest(
        wanted.current_leader_epoch,
        ReplicaKey(replica_id_of(message), wanted.replica_directory_id),
        wanted.fetch_offset,
        wanted.last_fetched_epoch,
        # Versions below 18 do not say what the replica knows.
        wanted.high_watermark if context.version >= HIGH_WATERMARK_VERSION_MIN else -1,
    )
    known = request.high_watermark if request.high_watermark >= 0 else quorum.high_watermark
    bytes_max = min(max(message.max_bytes, 1), max(wanted.partition_max_bytes, 1), BYTES_MAX)
    until_ms = clock.monotonic_ms() + message.max_wait_ms
    while True:
        answer = _answer(request, bytes_max, context)
        left_ms = until_ms - clock.monotonic_ms()
        has_news = answer.records is not None or answer.diverging is not None or answer.snapshot is not None
        has_news = has_news or answer.error != ErrorCode.NONE or answer.high_watermark > known
        if has_news or left_ms <= 0 or node.is_stopping:
            return _response(answer, context)
        await controller.wait_news(left_ms)
        if controller.is_closed:
            return fetch.FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _answer(request: FetchRequest, bytes_max: int, context: Context) -> FetchAnswer:
    controller = context.node.controller
    effects, answer = controller.quorum.on_fetch(request, context.node.clock.monotonic_ms())
    controller.step(effects)
    if answer.error != ErrorCode.NONE or answer.diverging is not None or answer.snapshot is not None:
        return answer
    log = controller.log.log
    piece = log.read(request.fetch_offset, bytes_max, offset_max=log.end_offset)
    return answer if piece is None else replace(answer, records=piece.read())


def _response(answer: FetchAnswer, context: Context) -> fetch.FetchResponse:
    kinds, version = fetch.FetchResponse, context.version
    partition = kinds.PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.high_watermark,
        log_start_offset=context.node.controller.log.start_offset if answer.error == ErrorCode.NONE else -1,
        current_leader=kinds.LeaderIdAndEpoch(answer.leader_id, answer.epoch),
        aborted_transactions=None,
        records=answer.records or b"",
    )
    if answer.diverging is not None:
        partition.diverging_epoch = kinds.EpochEndOffset(answer.diverging.epoch, answer.diverging.end_offset)
    if answer.snapshot is not None:
        partition.snapshot_id = kinds.SnapshotId(answer.snapshot.end_offset, answer.snapshot.epoch)
    topic = kinds.FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[partition])
    if version < TOPIC_IDS_VERSION_MIN:
        topic.topic = METADATA_TOPIC
    endpoints = leader_endpoints(kinds, context.node) if version >= ENDPOINTS_VERSION_MIN else []
    return kinds(responses=[topic], node_endpoints=endpoints)
