"""Who may do what with a transaction: functions of it and a request that give the next transaction, or KafkaError.

A transaction whose outcome is decided but whose markers are still being written (PREPARED) lets nobody in: the machine
holds such requests back for a while instead of refusing them.
"""

from __future__ import annotations

from moldau.coordination.transactions.events import AddPartitions, EndTransaction, ProducerIdSource
from moldau.coordination.transactions.states import AT_REST, PREPARED, TransactionState
from moldau.coordination.transactions.transaction import (
    EPOCH_BUMP_VERSION,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    is_exhausted,
)
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition


def check_expected(transaction: Transaction, expected: ProducerIdAndEpoch | None) -> None:
    """A producer that goes on must be the one that we know, or one whose rotation's answer was lost (KIP-360)."""
    if expected is None or transaction.epoch == NO_EPOCH or expected.producer_id == transaction.producer_id:
        return
    if transaction.state in PREPARED and expected == transaction.following:
        return
    if expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.epoch):
        return
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


def initialize(
    transaction: Transaction,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    ids: ProducerIdSource,
    now_ms: int,
) -> Transaction:
    """The next epoch for a transaction at rest; a new producer id when the epochs are used up."""
    assert transaction.state in AT_REST
    producer_id, current = transaction.producer_id, transaction.epoch
    if is_exhausted(current) and (expected is None or expected.epoch == current):
        producer_id, epoch = take_id(ids), 0
        last_epoch = NO_EPOCH if expected is None else current
    elif expected is None:
        epoch, last_epoch = current + 1, NO_EPOCH
    elif current in (NO_EPOCH, expected.epoch):
        epoch, last_epoch = current + 1, current
    elif expected.epoch == transaction.last_epoch:
        epoch, last_epoch = current, transaction.last_epoch  # a retry: its answer was lost
    else:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return transaction.initialized(
        producer_id=producer_id, epoch=epoch, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms
    )


def take_id(ids: ProducerIdSource) -> int:
    producer_id = ids.take()
    if producer_id is None:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id is at hand yet")
    return producer_id


def check_producer(transaction: Transaction, producer: ProducerIdAndEpoch) -> None:
    if transaction.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.epoch != producer.epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def add_partitions(transaction: Transaction, request: AddPartitions, now_ms: int) -> Transaction:
    """The same transaction when it has them already."""
    assert transaction.state not in PREPARED
    if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
        return transaction
    return transaction.with_partitions(request.partitions, client_version=request.client_version, now_ms=now_ms)


def verify_partitions(
    transaction: Transaction, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    return {
        partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def end(transaction: Transaction, request: EndTransaction, ids: ProducerIdSource, now_ms: int) -> Transaction | None:
    """The decided transaction; None when it ended so already, or is about to (then its state is PREPARED)."""
    if request.client_version >= EPOCH_BUMP_VERSION:
        return _end_and_bump(transaction, request, ids, now_ms)
    check_producer(transaction, request.producer)
    if transaction.state is TransactionState.ONGOING:
        return transaction.prepared(committed=request.committed, client_version=0, now_ms=now_ms)
    if transaction.state is TransactionState.EMPTY or _is_committed(transaction) != request.committed:
        raise _invalid_end(transaction, request)
    return None


def _end_and_bump(
    transaction: Transaction, request: EndTransaction, ids: ProducerIdSource, now_ms: int
) -> Transaction | None:
    """KIP-890: every end bumps the epoch, so an old epoch is a retry of the last end and no other transaction's."""
    state, (producer_id, epoch) = transaction.state, request.producer
    is_retry_of_rotation = (
        transaction.previous_producer_id == producer_id and epoch == EPOCH_MAX - 1 and transaction.epoch == 0
    )
    is_retry = is_retry_of_rotation or transaction.epoch == epoch + 1
    if transaction.producer_id != producer_id and not is_retry_of_rotation:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if state in PREPARED:
        is_known = transaction.epoch == epoch + 1
    elif state is TransactionState.ONGOING or state is TransactionState.EMPTY:
        is_known = transaction.epoch == epoch
    else:
        is_known = is_retry or transaction.epoch == epoch
    if not is_known:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if state is not TransactionState.ONGOING:
        if state in PREPARED or (is_retry and state is not TransactionState.EMPTY):
            if _is_committed(transaction) != request.committed:
                raise _invalid_end(transaction, request)
            return None
        if request.committed:
            raise _invalid_end(transaction, request)
        # An abort of nothing: batches that the client never knew to be refused may still be under way.
    next_id = take_id(ids) if is_exhausted(transaction.epoch) else NO_PRODUCER_ID
    return transaction.prepared(
        committed=request.committed,
        client_version=request.client_version,
        next_producer_id=next_id,
        now_ms=now_ms,
    )


def _is_committed(transaction: Transaction) -> bool:
    return transaction.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


def _invalid_end(transaction: Transaction, request: EndTransaction) -> KafkaError:
    wanted = "commit" if request.committed else "abort"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, f"cannot {wanted} a transaction that is {transaction.state.title}")


def abort_from_outside(
    transaction: Transaction, transaction_version: int, ids: ProducerIdSource, now_ms: int
) -> Transaction:
    """The clock or a newer instance ends it: the epoch rises, so that the owner is fenced."""
    assert transaction.state is TransactionState.ONGOING
    if transaction_version < EPOCH_BUMP_VERSION:
        return transaction.fenced().prepared(committed=False, client_version=0, now_ms=now_ms)
    next_id = take_id(ids) if is_exhausted(transaction.epoch) else NO_PRODUCER_ID
    return transaction.prepared(
        committed=False, client_version=transaction_version, next_producer_id=next_id, now_ms=now_ms
    )
