"""Transactions of our producer on real brokers of both generations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from moldau.client import (
    BlockingProducer,
    IsolationLevel,
    Producer,
    ProducerClosed,
    ProducerFenced,
    SettingsError,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
    WrongTransactionState,
    producer_settings,
)
from moldau.kernel import TopicPartition
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.proxy import Proxy
from tests.client.transactional_kit import (
    READ_COMMITTED,
    Place,
    bounded,
    make_topic,
    read,
    read_now,
    settled,
    transactional,
    values,
    wait_stable,
)


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


@bounded
async def test_a_producer_without_an_id_has_no_transactions() -> None:
    async with Producer("127.0.0.1:1") as producer:
        for call in (producer.init_transactions, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(WrongTransactionState, match=r"set transactional\.id"):
                await call()
        with pytest.raises(WrongTransactionState, match=r"begin_transaction.*set transactional\.id"):
            producer.begin_transaction()


@bounded
async def test_a_wrong_address_shows_at_once_and_init_may_be_called_again() -> None:
    async with transactional("127.0.0.1:1", "nobody") as producer:
        for _ in range(2):
            with pytest.raises(ConnectionError, match="refused"):
                await producer.init_transactions()


@bounded
async def test_what_is_committed_is_seen_as_a_whole_and_what_is_aborted_never(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
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


@bounded
async def test_an_open_transaction_is_not_seen_and_its_commit_shows_it(place: Place) -> None:
    bootstrap, topic = place
    async with transactional(bootstrap, topic) as producer, Producer(bootstrap) as other:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send(topic, b"first"))
        await (await other.send(topic, b"behind it"))
        # Not even what stands behind it.
        assert await read_now(bootstrap, topic, 1, READ_COMMITTED) == []
        await producer.commit_transaction()
        assert await values(bootstrap, topic) == [b"first", b"behind it"]


@bounded
async def test_an_abort_drops_what_did_not_leave_and_waits_for_what_did(place: Place) -> None:
    bootstrap, topic = place
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
        while producer.buffered_bytes and not producer._sender.in_flight_requests.get(1):
            await asyncio.sleep(0)
        assert not sent.done()
        unsent = await producer.send(topic, b"unsent")
        await producer.abort_transaction()
        assert first.exception() is None and sent.exception() is None
        assert isinstance(unsent.exception(), TransactionAborted)
        end = seen.index(("request", ApiKey.END_TXN))
        # A broker that is slow may refuse one at first; all that left was answered.
        answered = seen[:end].count(("response", ApiKey.PRODUCE))
        assert answered == seen[:end].count(("request", ApiKey.PRODUCE)) >= 2
        await flushing
        async with producer.transaction():
            await producer.send(topic, b"kept")
    everything = await read(bootstrap, topic, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    assert [one.value for one in everything] == [b"first", b"sent", b"kept"]
    assert await values(bootstrap, topic) == [b"kept"]


@bounded
async def test_a_block_commits_at_its_end_and_aborts_on_an_exception(place: Place) -> None:
    bootstrap, topic = place
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


@bounded
async def test_calls_out_of_order_say_what_to_do_and_harm_nothing(place: Place) -> None:
    bootstrap, topic = place
    async with transactional(bootstrap, topic) as producer:
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
    assert await values(bootstrap, topic) == [b"kept"]


@bounded
async def test_many_tasks_send_into_one_transaction(transactions_server: Server, new_topic: Callable[[], str]) -> None:
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


@bounded
async def test_a_second_producer_with_the_id_fences_the_first(place: Place) -> None:
    bootstrap, topic = place
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


@bounded
async def test_a_fenced_producer_that_writes_is_told_to_abort_and_then_that_it_is_over(place: Place) -> None:
    bootstrap, topic = place
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


@bounded
async def test_a_transaction_that_outlives_its_timeout_is_aborted_by_the_coordinator(place: Place) -> None:
    bootstrap, topic = place
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


@bounded
async def test_a_producer_that_writes_after_its_timeout_aborts_and_goes_on_where_brokers_allow_it(
    implicit_place: Place,
) -> None:
    bootstrap, topic = implicit_place
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


@bounded
async def test_a_timeout_above_the_brokers_maximum_is_refused_with_its_name(
    transactions_server: Server, new_topic: Callable[[], str]
) -> None:
    settings = {"transaction_timeout_ms": 100_000_000}
    async with transactional(transactions_server.bootstrap, new_topic(), **settings) as producer:
        for _ in range(2):
            with pytest.raises(TransactionFatal, match=r"transaction\.max\.timeout\.ms"):
                await producer.init_transactions()


@bounded
async def test_closing_aborts_what_is_open_and_a_new_producer_need_not_wait(place: Place) -> None:
    bootstrap, topic = place
    async with transactional(bootstrap, topic) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send(topic, b"open"))
        unsent = await producer.send(topic, b"unsent")
    assert isinstance(unsent.exception(), TransactionAborted)
    async with Producer(bootstrap) as other:
        await (await other.send(topic, b"plain"))
    assert await values(bootstrap, topic) == [b"plain"]  # the transaction holds nobody up


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
