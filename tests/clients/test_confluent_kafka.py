"""confluent-kafka, that is librdkafka: admin, seeking, producers of every acks, and what it says without groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.needs import require_module
from tests.clients.peers import create_topic

pytestmark = pytest.mark.clients
BASE = 1_750_000_000_000
SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def kafka() -> Any:
    require_module("confluent_kafka.admin")
    return require_module("confluent_kafka")


@pytest.fixture(scope="module")
def admin(kafka: Any, bootstrap: str) -> Any:
    return kafka.admin.AdminClient({"bootstrap.servers": bootstrap})


def produce(kafka: Any, bootstrap: str, topic: str, count: int, **config: Any) -> list[Any]:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    delivered: list[Any] = []
    for i in range(count):
        producer.produce(
            topic, f"v{i}", partition=0, timestamp=BASE + 10 * i, on_delivery=lambda e, m: delivered.append((e, m))
        )
    assert producer.flush(SECONDS_MAX) == 0
    return delivered


def offsets(admin: Any, kafka: Any, topic: str, spec: Any) -> int:
    where = kafka.TopicPartition(topic, 0)
    return int(admin.list_offsets({where: spec})[where].result(SECONDS_MAX).offset)


def test_topics_are_created_described_grown_and_deleted(kafka: Any, admin: Any, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    wanted = kafka.admin.NewTopic(topic, 2, 1, config={"retention.ms": "86400000"})
    admin.create_topics([wanted], validate_only=True)[topic].result(SECONDS_MAX)
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics
    admin.create_topics([wanted])[topic].result(SECONDS_MAX)
    assert len(admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions) == 2
    with pytest.raises(kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([wanted])[topic].result(SECONDS_MAX)
    description = admin.describe_topics(kafka.TopicCollection([topic]))[topic].result(SECONDS_MAX)
    assert description.name == topic and not description.is_internal
    assert [(p.id, p.leader.id, [r.id for r in p.isr]) for p in description.partitions] == [(0, 1, [1]), (1, 1, [1])]
    admin.create_partitions([kafka.admin.NewPartitions(topic, 4)])[topic].result(SECONDS_MAX)
    assert len(admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions) == 4
    with pytest.raises(kafka.KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([kafka.admin.NewPartitions(topic, 3)])[topic].result(SECONDS_MAX)
    admin.delete_topics([topic])[topic].result(SECONDS_MAX)
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # alter_configs is deprecated, and still used
def test_configs_are_altered_one_by_one_and_as_a_whole(
    kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    create_topic(bootstrap, topic)

    def resource(**values: str) -> Any:
        return kafka.admin.ConfigResource(kafka.admin.ResourceType.TOPIC, topic, set_config=values or None)

    def described(name: str) -> tuple[str, int]:
        entry = admin.describe_configs([resource()])[resource()].result(SECONDS_MAX)[name]
        return entry.value, entry.source

    entry = kafka.admin.ConfigEntry("retention.ms", "3600000", incremental_operation=kafka.admin.AlterConfigOpType.SET)
    change = kafka.admin.ConfigResource(kafka.admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(SECONDS_MAX)
    assert described("retention.ms") == ("3600000", kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    whole = kafka.admin.ConfigResource(
        kafka.admin.ResourceType.TOPIC, topic, set_config={"max.message.bytes": "2000000"}
    )
    admin.alter_configs([whole])[whole].result(SECONDS_MAX)
    assert described("max.message.bytes")[0] == "2000000"
    assert described("retention.ms") == ("604800000", kafka.admin.ConfigSource.DEFAULT_CONFIG.value)
    broker = kafka.admin.ConfigResource(kafka.admin.ResourceType.BROKER, "1")
    assert admin.describe_configs([broker])[broker].result(SECONDS_MAX)["node.id"].value == "1"


def test_offsets_are_listed_and_records_deleted(
    kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic, spec = new_topic(), kafka.admin.OffsetSpec
    assert [message.offset() for _, message in produce(kafka, bootstrap, topic, 10)] == list(range(10))
    assert offsets(admin, kafka, topic, spec.earliest()) == 0
    assert offsets(admin, kafka, topic, spec.latest()) == 10
    assert offsets(admin, kafka, topic, spec.max_timestamp()) == 9
    assert offsets(admin, kafka, topic, spec.for_timestamp(BASE + 25)) == 3
    where = kafka.TopicPartition(topic, 0, 4)
    assert admin.delete_records([where])[where].result(SECONDS_MAX).low_watermark == 4
    assert offsets(admin, kafka, topic, spec.earliest()) == 4
    where = kafka.TopicPartition(topic, 0, 99)
    with pytest.raises(kafka.KafkaException, match="OFFSET_OUT_OF_RANGE"):
        admin.delete_records([where])[where].result(SECONDS_MAX)


def test_the_cluster_describes_itself_and_elections_are_not_needed(
    kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    create_topic(bootstrap, topic)
    cluster = admin.describe_cluster().result(SECONDS_MAX)
    assert len(cluster.cluster_id) == 22 and cluster.controller.id == 1
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    where = kafka.TopicPartition(topic, 0)
    election = admin.elect_leaders(kafka.ElectionType.PREFERRED, [where]).result(SECONDS_MAX)
    assert election[where].name() == "ELECTION_NOT_NEEDED"


def test_a_consumer_seeks_by_time_and_by_offset(kafka: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    produce(kafka, bootstrap, topic, 10)
    # Without enable.auto.commit=false, close() would wait for a coordinator to commit to.
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = kafka.Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        assert consumer.get_watermark_offsets(kafka.TopicPartition(topic, 0), timeout=SECONDS_MAX) == (0, 10)
        (found,) = consumer.offsets_for_times([kafka.TopicPartition(topic, 0, BASE + 41)], timeout=SECONDS_MAX)
        assert found.offset == 5
        (late,) = consumer.offsets_for_times([kafka.TopicPartition(topic, 0, BASE + 1000)], timeout=SECONDS_MAX)
        assert late.offset == kafka.OFFSET_END
        consumer.assign([found])
        assert consumer.poll(SECONDS_MAX).value() == b"v5"
        consumer.seek(kafka.TopicPartition(topic, 0, 8))
        assert [consumer.poll(SECONDS_MAX).value() for _ in range(2)] == [b"v8", b"v9"]
        assert consumer.poll(SECONDS_MAX).error().name() == "_PARTITION_EOF"
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_delivers(kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str], acks: str) -> None:
    topic = new_topic()
    create_topic(bootstrap, topic)
    delivered = produce(kafka, bootstrap, topic, 50, acks=acks)
    assert all(error is None for error, _ in delivered)
    # Nobody answers acks=0: the end of the log tells that all have come, once they have.
    deadline = time.monotonic() + SECONDS_MAX
    while (end := offsets(admin, kafka, topic, kafka.admin.OffsetSpec.latest())) < 50:
        assert time.monotonic() < deadline
    assert end == 50


def test_a_record_too_large_for_the_topic_is_refused(
    kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    wanted = kafka.admin.NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})
    admin.create_topics([wanted])[topic].result(SECONDS_MAX)
    producer = kafka.Producer({"bootstrap.servers": bootstrap})
    errors: list[Any] = []
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS_MAX)
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]


def test_the_asyncio_producer_works_too(kafka: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    import asyncio

    aio = require_module("confluent_kafka.aio")
    topic = new_topic()

    async def work() -> int:
        producer = aio.AIOProducer({"bootstrap.servers": bootstrap})
        delivery = await producer.produce(topic, value=b"v")
        await producer.flush()
        offset = int((await delivery).offset())
        await producer.close()
        return offset

    assert asyncio.run(work()) == 0
