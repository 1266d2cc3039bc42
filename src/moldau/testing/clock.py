"""A clock that stands still until a test moves it."""

from __future__ import annotations

import heapq
from collections.abc import Callable

WALL_START_MS = 1_700_000_000_000


class VirtualTimer:
    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def _run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class VirtualClock:
    """`advance` runs the timers that fall due, in the order of their times; `jump_wall` moves the wall clock alone."""

    __slots__ = ("_count", "_monotonic_ms", "_timers", "_wall_offset_ms")

    def __init__(self, wall_start_ms: int = WALL_START_MS) -> None:
        self._monotonic_ms = 0
        self._wall_offset_ms = wall_start_ms
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._count = 0

    def now_ms(self) -> int:
        return self._monotonic_ms + self._wall_offset_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self._monotonic_ms + max(delay_ms, 0), self._count, timer))
        return timer

    def advance(self, delay_ms: int) -> None:
        end_ms = self._monotonic_ms + delay_ms
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._monotonic_ms = max(self._monotonic_ms, due_ms)
            timer._run()
        self._monotonic_ms = end_ms

    def jump_wall(self, delta_ms: int) -> None:
        """As an operator or a time server would: timers take no notice."""
        self._wall_offset_ms += delta_ms
