"""Sends a producer's batches: to each leader, as many as may travel, in the order of their records.

`accumulator` decides what may be sent, and one `_pump` here sends it, called when something changed (a full batch, an
answer, a timer, news of leaders) and never twice in one turn of the loop. There is no task per record or per request.
What answers mean is in `produce_answers`, who hears of them in `deliveries`; `transaction_runner` runs transactions and
sees the sender as its `Outbox`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from moldau.client.accumulator import TRANSACTIONAL, Batch, PartitionQueue, TopicLanes
from moldau.client.buffer_memory import BufferMemory
from moldau.client.cluster import FAULTS, ClusterClient
from moldau.client.connection import Connection
from moldau.client.deliveries import Deliveries
from moldau.client.errors import ConnectionFailed, TransactionAborted
from moldau.client.produce_answers import ProduceAnswers, Taken
from moldau.client.producer_ids import new_producer_id
from moldau.client.producer_topics import ProducerTopics
from moldau.client.settings import ProducerSettings
from moldau.client.transaction_runner import TransactionRunner
from moldau.client.transactions import Identity, State, Transactions
from moldau.kernel import NO_LEADER, ZERO_UUID, KafkaError, TopicPartition
from moldau.protocol.batches import NO_PRODUCER_ID
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse

# Topic ids instead of names (KIP-516) are for topics whose id we know.
_PRODUCE_VERSION_BY_NAME_MAX = 12
# The last version with which brokers expect that partitions were added to the transaction before.
_PRODUCE_VERSION_EXPLICIT_MAX = 11
# What a Produce request adds to its batches: header, topic and partition fields; names are at most 249 bytes.
_REQUEST_OVERHEAD_BYTES = 512


class Sender:
    def __init__(
        self, client: ClusterClient, settings: ProducerSettings, on_fatal: Callable[[Exception], None]
    ) -> None:
        """`on_fatal` hears what makes every further record pointless."""
        self.topics = ProducerTopics(client, settings)
        self.memory = BufferMemory(settings.buffer_memory)
        self.runner: TransactionRunner | None = None
        self.transactions: Transactions | None = None
        self.in_flight_requests: dict[int, int] = {}
        self._attributes = 0
        if settings.transactional_id is not None:
            self.runner = TransactionRunner(client, settings, self)
            self.transactions = self.runner.state
            self._attributes = TRANSACTIONAL
        self.deliveries = Deliveries(settings.delivery_timeout_ms, self.memory, self.transactions, self.wake)
        self._client = client
        self._settings = settings
        self._on_fatal = on_fatal
        self._ready: dict[PartitionQueue, None] = {}  # in turn: a queue that was served goes to the end
        self._answers = ProduceAnswers(
            client,
            settings,
            self.deliveries,
            self.transactions,
            ready=self._ready,
            wake=self.wake,
            forget_producer_id=self._forget_producer_id,
        )
        self._lingering: deque[tuple[float, Batch, PartitionQueue]] = deque()
        self._linger = settings.linger_ms / 1000
        self._connecting: set[int] = set()
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._init_task: asyncio.Task[None] | None = None
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- its life ------------------------------------------------------------------------------------------------------

    def begin(self) -> asyncio.AbstractEventLoop:
        """Belong to the running loop from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.topics.follow(self._on_news)
        return self._loop

    @property
    def has_work(self) -> bool:
        """Is there anything that a close must wait for?"""
        return self._loop is not None and (bool(self.deliveries.incomplete) or self.runner is not None)

    async def end(self, error: Exception) -> None:
        """Fail what is still under way, and stop."""
        self.deliveries.fail_all(error)
        self.memory.wake_all()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.topics.close()

    # -- batches of the producer ---------------------------------------------------------------------------------------

    def open_batch(self, queue: PartitionQueue, reserved_bytes: int) -> Batch:
        """A new batch of the queue, for which memory was taken."""
        now = self.begin().time()
        batch = queue.open_batch(now, reserved_bytes)
        self.deliveries.incomplete[batch] = queue
        if self._linger:
            due = now + self._linger
            self._lingering.append((due, batch, queue))
            self._wake_at(min(due, now + self._settings.delivery_timeout_ms / 1000))
        else:
            # Sent at the end of this turn of the loop, so that records of one turn share a batch.
            self._lingering.append((now, batch, queue))
            self.wake()
        return batch

    def close_batch(self, lanes: TopicLanes, queue: PartitionQueue) -> None:
        batch = queue.close_batch()
        if batch is None:
            return
        lanes.on_batch_closed(batch)
        if not batch.count:
            # Opened for a record that turned out not to be bytes.
            queue.on_lost(batch)
            self.deliveries.finish(batch, None)
            return
        self._ready[queue] = None
        self.wake()

    def make_all_due(self) -> None:
        for lanes in self.topics.lanes.values():
            for queue in lanes.queues:
                if queue.open is not None:
                    self._make_due(queue)

    def waiting_errors(self) -> set[str]:
        """Why brokers did not take what waits to be sent."""
        return {str(queue.last_error) for queue in self._ready if queue.last_error is not None}

    def _make_due(self, queue: PartitionQueue) -> None:
        """Let the open batch go as soon as it can; until then it may take more records."""
        queue.open_is_due = True
        self._ready[queue] = None
        self.wake()

    # -- the outbox of transactions ------------------------------------------------------------------------------------

    async def flush(self) -> None:
        self.make_all_due()
        await self.deliveries.wait_all()

    async def drop(self, error: Exception) -> None:
        self.deliveries.drop_unsent(error)
        await self.deliveries.wait_all()

    def adopt(self, identity: Identity) -> None:
        if identity == (self._producer_id, self._producer_epoch):
            return
        self._producer_id, self._producer_epoch = identity
        for lanes in self.topics.lanes.values():
            for queue in lanes.queues:
                queue.adopt(*identity)

    def wake(self) -> None:
        if not self._pump_due and self._loop is not None:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- the pump ------------------------------------------------------------------------------------------------------

    def _on_news(self) -> None:
        if self._ready:
            self.wake()

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
        self.deliveries.expire(now)
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
        wake = min(wake, self.deliveries.next_expiry())
        if wake != float("inf"):
            self._wake_at(wake)

    def _heed_transaction(self) -> None:
        """What waits for a transaction that cannot be committed is dropped: nobody may see it."""
        transactions = self.transactions
        if transactions is None:
            return
        if transactions.state is State.FATAL_ERROR and transactions.error is not None:
            self._on_fatal(transactions.error)
        if transactions.sends_nothing and self.deliveries.incomplete:
            dropped = TransactionAborted("the record was not sent: its transaction cannot be committed")
            dropped.__cause__ = transactions.error
            self.deliveries.drop_unsent(dropped)

    def _end_lingering(self, now: float) -> None:
        while self._lingering and self._lingering[0][0] <= now:
            _, batch, queue = self._lingering.popleft()
            if queue.open is batch:
                self._make_due(queue)

    def _sendable(self, now: float) -> tuple[dict[int, list[PartitionQueue]], float]:
        by_leader: dict[int, list[PartitionQueue]] = {}
        wake = float("inf")
        idle: list[PartitionQueue] = []
        lost: set[str] = set()
        in_flight_max = self._settings.max_in_flight_requests_per_connection
        transactions = self.transactions
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
                assert self.runner is not None
                self.runner.start_adding()
            elif queue.may_send() and self.in_flight_requests.get(queue.leader, 0) < in_flight_max:
                by_leader.setdefault(queue.leader, []).append(queue)
        for queue in idle:
            del self._ready[queue]
        if lost:
            self._client.invalidate(lost)
        return by_leader, wake

    # -- requests ------------------------------------------------------------------------------------------------------

    def _send_to(self, leader: int, queues: list[PartitionQueue]) -> bool:
        """One Produce request with the first batch of as many queues as fit. False when nothing could be sent."""
        connection = self._client.open_connection(leader)
        if connection is None:
            self._connect(leader)
            return False
        if not connection.can_write:
            connection.on_can_write = self.wake
            return False
        settings = self._settings
        room = settings.max_request_size
        taken: Taken = []
        request_topics: dict[str, ProduceRequest.TopicProduceData] = {}
        version_max: int | None = None
        for queue in queues:
            if not queue.pending:
                self.close_batch(self.topics.lanes[queue.topic], queue)
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
        if self.transactions is not None:
            self.transactions.on_written()
            if self.transactions.adds_partitions:
                version_max = _PRODUCE_VERSION_EXPLICIT_MAX
        request = ProduceRequest(
            settings.transactional_id, settings.acks, settings.request_timeout_ms, list(request_topics.values())
        )
        try:
            self._submit(connection, leader, request, version_max, taken)
        except (ConnectionFailed, KafkaError) as error:
            self._answers.on_failure(taken, error)
            return False
        return True

    def _submit(
        self, connection: Connection, leader: int, request: ProduceRequest, version_max: int | None, taken: Taken
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
        if self._settings.acks == 0:
            connection.send_unanswered(request, version=version)
            for queue, batch in taken:
                queue.on_delivered(batch)
                self.deliveries.finish(batch, None)
            return
        answer = connection.submit(request, version=version, timeout_ms=self._settings.request_timeout_ms)
        self.in_flight_requests[leader] = self.in_flight_requests.get(leader, 0) + 1
        answer.add_done_callback(partial(self._on_answer, leader, taken, topics_by_id))

    def _on_answer(
        self, leader: int, taken: Taken, topics_by_id: dict[bytes, str], answer: asyncio.Future[ProduceResponse]
    ) -> None:
        self.in_flight_requests[leader] -= 1
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._answers.on_failure(taken, error)
        else:
            self._answers.on_response(taken, topics_by_id, answer.result())

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
                    await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
                waiting = [queue for queue in self._ready if queue.leader == leader]
                for queue in waiting:
                    queue.last_error = error
                if waiting:
                    # The leadership may have moved away from a broker that is gone.
                    self._client.invalidate({queue.topic for queue in waiting})
            finally:
                self._connecting.discard(leader)
            self.wake()

        self.start(connect())

    # -- producer ids --------------------------------------------------------------------------------------------------

    def _have_producer_id(self) -> bool:
        if not self._settings.enable_idempotence or self._producer_id != NO_PRODUCER_ID:
            return True
        if self.transactions is not None:
            return False  # records are taken only after init_transactions
        if self._init_task is None:
            self._init_task = self.start(self._init_producer_id())
        return False

    def _forget_producer_id(self) -> None:
        self._producer_id = NO_PRODUCER_ID

    async def _init_producer_id(self) -> None:
        try:
            self._producer_id, self._producer_epoch = await new_producer_id(self._client)
        except FAULTS as error:
            for queue in self._ready:
                queue.last_error = error
            await asyncio.sleep(self._settings.retry_backoff_max_ms / 1000)
        except KafkaError as error:
            if error.code.retriable:
                await asyncio.sleep(self._settings.retry_backoff_max_ms / 1000)
            else:
                self._on_fatal(error)
                self.deliveries.fail_all(error)
                self.memory.give(0)
        finally:
            self._init_task = None
        self.wake()
