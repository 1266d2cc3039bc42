"""aiokafka: admin, seeking and producers. Its consumer needs no group when partitions are assigned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.needs import require_module

pytestmark = pytest.mark.clients
BASE = 1_750_000_000_000


@pytest.fixture(scope="module")
def kafka() -> Any:
    require_module("aiokafka.admin")
    return require_module("aiokafka")


async def produce(kafka: Any, bootstrap: str, topic: str, count: int, **config: Any) -> list[int]:
    async with kafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
        sent = [
            await producer.send(topic, f"v{i}".encode(), partition=0, timestamp_ms=BASE + 10 * i) for i in range(count)
        ]
        return [metadata.offset for metadata in await asyncio.gather(*sent) if metadata is not None]


def test_administration(kafka: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic, admin = new_topic(), kafka.admin

    async def work() -> None:
        client = admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            wanted = admin.NewTopic(topic, 2, 1, topic_configs={"retention.ms": "86400000"})
            assert (await client.create_topics([wanted])).topic_errors[0][:2] == (topic, 0)
            with pytest.raises(kafka.errors.TopicAlreadyExistsError):
                raise kafka.errors.for_code((await client.create_topics([wanted])).topic_errors[0][1])
            assert topic in await client.list_topics()
            (description,) = await client.describe_topics([topic])
            assert [p["leader"] for p in description["partitions"]] == [1, 1]
            await client.create_partitions({topic: admin.NewPartitions(4)})
            (description,) = await client.describe_topics([topic])
            assert len(description["partitions"]) == 4
            resource = admin.config_resource.ConfigResource(
                admin.config_resource.ConfigResourceType.TOPIC, topic, configs={"retention.ms": "3600000"}
            )
            await client.alter_configs([resource])
            asked = admin.config_resource.ConfigResource(
                admin.config_resource.ConfigResourceType.TOPIC, topic, configs={"retention.ms": None}
            )
            (answer,) = await client.describe_configs([asked])
            (found,) = answer.resources
            assert found[4][0][:2] == ("retention.ms", "3600000")
            await produce(kafka, bootstrap, topic, 10)
            trimmed = await client.delete_records({kafka.TopicPartition(topic, 0): admin.RecordsToDelete(4)})
            assert trimmed == {kafka.TopicPartition(topic, 0): 4}
            cluster = await client.describe_cluster()
            assert cluster["controller_id"] == 1 and len(cluster["brokers"]) == 1
            await client.delete_topics([topic])
            assert topic not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(work())


def test_a_consumer_seeks_by_time_and_by_offset(kafka: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    where = kafka.TopicPartition(topic, 0)

    async def work() -> None:
        assert await produce(kafka, bootstrap, topic, 10) == list(range(10))
        async with kafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([where])
            assert await consumer.beginning_offsets([where]) == {where: 0}
            assert await consumer.end_offsets([where]) == {where: 10}
            found = (await consumer.offsets_for_times({where: BASE + 41}))[where]
            assert (found.offset, found.timestamp) == (5, BASE + 50)
            assert (await consumer.offsets_for_times({where: BASE + 1000}))[where] is None
            consumer.seek(where, found.offset)
            assert (await consumer.getone()).value == b"v5"
            await consumer.seek_to_end(where)
            assert await consumer.position(where) == 10
            consumer.seek(where, 9)
            assert (await consumer.getone()).value == b"v9"

    asyncio.run(work())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_delivers(kafka: Any, bootstrap: str, new_topic: Callable[[], str], acks: Any) -> None:
    topic = new_topic()
    where = kafka.TopicPartition(topic, 0)

    async def work() -> None:
        await produce(kafka, bootstrap, topic, 20, acks=acks)
        async with kafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([where])
            consumer.seek(where, 0)
            async with asyncio.timeout(20):
                assert [(await consumer.getone()).value for _ in range(20)] == [f"v{i}".encode() for i in range(20)]

    asyncio.run(work())


def test_an_idempotent_producer_keeps_the_order_of_many_batches(
    kafka: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    offsets = asyncio.run(produce(kafka, bootstrap, topic, 2000, enable_idempotence=True, max_batch_size=512))
    assert offsets == list(range(2000))
