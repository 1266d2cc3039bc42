"""Transactions of every client: whole or absent, offsets with them, one owner of a transactional id at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.groups import GroupMember, await_that, java_program
from tests.clients.needs import require_module
from tests.clients.peers import create_topic
from tests.clients.transactional import FENCED, TRANSACTIONAL_PEERS, Refused, TransactionalPeer

pytestmark = pytest.mark.clients

# "moldau" and "apache-kafka": the second shows that a test asks for what Kafka does.
BROKERS = ("moldau", "apache-kafka")


@pytest.fixture(scope="session", params=BROKERS)
def served_by(request: pytest.FixtureRequest) -> str:
    """The address of a broker that serves transactions."""
    if request.param == "moldau":
        found: str = request.getfixturevalue("bootstrap")
    else:
        found = request.getfixturevalue("apache_kafka").bootstrap
    return found


@pytest.fixture(params=TRANSACTIONAL_PEERS)
def client(request: pytest.FixtureRequest, served_by: str) -> Iterator[TransactionalPeer]:
    peer = TRANSACTIONAL_PEERS[request.param](served_by)
    yield peer
    peer.close()


@pytest.fixture
def topic(served_by: str, new_topic: Callable[[], str]) -> str:
    name = new_topic()
    create_topic(served_by, name, 2)
    return name


def produce(bootstrap: str, topic: str, *values: str, partition: int = 0) -> None:
    producer = require_module("confluent_kafka").Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(30) == 0


def committed(client: TransactionalPeer, bootstrap: str, topic: str, partition: int = 0) -> list[str]:
    """What is committed now, as this client reads it. A record after it tells where to stop."""
    produce(bootstrap, topic, "end", partition=partition)
    found = client.committed(topic, partition)
    assert found[-1:] == ["end"], found
    return found[:-1]


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    kafka = require_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    (found,) = consumer.committed([kafka.TopicPartition(topic, 0)], timeout=30)
    consumer.close()
    return int(found.offset)


def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: TransactionalPeer, served_by: str, topic: str
) -> None:
    client.open("p", f"{topic}-id")
    for number, end in enumerate((client.commit, client.abort, client.commit, client.abort)):
        client.begin("p")
        client.send("p", topic, 0, f"left {number}")
        client.send("p", topic, 1, f"right {number}")
        client.send("p", topic, 0, f"more {number}")
        end("p")
    assert committed(client, served_by, topic) == ["left 0", "more 0", "left 2", "more 2"]
    assert committed(client, served_by, topic, 1) == ["right 0", "right 2"]


def test_records_are_consumed_transformed_and_produced_exactly_once(
    client: TransactionalPeer,
    served_by: str,
    topic: str,
    new_topic: Callable[[], str],
    request: pytest.FixtureRequest,
) -> None:
    target, group = new_topic(), f"group-of-{topic}"
    create_topic(served_by, target, 1)
    produce(served_by, topic, *(f"in {number}" for number in range(5)))
    client.open("p", f"{topic}-id")

    def transform(count: int) -> list[str]:
        found = client.consume(group, topic, count)
        client.begin("p")
        for value in found:
            client.send("p", target, 0, value.replace("in", "out"))
        client.send_offsets("p")
        return found

    assert transform(2) == ["in 0", "in 1"]
    client.commit("p")
    assert transform(2) == ["in 2", "in 3"]
    client.abort("p")
    assert committed_offset(served_by, group, topic) == 2
    client.leave()
    if request.node.callspec.id == "apache-kafka-kafka-python":
        # Twice in two whole runs it got nothing when it had joined again; unexplained. On Moldau it goes to the end.
        pytest.skip("kafka-python, joining again, may get nothing from Apache Kafka")
    assert transform(3) == ["in 2", "in 3", "in 4"]
    client.commit("p")
    client.leave()
    assert committed_offset(served_by, group, topic) == 5
    assert committed(client, served_by, target) == [f"out {number}" for number in range(5)]


def test_a_second_owner_of_a_transactional_id_fences_the_first(
    client: TransactionalPeer, served_by: str, topic: str
) -> None:
    client.open("first", f"{topic}-id")
    client.begin("first")
    client.send("first", topic, 0, "of a zombie")
    client.open("second", f"{topic}-id")
    client.begin("second")
    client.send("second", topic, 0, "of the owner")
    with pytest.raises(Refused) as refused:
        client.commit("first")
    assert FENCED.search(str(refused.value)), refused.value
    client.commit("second")
    assert committed(client, served_by, topic) == ["of the owner"]


# -- Kafka Streams -----------------------------------------------------------------------------------------------------

WORDS = ("slovo", "wort", "mot", "word", "parola")
LINES_FED_MIN = 3000
KILLS = 2


class Feed(threading.Thread):
    """Lines of words for as long as the test wants."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.words: Counter[str] = Counter()
        self.lines = 0
        self.is_over = threading.Event()
        self._topic = topic
        self._producer = require_module("confluent_kafka").Producer(
            {"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 5}
        )

    def run(self) -> None:
        while not self.is_over.wait(0.005) or self.lines < LINES_FED_MIN:
            for _ in range(10):
                words = [WORDS[self.lines % len(WORDS)], WORDS[self.lines // 2 % len(WORDS)]]
                self._producer.produce(self._topic, " ".join(words).encode(), partition=self.lines % 2)
                self.words.update(words)
                self.lines += 1
            self._producer.poll(0)
        assert self._producer.flush(60) == 0


class Counts(threading.Thread):
    """Every count that a reader with `read_committed` sees, in order, by word."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        kafka = require_module("confluent_kafka")
        self.seen: dict[str, list[int]] = {word: [] for word in WORDS}
        self.ended: set[int] = set()
        self.is_over = threading.Event()
        self._consumer = kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.assign([kafka.TopicPartition(topic, index, 0) for index in range(2)])

    @property
    def total(self) -> int:
        return sum(len(each) for each in self.seen.values())

    def run(self) -> None:
        while not self.is_over.is_set():
            for message in self._consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                if message.value() == b"end":
                    self.ended.add(message.partition())
                else:
                    self.seen[message.key().decode()].append(int(message.value()))
        self._consumer.close()


@pytest.mark.oracle
def test_a_streams_application_counts_exactly_once_though_it_is_killed(
    served_by: str, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    source, target = f"{new_topic()}-lines", f"{new_topic()}-counts"
    for name in (source, target):
        create_topic(served_by, name, 2)
    command = java_program("WordCount", served_by, source, source, target, str(tmp_path / "state"), "exactly_once_v2")
    feed, counts = Feed(served_by, source), Counts(served_by, target)
    members: list[GroupMember] = []
    try:
        feed.start()
        counts.start()
        for _ in range(KILLS):
            members.append(GroupMember(command))
            before = counts.total
            await_that(lambda before=before: counts.total > before + 200, members, "committed counts")
            members[-1].kill()
        members.append(GroupMember(command))
        feed.is_over.set()
        feed.join()
        await_that(lambda: counts.total >= sum(feed.words.values()), members, "every count")
        members[-1].close()
        for partition in range(2):
            produce(served_by, target, "end", partition=partition)
        await_that(lambda: len(counts.ended) == 2, members, "the end")
    finally:
        counts.is_over.set()
        counts.join()
        for member in members:
            if member.is_running:
                member.kill()
    for word, found in counts.seen.items():
        assert found == list(range(1, feed.words[word] + 1)), word
