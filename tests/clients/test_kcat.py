"""kcat, as people type it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.clients.peers import KcatPeer, MoldauPeer, create_topic
from tests.clients.sample import BASE_TIMESTAMP, Record

pytestmark = pytest.mark.clients


@pytest.fixture
def kcat(bootstrap: str) -> KcatPeer:
    return KcatPeer(bootstrap)


def test_it_lists_topics_brokers_and_partitions(kcat: KcatPeer, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    create_topic(bootstrap, topic, 3)
    listing = json.loads(kcat.run("-L", "-J"))
    assert [broker["name"] for broker in listing["brokers"]] == [bootstrap]
    (found,) = [one for one in listing["topics"] if one["topic"] == topic]
    assert [(p["partition"], p["leader"], p["isrs"]) for p in found["partitions"]] == [
        (number, 1, [{"id": 1}]) for number in range(3)
    ]


def test_a_pipe_goes_in_and_comes_out(kcat: KcatPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    kcat.run("-P", "-t", topic, "-K:", "-X", "enable.idempotence=true", stdin=b"one:1\ntwo:2\nthree:3\n")
    assert kcat.run("-C", "-t", topic, "-e", "-q", "-f", "%o %k=%s\n") == b"0 one=1\n1 two=2\n2 three=3\n"
    assert kcat.run("-C", "-t", topic, "-o", "-1", "-e", "-q") == b"3\n"
    assert kcat.run("-C", "-t", topic, "-o", "1", "-c", "1", "-q") == b"2\n"


def test_it_finds_offsets_by_time(kcat: KcatPeer, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    create_topic(bootstrap, topic)
    records = [Record(None, f"v{i}".encode(), (), BASE_TIMESTAMP + 10 * i) for i in range(10)]
    MoldauPeer(bootstrap).write(topic, 0, "none", records)
    assert kcat.run("-Q", "-t", f"{topic}:0:{BASE_TIMESTAMP + 41}") == f"{topic} [0] offset 5\n".encode()
    window = ("-o", f"s@{BASE_TIMESTAMP + 20}", "-o", f"e@{BASE_TIMESTAMP + 50}")
    assert kcat.run("-C", "-t", topic, "-p", "0", *window, "-q") == b"v2\nv3\nv4\n"


def test_tombstones_are_null_on_both_ways(kcat: KcatPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    kcat.run("-P", "-t", topic, "-K:", "-Z", stdin=b"gone:\n")
    assert kcat.read(topic, 0, 1)[0].value is None
