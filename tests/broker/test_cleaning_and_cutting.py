"""A log that is cut while it is cleaned: what another leader's word took out of it does not come back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.host import SystemDisk
from moldau.broker.partition import Partition
from moldau.kernel import KafkaError, TopicPartition
from moldau.storage.checkpoints import offsets_text, parse_offsets
from tests.broker.replication_rig import Rig, until
from tests.robustness.kit import Gate, HookedDisk

SETTINGS = {"log.cleaner.backoff.ms": "20", "log.cleaner.min.cleanable.ratio": "0.01"}
T_0 = TopicPartition("t", 0)


def checkpoint(rig: Rig, node_id: int, name: str) -> int | None:
    path = Path(rig.members[node_id].directory, name)
    return parse_offsets(path.read_bytes()).get(T_0) if path.exists() else None


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def cleaned_with_a_tail_that_was_never_committed(rig: Rig) -> Partition:
    """Of three batches two are committed; the third lies in the same segment, and that is not the active one."""
    rig.create("t", (0, 1), **{"cleanup.policy": "compact"})
    for value in (b"old", b"kept"):
        assert (await rig.produce(0, "t", value)).error_code == 0
    await until(lambda: rig.are_equal("t"))
    rig.cut(1)
    assert (await rig.produce(0, "t", b"lost", acks=1)).error_code == 0
    partition = rig.partition(0, "t")
    partition.log.roll(rig.node(0).clock.now_ms())
    await partition.when_flushed(3)
    return partition


async def let_another_lead(rig: Rig) -> None:
    rig.change("t", 0, isr=(1,), leader=1)
    rig.heal()
    for value in (b"new 2", b"new 3"):
        assert (await rig.produce(1, "t", value, acks=1)).error_code == 0


def test_a_segment_that_was_cleaned_before_the_log_was_cut_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = HookedDisk()
        monkeypatch.setattr("tests.broker.replication_rig.SystemDisk", disk)
        gate = disk.hook = Gate("sync", "broker-0/t-0/00000000000000000000.log.cleaned")
        async with Rig(tmp_path, SETTINGS) as rig:
            partition = await cleaned_with_a_tail_that_was_never_committed(rig)
            await until(gate.reached.is_set)
            cleaning = partition.is_cleaned
            assert cleaning is not None
            await let_another_lead(rig)
            await until(lambda: rig.are_equal("t"))
            partition.log.roll(rig.node(0).clock.now_ms())
            gate.opened.set()
            await cleaning.wait()
            assert b"lost" not in rig.bytes_of(0, "t") and b"new 3" in rig.bytes_of(0, "t")
            assert not any("uncleanable" in line for line in rig.lines)

    run(main())


def test_a_log_is_cut_once_the_cleaned_segment_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it cut before, a crash would find the cleaned segment whole, and with it what was cut."""

    async def main() -> None:
        disk = HookedDisk()
        monkeypatch.setattr("tests.broker.replication_rig.SystemDisk", disk)
        gate = disk.hook = Gate("rename", "broker-0/t-0/00000000000000000000.log.cleaned")
        async with Rig(tmp_path, SETTINGS) as rig:
            partition = await cleaned_with_a_tail_that_was_never_committed(rig)
            await until(gate.reached.is_set)
            await let_another_lead(rig)
            await until(lambda: checkpoint(rig, 0, "recovery-point-offset-checkpoint") == 2)
            await rig.node(0).replicas.checkpoints.write()  # that one is over, too
            assert partition.truncation_wanted == 2 and partition.log.end_offset == 3
            gate.opened.set()
            await until(lambda: rig.are_equal("t"))
            assert b"lost" not in rig.bytes_of(0, "t") and b"new 3" in rig.bytes_of(0, "t")

    run(main())


def test_what_is_written_anew_after_a_cut_is_not_clean(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1), **{"cleanup.policy": "compact"})
            for _ in range(4):
                await rig.produce(0, "t", b"v")
            rig.cut(1)
            node, partition = rig.node(1), rig.partition(1, "t")
            partition.cleaned_to = 3
            await node.replicas.checkpoints.write()
            await partition.truncate_to(2)
            assert partition.cleaned_to == 2
            assert checkpoint(rig, 1, "cleaner-offset-checkpoint") == 2
            await partition.restart_at(0)
            assert partition.cleaned_to is None

    run(main())


def test_a_start_that_was_wanted_beyond_the_cut_is_forgotten(tmp_path: Path) -> None:
    """With a start above its end a log would be emptied when it is opened again, whatever came since."""

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            for _ in range(4):
                await rig.produce(0, "t", b"v")
            rig.cut(1)
            node, partition = rig.node(1), rig.partition(1, "t")
            partition.start_wanted = 3
            await node.replicas.checkpoints.write()
            assert checkpoint(rig, 1, "log-start-offset-checkpoint") == 3
            await partition.truncate_to(2)
            assert checkpoint(rig, 1, "log-start-offset-checkpoint") is None
            assert partition.start_wanted == partition.log.start_offset == 0
            for give_up in (partition.delete_records_before, partial(partition.give_up_before, now_ms=0)):
                with pytest.raises(KafkaError, match="was cut meanwhile"):
                    give_up(1)

    run(main())


def test_a_log_whose_cleaning_fails_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = HookedDisk()
        monkeypatch.setattr("tests.broker.replication_rig.SystemDisk", disk)

        def full(operation: str, path: str) -> None:
            if operation == "write" and "/large-0/" in path and path.endswith(".cleaned"):
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        async with Rig(tmp_path, SETTINGS | {"log.cleaner.backoff.ms": "600000"}, racks=("",)) as rig:
            for topic in ("large", "small"):
                rig.create(topic, (0,), **{"cleanup.policy": "compact"})
                for _ in range(20 if topic == "large" else 2):
                    await rig.produce(0, topic, b"v")
            for topic in ("large", "small"):
                rig.partition(0, topic).log.roll(rig.node(0).clock.now_ms())
            cleaner, small = rig.node(0).cleaner, rig.partition(0, "small")
            cleaner.look_if_due()
            await until(lambda: any("cleaning_failed partition=large-0" in line for line in rig.lines))

            def is_small_clean() -> bool:
                cleaner.look_if_due()
                return small.cleaned_to == 2

            await until(is_small_clean)

    run(main())


def test_a_checkpoint_does_not_call_clean_what_a_crash_took(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path, racks=("",)) as rig:
            rig.create("t", (0,), **{"cleanup.policy": "compact"})
            await rig.produce(0, "t", b"v")
            await rig.kill(0)
            SystemDisk().replace_file(f"{rig.members[0].directory}/cleaner-offset-checkpoint", offsets_text({T_0: 5}))
            rig.start(0)
            assert rig.partition(0, "t").cleaned_to == 1

    run(main())
