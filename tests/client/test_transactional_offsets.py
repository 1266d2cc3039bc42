"""Offsets that our producer commits with its transactions, on real brokers of both generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moldau.client import (
    ConsumedRecord,
    Consumer,
    GroupMetadata,
    OffsetAndMetadata,
    Producer,
    TransactionAbortable,
)
from moldau.client.errors import CommitFailed
from moldau.kernel import ErrorCode, TopicPartition
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.proxy import Proxy
from tests.client.transaction_faults import Fault
from tests.client.transactional_kit import (
    Place,
    bounded,
    committed,
    make_topic,
    transactional,
    values,
    wait_committed,
)


@bounded
async def test_offsets_are_committed_with_the_transaction_or_not_at_all(place: Place) -> None:
    bootstrap, topic = place
    where = TopicPartition(topic, 0)
    async with transactional(bootstrap, topic) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({where: OffsetAndMetadata(5, "note")}, topic)
        assert await committed(bootstrap, topic, where) is None
        await producer.commit_transaction()
        await wait_committed(bootstrap, topic, where, 5)
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({where: 9}, GroupMetadata(topic))
        await producer.abort_transaction()
        assert await committed(bootstrap, topic, where) == 5
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({}, topic)
        await producer.commit_transaction()


@bounded
async def test_consume_transform_produce_happens_once_although_it_fails_and_starts_anew(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    source, sink = new_topic(), new_topic()
    bootstrap = transactions_server.bootstrap
    await make_topic(bootstrap, source, 2)
    await make_topic(bootstrap, sink)
    async with Producer(bootstrap) as plain:
        for i in range(60):
            await plain.send(source, b"%d" % i)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": source,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "max.poll.records": 7,
    }
    done = crashes = 0
    while done < 60:
        # A life: it crashes after its second transaction, before the commit of its third.
        async with transactional(bootstrap, source) as producer, Consumer(settings) as consumer:
            await producer.init_transactions()
            consumer.subscribe(source)
            for transaction in range(3):
                records: list[ConsumedRecord] = []
                while not records and done < 60:
                    records = await consumer.poll(5)
                if not records:
                    break
                producer.begin_transaction()
                for record in records:
                    await producer.send(sink, b"<%s>" % (record.value or b""))
                ends = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
                await producer.send_offsets_to_transaction(ends, consumer.group_metadata())
                if transaction == 2:
                    crashes += 1
                    break
                await producer.commit_transaction()
                done += len(records)
    assert crashes >= 3
    assert sorted(one or b"" for one in await values(bootstrap, sink)) == sorted(b"<%d>" % i for i in range(60))


@bounded
async def test_a_member_that_its_group_went_on_without_must_abort(place: Place) -> None:
    bootstrap, topic = place
    where = TopicPartition(topic, 0)
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": "false"}
    async with transactional(bootstrap, topic) as producer, Consumer(settings) as consumer:
        await producer.init_transactions()
        consumer.subscribe(topic)
        while consumer.group_metadata().generation < 0:
            await consumer.poll(0.01)
        member = consumer.group_metadata()
        for zombie in (
            GroupMetadata(topic, member.generation + 7, member.member_id),
            GroupMetadata(topic, member.generation, "somebody else"),
        ):
            producer.begin_transaction()
            await producer.send(topic, b"dropped")
            with pytest.raises(TransactionAbortable, match="went on without this member") as caught:
                await producer.send_offsets_to_transaction({where: 3}, zombie)
            assert isinstance(caught.value.__cause__, CommitFailed)
            with pytest.raises(TransactionAbortable):
                await producer.commit_transaction()
            with pytest.raises(TransactionAbortable):
                await producer.send(topic, b"refused")
            await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets_to_transaction({where: 4}, member)
        await wait_committed(bootstrap, topic, where, 4)


@pytest.mark.parametrize("given_up", ["timeout", "cancelled"])
@bounded
async def test_offsets_that_are_given_up_on_their_way_are_in_no_transaction(place: Place, given_up: str) -> None:
    bootstrap, topic = place
    where = TopicPartition(topic, 0)
    fault = Fault(ApiKey.TXN_OFFSET_COMMIT, 0, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    async with (
        Proxy(bootstrap, on_request=fault.on_request) as proxy,
        transactional(proxy.bootstrap, topic, max_block_ms=2_000) as producer,
    ):
        await producer.init_transactions()
        producer.begin_transaction()
        fault.left = 10**6
        sending = asyncio.create_task(producer.send_offsets_to_transaction({where: 3}, topic))
        if given_up == "cancelled":
            while fault.left == 10**6:
                await asyncio.sleep(0.01)
            sending.cancel()
        outcome = (await asyncio.gather(sending, return_exceptions=True))[0]
        assert isinstance(outcome, TransactionAbortable if given_up == "timeout" else asyncio.CancelledError)
        fault.left = 0
        with pytest.raises(TransactionAbortable):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets_to_transaction({where: 7}, topic)
    await wait_committed(bootstrap, topic, where, 7)
