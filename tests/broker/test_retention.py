"""Retention in a running broker: at its interval, at once when the configuration changes, and for good."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from moldau.client import ClusterClient, Producer, admin
from moldau.client.admin import Alteration, ResourceType
from moldau.kernel import TopicPartition
from moldau.testing import Broker, BrokerProcess

LONG_AGO_MS = 1_000_000_000_000
RECORD_BYTES = 65_000
SMALL_SEGMENTS = {"segment.bytes": "1048576", "retention.ms": "-1"}
EAGER = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "0"}


async def fill(bootstrap: str, topic: str, records: int, configs: Mapping[str, str]) -> None:
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, topic, partitions=1, configs=configs)
    async with Producer({"bootstrap.servers": bootstrap}) as producer:
        for _ in range(records):
            await producer.send(topic, os.urandom(RECORD_BYTES), timestamp_ms=LONG_AGO_MS)


async def change(client: ClusterClient, topic: str, **configs: str) -> None:
    changes = [Alteration(name.replace("_", "."), value) for name, value in configs.items()]
    await admin.incremental_alter_configs(client, ResourceType.TOPIC, topic, changes)


async def start_of(client: ClusterClient, topic: str) -> int:
    where = TopicPartition(topic, 0)
    return (await admin.list_offsets(client, {where: admin.EARLIEST}))[where].offset


async def until_start_is(client: ClusterClient, topic: str, start: int) -> None:
    async with asyncio.timeout(20):
        while await start_of(client, topic) != start:
            await asyncio.sleep(0.02)


def test_a_changed_retention_takes_effect_at_once_and_a_sigkill_brings_nothing_back(tmp_path: Path) -> None:
    async def shrink(bootstrap: str) -> int:
        await fill(bootstrap, "t", 60, SMALL_SEGMENTS)
        async with ClusterClient(bootstrap) as client:
            assert await start_of(client, "t") == 0
            # The interval of this broker is five minutes: only the change itself can be the cause.
            await change(client, "t", retention_bytes=str(2 << 20))
            async with asyncio.timeout(20):
                while not (start := await start_of(client, "t")):
                    await asyncio.sleep(0.02)
            await change(client, "t", retention_ms="1000")
            await until_start_is(client, "t", 60)
        return start

    async def look(bootstrap: str) -> int:
        async with ClusterClient(bootstrap) as client:
            return await start_of(client, "t")

    with BrokerProcess(data=str(tmp_path)) as broker:
        first = asyncio.run(shrink(broker.bootstrap))
        # Segments of sixteen such records, and two of them are allowed.
        assert 16 <= first <= 60 - 32 + 16
        broker.kill()
        broker.start()
        assert asyncio.run(look(broker.bootstrap)) == 60


def test_what_is_too_old_goes_at_the_interval_and_its_files_after_their_delay() -> None:
    with Broker(EAGER) as broker:

        async def test() -> None:
            await fill(
                broker.bootstrap, "t", 40, SMALL_SEGMENTS | {"retention.ms": "1000", "file.delete.delay.ms": "0"}
            )
            await fill(broker.bootstrap, "kept", 1, {"retention.ms": "-1"})
            async with ClusterClient(broker.bootstrap) as client:
                await until_start_is(client, "t", 40)
                assert await start_of(client, "kept") == 0

            def files() -> list[str]:
                return [name for name in os.listdir(f"{broker.data}/t-0") if ".log" in name]

            async with asyncio.timeout(20):
                while len(files()) > 1:
                    await asyncio.sleep(0.02)
            assert files() == ["00000000000000000040.log"]

        asyncio.run(test())
