"""One consumer: where it reads, how far it got, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client import (
    AtTime,
    BlockingConsumer,
    BlockingProducer,
    ClusterClient,
    ConnectionFailed,
    Consumer,
    ConsumerClosed,
    ConsumerSettings,
    NoCommittedOffset,
    OffsetAndMetadata,
    Producer,
    RecordUnreadable,
    SettingsError,
    admin,
    consumer_settings,
)
from moldau.client.connection import Connection
from moldau.client.settings import CONSUMER_PARSERS
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.group_kit import CLASSIC, Member, create, eventually, new_group, send, settings_for, shared_by
from tests.client.proxy import Cut, Proxy

BASE = 1_700_000_000_000


async def fill(server: Server, topic: str, count: int, partitions: int = 1, **settings: object) -> list[TopicPartition]:
    await create(server, topic, partitions)
    async with Producer(server.bootstrap, {"batch.size": 200, **settings}) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=number % partitions, timestamp_ms=BASE + number)
    return [TopicPartition(topic, partition) for partition in range(partitions)]


def reading(server: Server, **more: object) -> Consumer:
    """A consumer that assigns itself what to read."""
    given = {name.replace("_", "."): value for name, value in more.items()}
    return Consumer(server.bootstrap, {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 50, **given})


async def numbers(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(record.value or b"") for record in await consumer.poll(10)]
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


def test_assigned_partitions_are_read_without_a_group(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 100, partitions=2)
        async with reading(groups_server) as consumer:
            consumer.assign(places)
            assert sorted(await numbers(consumer, 100)) == list(range(100))
            assert await consumer.poll(0.01) == []
            assert [await consumer.position(place) for place in places] == [50, 50]
            with pytest.raises(SettingsError, match=r"set group\.id"):
                await consumer.commit()
            consumer.assign(places[:1])
            with pytest.raises(ValueError, match="is not assigned"):
                await consumer.position(places[1])

    asyncio.run(test())


def test_poll_gives_max_poll_records_at_most_across_batches(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 100)
        async with reading(groups_server, max_poll_records=7) as consumer:
            consumer.assign(places)
            found: list[int] = []
            while len(found) < 100:
                records = await consumer.poll(10)
                assert 0 < len(records) <= 7
                found += [int(record.value or b"") for record in records]
                assert await consumer.position(places[0]) == len(found)
            assert found == list(range(100))

    asyncio.run(test())


def test_seeking_goes_to_offsets_ends_and_times(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 100)
        async with reading(groups_server, max_poll_records=1) as consumer:
            consumer.assign(places)
            for start, first in [(40, 40), ("earliest", 0), (AtTime(BASE + 70), 70), (99, 99), (AtTime(0), 0)]:
                await consumer.seek(places[0], start)
                assert await consumer.position(places[0]) == first
                assert await numbers(consumer, 1) == [first], start
            await consumer.seek(places, "latest")
            assert await consumer.poll(0.01) == [] and await consumer.position(places[0]) == 100

    asyncio.run(test())


def test_paused_partitions_rest_and_lose_nothing(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 400, partitions=2)
        async with reading(groups_server, max_poll_records=10) as consumer:
            consumer.assign(places)
            found = await numbers(consumer, 50)
            consumer.pause(places[:1])
            while len(found) < 200 + len([number for number in found if number % 2 == 0]):
                records = await consumer.poll(10)
                assert {record.partition for record in records} == {1}
                found += [int(record.value or b"") for record in records]
            assert await consumer.poll(0.01) == [] and consumer.paused == {places[0]}
            consumer.resume(places[:1])
            found += await numbers(consumer, 400 - len(found))
            assert sorted(found) == list(range(400))

    asyncio.run(test())


def test_many_polls_with_no_patience_read_as_much_as_one_with_much(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await fill(groups_server, topic, 100, partitions=3)
        async with Consumer(await settings_for(groups_server, "range", new_group())) as consumer:
            consumer.subscribe(topic)
            found: list[int] = []
            while len(found) < 100:
                found += [int(record.value or b"") for record in await consumer.poll(0)]
                await asyncio.sleep(0)
            assert sorted(found) == list(range(100))

    asyncio.run(test())


def test_deserializers_open_keys_and_values_and_a_bad_record_is_named_until_passed(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await create(groups_server, topic, 1)
        async with Producer(groups_server.bootstrap, {"key.serializer": "long"}) as producer:
            for value in (b'{"n": 0}', b"{", None):
                await producer.send(topic, value, key=7, partition=0)
        where = TopicPartition(topic, 0)
        async with reading(groups_server, key_deserializer="long", value_deserializer="json") as consumer:
            consumer.assign([where])
            (record,) = await consumer.poll(10)
            assert (record.key, record.value) == (7, {"n": 0})
            for _ in range(2):
                with pytest.raises(RecordUnreadable, match=f"{where}: the record at offset 1 .* seek past it"):
                    await consumer.poll(10)
            await consumer.seek(where, 2)
            (record,) = await consumer.poll(10)
            assert record.value is None

    asyncio.run(test())


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_without_a_committed_offset_the_reset_decides(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 10)
        for reset, position in [("earliest", 0), ("latest", 10)]:
            async with reading(groups_server, group_id=new_group(), auto_offset_reset=reset) as consumer:
                consumer.assign(places)
                assert await consumer.position(places[0]) == position
        async with reading(groups_server, group_id=new_group(), auto_offset_reset="none") as consumer:
            consumer.assign(places)
            with pytest.raises(NoCommittedOffset, match=r"auto\.offset\.reset is none; seek"):
                await consumer.poll(10)
            await consumer.seek(places[0], 4)
            assert await numbers(consumer, 6) == [4, 5, 6, 7, 8, 9]

    asyncio.run(test())


def test_a_reset_by_duration_begins_with_the_records_of_the_last_while(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    """Counted when the place is looked for; where nothing is that young, new records are waited for (KIP-1106)."""

    async def test() -> None:
        topic = new_topic()
        await create(groups_server, topic, 1)
        now_ms = time.time_ns() // 1_000_000
        async with Producer(groups_server.bootstrap) as producer:
            for number, minutes in enumerate((120, 90, 30, 10)):
                await producer.send(topic, b"%d" % number, partition=0, timestamp_ms=now_ms - minutes * 60_000)
        where = TopicPartition(topic, 0)
        for duration, position in [("P1D", 0), ("PT1H", 2), ("pt0h20m", 3), ("PT60.5S", 4), ("P99999999D", 0)]:
            async with reading(
                groups_server, group_id=new_group(), auto_offset_reset=f"by_duration:{duration}"
            ) as consumer:
                consumer.assign([where])
                assert await consumer.position(where) == position, duration
        group = new_group()
        async with reading(groups_server, group_id=group, auto_offset_reset="by_duration:PT1H") as consumer:
            await consumer.commit({where: 99})
            consumer.assign([where])
            assert await numbers(consumer, 2) == [2, 3], "an offset that is not in the log follows it too"

    asyncio.run(test())


def test_offsets_are_committed_and_read_by_topic_id_where_all_ids_are_known(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        places = await fill(groups_server, topic, 3)
        seen: list[tuple[int, str, bytes]] = []

        def note(key: int, request: Any) -> None:
            if key == ApiKey.OFFSET_COMMIT:
                seen.extend((key, each.name, each.topic_id) for each in request.topics)
            elif key == ApiKey.OFFSET_FETCH:
                seen.extend((key, each.name, each.topic_id) for each in request.groups[0].topics)

        def stay(key: int, response: Any) -> None:
            if key == ApiKey.FIND_COORDINATOR:
                for found in response.coordinators:
                    found.host, found.port = "127.0.0.1", proxy.port

        async with (
            Proxy(groups_server.bootstrap, on_request=note, on_response=stay) as proxy,
            Consumer(proxy.bootstrap, {"group.id": new_group(), "enable.auto.commit": False}) as consumer,
        ):
            missing = TopicPartition(topic + "-missing", 0)
            assert await consumer.committed([missing]) == {missing: None}
            assert seen.pop() == (ApiKey.OFFSET_FETCH, missing.topic, bytes(16)), "by name: nobody knows an id"
            consumer.assign(places)
            await consumer.seek(places[0], 2)
            await consumer.poll(10)
            seen.clear()
            await consumer.commit({places[0]: 2})
            assert (await consumer.committed(places))[places[0]] == OffsetAndMetadata(2)
        topic_id = consumer._client.topics[topic].topic_id
        assert seen == [(ApiKey.OFFSET_COMMIT, "", topic_id), (ApiKey.OFFSET_FETCH, "", topic_id)]

    asyncio.run(test())


def test_a_topic_that_was_made_anew_has_no_committed_offset(
    groups_server: Server, new_topic: Callable[[], str]
) -> None:
    """A consumer that knows the old topic's id learns the new one instead of failing for ever."""

    async def test() -> None:
        topic = new_topic()
        places = await fill(groups_server, topic, 3)
        async with Consumer(groups_server.bootstrap, {"group.id": new_group()}) as consumer:
            consumer.assign(places)
            while topic not in consumer._client.topics:
                await consumer.poll(0.01)
            await consumer.commit({places[0]: 2})
            old_id = consumer._client.topics[topic].topic_id
            consumer.assign([])
            async with ClusterClient(groups_server.bootstrap) as client:
                await admin.delete_topics(client, [topic])
                while topic in [each.name for each in await admin.list_topics(client)]:
                    await asyncio.sleep(0.01)
            await fill(groups_server, topic, 3)
            assert await consumer.committed(places) == {places[0]: None}
            assert consumer._client.topics[topic].topic_id != old_id

    asyncio.run(test())


def test_an_offset_that_was_deleted_follows_the_reset(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 10)
        group = new_group()
        async with reading(groups_server, group_id=group) as consumer:
            await consumer.commit({places[0]: 2})
        async with ClusterClient(groups_server.bootstrap) as client:
            await admin.delete_records(client, {places[0]: 6})
        async with reading(groups_server, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign(places)
            assert await numbers(consumer, 4) == [6, 7, 8, 9]
        async with reading(groups_server, group_id=group, auto_offset_reset="none") as consumer:
            consumer.assign(places)
            for _ in range(2):
                with pytest.raises(KafkaError, match="offset 2 is not in the log") as caught:
                    await consumer.poll(10)
                assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            await consumer.seek(places[0], "earliest")
            assert await numbers(consumer, 4) == [6, 7, 8, 9]

    asyncio.run(test())


# -- committing --------------------------------------------------------------------------------------------------------


def test_commits_keep_offset_metadata_and_epoch(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 20, partitions=2)
        async with reading(groups_server, group_id=new_group(), enable_auto_commit=False) as consumer:
            assert await consumer.committed(places) == dict.fromkeys(places)
            await consumer.commit({places[0]: OffsetAndMetadata(3, "as far as the third"), places[1]: 4})
            found = await consumer.committed(places)
            assert found == {places[0]: OffsetAndMetadata(3, "as far as the third"), places[1]: OffsetAndMetadata(4)}
            consumer.assign(places)
            await numbers(consumer, 13)
            await consumer.commit()
            assert await consumer.committed(places) == dict.fromkeys(places, OffsetAndMetadata(10, leader_epoch=0))

    asyncio.run(test())


def test_iterating_commits_up_to_the_record_at_hand(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 100)
        settings = {"group_id": new_group(), "enable_auto_commit": True}
        async with reading(groups_server, **settings) as consumer:
            consumer.assign(places)
            async for record in consumer:
                if record.offset == 30:
                    await consumer.commit()
                    committed = (await consumer.committed(places))[places[0]]
                    assert committed is not None and committed.offset == 31
                if record.offset == 41:
                    break
        with pytest.raises(ZeroDivisionError):
            async with reading(groups_server, **settings) as consumer:
                consumer.assign(places)
                async for record in consumer:
                    assert record.offset >= 42
                    if record.offset == 50:
                        1 // 0  # noqa: B018
        async with reading(groups_server, **settings) as consumer:
            # Closing committed what was read; what ended in an exception was not committed.
            committed = (await consumer.committed(places))[places[0]]
            assert committed is not None and committed.offset == 42

    asyncio.run(test())


def test_auto_commit_follows_while_nothing_comes(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        places = await fill(groups_server, topic, 10)
        settings = await settings_for(groups_server, "range", new_group(), auto_commit_interval_ms=50)
        async with Member(settings, topic) as member:
            await eventually(lambda: len(member.records) == 10)
            async with Consumer(settings) as other:
                while (await other.committed(places))[places[0]] != OffsetAndMetadata(10, leader_epoch=0):
                    await member.next_poll()

    asyncio.run(test())


# -- faults ------------------------------------------------------------------------------------------------------------


def through(proxy: Proxy) -> Callable[[int, Any], None]:
    """Coordinators too are reached through the proxy."""

    def rewrite(api_key: int, message: Any) -> None:
        if api_key == ApiKey.FIND_COORDINATOR:
            for one in message.coordinators:
                one.host, one.port = "127.0.0.1", proxy.port

    return rewrite


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        *((ApiKey.JOIN_GROUP, code) for code in (14, 15, 16, 25, 27)),
        *((ApiKey.SYNC_GROUP, code) for code in (14, 15, 16, 22, 25, 27)),
        *((ApiKey.HEARTBEAT, code) for code in (15, 16, 22, 25, 27)),
        *((ApiKey.OFFSET_FETCH, code) for code in (14, 16, 88)),
        *((ApiKey.OFFSET_COMMIT, code) for code in (3, 7, 14, 15, 16, 22, 25, 27)),
        *((ApiKey.CONSUMER_GROUP_HEARTBEAT, code) for code in (14, 15, 16, 25, 110)),
    ],
    ids=lambda value: str(ErrorCode(value).name) if isinstance(value, int) and not isinstance(value, ApiKey) else None,
)
def test_what_a_coordinator_answers_in_trouble_is_survived(
    kafka_groups_server: Server, new_topic: Callable[[], str], api_key: ApiKey, code: int
) -> None:
    """Twice each; then every record is still read, and committed in the end."""

    async def test() -> None:
        topic, group, left = new_topic(), new_group(), 2
        places = await fill(kafka_groups_server, topic, 0, partitions=2)

        def refuse(key: int, message: Any) -> None:
            nonlocal left
            rewrite(key, message)
            if key == api_key and left:
                left -= 1
                set_errors(message, code)

        is_next = api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT
        # A member that thinks it was expelled leaves a ghost behind, which the others wait for as long as a session.
        quick = {} if is_next else {"session_timeout_ms": 500}
        protocol = "next" if is_next else "cooperative-sticky"
        settings = await settings_for(kafka_groups_server, protocol, group, auto_commit_interval_ms=50, **quick)
        async with (
            Proxy(kafka_groups_server.bootstrap, on_response=refuse) as proxy,
            reading(kafka_groups_server, group_id=group) as other,
        ):
            rewrite = through(proxy)
            async with Member({**settings, "bootstrap.servers": proxy.bootstrap}, topic) as member:
                sent = 0
                while left or not sent:
                    await send(kafka_groups_server, topic, range(sent, sent + 20), 2)
                    sent += 20
                    await eventually(lambda: len(set(member.numbers)) == sent, lambda: (left, member.error))  # noqa: B023
                    while {found and found.offset for found in (await other.committed(places)).values()} != {sent // 2}:
                        await member.next_poll()
                assert member.error is None

    asyncio.run(test())


def set_errors(message: Any, code: int) -> None:
    """Refuse all that the innermost lists of an answer tell."""
    inner = [one for name in ("coordinators", "groups", "topics", "partitions") for one in getattr(message, name, ())]
    for one in inner:
        set_errors(one, code)
    if not inner:
        message.error_code = code


def test_cut_connections_lose_nothing(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic, cuts = new_topic(), 0
        await fill(groups_server, topic, 300, partitions=2)

        def cut(key: int, message: Any) -> None:
            nonlocal cuts
            rewrite(key, message)
            cuts += 1
            if cuts % 7 == 0 and cuts < 100:
                raise Cut

        settings = await settings_for(groups_server, "range", new_group(), max_partition_fetch_bytes=300)
        async with Proxy(groups_server.bootstrap, on_response=cut) as proxy:
            rewrite = through(proxy)
            async with Member({**settings, "bootstrap.servers": proxy.bootstrap}, topic) as member:
                await eventually(lambda: len(set(member.numbers)) == 300, lambda: (len(member.records), member.error))

    asyncio.run(test())


def test_heartbeats_go_on_while_the_application_works(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic, beats = new_topic(), 0
        await fill(groups_server, topic, 1)

        def count(key: int, message: Any) -> None:
            nonlocal beats
            beats += key == ApiKey.HEARTBEAT

        settings = await settings_for(groups_server, "range", new_group(), session_timeout_ms=500)
        async with Proxy(groups_server.bootstrap, on_request=count) as proxy:
            proxy.on_response = through(proxy)
            async with Consumer({**settings, "bootstrap.servers": proxy.bootstrap}) as consumer:
                consumer.subscribe(topic)
                assert len(await consumer.poll(10)) == 1
                generation = consumer.group_metadata().generation
                await eventually(lambda: beats >= 12)  # more than a session's worth without a poll
                await consumer.commit()
                assert consumer.group_metadata().generation == generation

    asyncio.run(test())


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_closing_ends_a_poll_and_every_later_call(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        places = await fill(groups_server, new_topic(), 0)
        consumer = reading(groups_server)
        with pytest.raises(RuntimeError, match=r"subscribe\(\) or assign\(\) first"):
            await consumer.poll(0)
        consumer.assign(places)
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="polled by another task"):
            await consumer.poll(0)
        await consumer.close()
        for call in (waiting, consumer.poll(0), consumer.commit(), consumer.position(places[0])):
            with pytest.raises(ConsumerClosed):
                await call
        await consumer.close()

    asyncio.run(test())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_cluster_that_is_not_there_shows_at_once(protocol: str) -> None:
    async def test() -> None:
        async with Consumer("127.0.0.1:1", {"group.id": "g", "group.protocol": protocol}) as consumer:
            consumer.subscribe("orders")
            for _ in range(2):
                with pytest.raises(ConnectionFailed, match="connection refused"):
                    await consumer.poll(10)

    asyncio.run(test())


@pytest.mark.parametrize("protocol", ["cooperative-sticky", "next"])
def test_a_callback_that_fails_shows_in_poll_and_the_group_goes_on(
    groups_server: Server, new_topic: Callable[[], str], protocol: str
) -> None:
    async def test() -> None:
        topic = new_topic()
        await create(groups_server, topic, 4)
        settings = await settings_for(groups_server, protocol, new_group())

        def fail(partitions: set[TopicPartition]) -> None:
            raise ZeroDivisionError

        consumer = Consumer(settings)
        consumer.subscribe(topic, on_revoked=fail)
        while len(consumer.assignment) < 4:
            await consumer.poll(0.05)
        async with Member(settings, topic) as other:
            with pytest.raises(ZeroDivisionError):
                while True:
                    await consumer.poll(0.05)
            while len(other.partitions) < 2:
                await consumer.poll(0.05)
            held = {where.partition for where in consumer.assignment}
            assert len(held) == 2 and held.isdisjoint(other.partitions)
            with pytest.raises(ZeroDivisionError):
                await consumer.close()
            await shared_by([other], 4)

    asyncio.run(test())


def test_a_topic_that_can_never_be_read_is_named(groups_server: Server) -> None:
    async def test() -> None:
        async with Consumer(await settings_for(groups_server, "range", new_group())) as consumer:
            consumer.subscribe("no such name!")
            with pytest.raises(KafkaError, match="'no such name!' cannot be read: INVALID_TOPIC_EXCEPTION"):
                await consumer.poll(10)

    asyncio.run(test())


def test_callbacks_may_wait_commit_and_seek(groups_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic, group = new_topic(), new_group()
        places = await fill(groups_server, topic, 10)
        settings = await settings_for(groups_server, "range", group, enable_auto_commit=False)

        async def skip_some(partitions: set[TopicPartition]) -> None:
            await consumer.seek(partitions, 5)

        async def commit_all(partitions: set[TopicPartition]) -> None:
            await consumer.commit()

        async with Consumer(settings) as consumer:
            consumer.subscribe(topic, on_assigned=skip_some, on_revoked=commit_all)
            assert await numbers(consumer, 5) == [5, 6, 7, 8, 9]
        async with Consumer(settings) as consumer:
            found = (await consumer.committed(places))[places[0]]
            assert found is not None and found.offset == 10

    asyncio.run(test())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": "x"}, "did you mean 'group.id'"),
        ({"group.id": ""}, "group.id: an empty name is no group"),
        ({"auto.offset.reset": "first"}, "'first' is not one of earliest, latest, none"),
        ({"auto.offset.reset": "latest:PT1H"}, "'latest:PT1H' is not one of earliest, latest, none"),
        ({"auto.offset.reset": "by_duration:"}, "has no duration: write by_duration:PT1H30M"),
        ({"auto.offset.reset": "by_duration:1h"}, "has no duration"),
        ({"auto.offset.reset": "by_duration:-PT1H"}, "has no duration"),
        ({"auto.offset.reset": "by_duration:P1Y"}, "has no duration"),
        ({"auto.offset.reset": "by_duration:P" + "9" * 400 + "D"}, "has no duration"),
        ({"partition.assignment.strategy": "fair"}, "'fair' is not one of range, roundrobin"),
        ({"enable.auto.commit": True}, "needs a group to commit for: set group.id"),
        ({"group.instance.id": "a"}, "names a member of a group: set group.id"),
        ({"group.id": "g", "session.timeout.ms": 1000}, "heartbeat.interval.ms=3000 must be below"),
        ({"group.id": "g", "group.protocol": "consumer", "session.timeout.ms": 9000}, "the coordinator decides"),
        ({"group.id": "g", "group.remote.assignor": "range"}, "needs group.protocol=consumer"),
        ({"isolation.level": "high"}, "is not one of read_uncommitted, read_committed"),
        ({"value.deserializer": "xml"}, "'xml' is no deserializer"),
    ],
)
def test_settings_are_refused_in_words(given: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        consumer_settings(given)


def test_settings_have_kafkas_defaults_and_take_texts() -> None:
    settings = consumer_settings({"group.id": "g", "max.poll.records": "9", "enable.auto.commit": "false"})
    assert (settings.max_poll_records, settings.enable_auto_commit) == (9, False)
    assert consumer_settings({"group.id": "g"}).enable_auto_commit and not consumer_settings({}).enable_auto_commit
    assert [one.name for one in settings.partition_assignment_strategy] == ["range", "cooperative-sticky"]


def test_every_setting_is_on_its_page_with_its_default() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "consumer.md"
    listed: dict[str, str] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([a-z.]+)`", cells[0]) if len(cells) == 3 else ():
            listed[name] = cells[1]
    assert set(listed) == set(CONSUMER_PARSERS)
    defaults = ConsumerSettings()
    shown = {"key.deserializer": "bytes", "value.deserializer": "bytes", "isolation.level": "read_uncommitted"}
    shown["partition.assignment.strategy"] = ",".join(one.name for one in defaults.partition_assignment_strategy)
    for name, value in listed.items():
        default = getattr(defaults, name.replace(".", "_"))
        assert value == shown.get(name, str(default).lower() if isinstance(default, bool) else str(default)), name


def test_a_cluster_without_the_next_protocol_is_named(
    groups_server: Server, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supports = Connection.supports
    monkeypatch.setattr(
        Connection,
        "supports",
        lambda self, key: range(0) if key == ApiKey.CONSUMER_GROUP_HEARTBEAT else supports(self, key),
    )

    async def test() -> None:
        settings = {"group.id": new_group(), "group.protocol": "consumer"}
        async with Consumer(groups_server.bootstrap, settings) as consumer:
            consumer.subscribe(new_topic())
            with pytest.raises(KafkaError, match=r"set group\.protocol=classic"):
                await consumer.poll(10)

    asyncio.run(test())


def test_polling_too_late_is_told_in_the_log(
    groups_server: Server, new_topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        topic = new_topic()
        await fill(groups_server, topic, 1)
        settings = await settings_for(groups_server, "range", new_group(), max_poll_interval_ms=100)
        async with Consumer(settings) as consumer:
            consumer.subscribe(topic)
            await consumer.poll(10)
            await eventually(lambda: "poll_overdue" in caplog.text)
            assert "raise max.poll.interval.ms or lower max.poll.records" in caplog.text

    asyncio.run(test())


# -- without an event loop ---------------------------------------------------------------------------------------------


def test_the_blocking_consumer_does_the_same(groups_server: Server, new_topic: Callable[[], str]) -> None:
    topic, group = new_topic(), new_group()
    where = TopicPartition(topic, 0)
    with BlockingProducer(groups_server.bootstrap) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
    settings = {"group.id": group, "auto.offset.reset": "earliest", "value.deserializer": "string", **CLASSIC}
    heard: list[str] = []
    with BlockingConsumer(groups_server.bootstrap, settings) as consumer:
        consumer.subscribe(topic, on_assigned=lambda partitions: heard.append(threading.current_thread().name))
        for record in consumer:
            assert record.value == str(record.offset)
            if record.offset == 60:
                break
        assert heard == ["moldau-consumer"] and where in consumer.assignment
        assert consumer.position(where) == 61
        consumer.pause([where])
        assert consumer.poll(0.01) == [] and consumer.paused == {where}
        consumer.resume([where])
        consumer.seek(where, 10)
        assert consumer.poll(10)[0].offset == 10
        consumer.seek(where, 20)
        consumer.commit()
        assert consumer.committed(where)[where] == OffsetAndMetadata(20)
    with pytest.raises(ConsumerClosed):
        consumer.poll(0)
    with pytest.raises(ZeroDivisionError), BlockingConsumer(groups_server.bootstrap, settings) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            assert record.offset >= 20
            1 // (record.offset - 30)
    with BlockingConsumer(groups_server.bootstrap, settings) as consumer:
        assert consumer.committed(where)[where] == OffsetAndMetadata(20)


def test_mistakes_of_the_blocking_consumer_show_where_they_are_made() -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'group\.id'"):
        BlockingConsumer("127.0.0.1:1", {"groupid": "x"})
    with BlockingConsumer("127.0.0.1:1") as consumer, pytest.raises(SettingsError, match=r"set group\.id"):
        consumer.subscribe("orders")
