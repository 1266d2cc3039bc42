"""WriteTxnMarkers (key 27), versions 1 and 2: write the ends of transactions to partitions that this broker leads.

Sent by coordinators, and by tools that abort a transaction whose coordinator knows nothing of it. Answered when the
markers are committed. An older coordinator than the last one is TRANSACTION_COORDINATOR_FENCED; 2 carries the version
of the transaction, from 2 on of which the marker's epoch must be a new one (KIP-1228).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.markers import End
from moldau.broker.reply import Reply
from moldau.cluster import OFFSETS_TOPIC
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.markers import Marker
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    ends = [
        End(
            ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch),
            Marker(wanted.transaction_result, wanted.coordinator_epoch),
            wanted.transaction_version,
        )
        for wanted in request.markers
    ]
    # Written before the first is waited for, so that the followers have them at once. Offsets end through their
    # group's shard, one after the other.
    under_way = {
        (place, where): _begin(where, ends[place], context)
        for place, wanted in enumerate(request.markers)
        for topic in wanted.topics
        if topic.name != OFFSETS_TOPIC
        for where in (TopicPartition(topic.name, index) for index in topic.partition_indexes)
    }
    results = []
    for place, wanted in enumerate(request.markers):
        topics = []
        for topic in wanted.topics:
            partitions = []
            for index in topic.partition_indexes:
                where = TopicPartition(topic.name, index)
                outcome = under_way.get((place, where)) or _begin(where, ends[place], context)
                partitions.append(PartitionResult(index, await _code(outcome)))
            topics.append(TopicResult(topic.name, partitions))
        if topics:
            results.append(WriteTxnMarkersResponse.WritableTxnMarkerResult(wanted.producer_id, topics))
    return WriteTxnMarkersResponse(markers=results)


def _begin(where: TopicPartition, end: End, context: Context) -> Reply:
    outcome = Reply()
    context.node.transactions.markers.write(where, end, outcome)
    return outcome


async def _code(outcome: Reply) -> ErrorCode:
    try:
        await outcome
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
