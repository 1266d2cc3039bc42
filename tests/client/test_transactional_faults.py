"""Transactions of our producer through a proxy that loses answers and refuses in the broker's place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client import (
    ProducerFenced,
    TransactionAbortable,
    TransactionFatal,
    TransactionTimedOut,
    WrongTransactionState,
)
from moldau.client.transactions import State
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.proxy import Proxy, Swallow
from tests.client.transaction_faults import Fault
from tests.client.transactional_kit import (
    Place,
    bounded,
    make_topic,
    settled,
    transactional,
    values,
    wait_committed,
)


@pytest.mark.parametrize(
    "api_key", [ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN], ids=lambda k: k.name
)
@bounded
async def test_a_lost_answer_is_asked_for_again_and_changes_nothing(
    transactions_server: Server, new_topic: Callable[[], str], api_key: ApiKey
) -> None:
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
@bounded
async def test_refusals_that_pass_are_waited_out(place: Place, api_key: ApiKey, code: ErrorCode) -> None:
    bootstrap, topic = place
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
            await (await producer.send(topic, b"kept"))
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
    assert not fault.left
    assert await values(bootstrap, topic) == [b"kept"]
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert asked.count(ApiKey.FIND_COORDINATOR) >= 2 + 3  # it moved: looked for again each time


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
@bounded
async def test_a_refused_batch_must_be_aborted_and_the_producer_goes_on(place: Place, code: ErrorCode) -> None:
    bootstrap, topic = place
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
@bounded
async def test_refusals_without_a_way_back_end_the_producer(
    place: Place, api_key: ApiKey, code: ErrorCode, kind: type[TransactionFatal]
) -> None:
    bootstrap, topic = place
    fault = Fault(api_key, 1, code=code)
    async with (
        Proxy(bootstrap, on_request=fault.on_request) as proxy,
        transactional(proxy.bootstrap, topic) as producer,
    ):
        await producer.init_transactions()
        with pytest.raises(kind) as caught:
            async with producer.transaction():
                await settled([await producer.send(topic, b"lost")])
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
        assert caught.value.code is code
        for call in (producer.commit_transaction, producer.abort_transaction, producer.init_transactions):
            with pytest.raises(kind):
                await call()
        with pytest.raises(kind):
            await producer.send(topic, b"no")


@bounded
async def test_a_batch_that_times_out_is_aborted_and_cannot_arrive_later(place: Place) -> None:
    bootstrap, topic = place
    held: list[int] = []

    def swallow_one(api_key: int, message: Any) -> Any:
        if api_key == ApiKey.PRODUCE and len(held) < 1:
            held.append(1)
            raise Swallow
        return None

    async with (
        Proxy(bootstrap, on_request=swallow_one) as proxy,
        transactional(proxy.bootstrap, topic, delivery_timeout_ms=500, request_timeout_ms=400, linger_ms=0) as producer,
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


@bounded
async def test_a_commit_that_takes_too_long_goes_on_and_is_asked_for_again(place: Place) -> None:
    bootstrap, topic = place
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


@bounded
async def test_a_record_that_send_refuses_keeps_the_transaction_from_being_committed(implicit_place: Place) -> None:
    bootstrap, topic = implicit_place
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
