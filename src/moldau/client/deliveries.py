"""The batches of a producer whose records have not heard yet: each is told once, and gives its memory back.

A batch is here from its first record until it is delivered, refused for good, dropped with its transaction, or older
than `delivery.timeout.ms`, whether it travels or waits. `sender` sends them, `produce_answers` says what became of
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from moldau.client.accumulator import UNKNOWN_OFFSET, Batch, PartitionQueue
from moldau.client.buffer_memory import BufferMemory
from moldau.client.errors import DeliveryTimedOut, TransactionAborted
from moldau.client.transactions import Transactions

logger = logging.getLogger(__name__)


class Deliveries:
    def __init__(
        self,
        delivery_timeout_ms: int,
        memory: BufferMemory,
        transactions: Transactions | None,
        wake: Callable[[], None],
    ) -> None:
        self.incomplete: dict[Batch, PartitionQueue] = {}  # in the order of creation, hence of expiry
        self._timeout_ms = delivery_timeout_ms
        self._memory = memory
        self._transactions = transactions
        self._wake = wake

    def finish(self, batch: Batch, error: Exception | None, record_errors: dict[int, Exception] | None = None) -> None:
        """Tell the batch's records, once, and take back its memory."""
        if self.incomplete.pop(batch, None) is None:
            return
        if not batch.done:
            if error is None:
                batch.complete(UNKNOWN_OFFSET, -1)
            else:
                batch.fail(error, record_errors)
        if error is not None and not isinstance(error, TransactionAborted):
            logger.warning(
                "delivery_failed topic=%s partition=%d records=%d error=%s",
                batch.topic,
                batch.partition,
                batch.count,
                error,
            )
            if self._transactions is not None:
                self._transactions.on_batch_failed(error, was_sent=batch.attempts > 0)
                self._wake()
        self._memory.give(batch.reserved_bytes)
        callbacks, batch.callbacks = batch.callbacks, []
        for callback, delivery in callbacks:
            failure = delivery.exception()
            try:
                callback(delivery.result() if failure is None else None, failure)
            except Exception:
                # A user's mistake must not keep the other records from hearing.
                logger.exception("delivery_callback_failed topic=%s partition=%d", batch.topic, batch.partition)

    def expire(self, now: float) -> None:
        while self.incomplete:
            batch, queue = next(iter(self.incomplete.items()))
            if batch.created_at + self._timeout_ms / 1000 > now:
                return
            if queue.open is batch:
                queue.close_batch()
            cause = queue.last_error
            why = f"last error: {cause}" if cause is not None else "no broker answered"
            failure = DeliveryTimedOut(
                f"{queue.topic}-{queue.partition}: not delivered within delivery.timeout.ms={self._timeout_ms} "
                f"after {batch.attempts} attempts; {why}"
            )
            failure.__cause__ = cause
            if batch not in queue.in_flight:
                # One in flight stays there until it is answered: its number is taken.
                queue.on_lost(batch)
            self.finish(batch, failure)

    def next_expiry(self) -> float:
        """When the oldest batch is too old."""
        for oldest in self.incomplete:
            return oldest.created_at + self._timeout_ms / 1000
        return float("inf")

    def drop_unsent(self, error: Exception) -> None:
        """Fail what is not under way: its transaction goes on without it, or not at all."""
        for batch, queue in list(self.incomplete.items()):
            if batch in queue.in_flight:
                continue
            if queue.open is batch:
                queue.close_batch()
            queue.on_lost(batch)
            if batch.attempts:
                assert self._transactions is not None
                self._transactions.needs_epoch = True
            self.finish(batch, error)

    def fail_all(self, error: Exception) -> None:
        for batch, queue in list(self.incomplete.items()):
            if queue.open is batch:
                queue.open = None
            if batch in queue.pending:
                queue.pending.remove(batch)
            self.finish(batch, error)

    async def wait_all(self) -> None:
        """Until each record that was taken so far has heard."""
        for batch in list(self.incomplete):
            await batch.wait()
