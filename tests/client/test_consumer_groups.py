"""Groups: members come, go, stall and die; partitions always have one reader, and every record is read."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.client import ClusterClient, CommitFailed, Consumer, admin
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from tests.client.conftest import Server
from tests.client.group_kit import (
    PROTOCOLS,
    JavaMember,
    Member,
    MemberProcess,
    create,
    eventually,
    new_group,
    send,
    settings_for,
    shared_by,
)

PARTITIONS = 6
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
# Members keep their partitions through a rebalance, except those that move.
cooperative = pytest.mark.parametrize("protocol", ["cooperative-sticky", "next"])
classic_and_next = pytest.mark.parametrize("protocol", ["range", "next"])


@every_protocol
def test_members_that_come_and_go_read_every_record_once(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        settings = await settings_for(groups_server, protocol, group)
        await create(groups_server, topic, PARTITIONS)
        await send(groups_server, topic, range(300), PARTITIONS)
        async with Member(settings, topic) as first:
            await shared_by([first], PARTITIONS)
            async with Member(settings, topic) as second, Member(settings, topic) as third:
                await shared_by([first, second, third], PARTITIONS)
                await send(groups_server, topic, range(300, 600), PARTITIONS)
                members = (first, second, third)
                await eventually(lambda: sum(len(member.records) for member in members) >= 600)
            await shared_by([first], PARTITIONS)
            await send(groups_server, topic, range(600, 900), PARTITIONS)
            await eventually(lambda: sum(len(member.records) for member in members) >= 900)
        assert Counter(number for member in members for number in member.numbers) == Counter(range(900))
        for member in members:
            assert member.error is None and not any(what == "lost" for what, _ in member.events)

    asyncio.run(test())


@cooperative
def test_partitions_that_stay_are_never_taken_away(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic = new_topic()
        settings = await settings_for(groups_server, protocol, new_group())
        await create(groups_server, topic, PARTITIONS)
        async with Member(settings, topic) as first:
            await shared_by([first], PARTITIONS)
            async with Member(settings, topic) as second:
                await shared_by([first, second], PARTITIONS)
                moved = second.partitions
                assert first.events == [("assigned", set(range(PARTITIONS))), ("revoked", moved)]
                assert second.events == [("assigned", moved)]
            await shared_by([first], PARTITIONS)
            assert first.events[2:] == [("assigned", moved)]

    asyncio.run(test())


def test_eager_members_give_everything_up_first(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        settings = await settings_for(groups_server, "range", new_group())
        await create(groups_server, topic, PARTITIONS)
        async with Member(settings, topic) as first:
            await shared_by([first], PARTITIONS)
            async with Member(settings, topic) as second:
                await shared_by([first, second], PARTITIONS)
                everything = set(range(PARTITIONS))
                assert first.events == [
                    ("assigned", everything),
                    ("revoked", everything),
                    ("assigned", first.partitions),
                ]

    asyncio.run(test())


@classic_and_next
def test_a_static_member_comes_back_to_its_partitions_and_nobody_notices(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        await create(groups_server, topic, PARTITIONS)
        one = await settings_for(groups_server, protocol, group, group_instance_id="one")
        two = await settings_for(groups_server, protocol, group, group_instance_id="two")
        async with Member(one, topic) as first:
            second = Member(two, topic)
            await shared_by([first, second], PARTITIONS)
            before, held = (first.generation, list(first.events)), second.partitions
            await second.close()
            async with Member(two, topic) as again:
                await shared_by([first, again], PARTITIONS)
                assert again.partitions == held
                assert (first.generation, first.events) == before

    asyncio.run(test())


def test_of_two_members_with_one_instance_id_the_older_is_fenced(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await create(groups_server, topic, PARTITIONS)
        settings = await settings_for(groups_server, "range", new_group(), group_instance_id="only")
        async with Member(settings, topic) as first:
            await shared_by([first], PARTITIONS)
            async with Member(settings, topic) as second:
                await shared_by([second], PARTITIONS)
                await eventually(lambda: first.error is not None)
                assert isinstance(first.error, KafkaError)
                assert first.error.code is ErrorCode.FENCED_INSTANCE_ID

    asyncio.run(test())


@classic_and_next
def test_the_partitions_of_a_killed_member_go_to_the_others(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        settings = await settings_for(groups_server, protocol, group)
        await create(groups_server, topic, PARTITIONS)
        await send(groups_server, topic, range(60), PARTITIONS)
        quick = [] if protocol == "next" else ["session.timeout.ms=1000", "heartbeat.interval.ms=50"]
        killed = (groups_server.bootstrap, group, topic, "never", 10**6, f"group.protocol={settings['group.protocol']}")
        with MemberProcess("killed_member.py", *killed, *quick) as victim:
            await victim.lines(60)
            async with Member(settings, topic) as survivor:
                await eventually(lambda: len(survivor.partitions) == PARTITIONS // 2)
                victim.kill()
                await shared_by([survivor], PARTITIONS)
                await eventually(lambda: len(survivor.records) >= 60)
                assert sorted(survivor.numbers) == list(range(60))

    asyncio.run(test())


@classic_and_next
def test_who_does_not_poll_in_time_loses_its_partitions_and_comes_back(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        await create(groups_server, topic, PARTITIONS)
        patient = await settings_for(groups_server, protocol, group)
        hasty = await settings_for(groups_server, protocol, group, max_poll_interval_ms=1_500, enable_auto_commit=False)
        async with Member(hasty, topic) as slow:
            await shared_by([slow], PARTITIONS)
            await send(groups_server, topic, range(6), PARTITIONS)
            await eventually(lambda: len(slow.records) > 0)
            await slow.stall()
            async with Member(patient, topic) as other:
                await shared_by([other], PARTITIONS)
                with pytest.raises(CommitFailed, match=r"raise max\.poll\.interval\.ms"):
                    await slow.consumer.commit({TopicPartition(topic, 0): 1})
                slow.go_on()
                await shared_by([slow, other], PARTITIONS)
                assert ("lost", set(range(PARTITIONS))) in slow.events
                assert slow.error is None

    asyncio.run(test())


def test_a_pattern_finds_topics_that_are_made_later(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        stem = new_topic()
        settings = await settings_for(groups_server, "range", new_group(), metadata_max_age_ms=200)
        await create(groups_server, f"{stem}.a", 1)
        await create(groups_server, f"not-{stem}.a", 1)
        async with Member(settings, pattern=f"{stem}[.][a-z]") as member:
            await eventually(lambda: {where.topic for where in member.consumer.assignment} == {f"{stem}.a"})
            await create(groups_server, f"{stem}.b", 1)
            await send(groups_server, f"{stem}.b", range(3), 1)
            await eventually(lambda: len(member.records) == 3, lambda: member.events)
            topics = {where.topic for where in member.consumer.assignment}
            assert topics == {f"{stem}.a", f"{stem}.b"} and member.numbers == [0, 1, 2]

    asyncio.run(test())


def test_a_coordinator_finds_the_topics_of_a_pattern(groups_server: Server, new_topic: Callable[[], str]) -> None:
    """When it looks again is up to the coordinator: Kafka's waits ten seconds at least."""

    async def test() -> None:
        stem = new_topic()
        settings = await settings_for(groups_server, "next", new_group())
        for name in (f"{stem}.a", f"{stem}.b", f"not-{stem}.a"):
            await create(groups_server, name, 1)
        await send(groups_server, f"{stem}.b", range(3), 1)
        async with Member(settings, pattern=f"{stem}[.][a-z]") as member:
            await eventually(lambda: len(member.records) == 3, lambda: (member.events, member.error))
            assert {where.topic for where in member.consumer.assignment} == {f"{stem}.a", f"{stem}.b"}

    asyncio.run(test())


@classic_and_next
def test_new_partitions_and_new_topics_of_the_subscription_are_read(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic, late = new_topic(), new_topic()
        settings = await settings_for(
            groups_server, protocol, new_group(), metadata_max_age_ms=200, allow_auto_create_topics=False
        )
        await create(groups_server, topic, 1)
        async with Member(settings, topic, late) as member:
            await shared_by([member], 1)
            async with ClusterClient(groups_server.bootstrap) as client:
                await admin.create_partitions(client, topic, 3)
            await create(groups_server, late, 1)
            wanted = {TopicPartition(topic, number) for number in range(3)} | {TopicPartition(late, 0)}
            await eventually(lambda: member.consumer.assignment == wanted, lambda: member.events)
            await send(groups_server, topic, range(30), 3)
            await eventually(lambda: sorted(member.numbers) == list(range(30)))

    asyncio.run(test())


@classic_and_next
def test_a_changed_subscription_moves_the_member_to_other_topics(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        old, new = new_topic(), new_topic()
        settings = await settings_for(groups_server, protocol, new_group())
        await create(groups_server, old, 1)
        await create(groups_server, new, 2)
        async with Member(settings, old) as member:
            await shared_by([member], 1)
            member.consumer.subscribe(new)
            await eventually(lambda: {where.topic for where in member.consumer.assignment} == {new})
            await send(groups_server, new, range(4), 2)
            await eventually(lambda: sorted(member.numbers) == [0, 1, 2, 3])

    asyncio.run(test())


def test_a_group_is_upgraded_member_by_member_while_it_reads(
    kafka_groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        old = await settings_for(kafka_groups_server, "cooperative-sticky", group)
        new = await settings_for(kafka_groups_server, "next", group)
        await create(kafka_groups_server, topic, PARTITIONS)
        await send(kafka_groups_server, topic, range(300), PARTITIONS)
        members = [Member(old, topic), Member(old, topic)]
        running = list(members)
        await shared_by(running, PARTITIONS)
        for step in range(2):
            await running.pop(0).close()
            running.append(Member(new, topic))
            members.append(running[-1])
            await shared_by(running, PARTITIONS)
            await send(kafka_groups_server, topic, range(300 * (step + 1), 300 * (step + 2)), PARTITIONS)
            await eventually(lambda: sum(len(member.records) for member in members) >= 300 * (step + 2))  # noqa: B023
        for member in running:
            await member.close()
        assert Counter(number for member in members for number in member.numbers) == Counter(range(900))
        assert all(member.error is None for member in members)

    asyncio.run(test())


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("protocol", "java_class"),
    [("sticky", "StickyAssignor"), ("cooperative-sticky", "CooperativeStickyAssignor")],
)
def test_our_members_and_javas_share_a_group_whoever_leads(
    kafka_groups_server: Server, new_topic: Callable[[], str], tmp_path: Path, protocol: str, java_class: str
) -> None:
    async def test() -> None:
        topic = new_topic()
        settings = await settings_for(kafka_groups_server, protocol, new_group())
        await create(kafka_groups_server, topic, PARTITIONS)
        leading = Member(settings, topic)
        await shared_by([leading], PARTITIONS)
        java = JavaMember(settings, topic, java_class, tmp_path)
        try:
            await shared_by([leading, java], PARTITIONS)
            await send(kafka_groups_server, topic, range(300), PARTITIONS)
            await eventually(lambda: len(leading.records) + java.count == 300)
            await leading.close()
            await shared_by([java], PARTITIONS)
            async with Member(settings, topic) as follower:
                await shared_by([java, follower], PARTITIONS)
                await send(kafka_groups_server, topic, range(300, 600), PARTITIONS)
                members = (leading, follower)
                await eventually(lambda: sum(len(one.records) for one in members) + java.count == 600)
                assert leading.error is None and follower.error is None
        finally:
            await java.close()

    asyncio.run(test())


@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_before_processing_loses_and_after_processing_repeats_at_most_the_record_at_hand(
    groups_server: Server, new_topic: Callable[[], str], when: str
) -> None:
    """At most once, and at least once, over processes that are killed anywhere."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)

    async def test() -> None:
        topic, group, kills, total = new_topic(), new_group(), 3, 120
        await settings_for(groups_server, "range", group)
        await create(groups_server, topic, 2)
        await send(groups_server, topic, range(total), 2)
        arguments = (groups_server.bootstrap, group, topic, when)
        quick = ("session.timeout.ms=500", "heartbeat.interval.ms=50")
        processed: list[str] = []
        for _ in range(kills):
            # Together they leave records to the last, however late they are killed.
            with MemberProcess("killed_member.py", *arguments, total // kills - 1, *quick) as victim:
                processed += await victim.lines(dice.randrange(1, total // kills // 2))
                processed += victim.kill()
        ends = {str(total), str(total + 1)}  # one in each partition, behind everything: nobody was killed over them
        await send(groups_server, topic, map(int, ends), 2)
        with MemberProcess("killed_member.py", *arguments, 10**6, *quick) as last:
            while not ends <= set(processed):
                processed += await last.lines(1)
        counts = Counter(int(word) for word in processed if word not in ends)
        lost = set(range(total)) - set(counts)
        repeated = {number for number, count in counts.items() if count > 1}
        if when == "before":
            assert not repeated and len(lost) <= kills, (seed, lost)
        else:
            assert not lost and len(repeated) <= kills, (seed, repeated)

    asyncio.run(test())


def test_subscribing_without_a_group_says_what_to_do() -> None:
    async def test() -> None:
        async with Consumer("127.0.0.1:1") as consumer:
            with pytest.raises(ValueError, match=r"set group\.id, or use assign\(\)"):
                consumer.subscribe("orders")

    asyncio.run(test())
