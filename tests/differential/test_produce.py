"""Produce, InitProducerId and DescribeProducers: what is taken, what is refused, and in which words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol.compression import Compression
from moldau.protocol.message import Message
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import ProduceRequest
from tests.differential.batches import BASE_MS, batch, corrupt, old_message, with_bytes, with_header
from tests.differential.deliberate import (
    PRODUCE_MESSAGES,
    RECORDS_STAY_CLOSED,
    SAYS_WHAT_IS_WRONG,
    TAKES_WHOLE_BATCHES_ONLY,
)
from tests.differential.pair import Pair, Request, Side, produce, versions_of

pytestmark = pytest.mark.oracle

HOUR_MS = 3_600_000
# Kafka has no block of producer ids at first.
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _to(version: int, topic: str, data: bytes | None, **more: Any) -> Request:
    """Produce to a topic, from version 13 on by its id."""
    if version < 13:
        return produce(topic, data, **more)

    def by_id(side: Side) -> ProduceRequest:
        request = produce("", data, **more)
        request.topic_data[0].topic_id = side.topic_ids[topic]
        return request

    return by_id


def _stored(pair: Pair, topic: str, say: str) -> None:
    """What is in the log afterwards."""

    def fetch(side: Side) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )

    pair.ask(fetch, 11, masks=("*.preferred_read_replica",), say=f"stored {say}")


@pytest.mark.parametrize("version", versions_of(0))
def test_batches_are_appended(pair: Pair, version: int) -> None:
    topic = pair.create("t", 2)
    for acks in (-1, 1):
        pair.ask(_to(version, topic, batch(b"a", b"b", b"c"), acks=acks), version, say=f"acks {acks}")
    pair.ask(_to(version, topic, batch(key=None), partition=1), version, say="partition 1")
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        data = batch(b"x" * 200, b"y" * 200, compression=codec)
        pair.ask(_to(version, topic, data), version, say=codec.name)
    pair.ask(_to(version, topic, batch(timestamps=[-1])), version, say="no timestamp")
    pair.ask(_to(version, topic, with_header(batch(), leader_epoch=7)), version, say="with a leader epoch")
    _stored(pair, topic, "afterwards")


@pytest.mark.parametrize("version", versions_of(0))
def test_acks_0_is_not_answered(pair: Pair, version: int) -> None:
    topic = pair.create("t")
    pair.tell(_to(version, topic, batch(b"quiet"), acks=0), version, say="good")
    pair.tell(_to(version, topic, corrupt(batch()), acks=0), version, say="bad")
    pair.tell(_to(version, topic, batch(), partition=7, acks=0), version, say="unknown partition")
    _stored(pair, topic, "afterwards")


@pytest.mark.parametrize("version", versions_of(0))
def test_batches_are_refused(pair: Pair, version: int) -> None:
    topic = pair.create("t")
    good = batch(b"a", b"b")
    for data, say in (
        (b"", "no records"),
        (good + good, "two batches"),
        (good[:-1], "one byte short"),
        (good[:61], "a header alone"),
        (good[:40], "half a header"),
        (good[:10], "ten bytes"),
        (old_message(0), "magic 0"),
        (old_message(1), "magic 1"),
        (with_bytes(good, 16, b"\x03"), "magic 3"),
        (corrupt(good), "a checksum that does not fit"),
        (with_bytes(good, 8, b"\x00\x00\x00\x05"), "a length that is too small"),
        (with_bytes(good, 8, b"\xff\xff\xff\xff"), "a negative length"),
        (with_header(good, last_offset_delta=5), "a last offset that contradicts the count"),
        (with_header(good, last_offset_delta=0), "a last offset that is too small"),
        (with_header(good, last_offset_delta=-1), "a negative last offset"),
        (with_header(good, record_count=0, last_offset_delta=-1), "a count of none"),
        (with_header(good, base_offset=7), "a base offset"),
        (batch(control=True), "a control batch"),
        (batch(producer_id=5, producer_epoch=0, base_sequence=-1), "a producer without a sequence"),
        (batch(producer_id=5, producer_epoch=-1, base_sequence=0), "a producer without an epoch"),
        (batch(b"x" * 1_100_000), "too large"),
    ):
        pair.ask(_to(version, topic, data), version, deliberate=(PRODUCE_MESSAGES,), say=say)
    for acks in (2, -2, 7):
        pair.ask(_to(version, topic, good, acks=acks), version, say=f"acks {acks}")
    pair.ask(_to(version, topic, good, partition=1), version, say="unknown partition")
    pair.ask(_to(version, topic, good, partition=-1), version, say="negative partition")
    _stored(pair, topic, "afterwards")


@pytest.mark.parametrize("version", versions_of(0))
def test_batches_that_the_two_judge_differently(pair: Pair, version: int) -> None:
    """Each on a topic of its own, as what was taken shifts the offsets after it."""
    good = batch(b"a", b"b")
    for number, (data, deliberate, say) in enumerate(
        (
            (good + good[:10], TAKES_WHOLE_BATCHES_ONLY, "a batch and a half"),
            (batch(log_append_time_ms=BASE_MS), TAKES_WHOLE_BATCHES_ONLY, "append time set by the client"),
            (with_bytes(good, 8, b"\x7f\xff\xff\xff"), SAYS_WHAT_IS_WRONG, "an absurd length"),
            (with_header(good, attributes=5), SAYS_WHAT_IS_WRONG, "an unknown codec"),
            (with_header(good, record_count=3, last_offset_delta=2), RECORDS_STAY_CLOSED, "fewer records than counted"),
            (with_header(good, record_count=1, last_offset_delta=0), RECORDS_STAY_CLOSED, "more records than counted"),
            (with_header(good, attributes=1), RECORDS_STAY_CLOSED, "gzip that is none"),
        )
    ):
        topic = pair.create(f"t{number}")
        pair.ask(_to(version, topic, data), version, deliberate=(PRODUCE_MESSAGES, deliberate), say=say)


@pytest.mark.parametrize("version", range(3, 13))
def test_unknown_topics_are_refused_and_not_created(pair: Pair, version: int) -> None:
    for name in (pair.topic("missing"), "", "bad name"):
        for acks in (-1, 1, 3):
            pair.ask(produce(name, batch(), acks=acks), version, say=f"{name!r} acks {acks}")


def test_unknown_topic_ids_are_refused(pair: Pair) -> None:
    topic = pair.create("t")
    unknown = produce("", batch())
    unknown.topic_data[0].topic_id = bytes(range(16))
    pair.ask(unknown, 13, say="unknown id")
    pair.ask(produce("", batch()), 13, say="zero id")

    def both(side: Side) -> ProduceRequest:
        request = produce("", batch())
        request.topic_data[0].topic_id = side.topic_ids[topic]
        request.topic_data.append(unknown.topic_data[0])
        return request

    pair.ask(both, 13, unordered=("responses",), say="a known and an unknown id")


@pytest.mark.parametrize("version", versions_of(0))
def test_an_empty_request_is_answered(pair: Pair, version: int) -> None:
    pair.ask(ProduceRequest(acks=-1, timeout_ms=1000), version)
    pair.ask(ProduceRequest(acks=5, timeout_ms=1000), version, say="bad acks")


@pytest.mark.parametrize("version", versions_of(0))
def test_one_bad_partition_does_not_touch_the_others(pair: Pair, version: int) -> None:
    topic = pair.create("t", 3)

    def request(side: Side) -> ProduceRequest:
        several = _to(version, topic, None)
        asked = several if isinstance(several, Message) else several(side)
        assert isinstance(asked, ProduceRequest)
        asked.topic_data[0].partition_data = [
            ProduceRequest.PartitionProduceData(index=index, records=data)
            for index, data in ((0, batch(b"a")), (9, batch(b"b")), (1, corrupt(batch(b"c"))), (2, batch(b"d")))
        ]
        return asked

    pair.ask(request, version, deliberate=(PRODUCE_MESSAGES,), unordered=("responses.*.partition_responses",))


@pytest.mark.parametrize("version", versions_of(0))
def test_topic_configs_decide_what_is_taken(pair: Pair, version: int) -> None:
    compacted = pair.create("compacted", 1, {"cleanup.policy": "compact"})
    mixed = bytearray(batch(b"a", b"b", b"c"))
    pair.ask(
        _to(version, compacted, bytes(mixed)), version, deliberate=(PRODUCE_MESSAGES,), say="keys on a compacted topic"
    )
    pair.ask(
        _to(version, compacted, batch(b"a", b"b", key=None)),
        version,
        deliberate=(PRODUCE_MESSAGES,),
        say="no keys on a compacted topic",
    )
    pair.ask(
        _to(version, compacted, batch(b"a", key=None, compression=Compression.LZ4)),
        version,
        deliberate=(PRODUCE_MESSAGES,),
        say="compressed, no key",
    )
    small = pair.create("small", 1, {"max.message.bytes": "100"})
    pair.ask(
        _to(version, small, batch(b"x" * 50)),
        version,
        deliberate=(PRODUCE_MESSAGES,),
        say="larger than max.message.bytes",
    )
    pair.ask(_to(version, small, batch(b"x")), version, deliberate=(PRODUCE_MESSAGES,), say="small enough")
    now = int(time.time() * 1000)
    timely = pair.create(
        "timely",
        1,
        {"message.timestamp.before.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(HOUR_MS)},
    )
    for shift, say in ((0, "now"), (-2 * HOUR_MS, "too old"), (2 * HOUR_MS, "too new")):
        data = batch(b"a", b"b", timestamps=[now, now + shift])
        pair.ask(_to(version, timely, data), version, deliberate=(PRODUCE_MESSAGES,), say=say)
        both = batch(b"a", b"b", timestamps=[now + shift, now + shift])
        pair.ask(_to(version, timely, both), version, deliberate=(PRODUCE_MESSAGES,), say=f"both {say}")
    ours = pair.create("append", 1, {"message.timestamp.type": "LogAppendTime"})
    pair.ask(
        _to(version, ours, batch(b"a", b"b")),
        version,
        masks=("*.log_append_time_ms",),
        deliberate=(PRODUCE_MESSAGES,),
        say="append time",
    )


@pytest.mark.parametrize("kept", ("uncompressed", "gzip", "snappy", "lz4", "zstd"))
def test_a_topic_recompresses_to_its_own_codec(pair: Pair, kept: str) -> None:
    topic = pair.create("t", 1, {"compression.type": kept})
    pair.ask(produce(topic, batch(b"a" * 100, b"b" * 100)), 12, say="plain")
    pair.ask(produce(topic, batch(b"a" * 100, b"b" * 100, compression=Compression.GZIP)), 12, say="gzip")

    def fetch(side: Side) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=0, max_bytes=1 << 20, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
        )

    # Two compressors never write the same bytes; codec, offsets and counts must agree.
    bytes_of_codec = tuple(f"*.batches.*.{name}" for name in ("payload", "crc", "length"))
    pair.ask(fetch, 11, masks=(*bytes_of_codec, "*.preferred_read_replica") if kept != "uncompressed" else ())


# -- idempotence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", (3, 9, 12, 13))
def test_idempotent_producers(pair: Pair, version: int) -> None:
    topic = pair.create("t")

    def send(sequence: int, *values: bytes, epoch: int = 0, producer: int = 4000, say: str = "") -> None:
        data = batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        pair.ask(
            _to(version, topic, data),
            version,
            deliberate=(PRODUCE_MESSAGES,),
            say=f"{say} producer {producer} epoch {epoch} sequence {sequence}",
        )

    send(0, b"a", b"b", say="first")
    send(0, b"a", b"b", say="again")
    for number in range(2, 8):
        send(number, b"c")
    send(7, b"c", say="last again")
    send(3, b"c", say="fifth last again")
    send(2, b"c", say="sixth last again")
    send(0, b"a", b"b", say="long ago")
    send(6, b"c", b"d", say="overlaps")
    send(9, b"d", say="a gap")
    send(5, b"d", b"e", b"f", say="begins inside")
    send(1, b"x", epoch=1, say="a new epoch that does not begin at 0")
    send(0, b"x", epoch=1, say="a new epoch")
    send(8, b"y", epoch=0, say="an old epoch")
    send(0, b"x", epoch=1, say="again in the new epoch")
    send(5, b"z", producer=4001, say="an unknown producer in the middle")
    send(0, b"z", producer=4002, epoch=5, say="an unknown producer with an epoch")
    send(2**31 - 2, b"1", b"2", producer=4003, say="to the end of the sequences")
    send(0, b"3", producer=4003, say="around")
    send(2**31 - 1, b"1", b"2", b"3", producer=4004, say="across the end")
    send(2, b"4", producer=4004, say="after it")
    send(2**31 - 1, b"1", b"2", b"3", producer=4004, say="across the end again")
    _stored(pair, topic, "afterwards")
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(topic, [0, 1]),
            DescribeProducersRequest.TopicRequest("none", [0]),
        ]
    )
    # Kafka lists producers in the order of a hash map; the time of the last append is the broker's.
    pair.ask(request, 0, unordered=("*.active_producers", "topics"), masks=("*.last_timestamp",))


@pytest.mark.parametrize("version", versions_of(22))
def test_producer_ids(pair: Pair, version: int) -> None:
    ids = ("producer_id",)
    for producer_id, epoch, say in (
        (-1, -1, "new"),
        (5, 3, "with an id and epoch"),
        (5, -1, "an id alone"),
        (-1, 3, "an epoch alone"),
    ):
        if version < 3 and producer_id + epoch != -2:
            continue
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        if version >= 3:
            request.producer_id, request.producer_epoch = producer_id, epoch
        pair.ask(request, version, masks=ids, say=say, until=lambda answer: answer.error_code != LOADING)
    answers = pair.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-5), version, masks=ids)
    assert all(answer.producer_id >= 0 for answer in answers)
    pair.ask(
        InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000), version, masks=ids, say="empty id"
    )
