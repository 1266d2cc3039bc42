"""The producer for programs without an event loop: the same methods, called from any thread.

    with BlockingProducer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        handle = producer.send("orders", b"value", key=b"key")
        metadata = handle.result(timeout=10)

A private loop runs in a background thread. `send` only puts the record into a queue, and wakes the loop when it sleeps;
it blocks while the queue is full, which it is when the producer's buffer is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Self, TypeVar

from moldau.client.accumulator import DeliveryCallback, Headers, RecordMetadata
from moldau.client.errors import ProducerClosed, SendTimedOut
from moldau.client.producer import Producer
from moldau.client.settings import producer_settings

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="moldau-producer", daemon=True)
        self._thread.start()
        try:
            self._producer = self._call(self._make(given))
        except BaseException:
            self._stop_loop()
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
            self._loop.call_soon_threadsafe(self._start_feeder)
        return handle

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is delivered or failed."""
        self._call(self._flush(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end; after `timeout` seconds what is left fails with ProducerClosed."""
        with self._room:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
        try:
            self._call(self._close(timeout))
        finally:
            self._stop_loop()

    # -- on the loop's thread ------------------------------------------------------------------------------------------

    async def _make(self, given: Mapping[str, object]) -> Producer:
        return await Producer(given).__aenter__()

    def _start_feeder(self) -> None:
        self._feeder = self._loop.create_task(self._feed())

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
        while self._feeding:
            if self._feeder is not None:
                await asyncio.wait([self._feeder])
            await asyncio.sleep(0)
        await self._producer.flush()

    async def _close(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._flush()
        except TimeoutError:
            pass
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
        while self._queue:
            handle, on_delivery, _ = self._queue.popleft()
            _deliver(handle, on_delivery, None, ProducerClosed("the producer was closed"))
        await self._producer.close(0)

    # -- between the threads -------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _deliver(
    handle: DeliveryHandle,
    callback: DeliveryCallback | None,
    metadata: RecordMetadata | None,
    error: Exception | None,
) -> None:
    handle._settle(metadata, error)
    if callback is not None:
        callback(metadata, error)
