"""Members of every library in real groups: they join, leave, crash and come back; the broker is killed under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moldau.testing import BrokerProcess
from tests.clients.groups import Member, await_all_seen, await_shared, await_that, start_member
from tests.clients.peers import create_topic

pytestmark = pytest.mark.clients
PARTITIONS = 4

LIBRARIES_AND_ASSIGNORS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
    ("java", "range"),
    ("java", "roundrobin"),
    ("java", "sticky"),
    ("java", "cooperative-sticky"),
]


Start = Callable[..., Any]


@pytest.fixture
def topic(bootstrap: str, new_topic: Callable[[], str]) -> str:
    name = new_topic()
    create_topic(bootstrap, name, PARTITIONS)
    return name


@pytest.fixture
def start(bootstrap: str, topic: str) -> Iterator[Start]:
    members: list[Member] = []

    def begin(library: str, **settings: Any) -> Any:
        member = start_member(library, bootstrap, f"group-of-{topic}", topic, **settings)
        members.append(member)
        return member

    yield begin
    for member in members:
        member.abandon()


def produce(bootstrap: str, topic: str, first: int, count: int) -> None:
    """`count` records to each partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(first, first + count):
        for partition in range(PARTITIONS):
            producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(30) == 0


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The offset that a group has for each partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(wanted, timeout=60)}
    finally:
        consumer.close()


@pytest.mark.parametrize(("library", "assignor"), LIBRARIES_AND_ASSIGNORS)
def test_members_share_the_work_and_take_over_from_each_other(
    start: Start, bootstrap: str, topic: str, library: str, assignor: str
) -> None:
    settings = {"partition__assignment__strategy": assignor}
    produce(bootstrap, topic, 0, 5)
    first = start(library, **settings)
    await_all_seen([first], 5 * PARTITIONS)
    second = start(library, **settings)
    await_shared([first, second], PARTITIONS)
    produce(bootstrap, topic, 5, 5)
    await_all_seen([first, second], 10 * PARTITIONS)
    first.close()
    await_shared([second], PARTITIONS)
    produce(bootstrap, topic, 10, 5)
    await_that(lambda: len(first.seen | second.seen) == 15 * PARTITIONS, [first, second], "what came after")


@pytest.mark.parametrize("library", ["confluent-kafka", "kafka-python", "aiokafka", "java-process"])
def test_a_member_that_is_killed_is_replaced_after_its_session(
    start: Start, bootstrap: str, topic: str, library: str
) -> None:
    settings = {"session__timeout__ms": 2_000}
    one, two = start(library, **settings), start(library, **settings)
    await_shared([one, two], PARTITIONS)
    produce(bootstrap, topic, 0, 5)
    await_all_seen([one, two], 5 * PARTITIONS)
    one.kill()
    await_shared([two], PARTITIONS)
    produce(bootstrap, topic, 5, 5)
    await_that(lambda: len(one.seen | two.seen) == 10 * PARTITIONS, [one, two], "the rest")


@pytest.mark.parametrize("library", ["confluent-kafka", "java-process"])
def test_a_static_member_that_restarts_disturbs_nobody(start: Start, topic: str, library: str) -> None:
    settings = {"session__timeout__ms": 30_000}
    other = start(library, group__instance__id="other", **settings)
    restarted = start(library, group__instance__id="restarted", **settings)
    await_shared([other, restarted], PARTITIONS)
    before, count = restarted.assigned, len(other.history)
    restarted.kill()
    again = start(library, group__instance__id="restarted", **settings)
    await_that(lambda: again.assigned == before, [again], "the same assignment")
    assert len(other.history) == count, "the other member was rebalanced"


def test_cooperative_members_keep_what_they_keep(start: Start, topic: str) -> None:
    settings = {"partition__assignment__strategy": "cooperative-sticky"}
    one = start("confluent-kafka", **settings)
    await_shared([one], PARTITIONS)
    two = start("confluent-kafka", **settings)
    await_shared([one, two], PARTITIONS)
    kept = set(one.assigned or ())
    since_full = one.history[one.history.index(list(range(PARTITIONS))) :]
    assert all(kept <= set(assigned) for assigned in since_full), one.history


def test_a_rolling_bounce_to_cooperative(start: Start, topic: str) -> None:
    """[range, cooperative-sticky] may not be mixed in librdkafka, but Java does it as Kafka's upgrade notes say."""
    both = {"partition__assignment__strategy": "range,cooperative-sticky"}
    members = [start("java", **both) for _ in range(2)]
    await_shared(members, PARTITIONS)
    for place in range(2):
        members[place].close()
        members[place] = start("java", partition__assignment__strategy="cooperative-sticky")
        await_shared(members, PARTITIONS)


def test_libraries_share_one_group(start: Start, bootstrap: str, topic: str) -> None:
    members = [start(library) for library in ("confluent-kafka", "kafka-python", "aiokafka", "java")]
    await_shared(members, PARTITIONS)
    produce(bootstrap, topic, 0, 5)
    await_all_seen(members, 5 * PARTITIONS)


def test_new_partitions_and_a_broker_that_is_killed() -> None:
    """Members rejoin, committed offsets are there, and nothing that was committed is read again by a new member."""
    with BrokerProcess({"group.initial.rebalance.delay.ms": "100"}) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        members = [start_member("confluent-kafka", broker.bootstrap, "g", "t") for _ in range(2)]
        try:
            await_shared(members, PARTITIONS)
            produce(broker.bootstrap, "t", 0, 25)
            await_all_seen(members, 25 * PARTITIONS)
            before = committed(broker.bootstrap, "g", "t")
            broker.kill()
            broker.start()
            after = committed(broker.bootstrap, "g", "t")
            assert all(after[index] >= before[index] for index in range(PARTITIONS)), (before, after)
            produce(broker.bootstrap, "t", 25, 25)
            await_all_seen(members, 50 * PARTITIONS)
            await_shared(members, PARTITIONS)
            for member in members:
                member.close()
            # A member that goes before it has read what came to it has not committed that.
            left_off = committed(broker.bootstrap, "g", "t")
            late = start_member("confluent-kafka", broker.bootstrap, "g", "t")
            members.append(late)
            await_shared([late], PARTITIONS)
            produce(broker.bootstrap, "t", 50, 1)
            await_that(lambda: {(index, 50) for index in range(PARTITIONS)} <= late.seen, [late], "the new records")
            firsts = {index: min(offset for where, offset in late.seen if where == index) for index in left_off}
            assert firsts == left_off
        finally:
            for member in members:
                if member.is_running:
                    member.kill()
