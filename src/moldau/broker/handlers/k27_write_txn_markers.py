"""WriteTxnMarkers (key 27), versions 1 and 2: write the ends of transactions to partitions that this broker leads.

Sent by coordinators, and by tools that abort a transaction whose coordinator knows nothing of it. Answered when the
markers are committed. An older coordinator than the last one is TRANSACTION_COORDINATOR_FENCED; 2 carries the version
of the transaction, from 2 on of which the marker's epoch must be a new one (KIP-1228).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.markers import End
from moldau.broker.reply import Reply
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.markers import Marker
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    results = []
    for wanted in request.markers:
        end = End(
            ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch),
            Marker(wanted.transaction_result, wanted.coordinator_epoch),
            wanted.transaction_version,
        )
        topics = [
            TopicResult(
                topic.name,
                [
                    PartitionResult(index, await _write(TopicPartition(topic.name, index), end, context))
                    for index in topic.partition_indexes
                ],
            )
            for topic in wanted.topics
        ]
        if topics:
            results.append(WriteTxnMarkersResponse.WritableTxnMarkerResult(wanted.producer_id, topics))
    return WriteTxnMarkersResponse(markers=results)


async def _write(where: TopicPartition, end: End, context: Context) -> ErrorCode:
    outcome = Reply()
    context.node.transactions.markers.write(where, end, outcome)
    try:
        await outcome
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
