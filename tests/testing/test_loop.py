"""The seeded loop: virtual time, the same seed the same run, and an end to waiting for nothing."""

from __future__ import annotations

import asyncio

import pytest

from moldau.testing.clock import VirtualClock
from moldau.testing.dice import SeededDice
from moldau.testing.loop import Deadlock, LoopClock, Process, SeededLoop, StepBudgetExceeded, run


async def race(order: list[int]) -> list[int]:
    async def worker(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(worker(number) for number in range(4)))
    return order


def test_the_same_seed_runs_the_same_and_others_differ() -> None:
    runs = [run(race([]), SeededDice(seed)) for seed in (1, 1, 2, 3)]
    assert runs[0] == runs[1]
    assert len({trace for _, trace in runs}) == 3
    assert len({tuple(order) for order, _ in runs}) > 1
    assert all(sorted(order) == sorted(list(range(4)) * 3) for order, _ in runs)


def test_time_is_virtual_and_timers_fire_in_order() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        for delay in (3600, 5, 60):
            loop.call_later(delay, lambda: fired.append(loop.time()))
        cancelled = loop.call_later(1, lambda: fired.append(-1))
        cancelled.cancel()
        await asyncio.sleep(86_400)
        fired.append(loop.time())
        return fired

    assert run(main(), SeededDice(0))[0] == [5, 60, 3600, 86_400]


def test_waiting_for_what_cannot_come_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main(), SeededDice(0))


def test_running_for_ever_is_noticed() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StepBudgetExceeded):
        run(main(), SeededDice(0), steps_max=1000)


def test_timeouts_cancel_and_exceptions_come_through() -> None:
    async def main() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(11)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main(), SeededDice(0))


def test_the_executor_runs_on_the_loop_between_other_things() -> None:
    async def main() -> tuple[int, list[str]]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []

        def work(number: int) -> int:
            seen.append("work")
            return number * 2

        def fail() -> None:
            raise OSError("disk")

        result = await loop.run_in_executor(None, work, 21)
        with pytest.raises(OSError):
            await loop.run_in_executor(None, fail)
        return result, seen

    assert run(main(), SeededDice(0))[0] == (42, ["work"])


def test_tasks_left_over_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def background() -> None:
            try:
                await asyncio.sleep(10**6)
            finally:
                ended.append("background")

        asyncio.get_running_loop().create_task(background(), name="background")
        await asyncio.sleep(1)

    run(main(), SeededDice(0))
    assert ended == ["background"]


def test_what_a_failed_run_leaves_is_tidied_up_while_there_is_a_loop() -> None:
    """Else the collector does it some day, with complaints in the middle of another seed's story."""
    was_closed = []

    async def waits() -> None:
        loop = SeededLoop.running()
        try:
            await asyncio.sleep(3600)
        finally:
            was_closed.append(loop.is_closed())

    async def fails() -> None:
        left = asyncio.get_running_loop().create_task(waits())
        await asyncio.sleep(1)
        raise ValueError(left.get_name())

    with pytest.raises(ValueError):
        run(fails(), SeededDice(1))
    assert was_closed == [False]


def test_the_loops_clock_is_a_port() -> None:
    loop = SeededLoop(SeededDice(0))
    clock = LoopClock(loop, wall_start_ms=1000)
    fired: list[tuple[int, int]] = []

    async def main() -> None:
        clock.call_later(250, lambda: fired.append((clock.now_ms(), clock.monotonic_ms())))
        await asyncio.sleep(1)
        clock.wall_offset_ms -= 5000

    loop.run_until_complete(main())
    loop.close()
    assert fired == [(1250, 250)]
    assert (clock.now_ms(), clock.monotonic_ms()) == (-3000, 1000)


def test_the_virtual_clock_runs_due_timers_in_order_and_its_wall_may_jump() -> None:
    clock = VirtualClock(wall_start_ms=10_000)
    seen: list[tuple[str, int]] = []
    clock.call_later(50, lambda: seen.append(("b", clock.monotonic_ms())))
    clock.call_later(20, lambda: clock.call_later(10, lambda: seen.append(("a", clock.monotonic_ms()))) and None)
    cancelled = clock.call_later(30, lambda: seen.append(("never", 0)))
    cancelled.cancel()
    cancelled.cancel()
    clock.advance(29)
    assert seen == []
    clock.jump_wall(-7000)
    clock.advance(21)
    assert seen == [("a", 30), ("b", 50)]
    assert (clock.now_ms(), clock.monotonic_ms()) == (3050, 50)


def test_nothing_of_a_dead_process_runs_any_more() -> None:
    ran: list[str] = []

    async def work(name: str) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, ran.append, f"{name}: timer")
        child = loop.create_task(asyncio.sleep(3))
        child.add_done_callback(lambda _: ran.append(f"{name}: child"))
        await child
        ran.append(f"{name}: end")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        dying, living = Process("dying"), Process("living")
        deaths: list[str] = []
        dying.on_death.append(lambda: deaths.append("dying"))
        for process in (dying, living):
            process.run(lambda process=process: loop.create_task(work(process.name)))  # type: ignore[misc]
        await asyncio.sleep(1)
        dying.die()
        dying.die()
        await asyncio.sleep(5)
        assert deaths == ["dying"]

    run(main(), SeededDice(0))
    assert sorted(ran) == ["living: child", "living: end", "living: timer"]
