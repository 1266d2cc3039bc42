"""An event loop with dice and a virtual clock: the same seed runs a program the same way, another seed differently.

Of the callbacks that are ready, a random one runs next; when none is, time jumps to the next timer. There are no
threads and no sockets: `run_in_executor` runs its function on the loop, at a moment of the dice's choosing. The loop
keeps a hash of what it ran and when, so that two runs can be compared. A program that waits for something that cannot
come is a `Deadlock`, one that never comes to rest a `StepBudgetExceeded`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any, TypeVar

from moldau.kernel import Dice, Timer

STEPS_MAX = 1_000_000
WALL_START_MS = 1_700_000_000_000

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set, and the program has not ended."""


class StepBudgetExceeded(RuntimeError):
    """More callbacks ran than the test allows."""


class SeededLoop(asyncio.BaseEventLoop):
    """`run(main(), dice)` is the usual way in."""

    def __init__(self, dice: Dice, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self._dice = dice
        self._now_us = 0
        self._trace = blake2b(digest_size=16)
        self.steps = 0
        self.steps_max = steps_max

    @property
    def trace_hash(self) -> str:
        """What ran, in which order and at what time."""
        return self._trace.hexdigest()

    def time(self) -> float:
        return self._now_us / 1_000_000

    def _run_once(self) -> None:
        # Replaces asyncio's own turn, which would run everything that is ready in the order of its coming.
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise Deadlock(f"nothing is left to run after {self.steps} steps")
            self._now_us = max(self._now_us, round(timers[0]._when * 1_000_000))
        while timers and round(timers[0]._when * 1_000_000) <= self._now_us:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        if not ready:
            return
        place = self._dice.below(len(ready)) if len(ready) > 1 else 0
        ready.rotate(-place)
        handle = ready.popleft()
        ready.rotate(place)
        if handle._cancelled:
            return
        self.steps += 1
        if self.steps > self.steps_max:
            raise StepBudgetExceeded(f"{self.steps_max} steps were not enough")
        self._trace.update(f"{self._now_us} {_name_of(handle)}\n".encode())
        handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """No thread: the function runs as a callback of its own, between others."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        run.__qualname__ = f"executor {getattr(func, '__qualname__', type(func).__qualname__)}"
        self.call_soon(run)
        return future

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _make_self_pipe(self) -> None:
        pass


def _name_of(handle: Any) -> str:
    """A name without addresses, so that traces compare between processes."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"task {getattr(task.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


class LoopClock:
    """The loop's time as the Clock port; the wall clock runs beside it and may be moved."""

    __slots__ = ("_loop", "wall_offset_ms")

    def __init__(self, loop: SeededLoop, wall_start_ms: int = WALL_START_MS) -> None:
        self._loop = loop
        self.wall_offset_ms = wall_start_ms

    def now_ms(self) -> int:
        return self.monotonic_ms() + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return self._loop._now_us // 1000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)


def run(main: Coroutine[Any, Any, T], dice: Dice, *, steps_max: int = STEPS_MAX) -> tuple[T, str]:
    """Run a program to its end on a loop of its own; its result and the trace's hash."""
    loop = SeededLoop(dice, steps_max=steps_max)
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
            task.cancel()
        loop.run_until_complete(_rest())
        return result, loop.trace_hash
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _rest() -> None:
    """Let cancelled tasks end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    while any(not task.done() for task in others):
        await asyncio.sleep(0)
