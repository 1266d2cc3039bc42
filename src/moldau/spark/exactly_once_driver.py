"""The driver's side of an exactly-once batch: the transaction around whatever writes it.

`exactly_once` decides, `moldau.client.TransactionOwner` speaks with brokers; here is the order of things. Who writes
the rows is the caller's: `foreach_batch` runs a Spark job for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moldau.client import (
    ClusterClient,
    ConnectionFailed,
    Joining,
    OffsetAndMetadata,
    ProducerFenced,
    RequestTimedOut,
    TransactionOwner,
    TransactionTimedOut,
)
from moldau.kernel import KafkaError, TopicPartition
from moldau.spark import clients
from moldau.spark.exactly_once import (
    ExactlyOnceRefused,
    GiveUp,
    Mark,
    Refuse,
    Skip,
    SourceOffsets,
    check_written,
    decide,
    judge_failure,
    mark_from,
    unlike_reported,
)
from moldau.spark.sink_options import SinkOptions
from moldau.spark.sink_task import Membership, Written

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FAULTS = (KafkaError, ConnectionFailed, RequestTimedOut, TransactionTimedOut)


class TaskFailed(RuntimeError):
    """A task could not write its rows: the transaction is aborted and the batch done again."""


class WrittenWrong(RuntimeError):
    """What the logs hold is not what the tasks reported: the transaction is aborted and the batch done again."""


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """One micro-batch of one query."""

    query_id: str
    batch_id: int
    sources: SourceOffsets

    @property
    def mark(self) -> Mark:
        return Mark(self.query_id, self.batch_id, self.sources.digest)


def transactional_id_of(options: SinkOptions, query_id: str) -> str:
    return options.transactional_id or f"moldau-spark-{query_id}"


class Transactor:
    """The transactions of one query, one after the other."""

    def __init__(self, options: SinkOptions, query_id: str) -> None:
        self.transactional_id = transactional_id_of(options, query_id)
        self._options = options
        self._settings = options.producer_settings(self.transactional_id)
        self._began_at = 0.0
        self._stored: Mark | None = None

        async def own(client: ClusterClient) -> tuple[ClusterClient, TransactionOwner]:
            return client, TransactionOwner(client, self._settings)

        self._client, self._owner = clients.run(options.bootstrap, own)

    def run(self, batch: NumberedBatch, write: Callable[[Membership], Sequence[Written]]) -> bool:
        """Write a batch in a transaction and commit it, again if need be. False when it was in already."""
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._attempt(batch, write)
            except ExactlyOnceRefused:
                self.abandon()
                raise
            except Exception as error:
                is_fenced = self.abandon() or isinstance(error, ProducerFenced)
                elapsed_ms = (time.monotonic() - self._began_at) * 1000
                verdict = judge_failure(
                    self.transactional_id,
                    is_fenced=is_fenced,
                    elapsed_ms=elapsed_ms,
                    transaction_timeout_ms=self._settings.transaction_timeout_ms,
                    attempts=attempts,
                    attempts_max=self._options.batch_attempts,
                )
                if isinstance(verdict, GiveUp):
                    if verdict.why is None:
                        raise
                    raise ExactlyOnceRefused(verdict.why) from error
                logger.warning(
                    "batch_aborted transactional_id=%s batch=%d attempt=%d fenced=%s error=%s",
                    self.transactional_id,
                    batch.batch_id,
                    attempts,
                    is_fenced,
                    str(error).split("\n", 1)[0],
                )

    def _attempt(self, batch: NumberedBatch, write: Callable[[Membership], Sequence[Written]]) -> bool:
        if not self.is_next(batch):
            return False
        written = write(self.begin())
        self.commit(batch, written)
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def is_next(self, batch: NumberedBatch) -> bool:
        """Whether the batch is to be written. After this the id is ours, and no older driver can commit."""
        self._began_at = time.monotonic()
        if not self._owner.is_held:
            self._call(self._owner.take())
            self._stored = self._read_mark()
        return self._is_next(batch)

    def begin(self) -> Membership:
        self._began_at = time.monotonic()
        joining = self._call(self._owner.begin())
        return Membership(self.transactional_id, joining.identity, joining.transaction_version)

    def adopt(self, membership: Membership) -> None:
        """Own a transaction that `begin` began in another process."""
        self._owner.resume(Joining(membership.identity, membership.transaction_version))

    def resume(self, membership: Membership, batch: NumberedBatch) -> bool:
        """Go on with a transaction of another process; says whether the batch is to be committed."""
        self.adopt(membership)
        self._stored = self._read_mark()
        return self._is_next(batch)

    def _is_next(self, batch: NumberedBatch) -> bool:
        decision = decide(self._stored, batch.mark, self.transactional_id)
        if isinstance(decision, Refuse):
            raise ExactlyOnceRefused(decision.why)
        return not isinstance(decision, Skip)

    def commit(self, batch: NumberedBatch, written: Sequence[Written]) -> None:
        """Look at what was written, then make it visible with the batch's mark."""
        for one in written:
            if one.refusal is not None:
                raise ExactlyOnceRefused(one.refusal)
        for one in written:
            if one.failure is not None:
                raise TaskFailed(one.failure)
        counts = check_written([one.record_counts for one in written])
        offsets = self._call(self._offsets_to_store(batch, counts))
        if not offsets:
            return  # no row, and no topic to leave a mark at: an empty batch may come again
        if counts:
            wrong = unlike_reported(counts, self._call(self._owner.last_sequences(counts)))
            if wrong is not None:
                raise WrittenWrong(f"transactional id {self.transactional_id!r}: {wrong}")
        self._call(self._owner.commit(self.transactional_id, offsets))
        self._stored = batch.mark

    def abandon(self) -> bool:
        """Abort what is open, so that readers need not wait for its timeout. Says whether the id has another owner."""
        if not self._owner.is_held:
            return False
        try:
            self._call(self._owner.abort())
        except ProducerFenced:
            return True
        except _FAULTS as error:
            # Taking the id again ends it, or the coordinator does in time.
            logger.warning("abort_failed transactional_id=%s error=%s", self.transactional_id, error)
        finally:
            self._owner.forget()
        return False

    # -- parts ---------------------------------------------------------------------------------------------------------

    async def _offsets_to_store(
        self, batch: NumberedBatch, counts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The source offsets with the mark; or, when the sources are no topics of this cluster, the mark alone."""
        metadata = batch.mark.to_metadata()
        wanted = {where.topic for where in batch.sources.by_partition}
        topics = (await self._client.metadata(wanted)).topics if wanted else {}
        here = {
            where: OffsetAndMetadata(offset, metadata)
            for where, offset in batch.sources.by_partition.items()
            if where.topic in topics
            and not topics[where.topic].error
            and where.partition < len(topics[where.topic].partitions)
        }
        outputs = sorted({where.topic for where in counts})
        if not here and outputs:
            return {TopicPartition(outputs[0], 0): OffsetAndMetadata(batch.batch_id, metadata)}
        return here

    def _read_mark(self) -> Mark | None:
        stored = self._call(self._owner.stored_offsets(self.transactional_id))
        return mark_from(one.metadata for one in stored.values())

    def _call(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return clients.process_loop().call(wait())
