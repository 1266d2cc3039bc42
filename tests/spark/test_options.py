"""Options of the source: what they mean, what they default to, and what is refused in one line."""

from __future__ import annotations

import pytest

from moldau.client import IsolationLevel
from moldau.kernel import TopicPartition
from moldau.spark import OptionError
from moldau.spark.options import (
    FETCH_BYTES_MAX,
    LONG_POLL_MS_MAX,
    POLL_TIMEOUT_MS,
    Bound,
    SourceOptions,
    Subscription,
    batch_options,
    stream_options,
    wants_headers,
)

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def stream(**more: str) -> SourceOptions:
    return stream_options({**BASE, **{name.replace("__", "."): value for name, value in more.items()}})


def batch(**more: str) -> SourceOptions:
    return batch_options({**BASE, **{name.replace("__", "."): value for name, value in more.items()}})


def test_defaults_are_those_of_sparks_connector() -> None:
    options = stream()
    assert options.bootstrap == "127.0.0.1:9092" and options.subscription == Subscription(topics=("orders",))
    assert options.start == Bound(-1) and batch().start == Bound(-2) and batch().end == Bound(-1)
    assert options.fail_on_data_loss and not options.include_headers and options.late_start == "error"
    assert options.offsets_per_trigger_max is None and options.offsets_per_trigger_min is None
    assert options.trigger_delay_ms_max == 900_000 and options.poll_timeout_ms == POLL_TIMEOUT_MS == 120_000
    assert options.fetch_offset_retries == 3 and options.fetch_offset_retry_interval_ms == 10
    assert options.partitions_min is None and options.records_per_partition_max is None
    assert options.group_id is None and options.long_poll_ms_max == LONG_POLL_MS_MAX == 250
    assert options.fetch_bytes_max == FETCH_BYTES_MAX
    assert options.consumer.isolation_level is IsolationLevel.READ_UNCOMMITTED


def test_every_option_is_understood_in_any_case() -> None:
    options = stream_options(
        {
            "KAFKA.bootstrap.servers": "a:1,b:2",
            "SUBSCRIBE": " x , y ,,x",
            "startingoffsets": "EARLIEST",
            "minOffsetsPerTrigger": "5",
            "MAXOFFSETSPERTRIGGER": "10",
            "maxTriggerDelay": "2m",
            "minPartitions": "4",
            "maxRecordsPerPartition": "7",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "groupId": "billing",
            "groupIdPrefix": "any",
            "longPollMs": "0",
            "kafkaConsumer.pollTimeoutMs": "9",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "2",
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "1000",
            "kafka.request.timeout.ms": "77",
            "kafka.receive.buffer.bytes": "65536",
            "kafka.security.protocol": "PLAINTEXT",
            "somethingElse": "is left alone",
        }
    )
    assert options.bootstrap == "a:1,b:2" and options.subscription.topics == ("x", "y")
    assert options.start == Bound(-2)
    assert (options.offsets_per_trigger_min, options.offsets_per_trigger_max) == (5, 10)
    assert options.trigger_delay_ms_max == 120_000
    assert (options.partitions_min, options.records_per_partition_max) == (4, 7)
    assert not options.fail_on_data_loss and options.include_headers and options.group_id == "billing"
    assert (options.long_poll_ms_max, options.poll_timeout_ms) == (0, 9)
    assert (options.fetch_offset_retries, options.fetch_offset_retry_interval_ms) == (1, 2)
    assert options.consumer.isolation_level is IsolationLevel.READ_COMMITTED
    assert options.fetch_bytes_max == 1000 and options.consumer.request_timeout_ms == 77
    assert wants_headers({"INCLUDEHEADERS": "True"}) and not wants_headers({})


def test_partitions_and_patterns_may_be_named_instead_of_topics() -> None:
    bootstrap = {"kafka.bootstrap.servers": "a:1"}
    assigned = stream_options({**bootstrap, "assign": '{"orders": [0, 1]}'})
    assert assigned.subscription == Subscription(partitions=frozenset({P0, P1}))
    assert stream_options({**bootstrap, "subscribePattern": "ord.*"}).subscription == Subscription(pattern="ord.*")


def test_a_time_for_all_goes_before_times_for_each_and_those_before_offsets() -> None:
    offsets, times = '{"orders": {"0": 23, "1": -2}}', '{"orders": {"0": 1000}}'
    assert stream(startingOffsets=offsets).start == Bound(offsets={P0: 23, P1: -2})
    both = {"startingOffsets": offsets, "startingOffsetsByTimestamp": times}
    assert stream(**both).start == Bound(timestamps_ms={P0: 1000})
    assert stream(**both, startingTimestamp=" 5 ").start == Bound(timestamp_ms=5)
    assert batch(endingTimestamp="9").end == Bound(timestamp_ms=9)
    assert batch(endingOffsetsByTimestamp=times).end == Bound(timestamps_ms={P0: 1000})
    assert stream(startingOffsetsByTimestampStrategy="LATEST").late_start == "latest"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "x", "assign": "{}"}, "exclude each other"),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffsets": "first"}, "startingOffsets='first' is not like"),
        ({"startingOffsets": '{"orders": [1]}'}, "is not like"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets of orders-0 is -3"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "startingOffsetsByTimestamp of orders-0 is -1"),
        ({"startingTimestamp": "-3"}, "startingTimestamp='-3' is no number of milliseconds"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp='yesterday' is no number of milliseconds"),
        ({"startingOffsetsByTimestamp": "[]"}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "is not error or latest"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition=-1 is negative"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger='many' is no whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9 is more than"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is no duration"),
        ({"longPollMs": "251"}, "longPollMs=251 is more than 250"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss='no' is not true or false"),
        ({"includeHeaders": "1"}, "includeHeaders='1' is not true or false"),
        ({"kafka.auto.offset.reset": "latest"}, "said by startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
        ({"kafka.key.deserializer": "x"}, "keys come as bytes"),
        ({"kafka.value.deserializer": "x"}, "values come as bytes"),
        ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes cannot be set"),
        ({"kafka.fetch.min.byte": "1"}, "did you mean 'fetch.min.bytes'"),
        ({"kafka.isolation.level": "serial"}, "isolation.level"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism: only PLAINTEXT"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, str], said: str) -> None:
    for parse in (stream_options, batch_options):
        with pytest.raises(OptionError) as refused:
            parse({**BASE, **given})
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_query_must_say_what_it_reads() -> None:
    bootstrap = {"kafka.bootstrap.servers": "a:1"}
    for given, said in (
        ({}, "no topic is named"),
        ({"assign": "orders"}, "names no partition"),
        ({"assign": '{"orders": ["0"]}'}, "names no partition"),
        ({"subscribePattern": " "}, "subscribePattern is empty"),
        ({"subscribePattern": "("}, "is no regular expression"),
    ):
        with pytest.raises(OptionError, match=said):
            stream_options({**bootstrap, **given})


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is for batch reads"):
        stream_options({**BASE, name: "latest"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets=latest leaves nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest leaves nothing"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "startingOffsets of orders-0 is -1"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets of orders-0 is -2"),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "orders-0 starts at 5, after its end 4",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"1": 9}}'},
            "name different partitions",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 4}}',
            },
            "orders-0 starts at 5, after its end 4",
        ),
    ],
)
def test_a_batch_needs_room_between_start_and_end(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        batch_options({**BASE, **given})
