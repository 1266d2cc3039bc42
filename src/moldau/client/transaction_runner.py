"""A producer's transactions, run: what its verbs start, wait for and repeat.

`transactions` decides, `transaction_coordinator` asks brokers, the producer has the batches (`Outbox` is all that is
seen of it here). The end of a transaction is a task of its own: whoever waits for it may give up, and hears the outcome
when they call again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from moldau.client.cluster import FAULTS, ClusterClient
from moldau.client.errors import TransactionAborted, TransactionFatal, TransactionTimedOut, WrongTransactionState
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.settings import ProducerSettings
from moldau.client.transaction_coordinator import TransactionCoordinator
from moldau.client.transactions import TRANSACTION_VERSION, Call, Identity, State, Transactions
from moldau.kernel import KafkaError, TopicPartition

logger = logging.getLogger(__name__)


class Outbox(Protocol):
    """The producer's side."""

    async def flush(self) -> None:
        """Until everything is delivered or failed."""

    async def drop(self, error: Exception) -> None:
        """Fail what did not leave yet, and wait for what did."""

    def adopt(self, identity: Identity) -> None:
        """Write under another identity from now on, with sequences from 0."""

    def wake(self) -> None:
        """Something changed: send what may go, drop what may not."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends, or the producer does."""


class TransactionRunner:
    def __init__(self, client: ClusterClient, settings: ProducerSettings, outbox: Outbox) -> None:
        assert settings.transactional_id is not None
        self.state = Transactions(settings.transactional_id)
        self._client = client
        self._outbox = outbox
        self._max_block_ms = settings.max_block_ms
        self._coordinator = TransactionCoordinator(
            client,
            settings.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
        )
        self._under_way: tuple[Call, asyncio.Task[None]] | None = None  # until its caller has heard the outcome
        self._adding: asyncio.Task[None] | None = None
        self._sending_offsets = asyncio.Lock()
        self._is_joined = False  # the transaction is someone else's, who ends it

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        await self._make(Call.INIT, self._init)

    def join(self, identity: Identity, version: int) -> None:
        self.state.make(Call.INIT)
        self._outbox.adopt(identity)
        self.state.on_initialized(identity)
        self.state.begin(version)
        self._is_joined = True

    def begin(self) -> None:
        self._check_nothing_under_way(Call.BEGIN)
        self.state.begin(self._client.finalized_level(TRANSACTION_VERSION))

    def check_send(self) -> int:
        """The number of the transaction that a record may be sent in."""
        self._check_nothing_under_way(Call.SEND)
        return self.state.check_send()

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        self._check_nothing_under_way(Call.SEND_OFFSETS)
        self.state.check(Call.SEND_OFFSETS)
        number = self.state.number
        if not offsets:
            return
        async with self._sending_offsets:
            self.state.check_still(number)
            try:
                async with asyncio.timeout(self._max_block_ms / 1000):
                    await self._send_offsets(offsets, group)
            except TimeoutError as error:
                self.state.on_offsets_unknown(
                    self._timed_out(Call.SEND_OFFSETS, "the offsets may be in the transaction or not", error)
                )
            except asyncio.CancelledError:
                self.state.on_offsets_unknown(WrongTransactionState(f"{Call.SEND_OFFSETS.value} was cancelled"))
                raise
            except KafkaError as error:
                self.state.on_error(error)
            if self.state.error is not None:
                self._outbox.wake()
                raise self.state.error

    async def commit(self) -> None:
        await self._make(Call.COMMIT, self._commit)

    async def abort(self) -> None:
        await self._make(Call.ABORT, self._abort)

    async def close(self) -> None:
        """Before the end of the producer: wait for what is under way, and abort what nobody will commit now."""
        if self._is_joined:
            return
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                if self._under_way is not None:
                    await asyncio.wait([self._under_way[1]])
                if self.state.is_open:
                    self.state.make(Call.ABORT)
                    await self._abort()
        except (KafkaError, TimeoutError) as error:
            # The coordinator aborts it after transaction.timeout.ms.
            logger.warning("abort_failed transactional_id=%s error=%s", self.state.transactional_id, error)

    def start_adding(self) -> None:
        """Add the partitions that wait for it, in the background."""
        if self._adding is None:
            self._adding = self._outbox.start(self._add_partitions())

    # -- what is under way ---------------------------------------------------------------------------------------------

    def _check_nothing_under_way(self, call: Call) -> None:
        if self._under_way is not None and self._under_way[0] is not call:
            before = self._under_way[0].value
            raise WrongTransactionState(f"{call.value}: the outcome of {before} is not known yet: call {before} again")

    async def _make(self, call: Call, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start what a call asks for, or join it when it was asked for before, and wait up to max.block.ms."""
        self._check_nothing_under_way(call)
        if self._is_joined:
            raise WrongTransactionState(f"{call.value}: the transaction was joined, and is ended by whoever began it")
        if self._under_way is None:
            self.state.make(call)
            task = self._outbox.start(work())
            # Whoever calls again hears of a failure; nobody has to.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._under_way = call, task
        task = self._under_way[1]
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                await asyncio.shield(task)
        except TimeoutError as error:
            raise self._timed_out(call, "it goes on: call again", error) from error
        finally:
            if task.done():
                self._under_way = None

    def _timed_out(self, call: Call, step: str, error: TimeoutError) -> TransactionTimedOut:
        waiting = TransactionTimedOut(
            f"{call.value} of transactional.id {self.state.transactional_id!r} took longer than "
            f"max.block.ms={self._max_block_ms}: {self._coordinator.last_error or 'no broker answered'}; {step}"
        )
        waiting.__cause__ = error
        return waiting

    async def _init(self) -> None:
        try:
            # A wrong address shows at once; after the first word of a broker faults are waited out.
            await self._client.retry(self._client.any_connection, timeout_ms=self._max_block_ms)
            identity = await self._coordinator.init()
        except FAULTS:
            self.state.on_not_initialized()
            raise
        except KafkaError as error:
            raise self._give_up(error) from error
        self._outbox.adopt(identity)
        self.state.on_initialized(identity)

    async def _send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        explicit = self.state.adds_partitions
        if explicit:
            await self._coordinator.add_offsets(self.state.identity, group.group_id)
        self.state.on_written()
        await self._coordinator.commit_offsets(self.state.identity, group, offsets, is_explicit=explicit)

    async def _commit(self) -> None:
        async with self._sending_offsets:
            await self._outbox.flush()
        self._check_still(State.COMMITTING)
        try:
            self._on_ended(await self._end(committed=True))
        except KafkaError as error:
            self.state.on_error(error)
            self._outbox.wake()
            self._check_still(State.COMMITTING)

    async def _abort(self) -> None:
        await self._outbox.drop(TransactionAborted("the record was not sent: its transaction was aborted"))
        if self._adding is not None:
            await asyncio.wait([self._adding])  # whether the coordinator knows partitions must be certain
        async with self._sending_offsets:
            self._check_still(State.ABORTING)
        try:
            identity = await self._end(committed=False)
            if self.state.needs_epoch and identity == self.state.identity:
                # KIP-360: what was lost on its way may still arrive, and must not be taken for a later transaction's.
                identity = await self._coordinator.init(identity)
        except KafkaError as error:
            raise self._give_up(error) from error
        self._on_ended(identity)

    def _check_still(self, state: State) -> None:
        """Outbox that were waited for may have brought an error."""
        if self.state.state is not state:
            assert self.state.error is not None
            raise self.state.error

    async def _end(self, *, committed: bool) -> Identity:
        if not self.state.is_known:
            return self.state.identity  # no broker heard of it
        return await self._coordinator.end(
            self.state.identity, committed=committed, is_explicit=self.state.adds_partitions
        )

    def _on_ended(self, identity: Identity) -> None:
        self._outbox.adopt(identity)
        self.state.on_ended(identity)

    def _give_up(self, error: KafkaError) -> Exception:
        """No transaction is possible any more. An error that an abort would mend is fatal when the abort meets it."""
        if not isinstance(error, TransactionFatal):
            error = TransactionFatal(error.code, f"{error}; close this producer and start a new one")
        self.state.on_error(error)
        self._outbox.wake()
        assert self.state.error is not None
        return self.state.error

    async def _add_partitions(self) -> None:
        try:
            while self.state.to_add and not self.state.sends_nothing:
                asked = set(self.state.to_add)
                await self._coordinator.add_partitions(self.state.identity, asked)
                self.state.on_added(asked)
                self._outbox.wake()
        except KafkaError as error:
            self.state.on_error(error)
        finally:
            self._adding = None
        self._outbox.wake()
