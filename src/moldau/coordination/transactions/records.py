"""Records of `__transaction_state`, in Kafka's formats: one per transactional id, the newest is the truth."""

from __future__ import annotations

from collections import defaultdict

from moldau.coordination.prefixed import VERSION_BYTES, encode_key, encode_value, kind_of, version_of
from moldau.coordination.transactions.states import LOGGED, TransactionState
from moldau.coordination.transactions.transaction import Transaction
from moldau.kernel import TopicPartition
from moldau.protocol.messages.coordinator.transaction_log import TransactionLogKey, TransactionLogValue
from moldau.protocol.wire import ProtocolError

# From this level of transaction.version on, values have tags (and with them the producer ids before and after).
TAGGED_VALUE_VERSION_SINCE = 1


def transaction_key(transactional_id: str) -> bytes:
    return encode_key(TransactionLogKey(transactional_id=transactional_id))


def transaction_value(transaction: Transaction, transaction_version: int) -> bytes:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for partition in sorted(transaction.partitions):
        by_topic[partition.topic].append(partition.partition)
    is_empty = transaction.state is TransactionState.EMPTY
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None
        if is_empty
        else [TransactionLogValue.PartitionsSchema(topic, indexes) for topic, indexes in by_topic.items()],
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
    )
    if transaction_version < TAGGED_VALUE_VERSION_SINCE:
        return encode_value(value, 0)
    value.previous_producer_id = transaction.previous_producer_id
    value.next_producer_id = transaction.next_producer_id
    value.client_transaction_version = transaction.client_version
    return encode_value(value, 1)


def read_key(key: bytes) -> str | None:
    """The transactional id; None for a kind of record that this version does not know."""
    if kind_of(key) != TransactionLogKey.API_KEY:
        return None
    return TransactionLogKey.decode(key[VERSION_BYTES:], 0).transactional_id


def read_value(transactional_id: str, value: bytes) -> Transaction:
    record = TransactionLogValue.decode(value[VERSION_BYTES:], version_of(value))
    if record.transaction_status not in LOGGED:
        raise ProtocolError(
            f"transaction {transactional_id!r} is in state {record.transaction_status}, as none ever is"
        )
    return Transaction(
        transactional_id,
        record.producer_id,
        record.transaction_timeout_ms,
        record.transaction_last_update_timestamp_ms,
        epoch=record.producer_epoch,
        state=TransactionState(record.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in record.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        started_ms=record.transaction_start_timestamp_ms,
        previous_producer_id=record.previous_producer_id,
        next_producer_id=record.next_producer_id,
        client_version=record.client_transaction_version,
    )
