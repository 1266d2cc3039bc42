"""The cleaner in a running broker: compacted topics shrink while they are read, and a restart knows how far it was."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from moldau.client import ClusterClient, Consumer, Producer, admin, group_admin, read_partition
from moldau.kernel import KafkaError, TopicPartition
from moldau.storage.checkpoints import parse_offsets
from moldau.testing import BrokerProcess

KEYS = 50
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


async def make(bootstrap: str, topic: str, **configs: str) -> None:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, topic, partitions=1, configs=COMPACTED | given)


async def fill(bootstrap: str, rounds: int, topic: str = "t", timestamp_ms: int | None = None) -> None:
    async with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) as producer:
        for number in range(rounds):
            for key in range(KEYS):
                await producer.send(topic, f"{number}".encode(), key=f"k{key}".encode(), timestamp_ms=timestamp_ms)
            await producer.flush()


async def values(bootstrap: str, topic: str = "t") -> list[tuple[bytes | None, bytes | None]]:
    async with ClusterClient(bootstrap) as client:
        return [(record.key, record.value) async for record in read_partition(client, topic, 0)]


async def until_clean(bootstrap: str, last: bytes) -> None:
    """Until little but the active segment is more than the last value of each key; readers go on all the while."""
    async with asyncio.timeout(40):
        while True:
            found = await values(bootstrap)
            assert dict(found) == {f"k{key}".encode(): last for key in range(KEYS)}, "at every moment"
            if len(found) < 60 * KEYS:
                return
            await asyncio.sleep(0.05)


def test_a_compacted_topic_shrinks_while_it_is_read_and_a_sigkill_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess({"log.cleaner.backoff.ms": "100"}, data=str(tmp_path)) as broker:
        asyncio.run(make(broker.bootstrap, "t"))
        asyncio.run(fill(broker.bootstrap, 200))
        asyncio.run(until_clean(broker.bootstrap, b"199"))
        # Written once the cleaned segments are in their place, where readers find them at once.
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        until(checkpoint.exists)
        (cleaned_to,) = parse_offsets(checkpoint.read_bytes()).values()
        assert cleaned_to > 100 * KEYS
        broker.kill()
        broker.start()
        assert dict(asyncio.run(values(broker.bootstrap))) == {f"k{key}".encode(): b"199" for key in range(KEYS)}
        asyncio.run(fill(broker.bootstrap, 201))
        asyncio.run(until_clean(broker.bootstrap, b"200"))
        # The cleaner may be at work again, with files of its own.
        until(lambda: not any(name.endswith((".cleaned", ".swap")) for name in os.listdir(tmp_path / "t-0")))
        assert "log_cleaned partition=t-0" in broker.log


def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(40):
            while not condition():
                await asyncio.sleep(0.05)

    asyncio.run(wait())


def until_logged(broker: BrokerProcess, text: str) -> None:
    until(lambda: text in broker.log)


def test_a_damaged_log_is_named_and_left_alone_and_the_others_are_cleaned(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "false"}
    with BrokerProcess(settings, data=str(tmp_path)) as broker:
        for topic in ("bad", "good"):
            asyncio.run(make(broker.bootstrap, topic))
            asyncio.run(fill(broker.bootstrap, 100, topic))
        broker.stop()
    damaged = tmp_path / "bad-0" / "00000000000000000000.log"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    with BrokerProcess(settings | {"log.cleaner.enable": "true"}, data=str(tmp_path)) as broker:
        until_logged(broker, "log_cleaned partition=good-0")
        until_logged(
            broker, "partition_uncleanable partition=bad-0 reason='the batch at offset 0 has a wrong checksum'"
        )
        assert damaged.read_bytes() == data
        assert broker.log.count("partition_uncleanable") == 1


def test_a_record_is_compacted_within_the_largest_lag_though_nobody_writes_and_little_is_dirty(tmp_path: Path) -> None:
    with BrokerProcess({"log.cleaner.backoff.ms": "100"}, data=str(tmp_path)) as broker:
        configs = {"min_cleanable_dirty_ratio": "1.0", "max_compaction_lag_ms": "1000", "segment_bytes": str(1 << 20)}
        asyncio.run(make(broker.bootstrap, "t", **configs, internal_segment_bytes=str(1 << 20)))
        asyncio.run(fill(broker.bootstrap, 3))
        until_logged(broker, "log_cleaned partition=t-0")
        assert len(asyncio.run(values(broker.bootstrap))) == KEYS


def test_offsets_of_groups_are_compacted_too(tmp_path: Path) -> None:
    settings = {
        "log.cleaner.backoff.ms": "100",
        "offsets.topic.num.partitions": "1",
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    where = TopicPartition("t", 0)
    with BrokerProcess(settings, data=str(tmp_path)) as broker:

        async def commit(count: int) -> None:
            async with Consumer(broker.bootstrap, {"group.id": "g"}) as consumer:
                consumer.assign([where])
                for offset in range(count):
                    await consumer.commit({where: offset})

        async def committed() -> int:
            async with ClusterClient(broker.bootstrap) as client:
                found = (await group_admin.group_offsets(client, ["g"]))["g"]
                assert not isinstance(found, KafkaError)
                return found[where].offset

        async def shrink_segments() -> None:
            async with ClusterClient(broker.bootstrap) as client:
                change = admin.Alteration("internal.segment.bytes", "16384")
                await admin.incremental_alter_configs(client, admin.ResourceType.TOPIC, "__consumer_offsets", [change])

        asyncio.run(make(broker.bootstrap, "t"))
        asyncio.run(commit(1))
        asyncio.run(shrink_segments())
        asyncio.run(commit(500))
        until_logged(broker, "log_cleaned partition=__consumer_offsets-0")
        broker.kill()
        broker.start()
        assert asyncio.run(committed()) == 499


def test_a_cleaning_takes_as_long_as_its_rate_says(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.cleaner.io.max.bytes.per.second": "20000"}
    with BrokerProcess(settings, data=str(tmp_path)) as broker:
        asyncio.run(make(broker.bootstrap, "t"))
        asyncio.run(fill(broker.bootstrap, 40))
        until_logged(broker, "log_cleaned partition=t-0")
        (line,) = [line for line in broker.log.splitlines() if "log_cleaned partition=t-0" in line][:1]
        fields = dict(field.split("=") for field in line.split() if "=" in field)
        # What was read to be written anew alone; finding the keys and writing come on top.
        assert int(fields["bytes"]) > 10_000, line
        assert int(fields["ms"]) >= int(fields["bytes"]) / 20
