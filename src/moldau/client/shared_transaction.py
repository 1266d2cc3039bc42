"""One transaction that many producers write in, in other processes maybe: the side of whoever begins and ends it.

    owner = TransactionOwner(client, settings)
    joining = await owner.begin()                 # hand it to producers: `producer.join_transaction(*joining)`
    ...                                           # each partition is written by one of them only
    await owner.commit("group", offsets)          # or abort()

A batch of a producer is known by (producer id, epoch, sequence), and each of the producers counts its sequences from 0.
So every transaction needs an epoch of its own, and two producers in one partition would take each other's batches for
their own retries: brokers then answer "delivered" and drop one of them. `last_sequences` lets the owner see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from moldau.client import group_admin, transaction_admin
from moldau.client.cluster import ClusterClient
from moldau.client.errors import TransactionTimedOut
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.settings import ProducerSettings
from moldau.client.transaction_coordinator import TransactionCoordinator
from moldau.client.transactions import IMPLICIT_PARTITIONS_FROM, NO_IDENTITY, TRANSACTION_VERSION, Identity
from moldau.kernel import TopicPartition


class Joining(NamedTuple):
    """What a producer needs to take part."""

    identity: Identity
    transaction_version: int


class TransactionOwner:
    """Begins and ends the transactions of one transactional id; after an error of any call begin anew."""

    def __init__(self, client: ClusterClient, settings: ProducerSettings) -> None:
        assert settings.transactional_id is not None
        self._client = client
        self._settings = settings
        self._coordinator = TransactionCoordinator(
            client,
            settings.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
        )
        self._identity = NO_IDENTITY
        self._is_used = False  # the epoch may be in some log: another transaction needs another one

    @property
    def is_held(self) -> bool:
        """Whether the id is ours, as far as we have heard."""
        return self._identity != NO_IDENTITY

    def resume(self, joining: Joining) -> None:
        """Own a transaction that this id's owner began in another process."""
        self._identity = joining.identity
        self._is_used = True

    def forget(self) -> None:
        """Whatever is open is left; taking the id again ends it."""
        self._identity = NO_IDENTITY

    async def take(self) -> None:
        """Take the transactional id: fences whoever had it, and ends what they left open, committed or aborted."""
        async with self._bounded("taking the id"):
            await self._client.retry(self._client.any_connection, timeout_ms=self._settings.max_block_ms)
            self._identity = await self._coordinator.init()
            self._is_used = False

    async def begin(self) -> Joining:
        """An epoch that was never written with. Nothing is told to brokers about the transaction itself."""
        if not self.is_held:
            await self.take()
        elif self._is_used:
            async with self._bounded("starting an epoch"):
                self._identity = await self._coordinator.init(self._identity)
        self._is_used = True
        return Joining(self._identity, self._client.finalized_level(TRANSACTION_VERSION))

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store the group's offsets in the transaction and commit it. After TransactionTimedOut its fate is open."""
        explicit = self._is_explicit()
        async with self._bounded("committing"):
            if explicit:
                await self._coordinator.add_offsets(self._identity, group_id)
            await self._coordinator.commit_offsets(
                self._identity, GroupMetadata(group_id), offsets, is_explicit=explicit
            )
            await self._end(committed=True)

    async def abort(self) -> None:
        async with self._bounded("aborting"):
            await self._end(committed=False)

    async def stored_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed. Ask after `take`, which waits until what was being ended has ended: Kafka says
        nothing of a partition whose first offset is still pending (test_shared_transaction)."""
        async with self._bounded("reading the group's offsets"):
            return await group_admin.stable_group_offsets(
                self._client, group_id, timeout_ms=self._settings.max_block_ms
            )

    async def last_sequences(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last sequence that each partition has of this transaction's epoch; none where it has none."""
        described = await transaction_admin.describe_producers(self._client, partitions)
        return {
            where: state.last_sequence
            for where, states in described.items()
            for state in states
            if (state.producer_id, state.producer_epoch) == self._identity
        }

    async def _end(self, *, committed: bool) -> None:
        identity = await self._coordinator.end(self._identity, committed=committed, is_explicit=self._is_explicit())
        self._is_used = identity == self._identity
        self._identity = identity

    def _is_explicit(self) -> bool:
        return self._client.finalized_level(TRANSACTION_VERSION) < IMPLICIT_PARTITIONS_FROM

    @asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                yield
        except TimeoutError as error:
            if isinstance(error, TransactionTimedOut):
                raise
            raise TransactionTimedOut(
                f"transactional.id {self._settings.transactional_id!r}: {what} took longer than "
                f"max.block.ms={self._settings.max_block_ms}: {self._coordinator.last_error or 'no broker answered'}"
            ) from error
