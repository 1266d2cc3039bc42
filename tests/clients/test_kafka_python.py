"""kafka-python: admin, seeking and producers. Its consumer needs no group when partitions are assigned by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.needs import require_module

pytestmark = [
    pytest.mark.clients,
    # The client reads its schemas through an API that Python deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
BASE = 1_750_000_000_000
SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def kafka() -> Any:
    require_module("kafka.admin")
    require_module("kafka.errors")
    return require_module("kafka")


@pytest.fixture(scope="module")
def admin(kafka: Any, bootstrap: str) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def produce(kafka: Any, bootstrap: str, topic: str, count: int, **config: Any) -> list[int]:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **config)
    sent = [producer.send(topic, f"v{i}".encode(), partition=0, timestamp_ms=BASE + 10 * i) for i in range(count)]
    producer.flush(SECONDS_MAX)
    offsets = [future.get(timeout=SECONDS_MAX).offset for future in sent]
    producer.close()
    return offsets


def test_administration_of_topics(kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    where = kafka.TopicPartition(topic, 0)
    wanted = kafka.admin.NewTopic(topic, 2, 1, topic_configs={"retention.ms": "86400000"})
    admin.create_topics([wanted])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics([wanted])
    assert topic in admin.list_topics()
    admin.create_partitions({topic: kafka.admin.NewPartitions(4)})
    (description,) = admin.describe_topics([topic])
    assert len(description["partitions"]) == 4
    assert produce(kafka, bootstrap, topic, 10) == list(range(10))
    spec = kafka.admin.OffsetSpec
    listed = {
        name: admin.list_partition_offsets({where: what})[where].offset
        for name, what in {"first": spec.EARLIEST, "end": spec.LATEST, "newest": spec.MAX_TIMESTAMP}.items()
    }
    assert listed == {"first": 0, "end": 10, "newest": 9}
    assert admin.delete_records({where: 4})[where]["low_watermark"] == 4
    assert admin.list_partition_offsets({where: spec.EARLIEST})[where].offset == 4
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_administration_of_configs(kafka: Any, admin: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    admin.create_topics([kafka.admin.NewTopic(topic, 1, 1)])
    kind = kafka.admin.ConfigResourceType.TOPIC
    admin.alter_configs([kafka.admin.ConfigResource(kind, topic, configs={"retention.ms": "3600000"})])
    found = admin.describe_configs([kafka.admin.ConfigResource(kind, topic)])
    assert found["topic"][topic]["retention.ms"]["value"] == "3600000"


def test_the_cluster_describes_itself(kafka: Any, admin: Any) -> None:
    cluster = admin.describe_cluster()
    assert cluster["controller_id"] == 1 and len(cluster["brokers"]) == 1
    quorum = admin.describe_metadata_quorum()["topics"][0]["partitions"][0]
    assert quorum["leader_id"] == 1 and [voter["replica_id"] for voter in quorum["current_voters"]] == [1]
    assert admin.describe_features()["metadata.version"]["finalized"] == (30, 30)
    assert admin.describe_log_dirs()[0]["log_dirs"][0]["total_bytes"] > 0


def test_a_consumer_seeks_by_time_and_by_offset(kafka: Any, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    where = kafka.TopicPartition(topic, 0)
    produce(kafka, bootstrap, topic, 10)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=int(SECONDS_MAX * 1000))
    try:
        consumer.assign([where])
        assert consumer.beginning_offsets([where]) == {where: 0}
        assert consumer.end_offsets([where]) == {where: 10}
        found = consumer.offsets_for_times({where: BASE + 41})[where]
        assert (found.offset, found.timestamp) == (5, BASE + 50)
        assert consumer.offsets_for_times({where: BASE + 1000})[where] is None
        consumer.seek(where, found.offset)
        assert next(consumer).value == b"v5"
        consumer.seek_to_end(where)
        assert consumer.position(where) == 10
        consumer.seek(where, 9)
        assert next(consumer).value == b"v9"
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_delivers(kafka: Any, bootstrap: str, new_topic: Callable[[], str], acks: Any) -> None:
    topic = new_topic()
    produce(kafka, bootstrap, topic, 20, acks=acks, enable_idempotence=acks == "all")
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=int(SECONDS_MAX * 1000))
    try:
        where = kafka.TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        assert [next(consumer).value for _ in range(20)] == [f"v{i}".encode() for i in range(20)]
    finally:
        consumer.close()


def test_an_idempotent_producer_keeps_the_order_of_many_batches(
    kafka: Any, bootstrap: str, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    assert produce(kafka, bootstrap, topic, 2000, enable_idempotence=True, batch_size=512) == list(range(2000))
