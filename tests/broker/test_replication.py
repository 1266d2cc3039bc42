"""Brokers that replicate: what is acknowledged, what followers have, who is in sync, what a change of leader does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from moldau.kernel import ErrorCode
from tests.broker.replication_rig import Rig, until


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_followers_hold_the_leaders_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            for number in range(50):
                answer = await rig.produce(0, "t", b"%d" % number, b"x" * number)
                assert answer.error_code == 0
            await until(lambda: rig.are_equal("t"))
            assert rig.partition(1, "t").high_watermark == 100
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t") != b""

    run(main())


def test_acks_all_answers_once_every_in_sync_replica_holds_the_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"first")).error_code == 0
            rig.cut(2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"second"))
            await until(lambda: rig.partition(1, "t").log.end_offset == 2)
            assert not waiting.done() and rig.partition(0, "t").high_watermark == 1
            rig.change("t", 0, isr=(0, 1))
            assert (await waiting).base_offset == 1

    run(main())


def test_followers_that_take_too_long_are_a_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            rig.cut(1)
            answer = await rig.produce(0, "t", b"v", timeout_ms=50)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (await rig.produce(0, "t", b"v", acks=1)).error_code == 0

    run(main())


def test_too_few_in_sync_replicas_refuse_before_the_append_and_say_so_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2), min__insync__replicas="2")
            rig.cut(1, 2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"v"))
            await until(lambda: rig.partition(0, "t").log.end_offset == 1)
            rig.change("t", 0, isr=(0,))
            assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert (await rig.produce(0, "t", b"w")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert (await rig.produce(0, "t", b"x", acks=1)).error_code == 0
            assert rig.partition(0, "t").high_watermark == 0, "nothing is committed below min.insync.replicas"
            rig.heal()
            await until(lambda: rig.partition(0, "t").high_watermark == 2)

    run(main())


def test_a_follower_that_falls_behind_leaves_and_joins_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path, {"replica.lag.time.max.ms": "300"}) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"v")).error_code == 0
            await rig.kill(2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"w"))
            await until(lambda: rig.isr("t") == (0, 1), "the in-sync set shrinks")
            assert (await waiting).error_code == 0
            rig.start(2)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2}, "it grows again")
            await until(lambda: rig.are_equal("t"))
            assert rig.node(0).metrics.isr_shrinks == 1 == rig.node(0).metrics.isr_expands
            assert rig.bytes_of(2, "t") == rig.bytes_of(0, "t")

    run(main())


def test_a_former_leader_gives_up_what_the_new_one_never_had(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"kept")).error_code == 0
            await until(lambda: rig.are_equal("t"))
            rig.cut(1, 2)
            for number in range(3):
                await rig.produce(0, "t", b"lost %d" % number, acks=1)
            assert rig.partition(0, "t").log.end_offset == 4
            rig.change("t", 0, isr=(1, 2), leader=1)
            rig.heal()
            assert (await rig.produce(1, "t", b"new", acks=1)).base_offset == 1
            await until(lambda: rig.are_equal("t") and rig.partition(0, "t").log.end_offset == 2)
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t")
            await until(lambda: set(rig.isr("t")) == {0, 1, 2})

    run(main())


def test_a_leader_that_was_killed_follows_when_it_returns(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"a")).error_code == 0
            await rig.kill(0)
            rig.fence(0)
            leader = rig.image.topics["t"].partitions[0].leader
            assert (await rig.produce(leader, "t", b"b")).error_code == 0
            rig.start(0)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2} and rig.are_equal("t"))
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t")

    run(main())
