"""Keeps a view current: reads the topics with our own client and gives each piece to the view, with its positions."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from moldau.client import (
    ClusterClient,
    ConnectionFailed,
    IsolationLevel,
    PartitionReader,
    RequestTimedOut,
    TopicInfo,
    admin,
)
from moldau.kernel import KafkaError, TopicPartition, uuid_text
from moldau.tables.rules import Found, GoOn, decide_start
from moldau.tables.view import TableView

LOOK_SECONDS = 0.1
PARTITIONS_LOOK_SECONDS = 5.0
BACKOFF_SECONDS_MAX = 10.0
NOTE_CURRENT_SECONDS = 5.0

T = TypeVar("T")
logger = logging.getLogger(__name__)

# A disk that is full is SQLite's word for it.
_FAULTS = (KafkaError, ConnectionFailed, RequestTimedOut, OSError, sqlite3.OperationalError)


class Follower:
    """One topic of a view. The view's writing is done on one thread, for SQLite and for the loop's sake."""

    def __init__(
        self,
        client: ClusterClient,
        view: TableView,
        topic: str,
        writing: ThreadPoolExecutor,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.topic = topic
        self.records_read = 0
        self.last_error: str | None = None
        self._client = client
        self._view = view
        self._writing = writing
        self._now_ms = now_ms

    async def run(self) -> None:
        """Until it is cancelled. What goes wrong is tried again."""
        failures = 0
        while True:
            before = self.records_read
            try:
                await self._follow()
                failures = 0
            except _FAULTS as error:
                failures = 1 if self.records_read > before else failures + 1
                self.last_error = str(error)
                logger.warning("table_unread topic=%s error=%r", self.topic, str(error))
                await asyncio.sleep(min(BACKOFF_SECONDS_MAX, 0.1 * 2**failures))

    async def _follow(self) -> None:
        """Read until the topic is another one, or has another number of partitions."""
        found = await self._find()
        decision = decide_start(await self._write(self._view.stored, self.topic), found, self._now_ms())
        if isinstance(decision, GoOn):
            positions = dict(decision.positions)
        else:
            logger.info("table_read_anew topic=%s why=%r", self.topic, decision.why)
            await self._write(self._view.begin, self.topic, found.topic_id, self._now_ms())
            positions = dict(found.log_starts)
        await self._write(self._view.apply, self.topic, [], positions)
        if not positions:
            return
        starts = {TopicPartition(self.topic, partition): position for partition, position in positions.items()}
        committed = IsolationLevel.READ_COMMITTED
        async with PartitionReader(self._client, starts, isolation_level=committed) as reader:
            await self._read(reader, positions, found)

    async def _read(self, reader: PartitionReader, positions: dict[int, int], found: Found) -> None:
        topic_id, ends = found.topic_id, found.log_ends
        self.last_error = None
        next_note = next_look = 0.0
        waiting: asyncio.Future[Any] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(reader))
                await asyncio.wait([waiting], timeout=LOOK_SECONDS)
                records = []
                if waiting.done():
                    records, waiting = waiting.result(), None
                moved = self._moved(reader, positions)
                if records or moved:
                    await self._write(self._view.apply, self.topic, records, moved)
                    positions |= moved
                    self.records_read += len(records)
                now = time.monotonic()
                is_current = all(positions[partition] >= end for partition, end in ends.items())
                if is_current and now >= next_note:
                    await self._write(self._view.note_current, self.topic, self._now_ms())
                    next_note = now + NOTE_CURRENT_SECONDS
                if now >= next_look:
                    next_look = now + PARTITIONS_LOOK_SECONDS
                    fresh = await self._find()
                    if fresh.topic_id != topic_id or set(fresh.log_ends) != set(positions):
                        return
                    ends = fresh.log_ends
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait([waiting])

    def _moved(self, reader: PartitionReader, positions: Mapping[int, int]) -> dict[int, int]:
        """Where partitions are read up to by now; markers and aborted records move them, too."""
        found = {partition: reader.position(TopicPartition(self.topic, partition)) for partition in positions}
        return {partition: position for partition, position in found.items() if position != positions[partition]}

    async def _find(self) -> Found:
        info = await self._client.retry(self._ask_topic)
        everything = [TopicPartition(self.topic, one.partition) for one in info.partitions]
        starts = await admin.list_offsets(self._client, dict.fromkeys(everything, admin.EARLIEST))
        committed = IsolationLevel.READ_COMMITTED
        latest = dict.fromkeys(everything, admin.LATEST)
        ends = await admin.list_offsets(self._client, latest, isolation_level=committed)
        return Found(
            uuid_text(info.topic_id),
            {where.partition: one.offset for where, one in starts.items()},
            {where.partition: one.offset for where, one in ends.items()},
            await self._delete_retention_ms(),
        )

    async def _ask_topic(self) -> TopicInfo:
        """As it is now, for what is remembered has the partitions of a while ago."""
        await self._client.metadata([self.topic])
        return await self._client.topic(self.topic)

    async def _delete_retention_ms(self) -> int | None:
        names = ["cleanup.policy", "delete.retention.ms"]
        found = await admin.describe_configs(self._client, admin.ResourceType.TOPIC, self.topic, names)
        values = {one.name: one.value or "" for one in found}
        if "compact" not in values.get("cleanup.policy", ""):
            return None
        return int(values.get("delete.retention.ms") or 0)

    async def _write(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, lambda: work(*arguments))
