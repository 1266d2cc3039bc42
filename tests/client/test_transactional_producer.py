"""Transactions of our producer on real brokers of both generations, through a proxy where things must go wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.client import (
    BlockingProducer,
    ClusterClient,
    ConsumedRecord,
    Consumer,
    Delivery,
    GroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    PartitionReader,
    Producer,
    ProducerClosed,
    ProducerFenced,
    SettingsError,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
    TransactionTimedOut,
    WrongTransactionState,
    admin,
    group_admin,
    producer_settings,
)
from moldau.client.errors import CommitFailed
from moldau.client.transactions import State
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import read_header
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.registry import ApiKey
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from tests.client.conftest import Server
from tests.client.proxy import Cut, Proxy, Swallow
from tests.client.test_producer import refuse
from tests.oracle import ApacheKafka, require_oracle

SECONDS_MAX = 60
READ_COMMITTED = IsolationLevel.READ_COMMITTED


def run(test: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(bounded())


async def read(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    isolation_level: IsolationLevel = READ_COMMITTED,
) -> list[ConsumedRecord]:
    """Everything from the beginning to the end as it is now, also what is open or aborted if the level says so."""
    await wait_markers(bootstrap, topic, partitions)
    return await read_now(bootstrap, topic, partitions, isolation_level)


async def wait_markers(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Until no transaction is open there: Kafka answers a commit before it has written the markers."""
    wheres = [TopicPartition(topic, number) for number in range(partitions)]
    async with ClusterClient(bootstrap) as client:
        while True:
            stable = await admin.list_offsets(
                client, dict.fromkeys(wheres, admin.LATEST), isolation_level=READ_COMMITTED
            )
            ends = await admin.list_offsets(client, dict.fromkeys(wheres, admin.LATEST))
            if all(stable[where].offset == ends[where].offset for where in wheres):
                return
            await asyncio.sleep(0.01)


async def read_now(
    bootstrap: str, topic: str, partitions: int, isolation_level: IsolationLevel
) -> list[ConsumedRecord]:
    records: list[ConsumedRecord] = []
    async with ClusterClient(bootstrap) as client:
        wheres = [TopicPartition(topic, number) for number in range(partitions)]
        ends = await admin.list_offsets(client, dict.fromkeys(wheres, admin.LATEST), isolation_level=isolation_level)
        stop = {where: end.offset for where, end in ends.items()}
        start = dict.fromkeys(wheres, "earliest")
        async with PartitionReader(client, start, stop=stop, isolation_level=isolation_level) as reader:  # type: ignore[arg-type]
            async for some in reader:
                records += some
    return records


async def values(bootstrap: str, topic: str, partitions: int = 1) -> list[bytes | None]:
    return [record.value for record in await read(bootstrap, topic, partitions)]


async def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, topic, partitions=partitions)


async def settled(deliveries: Sequence[Delivery]) -> list[Any]:
    async def outcome(delivery: Delivery) -> Any:
        return await delivery

    return await asyncio.gather(*(outcome(one) for one in deliveries), return_exceptions=True)


def transactional(bootstrap: str, transactional_id: str, **more: object) -> Producer:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "retry.backoff.ms": 20, **settings}
    )


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_that_contradict_transactions_are_refused() -> None:
    for contradiction, text in (
        ({"acks": "1"}, "acks=1 .it needs all"),
        ({"enable.idempotence": "false"}, "needs enable.idempotence=true"),
        ({"retries": 0}, "retries=0"),
        ({"max.in.flight.requests.per.connection": 6}, "at most 5"),
    ):
        with pytest.raises(SettingsError, match=f"transactional.id .*{text}"):
            producer_settings({"transactional.id": "x", **contradiction})
    with pytest.raises(SettingsError, match=r"set transactional\.id"):
        producer_settings({"transaction.timeout.ms": 5})
    with pytest.raises(SettingsError, match="empty name"):
        producer_settings({"transactional.id": ""})
    assert producer_settings({"transactional.id": "x"}).enable_idempotence


def test_a_producer_without_an_id_has_no_transactions() -> None:
    async def test() -> None:
        async with Producer("127.0.0.1:1") as producer:
            for call in (producer.init_transactions, producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(WrongTransactionState, match=r"set transactional\.id"):
                    await call()
            with pytest.raises(WrongTransactionState, match=r"begin_transaction.*set transactional\.id"):
                producer.begin_transaction()

    run(test)


def test_a_wrong_address_shows_at_once_and_init_may_be_called_again() -> None:
    async def test() -> None:
        async with transactional("127.0.0.1:1", "nobody") as producer:
            for _ in range(2):
                with pytest.raises(ConnectionError, match="refused"):
                    await producer.init_transactions()

    run(test)


# -- both generations --------------------------------------------------------------------------------------------------


def test_what_is_committed_is_seen_as_a_whole_and_what_is_aborted_never(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic, 3)
        async with transactional(bootstrap, topic) as producer:
            await producer.init_transactions()
            kept: list[bytes] = []
            for number in range(12):
                producer.begin_transaction()
                records = [b"%d-%d" % (number, index) for index in range(7)]
                deliveries = [await producer.send(topic, one, partition=i % 3) for i, one in enumerate(records)]
                if number % 3 == 2:
                    await asyncio.gather(*(settled([one]) for one in deliveries))
                    assert all(delivery.exception() is None for delivery in deliveries)
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    assert all(delivery.done() for delivery in deliveries)  # a commit waits for its sends
                    kept += records
        assert sorted(one or b"" for one in await values(bootstrap, topic, 3)) == sorted(kept)
        assert len(await read(bootstrap, topic, 3, IsolationLevel.READ_UNCOMMITTED)) == 12 * 7

    run(test)


def test_an_open_transaction_is_not_seen_and_its_commit_shows_it(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as producer, Producer(bootstrap) as other:
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send(topic, b"first"))
            await (await other.send(topic, b"behind it"))
            # Not even what stands behind it.
            assert await read_now(bootstrap, topic, 1, READ_COMMITTED) == []
            await producer.commit_transaction()
            assert await values(bootstrap, topic) == [b"first", b"behind it"]

    run(test)


def test_an_abort_drops_what_did_not_leave_and_waits_for_what_did(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        seen: list[tuple[str, int]] = []
        async with (
            Proxy(
                bootstrap,
                on_request=lambda api_key, _: seen.append(("request", api_key)),
                on_response=lambda api_key, _: seen.append(("response", api_key)),
            ) as proxy,
            transactional(proxy.bootstrap, topic, linger_ms=100_000) as producer,
        ):
            await producer.init_transactions()
            producer.begin_transaction()
            first = await producer.send(topic, b"first")
            await producer.flush()
            sent = await producer.send(topic, b"sent")
            flushing = asyncio.create_task(producer.flush())
            while producer.buffered_bytes and not producer._in_flight_requests.get(1):
                await asyncio.sleep(0)
            assert not sent.done()
            unsent = await producer.send(topic, b"unsent")
            await producer.abort_transaction()
            assert first.exception() is None and sent.exception() is None
            assert isinstance(unsent.exception(), TransactionAborted)
            end = seen.index(("request", ApiKey.END_TXN))
            assert seen[:end].count(("response", ApiKey.PRODUCE)) == 2
            await flushing
            async with producer.transaction():
                await producer.send(topic, b"kept")
        everything = await read(bootstrap, topic, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        assert [one.value for one in everything] == [b"first", b"sent", b"kept"]
        assert await values(bootstrap, topic) == [b"kept"]

    run(test)


def test_a_block_commits_at_its_end_and_aborts_on_an_exception(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"one")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await (await producer.send(topic, b"two"))
                    raise ZeroDivisionError
            async with producer.transaction():
                pass  # nothing in it: no broker hears of it
            async with producer.transaction() as same:
                assert same is producer
                await producer.send(topic, b"three")
        assert await values(bootstrap, topic) == [b"one", b"three"]

    run(test)


def test_calls_out_of_order_say_what_to_do_and_harm_nothing(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await make_topic(transactions_server.bootstrap, topic)
        async with transactional(transactions_server.bootstrap, topic) as producer:
            with pytest.raises(WrongTransactionState, match=r"init_transactions\(\) first"):
                producer.begin_transaction()
            with pytest.raises(WrongTransactionState, match=r"init_transactions\(\) first"):
                await producer.send(topic, b"x")
            await producer.init_transactions()
            with pytest.raises(WrongTransactionState, match="once is enough"):
                await producer.init_transactions()
            for early in (producer.send(topic, b"x"), producer.commit_transaction(), producer.abort_transaction()):
                with pytest.raises(WrongTransactionState, match=r"begin_transaction\(\) first"):
                    await early
            producer.begin_transaction()
            with pytest.raises(WrongTransactionState, match="commit or abort it first"):
                producer.begin_transaction()
            await producer.send(topic, b"kept")
            await producer.commit_transaction()
        with pytest.raises(ProducerClosed):
            producer.begin_transaction()
        assert await values(transactions_server.bootstrap, topic) == [b"kept"]

    run(test)


def test_many_tasks_send_into_one_transaction(transactions_server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic, 4)
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        dice = random.Random(seed)
        kept: list[bytes] = []
        async with transactional(bootstrap, topic, linger_ms=0, batch_size=200) as producer:
            await producer.init_transactions()
            for number in range(8):
                producer.begin_transaction()

                async def send_some(task: int, number: int = number) -> list[bytes]:
                    some = [b"%d-%d-%d" % (number, task, index) for index in range(dice.randrange(30))]
                    for one in some:
                        await producer.send(topic, one, partition=dice.randrange(4))
                        if dice.random() < 0.2:
                            await asyncio.sleep(0)
                    return some

                records = [one for some in await asyncio.gather(*map(send_some, range(6))) for one in some]
                if dice.random() < 0.5:
                    await producer.commit_transaction()
                    kept += records
                else:
                    await producer.abort_transaction()
        assert sorted(one or b"" for one in await values(bootstrap, topic, 4)) == sorted(kept)

    run(test)


def test_a_second_producer_with_the_id_fences_the_first(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as first, transactional(bootstrap, topic) as second:
            await first.init_transactions()
            first.begin_transaction()
            await (await first.send(topic, b"of the first"))
            await second.init_transactions()  # aborts what the first left open
            async with second.transaction():
                await second.send(topic, b"of the second")
            with pytest.raises(ProducerFenced, match="close this producer"):
                await first.commit_transaction()
            for _ in range(2):
                with pytest.raises(ProducerFenced):
                    first.begin_transaction()
                with pytest.raises(ProducerFenced):
                    await first.abort_transaction()
                with pytest.raises(ProducerFenced):
                    await first.send(topic, b"too late")
        assert await values(bootstrap, topic) == [b"of the second"]

    run(test)


def test_a_fenced_producer_that_writes_is_told_to_abort_and_then_that_it_is_over(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as first, transactional(bootstrap, topic) as second:
            await first.init_transactions()
            async with first.transaction():
                await first.send(topic, b"kept")
            await second.init_transactions()
            first.begin_transaction()
            with pytest.raises((TransactionAbortable, ProducerFenced)):
                await first.send(topic, b"from the grave")
                await first.commit_transaction()
            with pytest.raises(ProducerFenced):
                await first.abort_transaction()
        assert await values(bootstrap, topic) == [b"kept"]

    run(test)


async def wait_stable(bootstrap: str, topic: str, offset: int) -> None:
    """Until readers of committed records may go up to there."""
    where = TopicPartition(topic, 0)
    async with ClusterClient(bootstrap) as client:
        while True:
            ends = await admin.list_offsets(client, {where: admin.LATEST}, isolation_level=READ_COMMITTED)
            if ends[where].offset >= offset:
                return
            await asyncio.sleep(0.02)


def test_a_transaction_that_outlives_its_timeout_is_aborted_by_the_coordinator(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic, transaction_timeout_ms=300) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send(topic, b"too slow"))
            await wait_stable(bootstrap, topic, 2)  # behind the record and its marker
            with pytest.raises(TransactionFatal, match=r"transaction\.timeout\.ms.*close this producer"):
                await producer.commit_transaction()
        async with transactional(bootstrap, topic) as again:
            await again.init_transactions()
            async with again.transaction():
                await again.send(topic, b"in time")
        assert await values(bootstrap, topic) == [b"in time"]

    run(test)


def test_a_producer_that_writes_after_its_timeout_aborts_and_goes_on_where_brokers_allow_it(
    implicit_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = implicit_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic, transaction_timeout_ms=300) as producer:
            await producer.init_transactions()
            with pytest.raises(TransactionAbortable, match="INVALID_PRODUCER_EPOCH"):
                async with producer.transaction():
                    await (await producer.send(topic, b"too slow"))
                    await wait_stable(bootstrap, topic, 2)
                    await producer.send(topic, b"too late")
            async with producer.transaction():
                await producer.send(topic, b"again")
        assert await values(bootstrap, topic) == [b"again"]

    run(test)


def test_a_timeout_above_the_brokers_maximum_is_refused_with_its_name(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        settings = {"transaction_timeout_ms": 100_000_000}
        async with transactional(transactions_server.bootstrap, new_topic(), **settings) as producer:
            for _ in range(2):
                with pytest.raises(TransactionFatal, match=r"transaction\.max\.timeout\.ms"):
                    await producer.init_transactions()

    run(test)


def test_closing_aborts_what_is_open_and_a_new_producer_need_not_wait(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send(topic, b"open"))
            unsent = await producer.send(topic, b"unsent")
        assert isinstance(unsent.exception(), TransactionAborted)
        async with Producer(bootstrap) as other:
            await (await other.send(topic, b"plain"))
        assert await values(bootstrap, topic) == [b"plain"]  # the transaction holds nobody up

    run(test)


def test_the_blocking_producer_has_transactions_too(transactions_server: Server, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    bootstrap = transactions_server.bootstrap
    asyncio.run(make_topic(bootstrap, topic))
    # So little room that records still wait for it when the commit is called.
    small = {"batch.size": 1_000, "buffer.memory": 4_000, "linger.ms": 0}
    with BlockingProducer({"bootstrap.servers": bootstrap, "transactional.id": topic, **small}) as producer:
        with pytest.raises(WrongTransactionState, match="init_transactions"):
            producer.send(topic, b"early")
        producer.init_transactions()
        with producer.transaction():
            handles = [producer.send(topic, b"%d" % i) for i in range(500)]
        assert all(handle.done() for handle in handles)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted").result(30)
            raise ZeroDivisionError
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 4}, topic)
        handles = [producer.send(topic, b"%d" % i) for i in range(500, 3000)]
        producer.commit_transaction()
        assert all(handle.done() and handle.result().offset > 500 for handle in handles)
        producer.begin_transaction()
        refused = producer.send(topic, "not bytes")
        with pytest.raises(TransactionAbortable, match="not bytes"):
            producer.commit_transaction()  # the record's failure would otherwise be seen by the handle only
        with pytest.raises(TypeError):
            refused.result(30)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"left open")
    assert asyncio.run(values(bootstrap, topic)) == [b"%d" % i for i in range(3000)]


# -- offsets -----------------------------------------------------------------------------------------------------------


async def committed(bootstrap: str, group: str, where: TopicPartition) -> int | None:
    async with ClusterClient(bootstrap) as client:
        offsets = (await group_admin.group_offsets(client, [group]))[group]
        assert not isinstance(offsets, KafkaError)
        return offsets[where].offset if where in offsets else None


async def wait_committed(bootstrap: str, group: str, where: TopicPartition, offset: int) -> None:
    """Until the marker has reached the offsets too."""
    while await committed(bootstrap, group, where) != offset:
        await asyncio.sleep(0.01)


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
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

    run(test)


def test_consume_transform_produce_happens_once_although_it_fails_and_starts_anew(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
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
                    records = await consumer.poll(5)
                    while not records and done < 60:
                        records = await consumer.poll(5)
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

    run(test)


def test_a_member_that_its_group_went_on_without_must_abort(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        where = TopicPartition(topic, 0)
        settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": "false"}
        async with transactional(bootstrap, topic) as producer, Consumer(settings) as consumer:
            await producer.init_transactions()
            consumer.subscribe(topic)
            await consumer.poll(5)
            while consumer.group_metadata().generation < 0:
                await consumer.poll(0.1)
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

    run(test)


@pytest.mark.parametrize("given_up", ["timeout", "cancelled"])
def test_offsets_that_are_given_up_on_their_way_are_in_no_transaction(
    transactions_server: Server, new_topic: Callable[[], str], given_up: str
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
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

    run(test)


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


def answer_code(api_key: int, code: ErrorCode, message: Any) -> Any:
    """A refusal in the broker's place."""
    if api_key == ApiKey.PRODUCE:
        return refuse(message, code)
    if api_key == ApiKey.END_TXN:
        return EndTxnResponse(error_code=code)
    if api_key == ApiKey.INIT_PRODUCER_ID:
        return InitProducerIdResponse(error_code=code)
    if api_key == ApiKey.TXN_OFFSET_COMMIT:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    topic.name,
                    [
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(one.partition_index, int(code))
                        for one in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )
    assert api_key == ApiKey.ADD_PARTITIONS_TO_TXN
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(number, int(code))
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


class Fault:
    """Does something to the first so many requests, or answers, of one kind."""

    def __init__(self, api_key: ApiKey, times: int, *, code: ErrorCode | None = None, lose: bool = False) -> None:
        self.api_key, self.left, self.code, self.lose = api_key, times, code, lose

    def on_request(self, api_key: int, message: Any) -> Any:
        if api_key != self.api_key or not self.left or self.code is None:
            return None
        self.left -= 1
        return answer_code(api_key, self.code, message)

    def on_response(self, api_key: int, message: Any) -> None:
        if api_key == self.api_key and self.left and self.lose:
            self.left -= 1
            raise Cut


@pytest.mark.parametrize(
    "api_key", [ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN], ids=lambda k: k.name
)
def test_a_lost_answer_is_asked_for_again_and_changes_nothing(
    transactions_server: Server, new_topic: Callable[[], str], api_key: ApiKey
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic, 2)
        fault = Fault(api_key, 3, lose=True)
        async with (
            Proxy(bootstrap, on_response=fault.on_response) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            for number in range(6):
                producer.begin_transaction()
                await producer.send(topic, b"%d" % number, partition=number % 2)
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, topic)
                await (producer.abort_transaction() if number % 3 == 1 else producer.commit_transaction())
        assert not fault.left
        assert sorted(one or b"" for one in await values(bootstrap, topic, 2)) == [b"0", b"2", b"3", b"5"]
        await wait_committed(bootstrap, topic, TopicPartition(topic, 0), 5)

    run(test)


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ApiKey.PRODUCE, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ApiKey.END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR),
    ],
    ids=lambda value: value.name,
)
def test_refusals_that_pass_are_waited_out(
    transactions_server: Server, new_topic: Callable[[], str], api_key: ApiKey, code: ErrorCode
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        fault = Fault(api_key, 3, code=code)
        asked: list[int] = []

        def on_request(api_key: int, message: Any) -> Any:
            asked.append(api_key)
            return fault.on_request(api_key, message)

        async with (
            Proxy(bootstrap, on_request=on_request) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            async with producer.transaction():
                await (await producer.send(topic, b"kept"))  # the proxy answers one at a time
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
        assert not fault.left
        assert await values(bootstrap, topic) == [b"kept"]
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            assert asked.count(ApiKey.FIND_COORDINATOR) >= 2 + 3  # it moved: looked for again each time

    run(test)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.MESSAGE_TOO_LARGE,
    ],
    ids=lambda code: code.name,
)
def test_a_refused_batch_must_be_aborted_and_the_producer_goes_on(
    transactions_server: Server, new_topic: Callable[[], str], code: ErrorCode
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        fault = Fault(ApiKey.PRODUCE, 0, code=code)
        async with (
            Proxy(bootstrap, on_request=fault.on_request) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"first")
            for _ in range(2):
                producer.begin_transaction()
                await (await producer.send(topic, b"in the log, and aborted"))
                fault.left = 1
                refused = await producer.send(topic, b"refused")
                with pytest.raises(TransactionAbortable, match="abort it"):
                    await producer.commit_transaction()
                error = refused.exception()
                assert isinstance(error, KafkaError) and error.code is code
                with pytest.raises(TransactionAbortable):
                    producer.begin_transaction()
                await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"last")
        assert await values(bootstrap, topic) == [b"first", b"last"]

    run(test)


@pytest.mark.parametrize(
    ("api_key", "code", "kind"),
    [
        (ApiKey.PRODUCE, ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionFatal),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, TransactionFatal),
        (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, TransactionFatal),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, TransactionFatal),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_refusals_without_a_way_back_end_the_producer(
    transactions_server: Server,
    new_topic: Callable[[], str],
    api_key: ApiKey,
    code: ErrorCode,
    kind: type[TransactionFatal],
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        fault = Fault(api_key, 1, code=code)
        async with (
            Proxy(bootstrap, on_request=fault.on_request) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            with pytest.raises(kind) as caught:
                async with producer.transaction():
                    await settled([await producer.send(topic, b"lost")])  # the proxy answers one at a time
                    await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
            assert caught.value.code is code
            for call in (producer.commit_transaction, producer.abort_transaction, producer.init_transactions):
                with pytest.raises(kind):
                    await call()
            with pytest.raises(kind):
                await producer.send(topic, b"no")

    run(test)


def test_a_batch_that_times_out_is_aborted_and_cannot_arrive_later(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        held: list[int] = []

        def swallow_one(api_key: int, message: Any) -> Any:
            if api_key == ApiKey.PRODUCE and len(held) < 1:
                held.append(1)
                raise Swallow
            return None

        async with (
            Proxy(bootstrap, on_request=swallow_one) as proxy,
            transactional(
                proxy.bootstrap, topic, delivery_timeout_ms=500, request_timeout_ms=400, linger_ms=0
            ) as producer,
        ):
            await producer.init_transactions()
            producer.begin_transaction()
            late = await producer.send(topic, b"swallowed")
            (outcome,) = await settled([late])
            if isinstance(outcome, Exception):
                with pytest.raises(TransactionAbortable):
                    await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"kept")
        assert await values(bootstrap, topic) == [b"kept"]

    run(test)


def test_a_commit_that_takes_too_long_goes_on_and_is_asked_for_again(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = transactions_server.bootstrap
        await make_topic(bootstrap, topic)
        fault = Fault(ApiKey.END_TXN, 0, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        async with (
            Proxy(bootstrap, on_request=fault.on_request) as proxy,
            transactional(proxy.bootstrap, topic, max_block_ms=400) as producer,
        ):
            while True:
                try:
                    await producer.init_transactions()
                    break
                except TransactionTimedOut:
                    continue
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                await (await producer.send(topic, b"once"))
                fault.left = 10**6
                with pytest.raises(TransactionTimedOut, match=r"COORDINATOR_LOAD_IN_PROGRESS.*call again"):
                    await end()
                with pytest.raises(WrongTransactionState, match=r"call \w+_transaction\(\) again"):
                    producer.begin_transaction()
                with pytest.raises(WrongTransactionState, match=r"call \w+_transaction\(\) again"):
                    await producer.send(topic, b"no")
                fault.left = 0
                assert producer._transactions is not None
                while producer._transactions.state is not State.READY:
                    await asyncio.sleep(0.01)  # it ends while nobody waits, and whoever asks again hears of it
                with pytest.raises(WrongTransactionState, match=r"call \w+_transaction\(\) again"):
                    producer.begin_transaction()
                await end()
        assert await values(bootstrap, topic) == [b"once"]

    run(test)


def test_a_record_that_send_refuses_keeps_the_transaction_from_being_committed(
    implicit_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        bootstrap = implicit_server.bootstrap
        await make_topic(bootstrap, topic)
        async with transactional(bootstrap, topic) as producer:
            await producer.init_transactions()
            for bad in (b"x" * (2 << 20), "text"):
                producer.begin_transaction()
                await producer.send(topic, b"good")
                with pytest.raises((KafkaError, TypeError)):
                    await producer.send(topic, bad)
                with pytest.raises(TransactionAbortable):
                    await producer.commit_transaction()
                await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"kept")
        assert await values(bootstrap, topic) == [b"kept"]

    run(test)


# -- what differs between the generations ------------------------------------------------------------------------------


class Heard:
    """Which requests went by, and under which epoch."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.epochs: list[tuple[int, int]] = []  # and sequences, once each: a slow broker sees some of them again
        self.transactional_ids: set[str | None] = set()
        self.topics: set[str] = set()

    def __call__(self, api_key: int, message: Any) -> None:
        self.keys.append(api_key)
        if api_key == ApiKey.PRODUCE:
            self.transactional_ids.add(message.transactional_id)
            for topic in message.topic_data:
                self.topics.add(topic.name)
                for one in topic.partition_data:
                    header = read_header(one.records)
                    assert header.is_transactional
                    if (header.producer_epoch, header.base_sequence) not in self.epochs:
                        self.epochs.append((header.producer_epoch, header.base_sequence))


def test_with_implicit_partitions_nothing_is_added_and_each_end_brings_an_epoch(
    implicit_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await make_topic(implicit_server.bootstrap, topic)
        heard = Heard()
        async with (
            Proxy(implicit_server.bootstrap, on_request=heard) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            for _ in range(3):
                async with producer.transaction():
                    for _ in range(2):
                        await (await producer.send(topic, b"x"))
                    await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
        assert not {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN} & set(heard.keys)
        assert heard.keys.count(ApiKey.END_TXN) >= 3
        assert ApiKey.INIT_PRODUCER_ID not in heard.keys[heard.keys.index(ApiKey.PRODUCE) :]
        first = heard.epochs[0][0]
        assert heard.epochs == [(first + number, sequence) for number in range(3) for sequence in range(2)]
        assert heard.transactional_ids == {topic}

    run(test)


def test_with_explicit_partitions_each_is_added_once_a_transaction_and_the_epoch_stays(
    explicit_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await make_topic(explicit_server.bootstrap, topic)
        heard = Heard()
        async with (
            Proxy(explicit_server.bootstrap, on_request=heard) as proxy,
            transactional(proxy.bootstrap, topic, retry_backoff_ms=100) as producer,
        ):
            await producer.init_transactions()
            for _ in range(3):
                async with producer.transaction():
                    for _ in range(2):
                        await (await producer.send(topic, b"x"))
                    await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
        assert heard.keys.count(ApiKey.ADD_PARTITIONS_TO_TXN) >= 3 <= heard.keys.count(ApiKey.ADD_OFFSETS_TO_TXN)
        assert heard.keys.index(ApiKey.ADD_PARTITIONS_TO_TXN) < heard.keys.index(ApiKey.PRODUCE)
        assert heard.keys.index(ApiKey.ADD_OFFSETS_TO_TXN) < heard.keys.index(ApiKey.TXN_OFFSET_COMMIT)
        assert ApiKey.INIT_PRODUCER_ID not in heard.keys[heard.keys.index(ApiKey.PRODUCE) :]
        assert heard.topics == {topic}  # in the older versions of Produce topics have names
        first = heard.epochs[0][0]
        assert heard.epochs == [(first, sequence) for sequence in range(6)]

    run(test)


def test_a_lost_batch_with_explicit_partitions_brings_a_new_epoch_by_asking_for_it(
    explicit_server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await make_topic(explicit_server.bootstrap, topic)
        heard = Heard()
        fault = Fault(ApiKey.PRODUCE, 0, code=ErrorCode.UNKNOWN_PRODUCER_ID)

        def on_request(api_key: int, message: Any) -> Any:
            heard(api_key, message)
            return fault.on_request(api_key, message)

        async with (
            Proxy(explicit_server.bootstrap, on_request=on_request) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            producer.begin_transaction()
            await (await producer.send(topic, b"x"))
            fault.left = 1
            await settled([await producer.send(topic, b"lost")])
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"kept")
        assert ApiKey.INIT_PRODUCER_ID in heard.keys[heard.keys.index(ApiKey.END_TXN) :]
        (first, _), *_, (last, sequence) = heard.epochs
        assert last > first and sequence == 0
        assert await values(explicit_server.bootstrap, topic) == [b"kept"]

    run(test)


def test_the_generation_may_change_under_a_running_producer(tmp_path: Path, new_topic: Callable[[], str]) -> None:
    require_oracle()
    older = ("--feature", "transaction.version=1")
    topic = new_topic()

    async def test() -> None:
        bootstrap = kafka.bootstrap
        await make_topic(bootstrap, topic)
        kept: list[bytes] = []
        async with (
            ClusterClient(bootstrap) as client,
            Proxy(bootstrap) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            for number, (level, kind, is_cut) in enumerate(
                (
                    (1, None, False),
                    (2, admin.UpgradeType.UPGRADE, False),  # the producer has not heard of it
                    (2, None, True),  # a new connection tells
                    (1, admin.UpgradeType.SAFE_DOWNGRADE, True),
                )
            ):
                if kind is not None:
                    await admin.update_features(client, {"transaction.version": level}, upgrade_type=kind)
                if is_cut:
                    proxy.cut_all()
                for index in range(2):
                    async with producer.transaction():
                        await producer.send(topic, b"%d-%d" % (number, index))
                    kept.append(b"%d-%d" % (number, index))
                    producer.begin_transaction()
                    await (await producer.send(topic, b"aborted"))
                    await producer.abort_transaction()
        assert await values(bootstrap, topic) == kept

    with ApacheKafka(tmp_path, format_options=older) as kafka:
        run(test)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TransactionAbortable),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, TransactionAbortable),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.INVALID_TXN_STATE, TransactionFatal),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_partitions_that_cannot_be_added_fail_their_records(
    explicit_server: Server, new_topic: Callable[[], str], code: ErrorCode, kind: type[Exception]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await make_topic(explicit_server.bootstrap, topic)
        fault = Fault(ApiKey.ADD_PARTITIONS_TO_TXN, 1, code=code)
        async with (
            Proxy(explicit_server.bootstrap, on_request=fault.on_request) as proxy,
            transactional(proxy.bootstrap, topic) as producer,
        ):
            await producer.init_transactions()
            producer.begin_transaction()
            delivery = await producer.send(topic, b"never")
            with pytest.raises(kind):
                await producer.commit_transaction()
            assert isinstance(delivery.exception(), TransactionAborted)
            if kind is TransactionAbortable:
                await producer.abort_transaction()
                async with producer.transaction():
                    await producer.send(topic, b"kept")
                assert await values(explicit_server.bootstrap, topic) == [b"kept"]

    run(test)
