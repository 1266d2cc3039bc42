"""An event loop with dice and a virtual clock: the same seed runs a program the same way, another seed differently.

Of the callbacks that are ready, a random one runs next; when none is, time jumps to the next timer. There are no
threads: `run_in_executor` runs its function on the loop, at a moment of the dice's choosing. Descriptors are those of
simulated sockets. The loop keeps a hash of what it ran and when, so that two runs can be compared. A program that waits
for something that cannot come is a `Deadlock`, one that never comes to rest a `StepBudgetExceeded`.

Several processes may live on one loop: what is begun inside `Process.run` belongs to that process, and so does all that
follows from it, because asyncio hands contexts on. When the process dies nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from moldau.kernel import Dice, Timer

STEPS_MAX = 1_000_000
WALL_START_MS = 1_700_000_000_000

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set, and the program has not ended."""


class StepBudgetExceeded(RuntimeError):
    """More callbacks ran than the test allows."""


class Process:
    """What dies together, and is paused together. `on_death` callbacks are the outside world's."""

    def __init__(self, name: str, host: str = "") -> None:
        self.name = name
        # The machine that it runs on, as the network knows it.
        self.host = host
        self.is_dead = False
        self.is_paused = False
        # What would have run during the pause.
        self.held: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[], None]] = []

    def run(self, main: Callable[[], T]) -> T:
        """Run as this process; all that it starts is the process's own."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context.run(main)

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            for callback in self.on_death:
                callback()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Whose code is running."""
    return _PROCESS.get()


class Dial(Protocol):
    """How the loop's programs connect to others: as `create_connection` does."""

    async def __call__(self, make_protocol: Callable[[], Any], port: int) -> tuple[Any, Any]: ...


class Watched(Protocol):
    """A simulated socket: it calls back while there is something to read, or room to write."""

    def watch_reads(self, callback: Callable[[], None] | None) -> None: ...

    def watch_writes(self, callback: Callable[[], None] | None) -> None: ...


class SeededLoop(asyncio.BaseEventLoop):
    """`run(main(), dice)` is the usual way in."""

    def __init__(self, dice: Dice, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self._dice = dice
        self._now_us = 0
        self._trace = blake2b(digest_size=16)
        self.steps = 0
        self.steps_max = steps_max
        # Called after each step of a process: a place for invariants.
        self.after_step: Callable[[Process], None] | None = None
        # Where connections lead that programs open by themselves.
        self.dial: Dial | None = None
        # How long what is given to threads may take, a slow disk's sync for instance.
        self.thread_ms_max = 0
        # In the order of their making.
        self._tasks: list[asyncio.Task[Any]] = []
        self._processes: list[Process] = []
        self._watched: dict[int, Watched] = {}

    @staticmethod
    def running() -> SeededLoop:
        """The loop that runs the caller."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        return loop

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
        process = handle._context.get(_PROCESS)
        if process is not None:
            if process.is_dead:
                return
            if process.is_paused:
                process.held.append(handle)
                return
        self.steps += 1
        if self.steps > self.steps_max:
            raise StepBudgetExceeded(f"{self.steps_max} steps were not enough")
        self._trace.update(f"{self._now_us} {_name_of(handle)}\n".encode())
        handle._run()
        if process is not None and self.after_step is not None:
            self.after_step(process)

    def pause(self, process: Process) -> None:
        """Nothing of it runs until `go_on`: as after SIGSTOP."""
        process.is_paused = True

    def go_on(self, process: Process) -> None:
        process.is_paused = False
        held, process.held = process.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert self.dial is not None, "there is no network"
        return await self.dial(protocol_factory, port)

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
        if self.thread_ms_max:
            self.call_later(self._dice.below(self.thread_ms_max) / 1000, run)
        else:
            self.call_soon(run)
        return future

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks.append(task)
        process = _PROCESS.get()
        if process is not None:
            process.tasks.append(task)
            if process not in self._processes:
                self._processes.append(process)
        return task

    def bury(self) -> None:
        """Let go of what the dead had begun and can never end."""
        for process in self._processes:
            for task in process.tasks:
                if process.is_dead and not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine: Any = task.get_coro()
                    coroutine.close()

    def abandon(self) -> None:
        """Nobody is interested in what is still under way; what it leaves to be tidied up needs a loop, though."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                with suppress(RuntimeError):  # it waits while it tidies up
                    coroutine.close()

    # -- simulated sockets ---------------------------------------------------------------------------------------------

    def attach(self, watched: Watched) -> int:
        """A descriptor for a simulated socket."""
        descriptor = len(self._watched)
        self._watched[descriptor] = watched
        return descriptor

    def add_reader(self, fd: Any, callback: Callable[[], None]) -> None:  # type: ignore[override]
        self._watched[fd].watch_reads(callback)

    def remove_reader(self, fd: Any) -> bool:
        self._watched[fd].watch_reads(None)
        return True

    def add_writer(self, fd: Any, callback: Callable[[], None]) -> None:  # type: ignore[override]
        self._watched[fd].watch_writes(callback)

    def remove_writer(self, fd: Any) -> bool:
        self._watched[fd].watch_writes(None)
        return True

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
    # What the dead had begun is let go of when the collector comes, and that is nobody's seed.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        dead = {task for process in loop._processes if process.is_dead for task in process.tasks}
        living = [task for task in loop._tasks if task not in dead and not task.done()]
        for task in living:
            task.cancel()
        loop.run_until_complete(_rest(living))
        return result, loop.trace_hash
    except BaseException:
        loop.abandon()
        raise
    finally:
        loop.bury()
        asyncio.set_event_loop(None)
        loop.close()
        if was_collecting:
            gc.enable()


async def _rest(tasks: list[asyncio.Task[Any]]) -> None:
    """Let cancelled tasks end."""
    while any(not task.done() for task in tasks):
        await asyncio.sleep(0)
