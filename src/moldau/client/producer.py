"""The producer: takes records, sends batches, keeps order, answers with offsets.

    async with Producer({"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 5}) as producer:
        delivery = await producer.send("orders", b"value", key=b"key")    # waits only while the buffer is full
        metadata = await delivery                                         # waits for the broker

With a `transactional.id`, records are sent in transactions that are seen as a whole or not at all:

    await producer.init_transactions()                                    # once
    async with producer.transaction():                                    # commits at its end, aborts on an exception
        await producer.send("orders", b"value")
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

This file takes records into batches; `sender` sends them, and `transaction_runner` runs the transactions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from moldau.client.accumulator import (
    RECORD_OVERHEAD_MAX,
    Batch,
    Delivery,
    DeliveryCallback,
    Headers,
    PartitionQueue,
    TopicLanes,
    headers_bytes,
)
from moldau.client.cluster import ClusterClient, client_for
from moldau.client.errors import (
    ProducerClosed,
    SendTimedOut,
    TransactionFatal,
    TransactionTimedOut,
    WrongTransactionState,
)
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.sender import Sender
from moldau.client.settings import ProducerSettings, producer_settings
from moldau.client.transaction_runner import TransactionRunner
from moldau.client.transactions import Call, Identity
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import HEADER_BYTES

logger = logging.getLogger(__name__)


class Producer:
    """Sends records to topics. One per application is enough; it belongs to one event loop."""

    def __init__(
        self, where: str | ClusterClient | Mapping[str, object], settings: Mapping[str, object] | None = None
    ) -> None:
        """`where` is bootstrap addresses, a client to share, or the settings themselves with `bootstrap.servers`."""
        given: dict[str, object] = dict(settings or {})
        client: ClusterClient | None = None
        if isinstance(where, ClusterClient):
            client = where
        elif isinstance(where, str):
            given["bootstrap.servers"] = where
        else:
            given = {**where, **given}
        self.settings: ProducerSettings = producer_settings(given)
        self._owns_client = client is None
        self._client = client or client_for(self.settings)
        self._fatal: Exception | None = None
        self._closing = False
        self._sender = Sender(self._client, self.settings, self._on_fatal)
        self._topics = self._sender.topics.lanes
        self._runner = self._sender.runner
        self._transactions = self._sender.transactions
        self._serialize_key = self.settings.key_serializer
        self._serialize_value = self.settings.value_serializer
        self._batch_size = self.settings.batch_bytes_max

    async def __aenter__(self) -> Self:
        self._sender.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(0 if kind is not None and issubclass(kind, asyncio.CancelledError) else None)

    # -- what users call -----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Take a record. Waits for metadata and for room, up to max.block.ms; await the result for the delivery.

        `on_delivery(metadata, error)` is called on the event loop, in the order of a partition's records.
        """
        if self._closing:
            raise ProducerClosed("the producer is closed")
        if self._fatal is not None:
            raise self._fatal
        transactions = self._transactions
        if transactions is not None:
            number = self._runner_for(Call.SEND).check_send()
        try:
            lanes = self._topics.get(topic)
            if lanes is None:
                lanes = await self._open_topic(topic)
            if self._serialize_key is not None:
                key = self._serialize_key(key)
            if self._serialize_value is not None:
                value = self._serialize_value(value)
            try:
                size = RECORD_OVERHEAD_MAX
                if value is not None:
                    size += len(value)
                if key is not None:
                    size += len(key)
                if headers:
                    size += headers_bytes(headers)
                if partition is None:
                    queue = lanes.choose(key, value)
                else:
                    queue = await self._sender.topics.queue_for(lanes, partition)
                batch = queue.open
                if batch is None or len(batch.buffer) + size > self._batch_size:
                    batch = await self._open_batch(lanes, queue, size)
                if transactions is not None and not transactions.takes_records_of(number):
                    if not batch.count:
                        self._sender.close_batch(lanes, queue)
                    transactions.check_still(number)
                timestamp = timestamp_ms if timestamp_ms is not None else time.time_ns() // 1_000_000
                index = batch.append(timestamp, key, value, headers)
                if len(batch.buffer) >= self._batch_size:
                    self._sender.close_batch(lanes, queue)
            except (TypeError, AttributeError) as error:
                raise _explain_type_error(error, key, value, headers) from error
        except Exception as error:
            self._on_refused(error)
            raise
        delivery = Delivery(batch, index, timestamp)
        if on_delivery is not None:
            batch.callbacks.append((on_delivery, delivery))
        return delivery

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; waits for it like `send`, and creates it where brokers do so."""
        return len((self._topics.get(topic) or await self._open_topic(topic)).queues)

    async def send_encoded(
        self, topic: str, partition: int, records: bytearray, on_delivery: DeliveryCallback | None = None
    ) -> Delivery:
        """Take a whole record batch as `encode_batches` makes it; its producer's number and its checksum are written
        here. Like `send` for its first record, whose delivery is everyone's."""
        if self._closing:
            raise ProducerClosed("the producer is closed")
        if self._fatal is not None:
            raise self._fatal
        if self._transactions is not None:
            number = self._runner_for(Call.SEND).check_send()
        try:
            lanes = self._topics.get(topic) or await self._open_topic(topic)
            queue = await self._sender.topics.queue_for(lanes, partition)
            await self._take_room(len(records))
            if self._transactions is not None and not self._transactions.takes_records_of(number):
                self._sender.memory.give(len(records))
                self._transactions.check_still(number)
        except Exception as error:
            self._on_refused(error)
            raise
        if queue.open is not None:
            self._sender.close_batch(lanes, queue)
        batch = self._sender.open_batch(queue, len(records))
        batch.hold(records)
        self._sender.close_batch(lanes, queue)
        delivery = Delivery(batch, 0, batch.base_timestamp)
        if on_delivery is not None:
            batch.callbacks.append((on_delivery, delivery))
        return delivery

    async def flush(self) -> None:
        """Send everything that was taken so far, and wait until each record is delivered or failed."""
        await self._sender.flush()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush (for at most `timeout_ms`), then end. What is still under way then fails with ProducerClosed."""
        if self._closing:
            return
        self._closing = True
        if self._sender.has_work:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    if self._runner is not None:
                        await self._runner.close()
                    await self.flush()
            except TimeoutError:
                pass
        await self._sender.end(ProducerClosed("the producer was closed before the record was delivered"))
        if self._owns_client:
            await self._client.close()

    # -- transactions --------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Take the transactional id: once, before the first transaction. Older producers with the id are fenced, and
        what they left open is aborted. After TransactionTimedOut call it again."""
        self._sender.begin()
        await self._runner_for(Call.INIT).init()

    def join_transaction(self, identity: Identity, version: int) -> None:
        """Take part in a transaction that someone else began and will end: every partition must be written by one
        producer only, for sequences start at 0. `version` is the cluster's transaction.version."""
        self._sender.begin()
        self._runner_for(Call.INIT).join(identity, version)

    def begin_transaction(self) -> None:
        """Begin; everything sent from now on belongs to the transaction. Nothing travels yet."""
        self._runner_for(Call.BEGIN).begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction. Give `consumer.group_metadata()`, so that a member that the
        group went on without is refused; a group's name commits as one outside the group."""
        exact = {
            where: one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
            for where, one in offsets.items()
        }
        who = GroupMetadata(group) if isinstance(group, str) else group
        await self._runner_for(Call.SEND_OFFSETS).send_offsets(exact, who)

    async def commit_transaction(self) -> None:
        """Deliver what was sent, then make it visible as a whole. Raises TransactionAbortable when that is not
        possible: abort then. After TransactionTimedOut the outcome is open: call it again."""
        await self._runner_for(Call.COMMIT).commit()

    async def abort_transaction(self) -> None:
        """Drop what was sent in the transaction; records that did not leave yet fail with TransactionAborted. After
        TransactionTimedOut call it again."""
        await self._runner_for(Call.ABORT).abort()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction that is committed at the end of the block, and aborted when the block or the commit fails."""
        runner = self._runner_for(Call.BEGIN)
        runner.begin()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            if runner.state.is_open:
                try:
                    await self.abort_transaction()
                except (TransactionFatal, TransactionTimedOut) as error:
                    # What ended the block says more; the next call meets this one again.
                    logger.warning("abort_failed transactional_id=%s error=%s", self.settings.transactional_id, error)
            raise

    def check_transaction(self) -> None:
        """Raise unless a record may be sent now; for those who hand records on and want to hear at once."""
        if self._runner is not None:
            self._runner_for(Call.SEND).check_send()

    def _runner_for(self, call: Call) -> TransactionRunner:
        if self._runner is None:
            raise WrongTransactionState(f"{call.value} needs a transactional producer: set transactional.id")
        if self._closing:
            raise ProducerClosed("the producer is closed")
        return self._runner

    @property
    def buffered_bytes(self) -> int:
        """How much of buffer.memory is taken."""
        return self.settings.buffer_memory - self._sender.memory.free

    # -- taking records ------------------------------------------------------------------------------------------------

    def _on_fatal(self, error: Exception) -> None:
        if self._fatal is None:
            self._fatal = error

    def _on_refused(self, error: Exception) -> None:
        """`send` raised: a transaction without the record must not be committed by someone who did not hear of it."""
        if self._transactions is not None and not isinstance(error, WrongTransactionState):
            self._transactions.on_error(error)
            self._sender.wake()

    async def _open_topic(self, topic: str) -> TopicLanes:
        self._sender.begin()
        return await self._sender.topics.open(topic)

    async def _open_batch(self, lanes: TopicLanes, queue: PartitionQueue, size: int) -> Batch:
        """A batch with room for a record of `size` bytes: the open one, or a new one when there is memory for it."""
        loop = self._sender.begin()
        if size + HEADER_BYTES > self.settings.max_request_size:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size - RECORD_OVERHEAD_MAX} bytes does not fit "
                f"max.request.size={self.settings.max_request_size}",
            )
        reserve = max(self._batch_size, size + HEADER_BYTES)
        if reserve > self.settings.buffer_memory:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size - RECORD_OVERHEAD_MAX} bytes does not fit "
                f"buffer.memory={self.settings.buffer_memory}",
            )
        deadline = None
        while True:
            batch = queue.open
            if batch is not None:
                if len(batch.buffer) + size <= self._batch_size:
                    return batch
                self._sender.close_batch(lanes, queue)
            if self._sender.memory.take(reserve, has_waited=deadline is not None):
                return self._sender.open_batch(queue, reserve)
            if deadline is None:
                deadline = loop.time() + self.settings.max_block_ms / 1000
            await self._wait_for_room(reserve, deadline)

    async def _take_room(self, reserve: int) -> None:
        """Memory for a batch that is encoded already, as soon as there is some."""
        loop = self._sender.begin()
        for name, limit in (
            ("max.request.size", self.settings.max_request_size),
            ("buffer.memory", self.settings.buffer_memory),
        ):
            if reserve > limit:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of {reserve} bytes does not fit {name}={limit}"
                )
        deadline = None
        while not self._sender.memory.take(reserve, has_waited=deadline is not None):
            if deadline is None:
                deadline = loop.time() + self.settings.max_block_ms / 1000
            await self._wait_for_room(reserve, deadline)

    async def _wait_for_room(self, reserve: int, deadline: float) -> None:
        await self._wait_memory(reserve, deadline)
        if self._closing:
            raise ProducerClosed("the producer was closed while a record waited for room")
        if self._fatal is not None:
            raise self._fatal

    async def _wait_memory(self, reserve: int, deadline: float) -> None:
        self._sender.make_all_due()
        try:
            await self._sender.memory.wait(reserve, deadline)
        except TimeoutError:
            causes = self._sender.waiting_errors()
            why = f"; last error: {causes.pop()}" if causes else ""
            raise SendTimedOut(
                f"buffer.memory={self.settings.buffer_memory} was full for max.block.ms={self.settings.max_block_ms}: "
                f"brokers take records slower than they are sent{why}"
            ) from None


def _explain_type_error(error: Exception, key: Any, value: Any, headers: Headers | None) -> Exception:
    for name, given in (("key", key), ("value", value)):
        if given is not None and not isinstance(given, bytes | bytearray | memoryview):
            return TypeError(
                f"the {name} is {type(given).__name__}, not bytes: encode it, or set {name}.serializer "
                "(string, int, long, json, csv, or a callable)"
            )
    if headers:
        return TypeError(f"headers must be a list of (str, bytes or None) pairs: {error}")
    return error
