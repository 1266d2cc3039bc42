"""The producer on real servers, through a proxy where things must go wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client import (
    ClusterClient,
    ConsumedRecord,
    Delivery,
    DeliveryTimedOut,
    Producer,
    ProducerClosed,
    RecordMetadata,
    SendTimedOut,
    SettingsError,
    admin,
    partition_of_key,
    read_partition,
)
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import read_header
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.produce import ProduceResponse
from moldau.protocol.messages.registry import ApiKey
from tests.client.conftest import Server
from tests.client.proxy import Cut, Proxy, Swallow


async def read(client: ClusterClient, topic: str, partition: int = 0) -> list[ConsumedRecord]:
    return [record async for record in read_partition(client, topic, partition)]


def produced(message: Any) -> int:
    """How many batches a Produce request carries."""
    return sum(len(topic.partition_data) for topic in message.topic_data)


def refuse(message: Any, code: ErrorCode, **fields: Any) -> ProduceResponse:
    return ProduceResponse(
        [
            ProduceResponse.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [
                    ProduceResponse.PartitionProduceResponse(one.index, int(code), -1, **fields)
                    for one in topic.partition_data
                ],
            )
            for topic in message.topic_data
        ]
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_arrives_as_it_was_sent(server: Server, new_topic: Callable[[], str], codec: str) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            async with Producer(client, {"compression.type": codec, "linger.ms": 50}) as producer:
                sent = [
                    (b"key %d" % i if i % 3 else None, b"value %d " % i * 20 if i % 5 else None) for i in range(500)
                ]
                deliveries = [
                    await producer.send(topic, value, key, timestamp_ms=1000 + i) for i, (key, value) in enumerate(sent)
                ]
                placed = await asyncio.gather(*deliveries)
            assert [one.offset for one in placed] == list(range(500))
            records = await read(client, topic)
            assert [(one.key, one.value) for one in records] == sent
            assert [one.timestamp for one in records] == [1000 + i for i in range(500)]

    asyncio.run(test())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_delivers_and_says_what_it_knows(server: Server, new_topic: Callable[[], str], acks: str) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            async with Producer(client, {"acks": acks}) as producer:
                placed = [await (await producer.send(topic, b"%d" % i, timestamp_ms=7)) for i in range(20)]
            assert [one.offset for one in placed] == ([-1] * 20 if acks == "0" else list(range(20)))
            assert placed[0][:2] == (topic, 0) and placed[0].timestamp == 7
            async with asyncio.timeout(10):  # acks=0 is not waited for by anyone
                while len(records := await read(client, topic)) < 20:
                    await asyncio.sleep(0.02)
            assert [one.value for one in records] == [b"%d" % i for i in range(20)]

    asyncio.run(test())


def test_keys_headers_partitions_and_serializers_do_as_told(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=3)
            settings = {"key.serializer": "string", "value.serializer": "json"}
            async with Producer(client, settings) as producer:
                for i in range(30):
                    placed = await (await producer.send(topic, {"i": i}, f"key {i}"))
                    assert placed.partition == partition_of_key(f"key {i}".encode(), 3)
                placed = await (await producer.send(topic, [1], "k", headers=[("a", b"1"), ("a", None)], partition=2))
                assert placed.partition == 2
                with pytest.raises(KafkaError, match="has 3 partitions, no partition 3"):
                    await producer.send(topic, 1, partition=3)
            last = (await read(client, topic, 2))[-1]
            assert (last.key, last.value, [tuple(one) for one in last.headers]) == (
                b"k",
                b"[1]",
                [("a", b"1"), ("a", None)],
            )
            async with Producer(client, {"partitioner": "round_robin"}) as producer:
                turns = [(await (await producer.send(topic, b"v", b"same"))).partition for _ in range(6)]
                assert turns == [0, 1, 2, 0, 1, 2]

    asyncio.run(test())


def test_callbacks_hear_in_order_and_their_mistakes_harm_nobody(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic, heard = new_topic(), []

        def hear(metadata: RecordMetadata | None, error: Exception | None) -> None:
            heard.append((metadata, error))
            if len(heard) == 1:
                raise RuntimeError("a user's mistake")

        async with Producer(server.bootstrap) as producer:
            for _ in range(50):
                await producer.send(topic, b"v", partition=0, on_delivery=hear)
            await producer.flush()
            assert [one.offset for one, _ in heard if one is not None] == list(range(50))

    asyncio.run(test())


def test_records_share_batches_by_linger_and_size_and_requests_carry_several_partitions(
    server: Server, new_topic: Callable[[], str]
) -> None:
    requests: list[list[int]] = []

    def watch(api_key: int, message: Any) -> None:
        if api_key == ApiKey.PRODUCE:
            batches = [read_header(one.records) for topic in message.topic_data for one in topic.partition_data]
            requests.append([header.record_count for header in batches])

    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=4)
        settings = {"linger.ms": 60_000, "batch.size": 5000}
        async with Proxy(server.bootstrap, on_request=watch) as proxy, Producer(proxy.bootstrap, settings) as producer:

            async def send(size: int, partition: int) -> Delivery:
                return await producer.send(topic, bytes(size), partition=partition)

            for partition in range(4):  # until every leader is ready
                await send(1, partition)
            await producer.flush()

            requests.clear()
            for partition in range(4):
                await send(1, partition)
            await producer.flush()
            assert requests == [[1, 1, 1, 1]]

            requests.clear()
            for _ in range(20):
                await send(1, 0)
            await producer.flush()
            assert requests == [[20]]

            requests.clear()
            fifth = [await send(1000, 0) for _ in range(5)][-1]
            async with asyncio.timeout(10):
                while not requests:  # the fifth did not fit: the first four go without lingering
                    await asyncio.sleep(0.01)
            assert requests == [[4]]
            assert not fifth.done()

    asyncio.run(test())


def test_lost_answers_make_neither_duplicates_nor_gaps(server: Server, new_topic: Callable[[], str]) -> None:
    answers = 0

    def cut_every_fourth(api_key: int, message: Any) -> None:
        nonlocal answers
        if api_key == ApiKey.PRODUCE:
            answers += 1
            if answers % 4 == 0:
                raise Cut  # the broker has written; nobody hears of it

    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=2)
            async with Proxy(server.bootstrap, on_response=cut_every_fourth) as proxy:
                settings = {"batch.size": 400, "linger.ms": 1, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5}
                async with Producer(proxy.bootstrap, settings) as producer:
                    deliveries = [await producer.send(topic, b"%06d" % i, partition=i % 2) for i in range(2000)]
                    placed = await asyncio.gather(*deliveries)
                assert proxy.connections > 10
            for partition in (0, 1):
                records = await read(client, topic, partition)
                assert [one.value for one in records] == [b"%06d" % i for i in range(partition, 2000, 2)]
                assert [one.offset for one in placed if one.partition == partition] == [one.offset for one in records]

    asyncio.run(test())


def test_requests_lost_on_the_way_are_sent_again_in_order(server: Server, new_topic: Callable[[], str]) -> None:
    requests = 0

    def cut_some(api_key: int, message: Any) -> Any:
        nonlocal requests
        if api_key == ApiKey.PRODUCE:
            requests += 1
            if requests % 5 == 3:
                raise Cut
            if requests % 7 == 2:
                return refuse(message, ErrorCode.NOT_ENOUGH_REPLICAS)
        return None

    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            async with Proxy(server.bootstrap, on_request=cut_some) as proxy:
                settings = {
                    "batch.size": 400,
                    "retry.backoff.ms": 5,
                    "reconnect.backoff.ms": 5,
                }
                async with Producer(proxy.bootstrap, settings) as producer:
                    for i in range(500):
                        await producer.send(topic, b"%06d" % i)
                    await producer.flush()
            assert [one.value for one in await read(client, topic)] == [b"%06d" % i for i in range(500)]

    asyncio.run(test())


@pytest.mark.parametrize(
    "code",
    [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH],
)
def test_a_broker_that_lost_the_producers_state_gets_a_new_epoch_or_id(
    server: Server, new_topic: Callable[[], str], code: ErrorCode
) -> None:
    stamps: list[tuple[int, int, int]] = []

    def refuse_the_third(api_key: int, message: Any) -> Any:
        if api_key != ApiKey.PRODUCE:
            return None
        header = read_header(message.topic_data[0].partition_data[0].records)
        stamps.append((header.producer_id, header.producer_epoch, header.base_sequence))
        return refuse(message, code) if len(stamps) == 3 else None

    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            async with (
                Proxy(server.bootstrap, on_request=refuse_the_third) as proxy,
                Producer(proxy.bootstrap, {"retry.backoff.ms": 5}) as producer,
            ):
                for i in range(5):
                    await (await producer.send(topic, b"%d" % i, partition=0))
            assert [one.value for one in await read(client, topic)] == [b"%d" % i for i in range(5)]
        first, third, again, last = stamps[0], stamps[2], stamps[3], stamps[5]
        assert third == (first[0], 0, 2)
        if code is ErrorCode.INVALID_PRODUCER_EPOCH:
            assert again[0] != first[0]
        else:
            assert again == (first[0], 1, 0)
        assert last[2] == 2

    asyncio.run(test())


def test_a_refused_record_fails_alone_with_the_brokers_words_and_the_next_ones_go_on(
    server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1, configs={"cleanup.policy": "compact"})
            async with Producer(client) as producer:
                await (await producer.send(topic, b"v", b"k1"))
                with pytest.raises(KafkaError, match=topic) as refused:
                    await (await producer.send(topic, b"v"))
                assert refused.value.code is ErrorCode.INVALID_RECORD
                assert (await (await producer.send(topic, b"v", b"k2"))).offset == 1
                # KIP-467: in a batch, the guilty ones hear why.
                good = await producer.send(topic, b"v", b"k3")
                bad = await producer.send(topic, b"v")
                await producer.flush()
                assert str(good.exception()) != str(bad.exception())

    asyncio.run(test())


def test_a_batch_too_large_for_the_topic_names_what_to_lower(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1, configs={"max.message.bytes": "2000"})
            async with Producer(client, {"linger.ms": 60_000}) as producer:
                deliveries = [await producer.send(topic, bytes(1000)) for _ in range(3)]
                await producer.flush()
                with pytest.raises(
                    KafkaError, match=r"batch of 3 records .* max.message.bytes: lower batch.size=16384"
                ):
                    await deliveries[0]

    asyncio.run(test())


def test_a_full_buffer_holds_send_back_until_there_is_room(server: Server, new_topic: Callable[[], str]) -> None:
    held = asyncio.Event()
    answers: list[Any] = []

    async def test() -> None:
        topic = new_topic()
        swallowing = True

        def swallow(api_key: int, message: Any) -> None:
            if api_key == ApiKey.PRODUCE and swallowing:
                answers.append(message)
                held.set()
                raise Swallow

        settings = {
            "buffer.memory": 4000,
            "batch.size": 1000,
            "linger.ms": 0,
            "max.block.ms": 200,
            "request.timeout.ms": 1000,
            "retry.backoff.ms": 5,
            "reconnect.backoff.ms": 5,
        }
        async with (
            Proxy(server.bootstrap, on_response=swallow) as proxy,
            Producer(proxy.bootstrap, settings) as producer,
        ):
            taken = 0
            with pytest.raises(SendTimedOut, match=r"buffer.memory=4000 was full for max.block.ms=200"):
                for _ in range(100):
                    await producer.send(topic, bytes(800), partition=0)
                    taken += 1
            assert taken == 4
            assert producer.buffered_bytes == 4000
            await held.wait()
            swallowing = False
            await producer.flush()
            assert producer.buffered_bytes == 0
            await (await producer.send(topic, b"room again", partition=0))
        async with ClusterClient(server.bootstrap) as client:
            assert len(await read(client, topic)) == 5

    asyncio.run(test())


def test_many_senders_share_a_small_buffer_without_losing_a_record(
    server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            async with Producer(client, {"buffer.memory": 3000, "batch.size": 500, "linger.ms": 0}) as producer:

                async def sender(name: int) -> None:
                    for i in range(50):
                        await producer.send(topic, b"%d %02d" % (name, i) + bytes(100))
                        assert producer.buffered_bytes <= 3000

                await asyncio.gather(*(sender(name) for name in range(8)))
                await producer.flush()
            values = [one.value[:4] for one in await read(client, topic) if one.value is not None]
            assert len(values) == 400
            for name in range(8):
                mine = [value for value in values if value.startswith(b"%d " % name)]
                assert mine == [b"%d %02d" % (name, i) for i in range(50)]

    asyncio.run(test())


def test_delivery_timeout_bounds_everything_and_names_the_last_error(
    server: Server, new_topic: Callable[[], str]
) -> None:
    def always_refuse(api_key: int, message: Any) -> Any:
        return refuse(message, ErrorCode.NOT_ENOUGH_REPLICAS) if api_key == ApiKey.PRODUCE else None

    async def test() -> None:
        topic = new_topic()
        settings = {"delivery.timeout.ms": 500, "request.timeout.ms": 300, "linger.ms": 0, "retry.backoff.ms": 20}
        async with (
            Proxy(server.bootstrap, on_request=always_refuse) as proxy,
            Producer(proxy.bootstrap, settings) as producer,
        ):
            delivery = await producer.send(topic, b"v")
            started = time.monotonic()
            with pytest.raises(DeliveryTimedOut, match=r"delivery.timeout.ms=500 .*NOT_ENOUGH_REPLICAS"):
                await delivery
            assert 0.3 < time.monotonic() - started < 2
            # The next ones do not suffer from the gap that the lost one left.
            proxy.on_request = None
            await (await producer.send(topic, b"after"))
        async with ClusterClient(server.bootstrap) as client:
            assert [one.value for one in await read(client, topic)] == [b"after"]

    asyncio.run(test())


def test_a_batch_given_up_while_in_flight_is_never_doubled_by_what_follows(
    server: Server, new_topic: Callable[[], str]
) -> None:
    """The broker wrote it, the answer was lost, the time was over: what comes after must neither fail nor repeat it."""
    lose = True

    def swallow(api_key: int, message: Any) -> None:
        if api_key == ApiKey.PRODUCE and lose:
            raise Swallow

    async def test() -> None:
        nonlocal lose
        topic = new_topic()
        settings = {"delivery.timeout.ms": 400, "request.timeout.ms": 400, "linger.ms": 0, "retry.backoff.ms": 5}
        async with (
            Proxy(server.bootstrap, on_response=swallow) as proxy,
            Producer(proxy.bootstrap, settings) as producer,
        ):
            with pytest.raises(DeliveryTimedOut):
                await (await producer.send(topic, b"lost to us", partition=0))
            lose = False
            for i in range(3):
                await (await producer.send(topic, b"%d" % i, partition=0))
        async with ClusterClient(server.bootstrap) as client:
            assert [one.value for one in await read(client, topic)] == [b"lost to us", b"0", b"1", b"2"]

    asyncio.run(test())


def test_retries_end_after_their_number(server: Server, new_topic: Callable[[], str]) -> None:
    tries = 0

    def always_refuse(api_key: int, message: Any) -> Any:
        nonlocal tries
        if api_key != ApiKey.PRODUCE:
            return None
        tries += 1
        return refuse(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def test() -> None:
        async with (
            Proxy(server.bootstrap, on_request=always_refuse) as proxy,
            Producer(proxy.bootstrap, {"retries": 2, "retry.backoff.ms": 5}) as producer,
        ):
            with pytest.raises(KafkaError) as failed:
                await (await producer.send(new_topic(), b"v"))
        assert failed.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert tries == 3

    asyncio.run(test())


def test_no_producer_id_is_fatal_and_said_to_everyone(server: Server, new_topic: Callable[[], str]) -> None:
    def no_id(api_key: int, message: Any) -> Any:
        if api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return None

    async def test() -> None:
        topic = new_topic()
        async with Proxy(server.bootstrap, on_request=no_id) as proxy, Producer(proxy.bootstrap) as producer:
            with pytest.raises(KafkaError, match="gave no producer id: CLUSTER_AUTHORIZATION_FAILED"):
                await (await producer.send(topic, b"v"))
            with pytest.raises(KafkaError, match="gave no producer id"):
                await producer.send(topic, b"v")

    asyncio.run(test())


def test_what_cannot_be_taken_is_refused_at_once_in_words(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with Producer(server.bootstrap, {"max.request.size": 5000, "max.block.ms": 300}) as producer:
            with pytest.raises(
                KafkaError, match=r"a record of 6000 bytes does not fit max.request.size=5000"
            ) as refused:
                await producer.send(topic, bytes(6000))
            assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
            with pytest.raises(TypeError, match=r"the value is str, not bytes: encode it, or set value.serializer"):
                await producer.send(topic, "text")
            with pytest.raises(TypeError, match="the key is int, not bytes"):
                await producer.send(topic, b"v", 5)
            with pytest.raises(TypeError, match="headers must be a list of"):
                await producer.send(topic, b"v", headers=[(b"bytes", b"v")])  # type: ignore[list-item]
            with pytest.raises(KafkaError, match="not a legal topic name"):
                await producer.send("no/such", b"v")
            assert (await (await producer.send(topic, b"v", partition=0))).offset == 0
        with pytest.raises(ProducerClosed):
            await producer.send(topic, b"v")
        with pytest.raises(SettingsError, match=r"bootstrap.servers is missing"):
            Producer({"linger.ms": 5})

    asyncio.run(test())


def test_an_unreachable_cluster_is_waited_for_up_to_max_block_ms() -> None:
    async def test() -> None:
        async with Producer("127.0.0.1:1", {"max.block.ms": 200, "retry.backoff.ms": 10}) as producer:
            with pytest.raises(SendTimedOut, match=r"max.block.ms=200: 127.0.0.1:1: connection refused"):
                await producer.send("t", b"v")

    asyncio.run(test())


def test_closing_delivers_what_was_taken_and_a_deadline_gives_the_rest_up(
    server: Server, new_topic: Callable[[], str]
) -> None:
    def swallow(api_key: int, message: Any) -> Any:
        if api_key == ApiKey.PRODUCE:
            raise Swallow
        return None

    async def test() -> None:
        topic = new_topic()
        producer = Producer(server.bootstrap, {"linger.ms": 60_000})
        delivery = await producer.send(topic, b"v")
        await producer.close()
        assert delivery.done() and delivery.result().offset == 0
        async with Proxy(server.bootstrap, on_request=swallow) as proxy:
            producer = Producer(proxy.bootstrap)
            delivery = await producer.send(topic, b"v")
            await producer.close(timeout_ms=100)
            with pytest.raises(ProducerClosed, match="closed before the record was delivered"):
                await delivery

    asyncio.run(test())


def test_metadata_is_asked_for_again_by_age_so_new_partitions_are_used(
    server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            async with Producer(server.bootstrap, {"metadata.max.age.ms": 50}) as producer:
                assert (await (await producer.send(topic, b"v"))).partition == 0
                await admin.create_partitions(client, topic, 2)
                key = next(b"%d" % i for i in range(100) if partition_of_key(b"%d" % i, 2) == 1)
                async with asyncio.timeout(10):
                    while (await (await producer.send(topic, b"v", key))).partition != 1:
                        await asyncio.sleep(0.02)

    asyncio.run(test())


def test_giving_up_on_a_delivery_leaves_the_others_in_peace(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with Producer(server.bootstrap, {"linger.ms": 100}) as producer:
            first, second = await producer.send(topic, b"1"), await producer.send(topic, b"2")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_wait(first), 0.01)
            assert (await second).offset == 1
            assert first.result().offset == 0

    async def _wait(delivery: Any) -> Any:
        return await delivery

    asyncio.run(test())
