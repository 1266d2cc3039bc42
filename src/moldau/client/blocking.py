"""The producer and the consumer for programs without an event loop: the same methods.

    with BlockingProducer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        handle = producer.send("orders", b"value", key=b"key")
        metadata = handle.result(timeout=10)

    with BlockingConsumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
        consumer.subscribe("orders")
        for record in consumer:
            ...

A private loop runs in a background thread. The producer may be called from any thread: `send` only puts the record into
a queue, and wakes the loop when it sleeps; it blocks while the queue is full, which it is when the producer's buffer
is. The consumer is for one thread at a time; its heartbeats go on while that thread works.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from moldau.client.accumulator import DeliveryCallback, Headers, RecordMetadata
from moldau.client.consumer import CLOSE_SECONDS, Consumer, PartitionsCallback
from moldau.client.errors import ConsumerClosed, ProducerClosed, SendTimedOut
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.loop_thread import LoopThread
from moldau.client.producer import Producer
from moldau.client.records import ConsumedRecord
from moldau.client.settings import consumer_settings, producer_settings
from moldau.client.starts import Start
from moldau.kernel import TopicPartition

QUEUED_RECORDS_MAX = 10_000

T = TypeVar("T")


class DeliveryHandle:
    """A record's fate, to be asked for from any thread."""

    __slots__ = ("_changed", "_error", "_metadata")

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._metadata: RecordMetadata | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._metadata is not None or self._error is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds; TimeoutError then, or whatever kept the record from being delivered."""
        if not self.done():
            with self._changed:
                if not self._changed.wait_for(self.done, timeout):
                    raise TimeoutError(f"the record was not delivered within {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def _settle(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self._metadata, self._error = metadata, error
        with self._changed:
            self._changed.notify_all()


_Queued = tuple[DeliveryHandle, DeliveryCallback | None, dict[str, Any]]


class BlockingProducer:
    """`Producer` for threads; see there for the settings."""

    def __init__(self, where: str | Mapping[str, object], settings: Mapping[str, object] | None = None) -> None:
        given: dict[str, object] = {"bootstrap.servers": where} if isinstance(where, str) else dict(where)
        given |= settings or {}
        self.settings = producer_settings(given)  # in the caller's thread, so that mistakes show here
        self._queue: deque[_Queued] = deque()
        self._changed = threading.Condition()
        self._room = threading.Condition()
        self._feeding = False
        self._closed = False
        self._feeder: asyncio.Task[None] | None = None
        self._thread = LoopThread("moldau-producer")
        try:
            self._producer = self._thread.call(self._make(given))
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> DeliveryHandle:
        """Take a record; blocks up to max.block.ms while there is no room. `on_delivery` is called on the loop's
        thread."""
        self._producer.check_transaction()
        handle = DeliveryHandle(self._changed)
        record = {
            "topic": topic,
            "value": value,
            "key": key,
            "headers": headers,
            "partition": partition,
            "timestamp_ms": timestamp_ms,
        }
        with self._room:
            if len(self._queue) >= QUEUED_RECORDS_MAX:
                timeout = self.settings.max_block_ms / 1000
                if not self._room.wait_for(lambda: len(self._queue) < QUEUED_RECORDS_MAX or self._closed, timeout):
                    raise SendTimedOut(
                        f"{QUEUED_RECORDS_MAX} records waited for max.block.ms={self.settings.max_block_ms}: "
                        "brokers take records slower than they are sent"
                    )
            if self._closed:
                raise ProducerClosed("the producer is closed")
            self._queue.append((handle, on_delivery, record))
            wake = not self._feeding
            self._feeding = True
        if wake:
            self._thread.loop.call_soon_threadsafe(self._start_feeder)
        return handle

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is delivered or failed."""
        self._thread.call(self._flush(), timeout)

    def init_transactions(self) -> None:
        self._thread.call(self._producer.init_transactions())

    def begin_transaction(self) -> None:
        self._thread.call(self._after_queued(self._begin()))

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        self._thread.call(self._producer.send_offsets_to_transaction(offsets, group))

    def commit_transaction(self) -> None:
        self._thread.call(self._after_queued(self._producer.commit_transaction()))

    def abort_transaction(self) -> None:
        self._thread.call(self._after_queued(self._producer.abort_transaction()))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction that is committed at the end of the block, and aborted when the block or the commit fails."""
        block = self._producer.transaction()
        self._thread.call(self._after_queued(block.__aenter__()))
        try:
            yield self
        except BaseException as error:
            self._thread.call(self._leave(block, error))
            raise
        self._thread.call(self._leave(block, None))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end; after `timeout` seconds what is left fails with ProducerClosed."""
        with self._room:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
        try:
            self._thread.call(self._close(timeout))
        finally:
            self._thread.stop()

    # -- on the loop's thread ------------------------------------------------------------------------------------------

    async def _make(self, given: Mapping[str, object]) -> Producer:
        return await Producer(given).__aenter__()

    def _start_feeder(self) -> None:
        self._feeder = self._thread.loop.create_task(self._feed())

    async def _feed(self) -> None:
        """Hand queued records to the producer, in order."""
        while True:
            with self._room:
                if not self._queue:
                    self._feeding = False
                    return
                taken = list(self._queue)
                self._queue.clear()
                self._room.notify_all()
            for index, (handle, on_delivery, record) in enumerate(taken):
                try:
                    await self._producer.send(**record, on_delivery=partial(_deliver, handle, on_delivery))
                except Exception as error:  # belongs to whoever holds the handle
                    _deliver(handle, on_delivery, None, error)
                except asyncio.CancelledError:
                    for left, callback, _ in taken[index:]:
                        _deliver(left, callback, None, ProducerClosed("the producer was closed"))
                    raise

    async def _flush(self) -> None:
        await self._wait_queue_empty()
        await self._producer.flush()

    async def _wait_queue_empty(self) -> None:
        while self._feeding:
            if self._feeder is not None:
                await asyncio.wait([self._feeder])
            await asyncio.sleep(0)

    async def _after_queued(self, work: Awaitable[Any]) -> None:
        """Records that were sent before a call belong to what was before it."""
        await self._wait_queue_empty()
        await work

    async def _begin(self) -> None:
        self._producer.begin_transaction()

    async def _leave(self, block: AbstractAsyncContextManager[Producer], error: BaseException | None) -> None:
        await self._wait_queue_empty()
        if error is None:
            await block.__aexit__(None, None, None)
        else:
            await block.__aexit__(type(error), error, error.__traceback__)

    async def _close(self, seconds: float | None) -> None:
        deadline = None if seconds is None else self._thread.loop.time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self._wait_queue_empty()
        except TimeoutError:
            pass
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
        while self._queue:
            handle, on_delivery, _ = self._queue.popleft()
            _deliver(handle, on_delivery, None, ProducerClosed("the producer was closed"))
        left_ms = None if deadline is None else max(0, int((deadline - self._thread.loop.time()) * 1000))
        await self._producer.close(left_ms)


def _deliver(
    handle: DeliveryHandle,
    callback: DeliveryCallback | None,
    metadata: RecordMetadata | None,
    error: Exception | None,
) -> None:
    handle._settle(metadata, error)
    if callback is not None:
        callback(metadata, error)


class BlockingConsumer:
    """`Consumer` for one thread; see there for the settings. Callbacks are called on the loop's thread."""

    def __init__(self, where: str | Mapping[str, object], settings: Mapping[str, object] | None = None) -> None:
        given: dict[str, object] = {"bootstrap.servers": where} if isinstance(where, str) else dict(where)
        given |= settings or {}
        self.settings = consumer_settings(given)  # in the caller's thread, so that mistakes show here
        self._closed = False
        self._thread = LoopThread("moldau-consumer")
        try:
            self._consumer = self._thread.call(self._make(given))
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._end(self._consumer.__aexit__(kind, *rest))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        record = self._consumer.take_ready()
        return self._call(self._consumer.__anext__()) if record is None else record

    def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        on_lost: PartitionsCallback | None = None,
    ) -> None:
        self._do(
            lambda: self._consumer.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        )

    def subscribe_pattern(
        self,
        pattern: str,
        *,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        on_lost: PartitionsCallback | None = None,
    ) -> None:
        self._do(
            lambda: self._consumer.subscribe_pattern(
                pattern, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
            )
        )

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._do(lambda: self._consumer.assign(partitions))

    def unsubscribe(self) -> None:
        self._call(self._consumer.unsubscribe())

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._consumer.assignment

    @property
    def subscription(self) -> frozenset[str]:
        return self._consumer.subscription

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self._consumer.paused

    def group_metadata(self) -> GroupMetadata:
        return self._consumer.group_metadata()

    def poll(self, timeout: float | None = None) -> list[ConsumedRecord]:
        return self._call(self._consumer.poll(timeout))

    def position(self, where: TopicPartition) -> int:
        return self._call(self._consumer.position(where))

    def seek(self, where: TopicPartition | Iterable[TopicPartition], start: Start) -> None:
        self._call(self._consumer.seek(where, start))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._do(lambda: self._consumer.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._do(lambda: self._consumer.resume(partitions))

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        self._call(self._consumer.commit(offsets))

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._call(self._consumer.committed(partitions))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        self._end(self._consumer.close(timeout))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        self._closed = True
        try:
            self._thread.call(work)
        finally:
            self._thread.stop()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise ConsumerClosed("the consumer is closed")
        return self._thread.call(work)

    async def _make(self, given: Mapping[str, object]) -> Consumer:
        return Consumer(given)

    def _do(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self._call(act())
