"""Members of the consumer protocol (KIP-848) in real groups, and groups that change over to it and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.testing import BrokerProcess
from tests.clients.groups import Member, await_all_seen, await_shared, await_that, start_member
from tests.clients.peers import create_topic
from tests.clients.test_groups import PARTITIONS, produce

pytestmark = pytest.mark.clients

LIBRARIES = ["confluent-kafka", "java"]
CONSUMER = {"group__protocol": "consumer"}
# A session that ends soon, for members that are killed.
SHORT_SESSIONS = {
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "100",
}
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def brisk_broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(SHORT_SESSIONS) as process:
        yield process
        assert "Traceback" not in process.log, process.log[-4000:]


@pytest.fixture
def brisk(brisk_broker: BrokerProcess) -> str:
    return brisk_broker.bootstrap


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return new_topic()


@pytest.fixture
def start(topic: str) -> Iterator[Start]:
    """Starts members of one group; whoever is still there in the end is killed."""
    members: list[Member] = []

    def begin(library: str, bootstrap: str, wanted: str = topic, **settings: Any) -> Any:
        member = start_member(library, bootstrap, f"group-of-{topic}", wanted, **settings)
        members.append(member)
        return member

    yield begin
    for member in members:
        member.abandon()


def require_one_owner_at_a_time(ledger: Path) -> None:
    """Who gains a partition finds it free, at every moment of the ledger."""
    owners: dict[tuple[str, int], int] = {}
    for line in ledger.read_text().splitlines():
        said = json.loads(line)
        for topic, partition in said.get("lost", ()):
            assert owners.pop((topic, partition), None) == said["pid"], line
        for topic, partition in said.get("gained", ()):
            assert (topic, partition) not in owners, line
            owners[topic, partition] = said["pid"]
    assert owners, "nobody wrote into the ledger"


# -- one protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_members_share_the_work_and_take_over_from_each_other(
    start: Start, bootstrap: str, topic: str, library: str, assignor: str
) -> None:
    settings = {**CONSUMER, "group__remote__assignor": assignor}
    create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, topic, 0, 5)
    first = start(library, bootstrap, **settings)
    await_all_seen([first], 5 * PARTITIONS)
    second = start(library, bootstrap, **settings)
    await_shared([first, second], PARTITIONS)
    produce(bootstrap, topic, 5, 5)
    await_all_seen([first, second], 10 * PARTITIONS)
    kept = set(first.assigned or ())
    since_full = first.history[first.history.index(list(range(PARTITIONS))) :]
    assert all(kept <= set(assigned) for assigned in since_full), first.history
    first.close()
    await_shared([second], PARTITIONS)
    produce(bootstrap, topic, 10, 5)
    await_all_seen([first, second], 15 * PARTITIONS)


@pytest.mark.parametrize("library", ["confluent-kafka", "java-process"])
def test_a_member_that_is_killed_is_replaced_after_its_session(
    start: Start, brisk: str, topic: str, library: str
) -> None:
    create_topic(brisk, topic, PARTITIONS)
    one, two = start(library, brisk, **CONSUMER), start(library, brisk, **CONSUMER)
    await_shared([one, two], PARTITIONS)
    produce(brisk, topic, 0, 5)
    await_all_seen([one, two], 5 * PARTITIONS)
    one.kill()
    await_shared([two], PARTITIONS)
    produce(brisk, topic, 5, 5)
    await_all_seen([one, two], 10 * PARTITIONS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_static_member_that_restarts_disturbs_nobody(start: Start, bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    other = start(library, bootstrap, group__instance__id="other", **CONSUMER)
    restarted = start(library, bootstrap, group__instance__id="restarted", **CONSUMER)
    await_shared([other, restarted], PARTITIONS)
    before, count = restarted.assigned, len(other.history)
    restarted.close()
    again = start(library, bootstrap, group__instance__id="restarted", **CONSUMER)
    await_that(lambda: again.assigned == before, [again], "the same assignment")
    assert len(other.history) == count, "the other member was rebalanced"


def test_libraries_share_one_group(start: Start, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    members = [start(library, bootstrap, **CONSUMER) for library in LIBRARIES * 2]
    await_shared(members, PARTITIONS)
    produce(bootstrap, topic, 0, 5)
    await_all_seen(members, 5 * PARTITIONS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_broker_that_is_killed_in_the_middle(start: Start, topic: str, library: str) -> None:
    """Members are known when it is back, and nothing that was committed is read again by a new member."""
    with BrokerProcess(SHORT_SESSIONS) as broker:
        create_topic(broker.bootstrap, topic, PARTITIONS)
        members = [start(library, broker.bootstrap, **CONSUMER) for _ in range(2)]
        await_shared(members, PARTITIONS)
        produce(broker.bootstrap, topic, 0, 25)
        await_all_seen(members, 25 * PARTITIONS)
        broker.kill()
        broker.start()
        produce(broker.bootstrap, topic, 25, 25)
        await_all_seen(members, 50 * PARTITIONS)
        await_shared(members, PARTITIONS)
        for member in members:
            member.close()
        late = start(library, broker.bootstrap, **CONSUMER)
        await_shared([late], PARTITIONS)
        produce(broker.bootstrap, topic, 50, 1)
        await_that(lambda: {(index, 50) for index in range(PARTITIONS)} <= late.seen, [late], "the new records")
        again = {offset for _, offset in late.seen}
        assert min(again) >= 49, f"read again: {sorted(again)[:5]}"
        assert "Traceback" not in broker.log, broker.log[-4000:]


def test_a_broker_that_is_killed_while_partitions_change_hands(start: Start, tmp_path: Path, topic: str) -> None:
    """It dies when a member has given something up, before another one has it, and the group goes on from there."""
    ledger = tmp_path / "ledger"
    settings = {**CONSUMER, "ledger": str(ledger)}

    def has_more_losses(count: int) -> Callable[[], bool]:
        return lambda: ledger.read_text().count("lost") > count

    with BrokerProcess() as broker:
        create_topic(broker.bootstrap, topic, PARTITIONS)
        members = [start("confluent-kafka", broker.bootstrap, **settings)]
        await_shared(members, PARTITIONS)
        for _ in range(3):
            before = ledger.read_text().count("lost")
            members.append(start("confluent-kafka", broker.bootstrap, **settings))
            await_that(has_more_losses(before), members, "a member that gives something up")
            broker.kill()
            broker.start()
            await_shared(members, PARTITIONS)
        assert "Traceback" not in broker.log, broker.log[-4000:]
    require_one_owner_at_a_time(ledger)


# -- topics that come, grow and go -------------------------------------------------------------------------------------


def test_an_expression_picks_up_a_new_topic(start: Start, bootstrap: str, topic: str) -> None:
    """By the broker: the clients send the expression, and never ask for all topics."""
    create_topic(bootstrap, f"{topic}-one", 2)
    members = [start("confluent-kafka", bootstrap, f"^{topic}-.*", **CONSUMER) for _ in range(2)]
    await_shared(members, 2)
    create_topic(bootstrap, f"{topic}-two", 4)
    create_topic(bootstrap, f"{topic}x-three", 8)

    def has_both() -> bool:
        return sorted(each for member in members for each in member.assigned or ()) == [0, 0, 1, 1, 2, 3]

    await_that(has_both, members, "the new topic")
    produce(bootstrap, f"{topic}-two", 0, 5)
    await_all_seen(members, 5 * PARTITIONS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_new_partitions_and_a_topic_that_is_deleted(start: Start, bootstrap: str, topic: str, library: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    create_topic(bootstrap, topic, 2)
    # A Java consumer would make the topic again by asking for it.
    settings = {**CONSUMER, "allow__auto__create__topics": "false"}
    members = [start(library, bootstrap, **settings) for _ in range(2)]
    await_shared(members, 2)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(30)
    await_shared(members, PARTITIONS)
    admin.delete_topics([topic])[topic].result(30)
    await_that(lambda: all(member.assigned == [] for member in members), members, "the end of the topic")
    create_topic(bootstrap, topic, PARTITIONS)
    await_shared(members, PARTITIONS)


# -- from one protocol to the other ------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_live_group_changes_its_protocol_and_back(
    start: Start, bootstrap: str, tmp_path: Path, topic: str, assignor: str
) -> None:
    """Member by member, as in a rolling restart. No partition ever has two owners, and everything is read."""
    ledger = tmp_path / "ledger"
    classic = {"ledger": str(ledger), "partition__assignment__strategy": assignor}
    consumer = {"ledger": str(ledger), **CONSUMER}
    create_topic(bootstrap, topic, PARTITIONS)
    everybody = members = [start("confluent-kafka", bootstrap, **classic) for _ in range(3)]
    await_shared(members, PARTITIONS)
    written = 0
    for settings in (consumer, classic):
        for place in range(3):
            members = [*members]
            members[place].close()
            members[place] = start("confluent-kafka", bootstrap, **settings)
            everybody = [*everybody, members[place]]
            produce(bootstrap, topic, written, 5)
            written += 5
            await_shared(members, PARTITIONS)
            await_all_seen(everybody, written * PARTITIONS)
    require_one_owner_at_a_time(ledger)


def test_java_members_change_their_protocol_and_back(start: Start, bootstrap: str, topic: str) -> None:
    classic = {"partition__assignment__strategy": "cooperative-sticky"}
    create_topic(bootstrap, topic, PARTITIONS)
    everybody = members = [start("java", bootstrap, **classic) for _ in range(2)]
    await_shared(members, PARTITIONS)
    written = 0
    for settings in (CONSUMER, classic):
        for place in range(2):
            members = [*members]
            # The new one is there before the old one goes: both protocols in one group.
            newcomer = start("java", bootstrap, **settings)
            await_shared([*members, newcomer], PARTITIONS)
            members[place].close()
            members[place] = newcomer
            everybody = [*everybody, newcomer]
            produce(bootstrap, topic, written, 5)
            written += 5
            await_shared(members, PARTITIONS)
            await_all_seen(everybody, written * PARTITIONS)
