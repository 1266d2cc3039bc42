"""AddPartitionsToTxn (key 24), versions 0 to 5: partitions become part of a transaction, all or none of them.

0 to 3 come from producers, for one transaction; from 2 on they know PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH).
4 and 5 come from brokers, for several transactions at once (KIP-890): a partition's leader asks before it accepts the
first batch of a transaction, either to verify that the producer added the partition or to add it now.
When one of the partitions does not exist, none is added: the others are answered OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

BATCHED_VERSION_MIN = 4
FENCED_VERSION_MIN = 2
Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


async def handle(request: AddPartitionsToTxnRequest, context: Context) -> AddPartitionsToTxnResponse:
    if context.version < BATCHED_VERSION_MIN:
        only = Transaction(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            False,
            request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add(only, context))
    results = [
        AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
            transaction.transactional_id, await _add(transaction, context)
        )
        for transaction in request.transactions
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _add(transaction: Transaction, context: Context) -> list[TopicResult]:
    partitions = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
    topics = context.node.image.topics
    missing = [
        each
        for each in partitions
        if each.topic not in topics or not 0 <= each.partition < len(topics[each.topic].partitions)
    ]
    if missing:
        codes |= dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    else:
        codes = await context.node.transactions.add_partitions(
            transaction.transactional_id,
            ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
            frozenset(partitions),
            # Brokers ask for clients that let them add partitions: those whose every transaction bumps the epoch.
            bumps_epochs=context.version >= BATCHED_VERSION_MIN,
            only_verifies=transaction.verify_only,
        )
    if context.version < FENCED_VERSION_MIN:
        codes = {
            each: ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
            for each, code in codes.items()
        }
    return [
        TopicResult(
            topic.name, [PartitionResult(index, codes[TopicPartition(topic.name, index)]) for index in topic.partitions]
        )
        for topic in transaction.topics
    ]
