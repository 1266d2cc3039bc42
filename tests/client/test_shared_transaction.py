"""One transaction of many producers, and columns written through them, on both brokers and both generations."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from moldau.client import (
    ClusterClient,
    IsolationLevel,
    Joining,
    OffsetAndMetadata,
    PartitionReader,
    Producer,
    ProducerFenced,
    TransactionOwner,
    WrongTransactionState,
    admin,
    producer_settings,
)
from moldau.client.column_writer import ColumnWriter
from moldau.kernel import KafkaError, TopicPartition
from tests.client.conftest import Server

SECONDS_MAX = 60


def run(test: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(bounded())


async def write(client: ClusterClient, name: str, joining: Joining, where: TopicPartition, values: list[str]) -> None:
    """As a task does it: a producer of its own that joins, writes a partition and goes."""
    async with Producer(client, {"transactional.id": name, "batch.size": 200, "linger.ms": 0}) as producer:
        producer.join_transaction(*joining)
        writer = ColumnWriter(producer)
        partition = pa.array([where.partition] * len(values), pa.int32())
        await writer.write(where.topic, None, pa.array(values), partition=partition)
        await writer.finish()
        assert writer.record_counts == {where: len(values)}
        with pytest.raises(WrongTransactionState, match="ended by whoever began it"):
            await producer.commit_transaction()


async def committed(client: ClusterClient, topic: str, partitions: int) -> Counter[str]:
    everything = [TopicPartition(topic, number) for number in range(partitions)]
    ends = await admin.list_offsets(client, dict.fromkeys(everything, admin.LATEST))
    reader = PartitionReader(
        client,
        dict.fromkeys(everything, "earliest"),
        stop={where: end.offset for where, end in ends.items()},
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    async with reader:
        return Counter([(record.value or b"").decode() async for records in reader for record in records])


def test_producers_that_join_are_seen_together_with_the_offsets_and_their_owner_is_fenced(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()

    async def test() -> None:
        async with ClusterClient(transactions_server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=3)
            settings = producer_settings({"transactional.id": topic})
            owner = TransactionOwner(client, settings)
            first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
            expected: Counter[str] = Counter()
            for batch in range(3):
                joining = await owner.begin()
                values = {where: [f"{batch}-{where.partition}-{n}" for n in range(50)] for where in (first, second)}
                await asyncio.gather(*(write(client, topic, joining, where, values[where]) for where in values))
                assert await owner.last_sequences([first, second]) == {first: 49, second: 49}
                if batch == 1:
                    await owner.abort()
                    continue
                await owner.commit(topic, {first: OffsetAndMetadata(batch, f"batch {batch}")})
                expected.update(value for some in values.values() for value in some)
            assert await committed(client, topic, 3) == expected

            # A newer owner takes the id while the older one has a transaction open.
            joining = await owner.begin()
            await write(client, topic, joining, first, ["lost"])
            newer = TransactionOwner(client, settings)
            await newer.take()
            assert await newer.stored_offsets(topic) == {first: OffsetAndMetadata(2, "batch 2")}
            with pytest.raises(ProducerFenced):
                await owner.commit(topic, {first: OffsetAndMetadata(9)})
            assert await committed(client, topic, 3) == expected

    run(test)


def test_a_second_producer_in_a_partition_shows_in_its_sequences(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()

    async def test() -> None:
        async with ClusterClient(transactions_server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            owner = TransactionOwner(client, producer_settings({"transactional.id": topic}))
            joining = await owner.begin()
            where = TopicPartition(topic, 0)
            # Batches alike: brokers take the second producer's for retries of the first one's, and drop them.
            await write(client, topic, joining, where, ["first"] * 3)
            await write(client, topic, joining, where, ["other"] * 3)
            assert await owner.last_sequences([where]) == {where: 2}
            # Unlike ones are refused.
            with pytest.raises(KafkaError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
                await write(client, topic, joining, where, ["a longer value"] * 7)
            await owner.abort()
            assert not await committed(client, topic, 1)

    run(test)
