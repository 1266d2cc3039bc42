"""The producer: takes records, sends batches, keeps order, answers with offsets.

    async with Producer({"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 5}) as producer:
        delivery = await producer.send("orders", b"value", key=b"key")    # waits only while the buffer is full
        metadata = await delivery                                         # waits for the broker

With a `transactional.id`, records are sent in transactions that are seen as a whole or not at all:

    await producer.init_transactions()                                    # once
    async with producer.transaction():                                    # commits at its end, aborts on an exception
        await producer.send("orders", b"value")
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

`accumulator` decides what may be sent and what an answer means, and this file runs it: one `_pump` sends whatever may
go, called when something changed (a full batch, an answer, a timer, news of leaders) and never twice in one turn of the
loop. There is no task per record or per request. `transaction_runner` runs the transactions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from moldau.client.accumulator import (
    RECORD_OVERHEAD_MAX,
    TRANSACTIONAL,
    UNKNOWN_OFFSET,
    Batch,
    Delivery,
    DeliveryCallback,
    Headers,
    PartitionQueue,
    TopicLanes,
    Verdict,
    headers_bytes,
)
from moldau.client.cluster import FAULTS, LEADER_ERRORS, ClusterClient, backoff_ms, client_for
from moldau.client.connection import Connection
from moldau.client.errors import (
    ConnectionFailed,
    DeliveryTimedOut,
    ProducerClosed,
    SendTimedOut,
    TransactionAborted,
    TransactionFatal,
    TransactionTimedOut,
    WrongTransactionState,
)
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.settings import ProducerSettings, producer_settings
from moldau.client.transaction_coordinator import CONCURRENT_BACKOFF_MS
from moldau.client.transaction_runner import TransactionRunner
from moldau.client.transactions import Call, Identity, State, Transactions
from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import HEADER_BYTES, NO_PRODUCER_ID
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse

# Topic ids instead of names (KIP-516) are for topics whose id we know.
_PRODUCE_VERSION_BY_NAME_MAX = 12
# What a Produce request adds to its batches: header, topic and partition fields; names are at most 249 bytes.
_REQUEST_OVERHEAD_BYTES = 512
_TRANSACTION_TIMEOUT_NONE = 2**31 - 1
# The last version with which brokers expect that partitions were added to the transaction before.
_PRODUCE_VERSION_EXPLICIT_MAX = 11

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
        self._topics: dict[str, TopicLanes] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._ready: dict[PartitionQueue, None] = {}  # in turn: a queue that was served goes to the end
        self._incomplete: dict[Batch, PartitionQueue] = {}  # in the order of creation, hence of expiry
        self._lingering: deque[tuple[float, Batch, PartitionQueue]] = deque()
        self._in_flight_requests: dict[int, int] = {}
        self._connecting: set[int] = set()
        self._memory_free = self.settings.buffer_memory
        self._memory_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._init_task: asyncio.Task[None] | None = None
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._fatal: Exception | None = None
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._runner: TransactionRunner | None = None
        self._transactions: Transactions | None = None
        self._attributes = 0
        if self.settings.transactional_id is not None:
            self._runner = TransactionRunner(self._client, self.settings, _Outbox(self))
            self._transactions = self._runner.state
            self._attributes = TRANSACTIONAL
        self._serialize_key = self.settings.key_serializer
        self._serialize_value = self.settings.value_serializer
        self._batch_size = min(self.settings.batch_size, self.settings.max_request_size)
        self._linger = self.settings.linger_ms / 1000

    async def __aenter__(self) -> Self:
        self._start()
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
                    queue = await self._queue_for(lanes, partition)
                batch = queue.open
                if batch is None or len(batch.buffer) + size > self._batch_size:
                    batch = await self._open_batch(lanes, queue, size)
                if transactions is not None and not transactions.takes_records_of(number):
                    if not batch.count:
                        self._close_batch(lanes, queue)
                    transactions.check_still(number)
                timestamp = timestamp_ms if timestamp_ms is not None else time.time_ns() // 1_000_000
                index = batch.append(timestamp, key, value, headers)
                if len(batch.buffer) >= self._batch_size:
                    self._close_batch(lanes, queue)
            except (TypeError, AttributeError) as error:
                raise _explain_type_error(error, key, value, headers) from error
        except Exception as error:
            self._on_refused(error)
            raise
        delivery = Delivery(batch, index, timestamp)
        if on_delivery is not None:
            batch.callbacks.append((on_delivery, delivery))
        return delivery

    async def flush(self) -> None:
        """Send everything that was taken so far, and wait until each record is delivered or failed."""
        self._make_all_due()
        for batch in list(self._incomplete):
            await batch.wait()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush (for at most `timeout_ms`), then end. What is still under way then fails with ProducerClosed."""
        if self._closing:
            return
        self._closing = True
        if self._loop is not None and (self._incomplete or self._runner is not None):
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    if self._runner is not None:
                        await self._runner.close()
                    await self.flush()
            except TimeoutError:
                pass
        self._fail_all(ProducerClosed("the producer was closed before the record was delivered"))
        while self._memory_waiters:
            _wake(self._memory_waiters.popleft()[1])
        if self._timer is not None:
            self._timer.cancel()
        if self._stop_listening is not None:
            self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in self._topics:
            self._client.unwatch(topic)
        if self._owns_client:
            await self._client.close()

    # -- transactions --------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Take the transactional id: once, before the first transaction. Older producers with the id are fenced, and
        what they left open is aborted. After TransactionTimedOut call it again."""
        self._start()
        await self._runner_for(Call.INIT).init()

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
        return self.settings.buffer_memory - self._memory_free

    # -- the batches of transactions -----------------------------------------------------------------------------------

    def _adopt(self, identity: Identity) -> None:
        if identity == (self._producer_id, self._producer_epoch):
            return
        self._producer_id, self._producer_epoch = identity
        for lanes in self._topics.values():
            for queue in lanes.queues:
                queue.adopt(*identity)

    async def _drop(self, error: Exception) -> None:
        self._drop_unsent(error)
        for batch in list(self._incomplete):
            await batch.wait()

    def _drop_unsent(self, error: Exception) -> None:
        for batch, queue in list(self._incomplete.items()):
            if batch in queue.in_flight:
                continue
            if queue.open is batch:
                queue.close_batch()
            queue.on_lost(batch)
            if batch.attempts:
                assert self._transactions is not None
                self._transactions.needs_epoch = True
            self._finish(batch, error)

    def _on_refused(self, error: Exception) -> None:
        """`send` raised: a transaction without the record must not be committed by someone who did not hear of it."""
        if self._transactions is not None and not isinstance(error, WrongTransactionState):
            self._transactions.on_error(error)
            self._schedule_pump()

    # -- taking records ------------------------------------------------------------------------------------------------

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._stop_listening = self._client.on_metadata(self._on_metadata)
        return self._loop

    async def _open_topic(self, topic: str) -> TopicLanes:
        """Wait for a topic's metadata, creating the topic where brokers do so by themselves."""
        self._start()
        lock = self._opening.setdefault(topic, asyncio.Lock())
        async with lock:
            known = self._topics.get(topic)
            if known is not None:
                return known
            info = await self._wait_topic(topic)
            lanes = TopicLanes(
                topic,
                len(info.partitions),
                partitioner=self.settings.partitioner,
                sticky_bytes=self.settings.batch_size,
                idempotent=self.settings.enable_idempotence,
                bumps_epochs=self._transactions is None,
            )
            self._topics[topic] = lanes
            self._client.watch(topic)
            self._update_lanes(lanes)
        self._opening.pop(topic, None)
        return lanes

    async def _wait_topic(self, topic: str) -> Any:
        loop = self._start()
        deadline = loop.time() + self.settings.max_block_ms / 1000
        failures = 0
        cause: Exception | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._client.topic(topic, allow_auto_create=True)
            except TimeoutError as error:
                cause = cause or error  # what went wrong before says more than that the time is over
            except ConnectionFailed as error:
                cause = error
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                cause = error
            failures += 1
            delay = backoff_ms(failures, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms) / 1000
            if loop.time() + delay >= deadline:
                raise SendTimedOut(
                    f"nothing is known about topic {topic!r} after max.block.ms={self.settings.max_block_ms}: "
                    f"{str(cause) or 'no broker answered'}"
                ) from cause
            await asyncio.sleep(delay)

    async def _queue_for(self, lanes: TopicLanes, partition: int) -> PartitionQueue:
        if partition >= len(lanes.queues):
            # It may have been added since we looked.
            await self._client.metadata([lanes.name], timeout_ms=self.settings.max_block_ms)
        return lanes.given(partition)

    async def _open_batch(self, lanes: TopicLanes, queue: PartitionQueue, size: int) -> Batch:
        """A batch with room for a record of `size` bytes: the open one, or a new one when there is memory for it."""
        loop = self._start()
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
                self._close_batch(lanes, queue)
            # Those who wait already come first, or large records would wait for ever.
            if self._memory_free >= reserve and (deadline is not None or not self._memory_waiters):
                break
            if deadline is None:
                deadline = loop.time() + self.settings.max_block_ms / 1000
            await self._wait_memory(reserve, deadline)
            if self._closing:
                raise ProducerClosed("the producer was closed while a record waited for room")
            if self._fatal is not None:
                raise self._fatal
        self._memory_free -= reserve
        now = loop.time()
        batch = queue.open_batch(now, reserve)
        self._incomplete[batch] = queue
        if self._linger:
            due = now + self._linger
            self._lingering.append((due, batch, queue))
            self._wake_at(min(due, now + self.settings.delivery_timeout_ms / 1000))
        else:
            # Sent at the end of this turn of the loop, so that records of one turn share a batch.
            self._lingering.append((now, batch, queue))
            self._schedule_pump()
        return batch

    async def _wait_memory(self, reserve: int, deadline: float) -> None:
        loop = self._start()
        self._make_all_due()
        waiter = loop.create_future()
        entry = (reserve, waiter)
        self._memory_waiters.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            causes = {str(queue.last_error) for queue in self._ready if queue.last_error is not None}
            why = f"; last error: {causes.pop()}" if causes else ""
            raise SendTimedOut(
                f"buffer.memory={self.settings.buffer_memory} was full for max.block.ms={self.settings.max_block_ms}: "
                f"brokers take records slower than they are sent{why}"
            ) from None
        finally:
            if entry in self._memory_waiters:
                self._memory_waiters.remove(entry)
            self._give_memory(0)

    def _give_memory(self, count: int) -> None:
        self._memory_free += count
        free = self._memory_free
        for reserve, waiter in self._memory_waiters:
            if reserve > free:
                break
            free -= reserve
            _wake(waiter)

    def _close_batch(self, lanes: TopicLanes, queue: PartitionQueue) -> None:
        batch = queue.close_batch()
        if batch is None:
            return
        lanes.on_batch_closed(batch)
        if not batch.count:
            # Opened for a record that turned out not to be bytes.
            queue.on_lost(batch)
            self._finish(batch, None)
            return
        self._ready[queue] = None
        self._schedule_pump()

    def _make_due(self, queue: PartitionQueue) -> None:
        """Let the open batch go as soon as it can; until then it may take more records."""
        queue.open_is_due = True
        self._ready[queue] = None
        self._schedule_pump()

    def _make_all_due(self) -> None:
        for lanes in self._topics.values():
            for queue in lanes.queues:
                if queue.open is not None:
                    self._make_due(queue)

    # -- the pump ------------------------------------------------------------------------------------------------------

    def _schedule_pump(self) -> None:
        if not self._pump_due and self._loop is not None:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _pump(self) -> None:
        """Send whatever may be sent now, and see to it that we are called when more may be."""
        self._pump_due = False
        assert self._loop is not None
        now = self._loop.time()
        self._end_lingering(now)
        self._expire(now)
        self._heed_transaction()
        wake = float("inf")
        if self._ready and self._have_producer_id():
            while True:
                by_leader, wake = self._sendable(now)
                # Each pass sends one request per leader; it ends when every leader has enough or nothing is left.
                sent = [self._send_to(leader, queues) for leader, queues in by_leader.items()]
                if not any(sent):
                    break
        if self._lingering:
            wake = min(wake, self._lingering[0][0])
        if self._incomplete:
            oldest = next(iter(self._incomplete))
            wake = min(wake, oldest.created_at + self.settings.delivery_timeout_ms / 1000)
        if wake != float("inf"):
            self._wake_at(wake)

    def _heed_transaction(self) -> None:
        """What waits for a transaction that cannot be committed is dropped: nobody may see it."""
        transactions = self._transactions
        if transactions is None:
            return
        if transactions.state is State.FATAL_ERROR and self._fatal is None:
            self._fatal = transactions.error
        if transactions.sends_nothing and self._incomplete:
            dropped = TransactionAborted("the record was not sent: its transaction cannot be committed")
            dropped.__cause__ = transactions.error
            self._drop_unsent(dropped)

    def _end_lingering(self, now: float) -> None:
        while self._lingering and self._lingering[0][0] <= now:
            _, batch, queue = self._lingering.popleft()
            if queue.open is batch:
                self._make_due(queue)

    def _expire(self, now: float) -> None:
        timeout_ms = self.settings.delivery_timeout_ms
        while self._incomplete:
            batch, queue = next(iter(self._incomplete.items()))
            if batch.created_at + timeout_ms / 1000 > now:
                return
            if queue.open is batch:
                queue.close_batch()
            cause = queue.last_error
            why = f"last error: {cause}" if cause is not None else "no broker answered"
            failure = DeliveryTimedOut(
                f"{queue.topic}-{queue.partition}: not delivered within delivery.timeout.ms={timeout_ms} "
                f"after {batch.attempts} attempts; {why}"
            )
            failure.__cause__ = cause
            if batch not in queue.in_flight:
                # One in flight stays there until it is answered: its number is taken.
                queue.on_lost(batch)
            self._finish(batch, failure)

    def _sendable(self, now: float) -> tuple[dict[int, list[PartitionQueue]], float]:
        by_leader: dict[int, list[PartitionQueue]] = {}
        wake = float("inf")
        idle: list[PartitionQueue] = []
        lost: set[str] = set()
        in_flight_max = self.settings.max_in_flight_requests_per_connection
        transactions = self._transactions
        for queue in self._ready:
            if not queue.pending and not queue.open_is_due:
                idle.append(queue)
            elif queue.leader == NO_LEADER:
                lost.add(queue.topic)
            elif queue.retry_at > now:
                wake = min(wake, queue.retry_at)
            elif transactions is not None and not transactions.may_write_to(
                TopicPartition(queue.topic, queue.partition)
            ):
                assert self._runner is not None
                self._runner.start_adding()
            elif queue.may_send() and self._in_flight_requests.get(queue.leader, 0) < in_flight_max:
                by_leader.setdefault(queue.leader, []).append(queue)
        for queue in idle:
            del self._ready[queue]
        if lost:
            self._client.invalidate(lost)
        return by_leader, wake

    def _send_to(self, leader: int, queues: list[PartitionQueue]) -> bool:
        """One Produce request with the first batch of as many queues as fit. False when nothing could be sent."""
        connection = self._client.open_connection(leader)
        if connection is None:
            self._connect(leader)
            return False
        if not connection.can_write:
            connection.on_can_write = self._schedule_pump
            return False
        settings = self.settings
        room = settings.max_request_size
        taken: list[tuple[PartitionQueue, Batch]] = []
        request_topics: dict[str, ProduceRequest.TopicProduceData] = {}
        version_max: int | None = None
        for queue in queues:
            if not queue.pending:
                self._close_batch(self._topics[queue.topic], queue)
                if not queue.pending:
                    continue
            batch = queue.pending[0]
            batch.seal(settings.compression_type, settings.compression_level, self._attributes)
            if taken and len(batch.buffer) + _REQUEST_OVERHEAD_BYTES > room:
                continue
            room -= len(batch.buffer) + _REQUEST_OVERHEAD_BYTES
            if queue.idempotent and queue.producer_id == NO_PRODUCER_ID:
                queue.adopt(self._producer_id, self._producer_epoch)
            queue.take()
            taken.append((queue, batch))
            topic = request_topics.get(queue.topic)
            if topic is None:
                info = self._client.topics.get(queue.topic)
                topic_id = info.topic_id if info is not None else ZERO_UUID
                if topic_id == ZERO_UUID:
                    version_max = _PRODUCE_VERSION_BY_NAME_MAX
                topic = request_topics[queue.topic] = ProduceRequest.TopicProduceData(queue.topic, topic_id, [])
            topic.partition_data.append(ProduceRequest.PartitionProduceData(queue.partition, batch.buffer))
            del self._ready[queue]
            if queue.pending or queue.open_is_due:
                self._ready[queue] = None
        if not taken:
            return False
        if self._transactions is not None:
            self._transactions.on_written()
            if self._transactions.adds_partitions:
                version_max = _PRODUCE_VERSION_EXPLICIT_MAX
        request = ProduceRequest(
            settings.transactional_id, settings.acks, settings.request_timeout_ms, list(request_topics.values())
        )
        try:
            self._submit(connection, leader, request, version_max, taken)
        except (ConnectionFailed, KafkaError) as error:
            self._on_failure(taken, error)
            return False
        return True

    def _submit(
        self,
        connection: Connection,
        leader: int,
        request: ProduceRequest,
        version_max: int | None,
        taken: list[tuple[PartitionQueue, Batch]],
    ) -> None:
        version = connection.version_for(ProduceRequest.API_KEY, version_max=version_max)
        topics_by_id: dict[bytes, str] = {}
        for topic in request.topic_data:
            # The classes hold all versions; a field that the version lacks must be empty.
            if version > _PRODUCE_VERSION_BY_NAME_MAX:
                topics_by_id[topic.topic_id] = topic.name
                topic.name = ""
            else:
                topic.topic_id = ZERO_UUID
        if self.settings.acks == 0:
            connection.send_unanswered(request, version=version)
            for queue, batch in taken:
                queue.on_delivered(batch)
                self._finish(batch, None)
            return
        answer = connection.submit(request, version=version, timeout_ms=self.settings.request_timeout_ms)
        self._in_flight_requests[leader] = self._in_flight_requests.get(leader, 0) + 1
        answer.add_done_callback(partial(self._on_answer, leader, taken, topics_by_id))

    def _connect(self, leader: int) -> None:
        if leader in self._connecting:
            return
        self._connecting.add(leader)

        async def connect() -> None:
            try:
                await self._client.connection_to(leader)
            except (*FAULTS, KafkaError) as error:
                if isinstance(error, KafkaError):
                    # The leader is no broker of the cluster now; faults have the connection's own back-off.
                    await asyncio.sleep(self.settings.retry_backoff_ms / 1000)
                waiting = [queue for queue in self._ready if queue.leader == leader]
                for queue in waiting:
                    queue.last_error = error
                if waiting:
                    # The leadership may have moved away from a broker that is gone.
                    self._client.invalidate({queue.topic for queue in waiting})
            finally:
                self._connecting.discard(leader)
            self._schedule_pump()

        self._run(connect())

    # -- answers -------------------------------------------------------------------------------------------------------

    def _on_answer(
        self,
        leader: int,
        taken: list[tuple[PartitionQueue, Batch]],
        topics_by_id: dict[bytes, str],
        answer: asyncio.Future[ProduceResponse],
    ) -> None:
        self._in_flight_requests[leader] -= 1
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._on_failure(taken, error)
            return
        response = answer.result()
        by_partition = {
            (topics_by_id.get(topic.topic_id, "") if topics_by_id else topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        stale: set[str] = set()
        for queue, batch in taken:
            partition = by_partition.get((queue.topic, queue.partition))
            if partition is None:
                partition = ProduceResponse.PartitionProduceResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
                partition.error_message = "the answer does not mention the partition"
            code = ErrorCode(partition.error_code)
            self._settle(queue, batch, code, partition)
            if code in LEADER_ERRORS:
                hint = partition.current_leader
                if hint is not None and hint.leader_id >= 0:
                    self._client.note_leader(
                        queue.topic, queue.partition, hint.leader_id, hint.leader_epoch, response.node_endpoints
                    )
                else:
                    stale.add(queue.topic)
        if stale:
            self._client.invalidate(stale)
        self._schedule_pump()

    def _on_failure(self, taken: list[tuple[PartitionQueue, Batch]], error: Exception) -> None:
        """The request may have been written or not: every batch is sent again as it is."""
        fatal = isinstance(error, KafkaError) and not error.code.retriable
        for queue, batch in taken:
            if fatal or batch.done:
                queue.on_lost(batch)
                self._finish(batch, error)
            else:
                self._retry(queue, batch, error)
        self._client.invalidate({queue.topic for queue, _ in taken})
        self._schedule_pump()

    def _settle(
        self, queue: PartitionQueue, batch: Batch, code: ErrorCode, partition: ProduceResponse.PartitionProduceResponse
    ) -> None:
        verdict = queue.judge(batch, code)
        if verdict is Verdict.DELIVERED:
            queue.on_delivered(batch)
            if not batch.done:
                duplicate = code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                batch.complete(UNKNOWN_OFFSET if duplicate else partition.base_offset, partition.log_append_time_ms)
                self._finish(batch, None)
            return
        place = f"{queue.topic}-{queue.partition}"
        reason = f": {partition.error_message}" if partition.error_message else ""
        error = KafkaError(code, f"{place}: {code.name}{reason}")
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            size = f"a batch of {batch.count} records and {len(batch.buffer)} bytes"
            error = KafkaError(
                code, f"{place}: {size} exceeds the topic's max.message.bytes: lower batch.size={self._batch_size}"
            )
        if batch.done or verdict is Verdict.FAILED:
            queue.on_lost(batch)
            self._finish(batch, error, _record_errors(place, code, partition))
            return
        self._retry(queue, batch, error)
        if verdict is Verdict.NEW_EPOCH:
            queue.start_epoch()
        elif verdict is Verdict.NEW_ID:
            queue.adopt(NO_PRODUCER_ID, -1)
        if verdict is not Verdict.RETRY:
            logger.info(
                "producer_epoch_started topic=%s partition=%d epoch=%d reason=%s",
                queue.topic,
                queue.partition,
                queue.producer_epoch,
                code.name,
            )
            if queue.producer_id == NO_PRODUCER_ID:
                self._producer_id = NO_PRODUCER_ID

    def _retry(self, queue: PartitionQueue, batch: Batch, error: Exception) -> None:
        assert self._loop is not None
        queue.last_error = error
        pointless = self._transactions is not None and self._transactions.sends_nothing
        if batch.attempts > self.settings.retries or pointless:
            queue.on_lost(batch)
            self._finish(batch, error)
            return
        queue.failures += 1
        delay = backoff_ms(queue.failures, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
        if isinstance(error, KafkaError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            delay = min(delay, CONCURRENT_BACKOFF_MS)
        queue.retry_at = self._loop.time() + delay / 1000
        queue.put_back(batch)
        self._ready[queue] = None

    def _finish(self, batch: Batch, error: Exception | None, record_errors: dict[int, Exception] | None = None) -> None:
        """Tell the batch's records, once, and take back its memory."""
        if self._incomplete.pop(batch, None) is None:
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
                self._schedule_pump()
        self._give_memory(batch.reserved_bytes)
        callbacks, batch.callbacks = batch.callbacks, []
        for callback, delivery in callbacks:
            failure = delivery.exception()
            try:
                callback(delivery.result() if failure is None else None, failure)
            except Exception:
                # A user's mistake must not keep the other records from hearing.
                logger.exception("delivery_callback_failed topic=%s partition=%d", batch.topic, batch.partition)

    def _fail_all(self, error: Exception) -> None:
        for batch, queue in list(self._incomplete.items()):
            if queue.open is batch:
                queue.open = None
            if batch in queue.pending:
                queue.pending.remove(batch)
            self._finish(batch, error)

    # -- producer ids and metadata -------------------------------------------------------------------------------------

    def _have_producer_id(self) -> bool:
        if not self.settings.enable_idempotence or self._producer_id != NO_PRODUCER_ID:
            return True
        if self._transactions is not None:
            return False  # records are taken only after init_transactions
        if self._init_task is None:
            self._init_task = self._run(self._init_producer_id())
        return False

    async def _init_producer_id(self) -> None:
        from moldau.protocol.messages.init_producer_id import InitProducerIdRequest

        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TRANSACTION_TIMEOUT_NONE)

        async def attempt() -> Any:
            response = await (await self._client.any_connection()).request(request)
            if response.error_code:
                code = ErrorCode(response.error_code)
                raise KafkaError(code, f"the broker gave no producer id: {code.name}")
            return response

        try:
            response = await self._client.retry(attempt)
        except FAULTS as error:
            for queue in self._ready:
                queue.last_error = error
            await asyncio.sleep(self.settings.retry_backoff_max_ms / 1000)
        except KafkaError as error:
            if error.code.retriable:
                await asyncio.sleep(self.settings.retry_backoff_max_ms / 1000)
            else:
                self._fatal = error
                self._fail_all(error)
                self._give_memory(0)
        else:
            self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
        finally:
            self._init_task = None
        self._schedule_pump()

    def _on_metadata(self) -> None:
        for lanes in self._topics.values():
            self._update_lanes(lanes)
        if self._ready:
            self._schedule_pump()

    def _update_lanes(self, lanes: TopicLanes) -> None:
        info = self._client.topics.get(lanes.name)
        if info is None or info.error:
            return
        lanes.grow(len(info.partitions))
        for queue, partition in zip(lanes.queues, info.partitions, strict=False):
            if queue.leader != partition.leader:
                queue.leader = partition.leader
                queue.retry_at = 0.0  # the new leader has refused nothing yet

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Outbox:
    """What the runner of transactions may do with a producer."""

    def __init__(self, producer: Producer) -> None:
        self.flush = producer.flush
        self.drop = producer._drop
        self.adopt = producer._adopt
        self.wake = producer._schedule_pump
        self.start = producer._run


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _record_errors(
    place: str, code: ErrorCode, partition: ProduceResponse.PartitionProduceResponse
) -> dict[int, Exception]:
    """KIP-467: the records that made the broker refuse the batch hear why."""
    return {
        record.batch_index: KafkaError(
            code, f"{place}: {record.batch_index_error_message or partition.error_message or code.name}"
        )
        for record in partition.record_errors
    }


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
