"""Retention: what a topic need not keep any longer is given up, in the background and in small pieces.

A round looks at partitions, writes the new starts into the checkpoint (so that a crash brings nothing back), and only
then lets the segments go. It runs every `log.retention.check.interval.ms`, and at once for a topic whose configuration
changed. What it may do in one turn of the loop is bounded, so that no request waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from moldau.broker.partition import Partition
from moldau.broker.replicas import Replicas
from moldau.broker.settings import Settings
from moldau.kernel import Clock, KafkaError

# Each may cost the reading of an index, or the renaming of four files.
SEGMENTS_PER_TURN = 8
PARTITIONS_PER_TURN = 100


class _Plan(NamedTuple):
    partition: Partition
    # Where the log starts after each piece, the last one being where it shall start.
    starts: list[int]
    segment_count: int
    size: int
    reason: str


class Retention:
    def __init__(self, replicas: Replicas, settings: Settings, clock: Clock, say: Callable[[str], None]) -> None:
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._say = say
        self._next_ms = clock.monotonic_ms() + settings.integer("log.initial.task.delay.ms")
        self._asked: set[str] = set()
        self._round: asyncio.Task[None] | None = None

    def look_soon_at(self, topics: Iterable[str]) -> None:
        """Their configuration changed."""
        self._asked.update(topics)
        self.look_if_due()

    def look_if_due(self) -> None:
        """One round at a time."""
        if self._round is not None and not self._round.done():
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._settings.integer("log.retention.check.interval.ms")
            self._asked.clear()
            partitions = list(self._replicas)
        elif self._asked:
            partitions = [partition for partition in self._replicas if partition.topic in self._asked]
            self._asked.clear()
        else:
            return
        self._round = self._replicas.loop.create_task(self._run(partitions))

    async def stop(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    async def _run(self, partitions: list[Partition]) -> None:
        plans = []
        for place, partition in enumerate(partitions, 1):
            try:
                plan = await self._plan(partition)
            except (OSError, KafkaError) as error:
                self._say(f"retention_failed partition={partition} reason={str(error)!r}")
                continue
            if plan is not None:
                plans.append(plan)
            if place % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not plans:
            return
        for plan in plans:
            plan.partition.start_wanted = max(plan.partition.start_wanted, plan.starts[-1])
        try:
            await self._replicas.checkpoints.write()
        except OSError as error:
            self._say(f"retention_failed reason={str(error)!r} hint='the checkpoint could not be written'")
            return
        for plan in plans:
            await self._carry_out(plan)

    async def _plan(self, partition: Partition) -> _Plan | None:
        if partition.log.failure is not None:
            return None
        starts: list[int] = []
        reasons: set[str] = set()
        size = count = 0
        for found in partition.log.outlived(partition.high_watermark, self._clock.now_ms()):
            if count % SEGMENTS_PER_TURN == 0:
                starts.append(found.end_offset)
                await asyncio.sleep(0)
            starts[-1] = found.end_offset
            reasons.add(found.reason)
            size += found.size
            count += 1
        return _Plan(partition, starts, count, size, "+".join(sorted(reasons))) if starts else None

    async def _carry_out(self, plan: _Plan) -> None:
        try:
            for start in plan.starts:
                plan.partition.give_up_before(start, self._clock.now_ms())
                await asyncio.sleep(0)
        except (OSError, KafkaError) as error:
            self._say(f"retention_failed partition={plan.partition} reason={str(error)!r}")
            return
        self._say(
            f"segments_outlived partition={plan.partition} segments={plan.segment_count} bytes={plan.size}"
            f" reason={plan.reason} start_offset={plan.partition.log.start_offset}"
        )
