"""kafkajs: producer, admin, and members of a group.

Its consumer exists only as a member of a group; reading a partition as such goes through the classes underneath it (see
`js/peer.js`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.peers import KafkajsPeer
from tests.clients.sample import Record

pytestmark = pytest.mark.clients


def test_administration(kafkajs: KafkajsPeer, bootstrap: str, new_topic: Callable[[], str]) -> None:
    seen = kafkajs.ask({"do": "admin", "topic": new_topic()})
    host, _, port = bootstrap.rpartition(":")
    cluster = seen.pop("cluster")
    assert cluster["brokers"] == [{"nodeId": 1, "host": host, "port": int(port)}] and cluster["controller"] == 1
    assert len(cluster["clusterId"]) == 22
    assert seen.pop("groups") is None, "groups can be listed"
    assert seen == {
        "created": True,
        "created again": False,
        "listed": True,
        "partitions": [[number, 1, [1]] for number in range(3)],
        "offsets": {"partition": 0, "offset": "10", "high": "10", "low": "0"},
        "atTime": {"partition": 0, "offset": "3"},
        "trimmed": {"partition": 0, "offset": "10", "high": "10", "low": "4"},
        "retention": [["retention.ms", "3600000"]],
        "deleted": True,
    }


def test_an_idempotent_producer_numbers_its_records(kafkajs: KafkajsPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    order = {"do": "produce", "topic": topic, "partition": 0, "codec": "gzip", "idempotent": True}
    records = [{"key": None, "value": f"v{i}", "headers": [], "timestamp": i} for i in range(100)]
    assert kafkajs.ask({**order, "records": records}) == 0
    assert kafkajs.ask({**order, "records": records}) == 100
    assert kafkajs.read(topic, 0, 200)[150] == Record(None, b"v50", (), 50)


def test_two_consumers_share_a_topic(kafkajs: KafkajsPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    shared = kafkajs.ask({"do": "shareGroup", "topic": topic, "group": topic})
    assert shared["seen"] >= 40 and shared["assigned"] == [2, 2]
