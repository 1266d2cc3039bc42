"""Columns into topics: placed like Java's records, in order, over broker restarts of their leader."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from moldau.client import ClusterClient, Producer, admin, partition_of_key, read_partition
from moldau.client.column_writer import ColumnWriter
from moldau.kernel import KafkaError
from moldau.testing import BrokerProcess
from tests.client.conftest import Server

PARTITIONS = 5


def test_keys_given_partitions_and_rows_without_either_go_where_they_belong(
    server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    count = 3000
    keys = [None if n % 3 == 0 else f"key-{n}" for n in range(count)]
    given = [n % PARTITIONS if n % 7 == 0 else None for n in range(count)]
    values = [f"value-{n}" for n in range(count)]

    async def test() -> None:
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=PARTITIONS)
            async with Producer(client, {"batch.size": 500, "linger.ms": 0, "compression.type": "gzip"}) as producer:
                writer = ColumnWriter(producer)
                for start in range(0, count, 1000):
                    part = slice(start, start + 1000)
                    await writer.write(
                        topic,
                        pa.array(keys[part], pa.string()),
                        pa.array(values[part]),
                        partition=pa.array(given[part], pa.int32()),
                    )
                await writer.finish()
                with pytest.raises(KafkaError, match="no partition 9"):
                    await writer.write(topic, None, pa.array(["x"]), partition=pa.array([9], pa.int32()))
                with pytest.raises(KafkaError, match=r"max\.request\.size"):
                    await writer.write(topic, None, pa.array([os.urandom(2 << 20)]))
            found = {}
            for partition in range(PARTITIONS):
                numbers = []
                async for record in read_partition(client, topic, partition):
                    number = int((record.value or b"").removeprefix(b"value-"))
                    found[number] = partition
                    numbers.append(number)
                assert numbers == sorted(numbers), "a partition's rows keep their order"
            assert sorted(found) == list(range(count))
            for number, partition in found.items():
                key, wanted = keys[number], given[number]
                if wanted is not None:
                    assert partition == wanted
                elif key is not None:
                    assert partition == partition_of_key(key.encode(), PARTITIONS)
            loose = Counter(found[n] for n in range(count) if keys[n] is None and given[n] is None)
            assert len(loose) == PARTITIONS and max(loose.values()) < 2 * min(loose.values())

    asyncio.run(test())


def test_a_broker_that_is_killed_gets_every_batch_once_and_in_order(tmp_path: Path) -> None:
    broker = BrokerProcess(data=str(tmp_path))
    broker.start()
    count = 4000

    async def test() -> None:
        async with ClusterClient(broker.bootstrap) as client:
            await admin.create_topics(client, "orders", partitions=1)
            async with Producer(client, {"batch.size": 300, "linger.ms": 0}) as producer:
                writer = ColumnWriter(producer)
                for start in range(0, count, 500):
                    await writer.write("orders", None, pa.array([str(n) for n in range(start, start + 500)]))
                    if start == 2000:
                        await asyncio.to_thread(broker.kill)
                        await asyncio.to_thread(broker.start)
                await writer.finish()
            values = [int(record.value or b"") async for record in read_partition(client, "orders", 0)]
            assert values == list(range(count))

    try:
        asyncio.run(test())
    finally:
        broker.kill()
