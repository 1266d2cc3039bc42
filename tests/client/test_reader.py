"""Reading partitions by offset and time, within limits of memory, through what logs and networks do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import (
    AtTime,
    ClusterClient,
    ConsumedRecord,
    IsolationLevel,
    PartitionReader,
    Producer,
    TimestampType,
    admin,
    read_partition,
)
from moldau.client.fetcher import PREFETCHED_RESPONSES_MAX, Start
from moldau.client.records import decode_records
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import (
    CorruptBatchError,
    Header,
    Record,
    build_batch,
    control_key,
    iterate_records,
    read_header,
)
from moldau.protocol.compression import Compression
from moldau.protocol.messages.registry import ApiKey
from moldau.protocol.readable import readable_batches
from tests.client.conftest import Server
from tests.client.proxy import Cut, Proxy

BASE = 1_700_000_000_000


async def fill(bootstrap: str, topic: str, count: int, partitions: int = 1, **settings: object) -> None:
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, topic, partitions=partitions)
        async with Producer(client, {"batch.size": 500, **settings}) as producer:
            for i in range(count):
                await producer.send(topic, b"%06d" % i, partition=i % partitions, timestamp_ms=BASE + i)


async def values(client: ClusterClient, topic: str, **options: Any) -> list[bytes | None]:
    return [record.value async for record in read_partition(client, topic, 0, **options)]


def test_reading_starts_by_offset_place_or_time_and_stops_where_told(
    server: Server, new_topic: Callable[[], str]
) -> None:
    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 100)
        everything = [b"%06d" % i for i in range(100)]
        async with ClusterClient(server.bootstrap) as client:
            for start, first in [("earliest", 0), (0, 0), (37, 37), (AtTime(BASE + 63), 63), (AtTime(0), 0)]:
                assert await values(client, topic, start=start) == everything[first:], start
            assert await values(client, topic, start="latest") == []
            assert await values(client, topic, start=AtTime(BASE + 1000)) == []
            assert await values(client, topic, start=10, stop=13) == everything[10:13]

    asyncio.run(test())


def test_records_come_with_all_that_was_sent(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            async with Producer(client) as producer:
                await producer.send(topic, b"v", b"k", [("h", b"1"), ("n", None)], partition=0, timestamp_ms=BASE)
                await producer.send(topic, None, b"", partition=0, timestamp_ms=BASE - 5)
            records = [record async for record in read_partition(client, topic, 0)]
        created = TimestampType.CREATE_TIME
        assert records == [
            ConsumedRecord(topic, 0, 0, BASE, created, b"k", b"v", [Header("h", b"1"), Header("n", None)]),
            ConsumedRecord(topic, 0, 1, BASE - 5, created, b"", None, ()),
        ]

    asyncio.run(test())


def test_log_append_time_is_told_apart(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        async with ClusterClient(server.bootstrap) as client:
            await admin.create_topics(client, topic, configs={"message.timestamp.type": "LogAppendTime"})
            async with Producer(client) as producer:
                placed = await (await producer.send(topic, b"v", partition=0, timestamp_ms=5))
            (record,) = [record async for record in read_partition(client, topic, 0)]
            assert record.timestamp_type is TimestampType.LOG_APPEND_TIME
            assert record.timestamp == placed.timestamp > BASE

    asyncio.run(test())


def test_many_partitions_are_read_together_in_small_portions(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 4000, partitions=8, **{"compression.type": "lz4"})
        places = [TopicPartition(topic, partition) for partition in range(8)]
        async with ClusterClient(server.bootstrap) as client:
            stop = dict.fromkeys(places, 500)
            start: dict[TopicPartition, Start] = dict.fromkeys(places, "earliest")
            seen: dict[int, list[bytes | None]] = {partition: [] for partition in range(8)}
            async with PartitionReader(client, start, stop=stop, max_bytes=3000, partition_max_bytes=1000) as reader:
                async for records in reader:
                    assert len({record.partition for record in records}) == 1
                    # Bounded: two answers ahead, one in hand, of about max_bytes each.
                    held = sum(len(item.records) for item in reader._fetcher.buffer)  # type: ignore[union-attr]
                    assert held <= 3 * 6000
                    seen[records[0].partition] += [record.value for record in records]
                assert {reader.position(place) for place in places} == {500}
        for partition, read in seen.items():
            assert read == [b"%06d" % i for i in range(partition, 4000, 8)]

    asyncio.run(test())


def test_a_reader_who_takes_nothing_is_not_fetched_for_without_end(
    server: Server, new_topic: Callable[[], str]
) -> None:
    fetches = 0

    def count(api_key: int, message: Any) -> None:
        nonlocal fetches
        fetches += api_key == ApiKey.FETCH

    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 1000)
        where = TopicPartition(topic, 0)
        async with (
            Proxy(server.bootstrap, on_request=count) as proxy,
            ClusterClient(proxy.bootstrap) as client,
            PartitionReader(client, {where: 0}, stop={where: 1000}, partition_max_bytes=600) as reader,
        ):
            await anext(reader)
            for _ in range(50):  # time enough for many more fetches
                await client.metadata([])
            assert fetches <= PREFETCHED_RESPONSES_MAX + 1
            read = 0
            async for records in reader:
                read += len(records)
            assert 900 < read < 1000
            assert fetches > 20

    asyncio.run(test())


def test_a_reader_at_the_end_wakes_when_a_record_comes(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 3)
        where = TopicPartition(topic, 0)
        async with (
            ClusterClient(server.bootstrap) as client,
            Producer(client, {"linger.ms": 0}) as producer,
            PartitionReader(client, {where: "latest"}, max_wait_ms=5000) as reader,
        ):
            for i in range(3):
                await producer.send(topic, b"new %d" % i)
                (record,) = await asyncio.wait_for(anext(reader), 3)
                assert (record.value, record.offset) == (b"new %d" % i, 3 + i)
                # Apache Kafka may say how far it was committed before the record that it hands out.
                assert reader.high_watermark(where) in ((4 + i,) if server.kind == "moldau" else (3 + i, 4 + i))

    asyncio.run(test())


def test_an_offset_out_of_range_follows_the_policy(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 20)
        where = TopicPartition(topic, 0)
        async with ClusterClient(server.bootstrap) as client, Producer(client) as producer:
            await admin.delete_records(client, {where: 10})
            async with PartitionReader(client, {where: 3}) as reader:
                with pytest.raises(KafkaError, match="offset 3 is not in the log") as refused:
                    await anext(reader)
                assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            async with PartitionReader(client, {where: 3}, out_of_range="earliest") as reader:
                assert (await anext(reader))[0].offset == 10
            async with PartitionReader(client, {where: 99}, out_of_range="latest") as reader:
                waiting = asyncio.create_task(anext(reader))  # type: ignore[arg-type]
                async with asyncio.timeout(10):
                    while reader.high_watermark(where) < 0:  # it has found its place
                        await asyncio.sleep(0.01)
                await producer.send(topic, b"new")
                await producer.flush()
                assert [record.value for record in await waiting] == [b"new"]

    asyncio.run(test())


def test_unknown_topics_and_bad_starts_are_named(server: Server, new_topic: Callable[[], str]) -> None:
    async def test() -> None:
        async with ClusterClient(server.bootstrap) as client:
            topic = new_topic()
            with pytest.raises(KafkaError, match=f"topic '{topic}' does not exist"):
                await values(client, topic)
            with pytest.raises(ValueError, match="'begin' is no start"):
                await values(client, topic, start="begin", stop=1)

    asyncio.run(test())


def test_cut_connections_and_refusals_lose_and_double_nothing(server: Server, new_topic: Callable[[], str]) -> None:
    dice = random.Random(3)

    def trouble(api_key: int, message: Any) -> None:
        if api_key != ApiKey.FETCH:
            return
        chance = dice.random()
        if chance < 0.2:
            raise Cut
        if chance < 0.4:
            for topic in message.responses:
                for partition in topic.partitions:
                    partition.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    partition.records = None

    async def test() -> None:
        topic = new_topic()
        await fill(server.bootstrap, topic, 500)
        async with (
            Proxy(server.bootstrap, on_response=trouble) as proxy,
            ClusterClient(proxy.bootstrap, retry_backoff_ms=5, reconnect_backoff_ms=5) as client,
        ):
            where = TopicPartition(topic, 0)
            read = []
            async with PartitionReader(client, {where: 0}, stop={where: 500}, partition_max_bytes=2000) as reader:
                async for records in reader:
                    read += [record.value for record in records]
        assert read == [b"%06d" % i for i in range(500)]

    asyncio.run(test())


def test_read_committed_hides_aborted_transactions_and_markers_are_never_shown(
    kafka_server: Server, new_topic: Callable[[], str]
) -> None:
    from moldau.protocol.messages.end_txn import EndTxnRequest
    from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
    from moldau.protocol.messages.produce import ProduceRequest

    async def transact(client: ClusterClient, topic: str, value: bytes, *, commit: bool) -> None:
        txn = f"{topic}-{value.decode()}"
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[txn])

        async def coordinator() -> int:
            found = (await client.to_any(request)).coordinators[0]
            if found.error_code:
                raise KafkaError(ErrorCode(found.error_code))
            node: int = found.node_id
            return node

        connection = await client.connection_to(await client.retry(coordinator))

        async def init() -> Any:
            given = await connection.request(InitProducerIdRequest(txn, 60_000))
            if given.error_code:
                raise KafkaError(ErrorCode(given.error_code))
            return given

        given = await client.retry(init)
        stamp = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch, "base_sequence": 0}
        batch = build_batch([Record(0, BASE, None, value)], transactional=True, **stamp)
        info = await client.topic(topic)
        produce = ProduceRequest(
            txn,
            -1,
            10_000,
            [ProduceRequest.TopicProduceData("", info.topic_id, [ProduceRequest.PartitionProduceData(0, batch)])],
        )

        async def send() -> None:
            # Apache Kafka names a new topic's leader a little before that one knows of it.
            answer = await connection.request(produce)
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                raise KafkaError(ErrorCode(code))

        await client.retry(send)
        end = await connection.request(EndTxnRequest(txn, given.producer_id, given.producer_epoch, commit))
        assert end.error_code == 0

    async def test() -> None:
        topic = new_topic()
        where = TopicPartition(topic, 0)
        async with ClusterClient(kafka_server.bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)
            await transact(client, topic, b"aborted", commit=False)
            await transact(client, topic, b"committed", commit=True)
            async with asyncio.timeout(10):
                while (
                    await admin.list_offsets(
                        client, {where: admin.LATEST}, isolation_level=IsolationLevel.READ_COMMITTED
                    )
                )[where].offset < 4:
                    await asyncio.sleep(0.02)

            async def read(level: IsolationLevel) -> list[bytes | None]:
                found = []
                async with PartitionReader(client, {where: 0}, stop={where: 4}, isolation_level=level) as reader:
                    async for records in reader:
                        found += [record.value for record in records]
                return found

            assert await read(IsolationLevel.READ_UNCOMMITTED) == [b"aborted", b"committed"]
            assert await read(IsolationLevel.READ_COMMITTED) == [b"committed"]

    asyncio.run(test())


# -- bytes to records --------------------------------------------------------------------------------------------------

blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.builds(Header, st.text(max_size=10), blobs), max_size=3)


@given(st.lists(st.tuples(st.integers(-5, 2**45), blobs, blobs, headers), min_size=1, max_size=30), st.integers(0, 35))
def test_our_fast_decoding_equals_the_protocols(taken: list[tuple], skip: int) -> None:
    records = [Record(100 + i, *one) for i, one in enumerate(taken)]
    batch = memoryview(build_batch(records, compression=Compression.LZ4))
    found = decode_records("t", 3, read_header(batch), batch, 100 + skip)
    expected = [one for one in iterate_records(batch) if one.offset >= 100 + skip]
    assert [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in found] == [
        (one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in expected
    ]


@given(st.binary(max_size=80), st.integers(0, 100), st.booleans())
def test_damaged_batches_end_in_one_kind_of_error(noise: bytes, place: int, fix_checksum: bool) -> None:
    batch = build_batch([Record(i, i, b"key", b"value", [Header("h", b"x")]) for i in range(5)])
    place = min(61 + place, len(batch))
    batch[place : place + len(noise)] = noise[: len(batch) - place]
    if fix_checksum:
        import struct

        from moldau.protocol.checksum import crc32c

        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    try:
        for header, whole in readable_batches(batch, None):
            assert whole is not None
            decode_records("t", 0, header, whole, 0)
    except CorruptBatchError:
        pass


def test_a_flipped_bit_is_found_by_the_checksum() -> None:
    batch = build_batch([Record(0, 0, None, b"value")])
    batch[-3] ^= 1  # still a well-formed record
    with pytest.raises(CorruptBatchError, match="t-0: batch at offset 0 has a wrong checksum"):
        decode_records("t", 0, read_header(batch), memoryview(batch), 0)


def test_aborted_ranges_end_at_their_markers() -> None:
    def data(offset: int, producer: int) -> bytes:
        stamp = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        return bytes(build_batch([Record(offset, 0, None, b"%d" % offset)], transactional=True, **stamp))

    def marker(offset: int, producer: int, kind: int) -> bytes:
        record = Record(offset, 0, control_key(kind), b"\x00" * 6)
        stamp = {"producer_id": producer, "producer_epoch": 0}
        return bytes(build_batch([record], transactional=True, control=True, **stamp))

    plain = bytes(build_batch([Record(7, 0, None, b"7")]))
    log = b"".join(
        [
            data(0, 1),
            data(1, 2),
            marker(2, 1, 0),
            data(3, 1),
            marker(4, 2, 1),
            marker(5, 1, 1),
            data(6, 2),
            plain,
            marker(8, 2, 0),
        ]
    )

    def seen(aborted: list[tuple[int, int]] | None) -> list[int]:
        return [header.base_offset for header, batch in readable_batches(log, aborted) if batch is not None]

    assert seen(None) == [0, 1, 3, 6, 7]
    assert seen([(1, 0), (2, 6)]) == [1, 3, 7]
