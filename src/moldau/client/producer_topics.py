"""The topics that a producer writes to: found once, then followed as partitions and leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.client.accumulator import PartitionQueue, TopicLanes
from moldau.client.cluster import ClusterClient, backoff_ms
from moldau.client.errors import ConnectionFailed, SendTimedOut
from moldau.client.settings import ProducerSettings
from moldau.kernel import KafkaError


class ProducerTopics:
    def __init__(self, client: ClusterClient, settings: ProducerSettings) -> None:
        self.lanes: dict[str, TopicLanes] = {}
        self._client = client
        self._settings = settings
        self._opening: dict[str, asyncio.Lock] = {}
        self._stop_listening: Callable[[], None] | None = None

    def follow(self, on_news: Callable[[], None]) -> None:
        """Keep the lanes as the metadata says, and call `on_news` when there was some."""

        def on_metadata() -> None:
            for lanes in self.lanes.values():
                self._update(lanes)
            on_news()

        self._stop_listening = self._client.on_metadata(on_metadata)

    def close(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
        for topic in self.lanes:
            self._client.unwatch(topic)

    async def open(self, topic: str) -> TopicLanes:
        """Wait for a topic's metadata, creating the topic where brokers do so by themselves."""
        lock = self._opening.setdefault(topic, asyncio.Lock())
        async with lock:
            known = self.lanes.get(topic)
            if known is not None:
                return known
            info = await self._wait(topic)
            lanes = TopicLanes(
                topic,
                len(info.partitions),
                partitioner=self._settings.partitioner,
                sticky_bytes=self._settings.batch_size,
                idempotent=self._settings.enable_idempotence,
                bumps_epochs=self._settings.transactional_id is None,
            )
            self.lanes[topic] = lanes
            self._client.watch(topic)
            self._update(lanes)
        self._opening.pop(topic, None)
        return lanes

    async def queue_for(self, lanes: TopicLanes, partition: int) -> PartitionQueue:
        if partition >= len(lanes.queues):
            # It may have been added since we looked.
            await self._client.metadata([lanes.name], timeout_ms=self._settings.max_block_ms)
        return lanes.given(partition)

    async def _wait(self, topic: str) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.max_block_ms / 1000
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
            delay = backoff_ms(failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms) / 1000
            if loop.time() + delay >= deadline:
                raise SendTimedOut(
                    f"nothing is known about topic {topic!r} after max.block.ms={self._settings.max_block_ms}: "
                    f"{str(cause) or 'no broker answered'}"
                ) from cause
            await asyncio.sleep(delay)

    def _update(self, lanes: TopicLanes) -> None:
        info = self._client.topics.get(lanes.name)
        if info is None or info.error:
            return
        lanes.grow(len(info.partitions))
        for queue, partition in zip(lanes.queues, info.partitions, strict=False):
            if queue.leader != partition.leader:
                queue.leader = partition.leader
                queue.retry_at = 0.0  # the new leader has refused nothing yet
