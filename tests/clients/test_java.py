"""Kafka's own Java clients: Admin in one tour, the producer's guarantees, the consumer with assigned partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.api_table import SERVED
from tests.clients.peers import JavaPeer

pytestmark = [pytest.mark.clients, pytest.mark.oracle]
BASE = 1_750_000_000_000


def plain_records(count: int) -> list[dict[str, Any]]:
    return [{"key": None, "value": f"v{i}", "headers": [], "timestamp": BASE + 10 * i} for i in range(count)]


@pytest.fixture(scope="module")
def tour(peer: Callable[[str], Any]) -> dict[str, Any]:
    """What Admin answered on its way through everything that it can do here."""
    seen: dict[str, Any] = peer("java").ask({"do": "admin", "topic": "java-admin-tour"})
    return seen


def expect(tour: dict[str, Any], **expected: Any) -> None:
    assert {name: tour[name.replace("_", " ")] for name in expected} == expected


def test_admin_creates_describes_and_deletes_topics(tour: dict[str, Any]) -> None:
    expect(
        tour,
        validated_only=True,
        created_partitions=3,
        created_replication=1,
        created_retention="86400000",
        create_again="TopicExistsException",
        too_many_replicas="InvalidReplicationFactorException",
        bad_name="InvalidTopicException",
        listed=True,
        described=[f"{number} leader=1 replicas=[1] isr=[1] elr=[]" for number in range(3)],
        described_by_id="java-admin-tour",
        grown=5,
        shrink="InvalidPartitionsException",
        deleted=True,
        describe_deleted="UnknownTopicOrPartitionException",
        delete_deleted="UnknownTopicOrPartitionException",
    )


def test_admin_alters_configs_and_sees_every_default(tour: dict[str, Any]) -> None:
    expect(tour, bad_config="InvalidConfigurationException", config_resources=True)
    assert tour["max.message.bytes"] == "2000000 DYNAMIC_TOPIC_CONFIG"
    assert tour["cleanup.policy"] == "delete,compact DYNAMIC_TOPIC_CONFIG"
    assert tour["retention.ms"] == "604800000 DEFAULT_CONFIG"
    assert tour["cleanup.policy after"] == "delete"
    assert tour["broker keys"] > 200 and len(tour["broker documentation"]) > 20


def test_admin_lists_offsets_and_deletes_records(tour: dict[str, Any]) -> None:
    expect(
        tour,
        offsets={
            "at time": 3,
            "earliest": 0,
            "earliest local": 0,
            "latest": 10,
            "latest tiered": -1,
            "max timestamp": 4,
        },
        producers=1,
        deleted_records=4,
        earliest_after=4,
        delete_too_many="OffsetOutOfRangeException",
    )


def test_admin_describes_the_cluster(tour: dict[str, Any]) -> None:
    expect(tour, controller=1, nodes=[1], log_dir=True, replica_bytes=True, replica_log_dir=True, quorum="1 1 true")
    expect(tour, election="ElectionNotNeededException")
    assert tour["metadata.version"] == 30 and len(tour["cluster id"]) == 22


def test_what_is_not_served_yet_is_refused_by_name(tour: dict[str, Any]) -> None:
    for name, key in (("groups", 16), ("acls", 29), ("transactions", 66)):
        if key not in SERVED:
            assert tour[name] == "UnsupportedVersionException", name


def test_a_consumer_seeks_by_time(java: JavaPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    java.ask({"do": "produce", "topic": topic, "partition": 0, "records": plain_records(10)})
    where = {"do": "positions", "topic": topic, "partition": 0}
    assert java.ask({**where, "timestamp": BASE + 41}) == {
        "beginning": 0,
        "end": 10,
        "atTime": [5, BASE + 50],
        "first": 0,
        "last": 10,
        "partitions": 1,
        "listed": True,
    }
    assert java.ask({**where, "timestamp": BASE + 1000})["atTime"] is None
    (record,) = java.ask({"do": "consume", "topic": topic, "partition": 0, "offset": 9, "count": 1})
    assert (record["offset"], record["value"], record["timestampType"]) == (9, "v9", "CreateTime")


@pytest.mark.parametrize(
    "config",
    [
        {"acks": "0", "enable.idempotence": "false"},
        {"acks": "1", "enable.idempotence": "false", "max.in.flight.requests.per.connection": "20"},
        {"acks": "all", "batch.size": "256", "linger.ms": "0"},
    ],
    ids=["acks-0", "acks-1", "idempotent-small-batches"],
)
def test_every_acks_delivers_in_order(java: JavaPeer, new_topic: Callable[[], str], config: dict[str, str]) -> None:
    topic = new_topic()
    order = {"do": "produce", "topic": topic, "partition": 0, "config": config, "records": plain_records(1000)}
    offsets = java.ask(order)
    assert offsets == ([-1] * 1000 if config["acks"] == "0" else list(range(1000)))
    found = java.ask({"do": "consume", "topic": topic, "partition": 0, "offset": 0, "count": 1000})
    assert [record["value"] for record in found] == [f"v{i}" for i in range(1000)]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_both_isolation_levels_read_plain_records(java: JavaPeer, new_topic: Callable[[], str], isolation: str) -> None:
    topic = new_topic()
    java.ask({"do": "produce", "topic": topic, "partition": 0, "records": plain_records(5)})
    order = {"do": "consume", "topic": topic, "partition": 0, "offset": 0, "count": 5}
    assert len(java.ask({**order, "config": {"isolation.level": isolation}})) == 5
