"""What a serving node looks after once a second: flushes, outlived segments, room on disks, checkpoints, its load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from moldau.kernel import Timer

if TYPE_CHECKING:
    from moldau.broker.node import Node

HOUSEKEEPING_MS = 1_000


class Housekeeping:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._timer: Timer | None = None
        self._checkpoint_at_ms = 0
        self._expired_at_ms = 0
        self._checkpointing: asyncio.Task[None] | None = None
        # The share of a core that this process used in the last round.
        self.busy_fraction = 0.0
        self._load_since = (_cpu_ms(), node.clock.monotonic_ms())

    def begin(self) -> None:
        self._checkpoint_at_ms = self._expired_at_ms = self._node.clock.monotonic_ms()
        self._look()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def wait_idle(self) -> None:
        if self._checkpointing is not None:
            await self._checkpointing

    def _look(self) -> None:
        node = self._node
        # First, so that one failure on the way is not the end of all housekeeping.
        self._timer = node.clock.call_later(HOUSEKEEPING_MS, self._look)
        self._measure_load()
        node.replicas.flush_due()
        node.replicas.delete_due_segments()
        node.replicas.disk_faults.look_at_space(node.clock.monotonic_ms())
        node.replicas.retry_unopened()
        node.replication.look_if_due()
        node.retention.look_if_due()
        node.cleaner.look_if_due()
        now_ms = node.clock.monotonic_ms()
        if now_ms >= self._checkpoint_at_ms + node.settings.integer("log.flush.offset.checkpoint.interval.ms"):
            self._checkpoint_at_ms = now_ms
            self._checkpointing = node.loop.create_task(self._checkpoint())
        if now_ms >= self._expired_at_ms + node.settings.integer("producer.id.expiration.check.interval.ms"):
            self._expired_at_ms = now_ms
            node.replicas.expire_producers()

    async def _checkpoint(self) -> None:
        try:
            await self._node.replicas.checkpoints.write()
        except OSError as error:
            self._node.say(f"checkpoint_failed reason={str(error)!r}")

    def _measure_load(self) -> None:
        cpu_ms, wall_ms = _cpu_ms(), self._node.clock.monotonic_ms()
        if wall_ms > self._load_since[1]:
            self.busy_fraction = min(1.0, (cpu_ms - self._load_since[0]) / (wall_ms - self._load_since[1]))
        self._load_since = (cpu_ms, wall_ms)


def _cpu_ms() -> int:
    return time.process_time_ns() // 1_000_000
