"""What our producer does differently where partitions are added to a transaction, and where they join by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client import (
    ClusterClient,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
    admin,
)
from moldau.kernel import ErrorCode, TopicPartition
from moldau.protocol.messages.registry import ApiKey
from tests.client.proxy import Proxy
from tests.client.transaction_faults import Fault, Heard
from tests.client.transactional_kit import (
    Place,
    bounded,
    make_topic,
    settled,
    transactional,
    values,
)
from tests.oracle import ApacheKafka, require_oracle


@bounded
async def test_with_implicit_partitions_nothing_is_added_and_each_end_brings_an_epoch(implicit_place: Place) -> None:
    bootstrap, topic = implicit_place
    heard = Heard()
    async with (
        Proxy(bootstrap, on_request=heard) as proxy,
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


@bounded
async def test_with_explicit_partitions_each_is_added_once_a_transaction_and_the_epoch_stays(
    explicit_place: Place,
) -> None:
    bootstrap, topic = explicit_place
    heard = Heard()
    async with (
        Proxy(bootstrap, on_request=heard) as proxy,
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


@bounded
async def test_a_lost_batch_with_explicit_partitions_brings_a_new_epoch_by_asking_for_it(explicit_place: Place) -> None:
    bootstrap, topic = explicit_place
    heard = Heard()
    fault = Fault(ApiKey.PRODUCE, 0, code=ErrorCode.UNKNOWN_PRODUCER_ID)

    def on_request(api_key: int, message: Any) -> Any:
        heard(api_key, message)
        return fault.on_request(api_key, message)

    async with (
        Proxy(bootstrap, on_request=on_request) as proxy,
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
    assert await values(bootstrap, topic) == [b"kept"]


def test_the_generation_may_change_under_a_running_producer(tmp_path: Path, new_topic: Callable[[], str]) -> None:
    require_oracle()
    older = ("--feature", "transaction.version=1")
    topic = new_topic()

    @bounded
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
        test()


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
@bounded
async def test_partitions_that_cannot_be_added_fail_their_records(
    explicit_place: Place, code: ErrorCode, kind: type[Exception]
) -> None:
    bootstrap, topic = explicit_place
    fault = Fault(ApiKey.ADD_PARTITIONS_TO_TXN, 1, code=code)
    async with (
        Proxy(bootstrap, on_request=fault.on_request) as proxy,
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
            assert await values(bootstrap, topic) == [b"kept"]
