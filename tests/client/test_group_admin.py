"""Administration of groups, on Apache Kafka and on Moldau, with librdkafka's consumers as members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.client import ClusterClient, admin, group_admin
from moldau.client.group_admin import CommittedOffset, GroupDescription, GroupLag, GroupListing, Rebalance
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.offset_fetch import OffsetFetchResponse
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.group_members import Members
from tests.client.proxy import Proxy

pytestmark = pytest.mark.clients

Work = Callable[[ClusterClient], Awaitable[None]]


def on(bootstrap: str, work: Work) -> None:
    async def run() -> None:
        async with ClusterClient(bootstrap) as client:
            await work(client)

    asyncio.run(run())


def make_topic(server: Server, name: str, partitions: int) -> None:
    async def work(client: ClusterClient) -> None:
        await admin.create_topics(client, name, partitions=partitions)

    on(server.bootstrap, work)


def test_a_classic_group_is_listed_and_described_with_its_members(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 3)

    async def active(client: ClusterClient) -> None:
        assert GroupListing(group, "Classic", "consumer", "Stable", 1) in await group_admin.list_groups(client)
        found = await group_admin.describe_group(client, group)
        assert (found.group_type, found.protocol_type, found.state) == ("Classic", "consumer", "Stable")
        assert (found.assignor, found.epoch, found.coordinator, found.is_active) == ("range", None, 1, True)
        members = {member.client_id: member for member in found.members}
        assert set(members) == {"one", "two"}
        assert {member.subscription for member in found.members} == {(topic,)}
        assert {member.client_host.removeprefix("/") for member in found.members} == {"127.0.0.1"}
        assert {where.partition for member in found.members for where in member.assignment} == {0, 1, 2}
        assert sorted(len(member.assignment) for member in found.members) == [1, 2]

    async def gone(client: ClusterClient) -> None:
        found = await group_admin.describe_group(client, group)
        assert (found.state, found.members, found.is_active) == ("Empty", (), False)

    with Members(server.bootstrap, group, topic, 3, client_ids=("one", "two")) as members:
        on(server.bootstrap, active)
        members.commit({0: 0})
    on(server.bootstrap, gone)


def test_a_static_member_shows_its_instance(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 1)

    async def work(client: ClusterClient) -> None:
        (member,) = (await group_admin.describe_group(client, group)).members
        assert member.instance_id == "till-1"

    with Members(server.bootstrap, group, topic, 1, settings={"group.instance.id": "till-1"}):
        on(server.bootstrap, work)


def test_a_group_of_the_next_generation_is_described_alike(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 2)

    async def work(client: ClusterClient) -> None:
        assert GroupListing(group, "Consumer", "consumer", "Stable", 1) in await group_admin.list_groups(client)
        found = await group_admin.describe_group(client, group)
        assert (found.group_type, found.state, found.assignor) == ("Consumer", "Stable", "uniform")
        (member,) = found.members
        assert found.epoch is not None and member.epoch is not None and member.epoch <= found.epoch
        assert member.subscription == (topic,)
        assert member.assignment == member.target == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        (lag,) = (await group_admin.group_lags(client, [group])).values()
        assert isinstance(lag, GroupLag)
        assert [(one.committed, one.end, one.lag) for one in lag.partitions] == [(0, 0, 0), (None, 0, None)]
        with pytest.raises(KafkaError, match="has members") as refused:
            await group_admin.alter_group_offsets(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID

    with Members(server.bootstrap, group, topic, 2, protocol="consumer") as members:
        members.commit({0: 0})
        on(server.bootstrap, work)


def test_listing_filters_by_state_and_type(server: Server, new_topic: Callable[[], str]) -> None:
    topic, active, empty = new_topic(), new_topic(), new_topic()
    make_topic(server, topic, 1)

    async def work(client: ClusterClient) -> None:
        await group_admin.alter_group_offsets(client, empty, {TopicPartition(topic, 0): CommittedOffset(0)})

        async def listed(**filters: Any) -> set[str]:
            return {one.group_id for one in await group_admin.list_groups(client, **filters)} & {active, empty}

        assert await listed() == {active, empty}
        assert await listed(states=["Stable"]) == {active}
        assert await listed(states=["Empty", "Dead"]) == {empty}
        assert await listed(types=["Classic"]) == {active, empty}
        assert await listed(types=["Consumer"]) == set()
        assert await listed(types=["Classic"], states=["Stable"]) == {active}

    with Members(server.bootstrap, active, topic, 1):
        on(server.bootstrap, work)


def test_offsets_are_altered_read_with_lag_and_deleted(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def work(client: ClusterClient) -> None:
        assert (await group_admin.group_offsets(client, [group])) == {group: {}}
        told = {first: CommittedOffset(0, -1, "by hand"), second: CommittedOffset(0)}
        await group_admin.alter_group_offsets(client, group, told)
        assert (await group_admin.group_offsets(client, [group])) == {group: told}
        (lag,) = (await group_admin.group_lags(client, [group])).values()
        assert isinstance(lag, GroupLag) and lag.total == 0
        assert [(one.partition, one.committed, one.end, one.member) for one in lag.partitions] == [
            (first, 0, 0, None),
            (second, 0, 0, None),
        ]
        await group_admin.delete_group_offsets(client, group, [second])
        assert (await group_admin.group_offsets(client, [group])) == {group: {first: told[first]}}

    on(server.bootstrap, work)


def test_lag_counts_from_the_commit_to_the_end(server: Server, new_topic: Callable[[], str]) -> None:
    from moldau.client import Producer

    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 3)

    async def work(client: ClusterClient) -> None:
        async with Producer(server.bootstrap) as producer:
            for number in range(10):
                await (await producer.send(topic, b"v", partition=number % 2))
        (lag,) = (await group_admin.group_lags(client, [group])).values()
        assert isinstance(lag, GroupLag)
        assert [(one.committed, one.end, one.lag) for one in lag.partitions] == [(2, 5, 3), (5, 5, 0), (None, 0, None)]
        assert lag.total == 3
        assert {one.member.client_id for one in lag.partitions if one.member} == {"reader"}

    with Members(server.bootstrap, group, topic, 3) as members:
        members.commit({0: 2, 1: 5})
        on(server.bootstrap, work)


def test_lag_of_a_deleted_topic_is_not_known(server: Server, new_topic: Callable[[], str]) -> None:
    topic, kept, group = new_topic(), new_topic(), new_topic()
    make_topic(server, topic, 1)
    make_topic(server, kept, 1)
    gone = TopicPartition(topic, 0)

    def still_there(key: int, response: Any) -> None:
        # Coordinators forget a deleted topic's offsets by and by; until then they tell them.
        if key != ApiKey.OFFSET_FETCH:
            return
        (answer,) = response.groups
        if topic not in [one.name for one in answer.topics]:
            answer.topics.append(
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    topic, partitions=[OffsetFetchResponse.OffsetFetchResponsePartitions(0, 7)]
                )
            )

    async def run() -> None:
        async with (
            Proxy(server.bootstrap, on_response=still_there) as proxy,
            ClusterClient(proxy.bootstrap) as client,
        ):
            await group_admin.alter_group_offsets(client, group, {TopicPartition(kept, 0): CommittedOffset(0)})
            await admin.delete_topics(client, topic)
            (lag,) = (await group_admin.group_lags(client, [group])).values()
            assert isinstance(lag, GroupLag)
            assert {one.partition: one.lag for one in lag.partitions} == {gone: None, TopicPartition(kept, 0): 0}

    asyncio.run(run())


def test_an_active_group_is_not_altered_or_deleted(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 1)
    where = TopicPartition(topic, 0)

    async def work(client: ClusterClient) -> None:
        with pytest.raises(KafkaError, match="has members, and only they may commit") as refused:
            await group_admin.alter_group_offsets(client, group, {where: CommittedOffset(0)})
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        with pytest.raises(KafkaError, match="members that read the topic") as refused:
            await group_admin.delete_group_offsets(client, group, [where])
        assert refused.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        (answer,) = (await group_admin.delete_groups(client, [group])).values()
        assert answer is not None and answer.code is ErrorCode.NON_EMPTY_GROUP

    with Members(server.bootstrap, group, topic, 1) as members:
        members.commit({0: 0})
        on(server.bootstrap, work)


def test_each_group_has_its_own_answer(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group, missing = new_topic(), new_topic(), new_topic()
    make_topic(server, topic, 1)

    async def work(client: ClusterClient) -> None:
        await group_admin.alter_group_offsets(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        assert await group_admin.find_coordinators(client, [group, missing]) == {group: 1, missing: 1}
        described = await group_admin.describe_groups(client, [missing, group])
        assert list(described) == [missing, group]
        known, unknown = described[group], described[missing]
        assert isinstance(known, GroupDescription) and known.state == "Empty" and known.protocol_type == ""
        assert isinstance(unknown, KafkaError) and unknown.code is ErrorCode.GROUP_ID_NOT_FOUND
        lags = await group_admin.group_lags(client, [missing, group])
        assert isinstance(lags[group], GroupLag) and isinstance(lags[missing], KafkaError)
        with pytest.raises(KafkaError, match=f"group '{missing}' does not exist"):
            await group_admin.describe_group(client, missing)
        deleted = await group_admin.delete_groups(client, [missing, group])
        refusal = deleted[missing]
        assert deleted[group] is None
        assert refusal is not None and refusal.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert group not in {one.group_id for one in await group_admin.list_groups(client)}

    on(server.bootstrap, work)


def test_a_group_that_an_older_broker_calls_dead_does_not_exist(server: Server, new_topic: Callable[[], str]) -> None:
    def as_before_version_6(key: int, response: Any) -> None:
        if key == ApiKey.DESCRIBE_GROUPS:
            assert response.groups[0].group_state == "Dead"
            response.groups[0].error_code, response.groups[0].error_message = 0, None

    async def run() -> None:
        async with (
            Proxy(server.bootstrap, on_response=as_before_version_6) as proxy,
            ClusterClient(proxy.bootstrap) as client,
        ):
            with pytest.raises(KafkaError, match="does not exist") as refused:
                await group_admin.describe_group(client, new_topic())
            assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    asyncio.run(run())


def test_moldaus_brokers_tell_the_last_rebalances(moldau_server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(moldau_server, topic, 1)

    async def work(client: ClusterClient) -> None:
        rebalances = (await group_admin.describe_group(client, group)).rebalances
        assert rebalances is not None
        assert [(one.generation, one.members) for one in rebalances] == [(1, 1), (2, 0)]
        assert "joins" in rebalances[0].reason and "left" in rebalances[1].reason

    with Members(moldau_server.bootstrap, group, topic, 1):
        pass
    on(moldau_server.bootstrap, work)


def test_a_partition_that_does_not_exist_is_named(server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 1)

    async def work(client: ClusterClient) -> None:
        with pytest.raises(KafkaError, match=f"{topic}-9") as refused:
            await group_admin.alter_group_offsets(client, group, {TopicPartition(topic, 9): CommittedOffset(0)})
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on(server.bootstrap, work)


REBALANCES = [
    {"began_ms": 1_700_000_000_000, "duration_ms": 12, "generation": 3, "members": 2, "reason": "a member joined"},
    {"began_ms": 1_700_000_009_000, "duration_ms": 7, "generation": 4, "members": 1, "reason": "a member left"},
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (json.dumps(REBALANCES).encode(), tuple(Rebalance(**one) for one in REBALANCES)),  # type: ignore[arg-type]
        (b"[]", ()),
        (b"\xff not json", None),
        (b'[{"began_ms": 1}]', None),
        (b'{"not": "a list"}', None),
    ],
)
def test_rebalances_are_read_from_the_tag_that_moldaus_brokers_add(
    server: Server, new_topic: Callable[[], str], value: bytes, expected: tuple[Rebalance, ...] | None
) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 1)

    def add_tag(key: int, response: Any) -> None:
        if key == ApiKey.DESCRIBE_GROUPS:
            for described in response.groups:
                described.unknown_tags = ((group_admin.REBALANCES_TAG, value),)

    async def run() -> None:
        async with Proxy(server.bootstrap, on_response=add_tag) as proxy, ClusterClient(proxy.bootstrap) as client:
            await group_admin.alter_group_offsets(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
            assert (await group_admin.describe_group(client, group)).rebalances == expected

    asyncio.run(run())


def test_a_group_whose_coordinator_is_loading_or_elsewhere_is_asked_for_again(
    server: Server, new_topic: Callable[[], str]
) -> None:
    topic, group = new_topic(), new_topic()
    make_topic(server, topic, 1)
    trouble = {
        ApiKey.FIND_COORDINATOR: [ErrorCode.COORDINATOR_NOT_AVAILABLE],
        ApiKey.OFFSET_COMMIT: [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
        ApiKey.OFFSET_FETCH: [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
        ApiKey.DESCRIBE_GROUPS: [ErrorCode.NOT_COORDINATOR],
        ApiKey.DELETE_GROUPS: [ErrorCode.COORDINATOR_NOT_AVAILABLE],
    }
    refused: list[int] = []

    def refuse(key: int, response: Any) -> None:
        if not trouble.get(ApiKey(key)):
            return
        code = trouble[ApiKey(key)].pop(0)
        refused.append(key)
        for name in ("coordinators", "groups", "results"):
            for one in getattr(response, name, ()):
                one.error_code = code
        if key == ApiKey.OFFSET_COMMIT:
            response.topics[0].partitions[0].error_code = code

    async def run() -> None:
        async with (
            Proxy(server.bootstrap, on_response=refuse) as proxy,
            ClusterClient(proxy.bootstrap, retry_backoff_ms=1) as client,
        ):
            where = TopicPartition(topic, 0)
            await group_admin.alter_group_offsets(client, group, {where: CommittedOffset(0)})
            assert (await group_admin.group_offsets(client, [group])) == {group: {where: CommittedOffset(0)}}
            assert (await group_admin.describe_group(client, group)).state == "Empty"
            (answer,) = (await group_admin.delete_groups(client, [group])).values()
            # The first deletion was done, whatever its answer became.
            assert answer is not None and answer.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert not any(trouble.values()) and len(refused) == 6

    asyncio.run(run())
