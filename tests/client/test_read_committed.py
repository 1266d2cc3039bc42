"""Readers under read_committed: aborted records and markers are never handed out, and nobody stops at them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from moldau.client import (
    ClusterClient,
    ConsumedRecord,
    Consumer,
    IsolationLevel,
    PartitionReader,
    Producer,
    admin,
)
from moldau.kernel import TopicPartition
from tests.client.conftest import Server
from tests.client.transactional_kit import bounded, make_topic, transactional, wait_markers

READ_COMMITTED, READ_UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


async def write_interleaved(bootstrap: str, topic: str, dice: random.Random) -> tuple[list[bytes], list[bytes]]:
    """Transactions of three producers and plain records, mixed record by record: all values, and the committed ones."""
    everything: list[bytes] = []
    committed: list[bytes] = []
    producers = [transactional(bootstrap, f"{topic}-{number}", linger_ms=0) for number in range(3)]
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    open_records: dict[Producer, list[bytes]] = {}
    try:
        for producer in producers:
            await producer.init_transactions()
        for number in range(120):
            value = b"%d" % number
            everything.append(value)
            if dice.random() < 0.2:
                await (await plain.send(topic, value))
                committed.append(value)
                continue
            producer = dice.choice(producers)
            if producer not in open_records:
                producer.begin_transaction()
                open_records[producer] = []
            await (await producer.send(topic, value))
            open_records[producer].append(value)
            if dice.random() < 0.25:
                if dice.random() < 0.5:
                    await producer.commit_transaction()
                    committed += open_records[producer]
                else:
                    await producer.abort_transaction()
                del open_records[producer]
        for producer in open_records:
            await producer.abort_transaction()
    finally:
        for producer in (*producers, plain):
            await producer.close()
    await wait_markers(bootstrap, topic)
    return everything, [value for value in everything if value in set(committed)]


async def read(
    client: ClusterClient, where: TopicPartition, start: int, level: IsolationLevel, **limits: int
) -> tuple[list[ConsumedRecord], int, int]:
    """Records, where the reader stands at the end, and where the log ends for it."""
    end = (await admin.list_offsets(client, {where: admin.LATEST}, isolation_level=level))[where].offset
    records: list[ConsumedRecord] = []
    async with PartitionReader(client, {where: start}, stop={where: end}, isolation_level=level, **limits) as reader:
        async for some in reader:
            records += some
        return records, reader.position(where), end


@bounded
async def test_interleaved_transactions_are_told_apart_from_every_start_and_in_every_portion(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    where = TopicPartition(topic, 0)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    await make_topic(transactions_server.bootstrap, topic)
    everything, committed = await write_interleaved(transactions_server.bootstrap, topic, random.Random(seed))
    assert 0 < len(committed) < len(everything)
    async with ClusterClient(transactions_server.bootstrap) as client:
        raw, position, end = await read(client, where, 0, READ_UNCOMMITTED)
        assert [record.value for record in raw] == everything  # markers are no records
        assert position == end > len(everything)
        offsets = {record.value: record.offset for record in raw}
        # A portion of one batch makes every answer begin inside transactions that began long before.
        for limits in ({}, {"partition_max_bytes": 1, "max_bytes": 1}):
            records, position, end = await read(client, where, 0, READ_COMMITTED, **limits)
            assert [record.value for record in records] == committed
            assert position == end
        for start in range(0, end, 7):
            records, position, _ = await read(client, where, start, READ_COMMITTED)
            assert [record.value for record in records] == [one for one in committed if offsets[one] >= start]
            assert position == end


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@bounded
async def test_a_consumer_hands_out_committed_records_only_and_commits_positions_behind_markers(
    transactions_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    topic = new_topic()
    where = TopicPartition(topic, 0)
    bootstrap = transactions_server.bootstrap
    await make_topic(bootstrap, topic)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    _, committed = await write_interleaved(bootstrap, topic, random.Random(seed))
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
    }
    async with ClusterClient(bootstrap) as client:
        end = (await admin.list_offsets(client, {where: admin.LATEST}))[where].offset
    async with Consumer(settings) as consumer:
        consumer.subscribe(topic)
        values: list[bytes | None] = []
        while where not in consumer.assignment or await consumer.position(where) < end:
            values += [record.value for record in await consumer.poll(0.2)]
        assert values == committed
        await consumer.commit()
        offset = (await consumer.committed([where]))[where]
        assert offset is not None and offset.offset == end


@bounded
async def test_a_reader_waits_before_an_open_transaction_and_goes_on_when_it_ends(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    where = TopicPartition(topic, 0)
    bootstrap = transactions_server.bootstrap
    await make_topic(bootstrap, topic)
    async with (
        ClusterClient(bootstrap) as client,
        transactional(bootstrap, topic) as producer,
        Producer(bootstrap) as plain,
        PartitionReader(client, {where: "earliest"}, isolation_level=READ_COMMITTED, max_wait_ms=50) as reader,
    ):
        await producer.init_transactions()
        await (await plain.send(topic, b"before"))
        producer.begin_transaction()
        await (await producer.send(topic, b"inside"))
        await (await plain.send(topic, b"behind"))
        assert [record.value for record in await anext(reader)] == [b"before"]
        waiting = asyncio.ensure_future(anext(reader))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done and reader.position(where) == 1
        await producer.abort_transaction()
        assert [record.value for record in await waiting] == [b"behind"]
