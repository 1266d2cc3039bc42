"""Reading partitions without a group: start anywhere, follow leaders, stop where told, hold little in memory.

    async with PartitionReader(client, {TopicPartition("orders", 0): "earliest"}) as reader:
        async for records in reader:          # lists of ConsumedRecord, each of one partition
            ...

`fetcher` does the fetching, and says how much memory it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Self

from moldau.client import admin
from moldau.client.admin import IsolationLevel
from moldau.client.cluster import ClusterClient
from moldau.client.fetcher import Fetcher, FetchLimits, OutOfRange, resolve_offsets
from moldau.client.records import ConsumedRecord
from moldau.client.starts import Start
from moldau.kernel import KafkaError, TopicPartition

_DEFAULT_LIMITS = FetchLimits()
MAX_WAIT_MS = _DEFAULT_LIMITS.max_wait_ms
MIN_BYTES = _DEFAULT_LIMITS.min_bytes
MAX_BYTES = _DEFAULT_LIMITS.max_bytes
PARTITION_MAX_BYTES = _DEFAULT_LIMITS.partition_max_bytes
# Small batches are handed out together up to this many records.
RECORDS_PER_YIELD = 500


class PartitionReader:
    """Iterate over records of given partitions. Iteration ends when every partition has reached its `stop` offset."""

    def __init__(
        self,
        client: ClusterClient,
        start: Mapping[TopicPartition, Start],
        *,
        stop: Mapping[TopicPartition, int] | None = None,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        out_of_range: OutOfRange = "error",
        max_wait_ms: int = MAX_WAIT_MS,
        min_bytes: int = MIN_BYTES,
        max_bytes: int = MAX_BYTES,
        partition_max_bytes: int = PARTITION_MAX_BYTES,
    ) -> None:
        if not start:
            raise ValueError("nothing to read: give at least one partition")
        self._client = client
        self._start = dict(start)
        self._stop = dict(stop or {})
        self._isolation_level = isolation_level
        self._ready = asyncio.Event()
        self._lost: KafkaError | None = None
        self._is_open = False
        self._records: AsyncIterator[list[ConsumedRecord]] | None = None
        self._fetcher = Fetcher(
            client,
            FetchLimits(max_wait_ms, min_bytes, max_bytes, partition_max_bytes),
            isolation_level=isolation_level,
            out_of_range=out_of_range,
            on_ready=self._ready.set,
            on_unknown_topic=self._on_unknown_topic,
        )

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        if not self._is_open:
            await self._open()
        if self._records is None:
            self._records = self._read()
        return await anext(self._records)

    def position(self, where: TopicPartition) -> int:
        """The offset of the next record that will be handed out."""
        return self._fetcher.positions[where].next_offset

    def high_watermark(self, where: TopicPartition) -> int:
        """As the last answer showed it; -1 before the first."""
        return self._fetcher.positions[where].high_watermark

    async def close(self) -> None:
        await self._fetcher.close()
        for topic in {where.topic for where in self._start}:
            self._client.unwatch(topic)

    async def _open(self) -> None:
        self._is_open = True
        offsets = await resolve_offsets(self._client, self._start, self._isolation_level)
        for topic in {where.topic for where in self._start}:
            self._client.watch(topic)
        for where, offset in offsets.items():
            self._fetcher.add(where, offset, stop=self._stop.get(where))

    def _on_unknown_topic(self, error: KafkaError) -> None:
        self._lost = error
        self._ready.set()

    async def _read(self) -> AsyncIterator[list[ConsumedRecord]]:
        while True:
            records = self._fetcher.take(RECORDS_PER_YIELD)
            if records:
                yield records
            elif all(position.is_done for position in self._fetcher.positions.values()):
                return
            elif self._lost is not None:
                raise self._lost
            else:
                await self._ready.wait()
                self._ready.clear()


async def read_partition(
    client: ClusterClient, topic: str, partition: int, *, start: Start = "earliest", stop: int | None = None
) -> AsyncIterator[ConsumedRecord]:
    """Every record of one partition from `start`, up to the end as it is now unless `stop` says otherwise."""
    where = TopicPartition(topic, partition)
    if stop is None:
        stop = (await admin.list_offsets(client, {where: admin.LATEST}))[where].offset
    async with PartitionReader(client, {where: start}, stop={where: stop}) as reader:
        async for records in reader:
            for record in records:
                yield record
