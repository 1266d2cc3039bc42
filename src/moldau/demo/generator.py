"""Sends the traffic of a world as its time comes, and writes down what it put in.

Each anomaly goes to the truth topic when it begins, and so does how long the generator has been running, so that
`scoring` knows what could be found. Traffic is sent by whole minutes: a stop sends the rest of the minute at once, so
that nobody takes it for a drop.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections.abc import Callable
from typing import Any

from moldau.client import ClusterClient, Producer
from moldau.demo.topics import EVENTS, TRUTH, prepare
from moldau.demo.traffic import Sending, requests_of_minute, sendings_of_minute
from moldau.demo.world import Injected, World

TICK_SECONDS = 0.1
TELL_SECONDS = 5.0
_SETTINGS = {"linger.ms": 20, "compression.type": "lz4"}


class Generator:
    """One run."""

    def __init__(
        self, bootstrap: str, world: World, rate: float, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.world = world
        self.rate = rate
        self.sent = 0
        self.stopping = asyncio.Event()
        self._bootstrap = bootstrap
        self._now_ms = now_ms
        self._waiting: list[tuple[float, int, Sending]] = []
        self._queued = 0
        self.minute = world.scale.minute_of(world.start_ms)
        self._told: dict[str, Injected] = {}

    async def run(self, until_ms: int | None = None) -> None:
        """Until `stopping` is set, or that time."""
        async with ClusterClient(self._bootstrap) as client, Producer(client, _SETTINGS) as producer:
            await prepare(client, self.world.scale)
            next_telling = 0.0
            while not self.stopping.is_set():
                now = self._now_ms()
                if until_ms is not None and now >= until_ms:
                    break
                await self._send(producer, now)
                if time.monotonic() >= next_telling:
                    next_telling = time.monotonic() + TELL_SECONDS
                    await self._tell(producer, now)
                try:
                    await asyncio.wait_for(self.stopping.wait(), TICK_SECONDS)
                except TimeoutError:
                    continue
            end = self.minute * self.world.scale.minute_ms
            for _, _, sending in sorted(self._waiting):
                await self._give(producer, sending)
            await self._tell(producer, end, is_last=True)

    async def _send(self, producer: Producer, now: int) -> None:
        while self.minute * self.world.scale.minute_ms <= now:
            requests = requests_of_minute(self.world, self.rate, self.minute)
            for one in sendings_of_minute(self.world, requests):
                self._queued += 1
                heapq.heappush(self._waiting, (one.at_ms, self._queued, one))
            self.minute += 1
        while self._waiting and self._waiting[0][0] <= now:
            await self._give(producer, heapq.heappop(self._waiting)[2])

    async def _give(self, producer: Producer, sending: Sending) -> None:
        await producer.send(EVENTS, sending.value, key=sending.key)
        self.sent += 1

    async def _tell(self, producer: Producer, now: int, *, is_last: bool = False) -> None:
        """What was put in until now; one that a stop cuts short says so."""
        scale = self.world.scale
        run = {"start_ms": self.world.start_ms, "until_ms": now, "minute_ms": scale.minute_ms, "seed": self.world.seed}
        await producer.send(TRUTH, _json({"run": run}), key=f"run/{self.world.start_ms}".encode())
        for one in self.world.anomalies(now):
            key = f"{one.site}/{one.metric}/{one.start_ms}"
            is_cut = is_last and one.end_ms > now
            if key in self._told and not is_cut:
                continue
            self._told[key] = one
            told = {
                "site": one.site,
                "metric": one.metric,
                "kind": one.kind,
                "start_ms": one.start_ms,
                "end_ms": now if is_cut else one.end_ms,
                "factor": one.factor,
                "is_cut": is_cut,
            }
            await producer.send(TRUTH, _json({"anomaly": told}), key=key.encode())


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
