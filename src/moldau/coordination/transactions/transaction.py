"""A transactional id and its present or last transaction: a value, and the ways to the next one.

Whether a request may take a way is for `rules` to say; here the ways are only right or a bug.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moldau.coordination.transactions.states import MAY_FOLLOW, TransactionState
from moldau.kernel import ProducerIdAndEpoch, TopicPartition

NO_PRODUCER_ID, NO_EPOCH, NO_TIME = -1, -1, -1
EPOCH_MAX = 2**15 - 1
# From this version of a client on every end of a transaction bumps the epoch (KIP-890).
EPOCH_BUMP_VERSION = 2


def is_exhausted(epoch: int) -> bool:
    """The last epoch is kept back, so that whoever holds the one before can still be fenced."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    epoch: int = NO_EPOCH
    # The epoch before, while a retry of the bump must be told from a stranger; a restart forgets it, as in Kafka.
    last_epoch: int = NO_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    # The one that comes after the markers, when the epochs of this one are used up.
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    def _to(self, state: TransactionState, **changes: Any) -> Transaction:
        assert self.state in MAY_FOLLOW[state], f"{self.transactional_id}: {state.title} after {self.state.title}"
        return replace(self, state=state, previous_producer_id=self.producer_id, **changes)

    def initialized(
        self, *, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        return self._to(
            TransactionState.EMPTY,
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], *, client_version: int, now_ms: int
    ) -> Transaction:
        is_new = self.state is not TransactionState.ONGOING
        return self._to(
            TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            started_ms=now_ms if is_new else self.started_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self) -> Transaction:
        """Before the abort of a transaction whose owner is not asked, in the first generation: it must notice."""
        return self._to(TransactionState.PREPARE_EPOCH_FENCE, epoch=min(self.epoch + 1, EPOCH_MAX), last_epoch=NO_EPOCH)

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int = NO_PRODUCER_ID, now_ms: int
    ) -> Transaction:
        epoch, last_epoch = self.epoch, self.last_epoch
        if client_version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(self.epoch + 1, EPOCH_MAX), self.epoch
        is_begun = self.state in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
        return self._to(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            epoch=epoch,
            last_epoch=last_epoch,
            next_producer_id=next_producer_id,
            started_ms=self.started_ms if is_begun else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> Transaction:
        producer_id, epoch = self.producer_id, self.epoch
        if self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        committed = self.state is TransactionState.PREPARE_COMMIT
        return self._to(
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id,
            epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    @property
    def following(self) -> ProducerIdAndEpoch:
        """With whom the next transaction begins, also while this one's markers are being written."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return ProducerIdAndEpoch(self.producer_id, self.epoch)
