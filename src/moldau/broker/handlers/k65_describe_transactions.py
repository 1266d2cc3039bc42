"""DescribeTransactions (key 65), version 0: the state of transactions that this broker coordinates (KIP-664)."""

from __future__ import annotations

from collections import defaultdict

from moldau.broker.dispatch import Context
from moldau.coordination.transactions import DescribeTransaction, Transaction
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

State = DescribeTransactionsResponse.TransactionState


async def handle(request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
    states = [await _describe(transactional_id, context) for transactional_id in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(transactional_id: str, context: Context) -> State:
    if not transactional_id:
        return State(ErrorCode.INVALID_REQUEST, transactional_id)
    try:
        transaction: Transaction = await context.node.transactions.ask(transactional_id, DescribeTransaction)
    except KafkaError as refusal:
        return State(refusal.code, transactional_id)
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for partition in sorted(transaction.partitions):
        by_topic[partition.topic].append(partition.partition)
    return State(
        transactional_id=transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[DescribeTransactionsResponse.TopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )
