"""The readers as Spark calls them, without Spark around them: how far batches go, and what an idle query asks."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from moldau.spark import DataLossError, OptionError, SourceError, several_sources
from moldau.spark.options import OFFSETS_PER_TRIGGER_MAX
from moldau.spark.source import ReadTask, TopicReader, TopicStreamReader
from moldau.testing import Broker
from tests.spark.clusters import TIMESTAMP_MS, Cluster

# Partitions that come are looked for at each call.
AT_ONCE = {"kafka.metadata.max.age.ms": "1"}


def stream(cluster: Cluster, topic: str, **options: str) -> TopicStreamReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "longPollMs": "50", **AT_ONCE}
    return TopicStreamReader(given | {"startingOffsets": "earliest"} | options)


def next_end(reader: TopicStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def newer_end(reader: TopicStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """As Spark asks again and again: what is new may be heard of a moment later."""
    deadline = time.monotonic() + 20
    while (end := next_end(reader, start)) == start:
        assert time.monotonic() < deadline, "nothing new was seen"
    return end


def read(reader: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        value.as_py()
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for value in batch.column("value")
    ]


def batch_values(cluster: Cluster, topic: str, **options: str) -> list[bytes]:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    reader = TopicReader(given | options)
    return sorted(
        value.as_py() for task in reader.partitions() for batch in reader.read(task) for value in batch.column("value")
    )


def test_a_stream_starts_where_it_is_told(cluster: Cluster) -> None:
    topic = cluster.topic("starts", 2)
    cluster.produce(topic, [b"%d" % index for index in range(10)])

    def starts(**options: str) -> dict[str, Any]:
        return stream(cluster, topic, **options).initialOffset()

    def at(first: int, second: int = 0) -> dict[str, Any]:
        return {topic: {"0": first, "1": second}}

    assert starts() == at(0) and starts(startingOffsets="latest") == at(10)
    assert starts(startingOffsets=f'{{"{topic}": {{"0": 3, "1": -2}}}}') == at(3)
    assert starts(startingOffsets=f'{{"{topic}": {{"0": -1, "1": -1}}}}') == at(10)
    with pytest.raises(OptionError, match=f"startingOffsets leaves out {topic}-1: give every partition"):
        starts(startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert starts(startingTimestamp=str(TIMESTAMP_MS + 4500), **latest) == at(5)
    times = f'{{"{topic}": {{"0": {TIMESTAMP_MS + 2000}, "1": 0}}}}'
    assert starts(startingOffsetsByTimestamp=times, **latest) == at(2)
    with pytest.raises(OptionError, match=f"{topic}-1 has no record at or after 5 ms: choose an earlier time"):
        starts(startingTimestamp="5")


def test_a_stream_that_starts_at_the_end_misses_nothing_from_then_on(cluster: Cluster) -> None:
    """However late Spark plans its first batch, and also when a driver dies before that is done."""
    topic = cluster.topic("at-end", 2)
    cluster.produce(topic, [b"before"] * 4)
    reader = stream(cluster, topic, startingOffsets="latest")
    start = reader.initialOffset()
    cluster.produce(topic, [b"a"])
    first = next_end(reader, start)
    cluster.produce(topic, [b"b"])
    assert reader.initialOffset() == start == first
    assert read(reader, reader.initialOffset(), first) == []
    # The next driver finds the end of the first batch in the query's log, and asks the reader for its start.
    after = stream(cluster, topic, startingOffsets="latest")
    assert read(after, after.initialOffset(), first) == []
    for each in (reader, after):
        assert sorted(read(each, first, newer_end(each, first))) == [b"a", b"b"]


def test_batches_are_bounded_and_the_rest_follows(cluster: Cluster) -> None:
    topic = cluster.topic("bounded", 2)
    cluster.produce(topic, [b"a"] * 30, 0)
    cluster.produce(topic, [b"b"] * 10, 1)
    reader = stream(cluster, topic, maxOffsetsPerTrigger="20")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert stream(cluster, topic).getDefaultReadLimit() == ReadMaxRows(OFFSETS_PER_TRIGGER_MAX)
    start = reader.initialOffset()
    middle = next_end(reader, start)
    assert middle == {topic: {"0": 15, "1": 5}}
    assert reader.reportLatestOffset() == {topic: {"0": 30, "1": 10}}
    assert sorted(read(reader, start, middle)) == [b"a"] * 15 + [b"b"] * 5
    assert next_end(reader, middle) == {topic: {"0": 30, "1": 10}}
    # Trigger once wants everything.
    assert reader.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 30, "1": 10}}


def test_a_minimum_is_waited_for_until_the_delay_is_over(cluster: Cluster) -> None:
    topic = cluster.topic("minimum")
    cluster.produce(topic, [b"x"] * 2)
    reader = stream(cluster, topic, minOffsetsPerTrigger="5")
    start = reader.initialOffset()
    # The first trigger of a query does not wait.
    first = next_end(reader, start)
    assert first == {topic: {"0": 2}}
    cluster.produce(topic, [b"x"] * 4)
    assert next_end(reader, first) == first
    cluster.produce(topic, [b"x"])
    assert next_end(reader, first) == {topic: {"0": 7}}
    impatient = stream(cluster, topic, minOffsetsPerTrigger="50", maxTriggerDelay="0ms")
    assert next_end(impatient, {topic: {"0": 6}}) == {topic: {"0": 7}}


def test_an_available_now_run_reads_what_was_there_and_no_more(cluster: Cluster) -> None:
    topic = cluster.topic("now")
    cluster.produce(topic, [b"x"] * 6)
    reader = stream(cluster, topic, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="4")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    ends = [next_end(reader, start)]
    cluster.produce(topic, [b"late"] * 3)
    ends.append(next_end(reader, ends[-1]))
    assert ends == [{topic: {"0": 4}}, {topic: {"0": 6}}]
    assert next_end(reader, ends[-1]) == ends[-1]


def test_new_partitions_and_topics_are_read_from_their_beginning(cluster: Cluster) -> None:
    topic = cluster.topic("grows")
    cluster.produce(topic, [b"a"])
    reader = stream(cluster, topic)
    start = next_end(reader, reader.initialOffset())
    assert next_end(reader, start) == start
    cluster.add_partitions(topic, 2)
    cluster.produce(topic, [b"b"], 1)
    end = newer_end(reader, start)
    assert end == {topic: {"0": 1, "1": 1}} and read(reader, start, end) == [b"b"]
    by_pattern = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribePattern": f"^{topic}", **AT_ONCE}
    pattern = TopicStreamReader(by_pattern | {"startingOffsets": "earliest"})
    start = next_end(pattern, pattern.initialOffset())
    assert list(start) == [topic]
    cluster.create(f"{topic}-more")
    cluster.produce(f"{topic}-more", [b"c"])
    end = newer_end(pattern, start)
    assert read(pattern, start, end) == [b"c"]


def test_records_deleted_before_they_were_read_are_an_error_or_left_out(cluster: Cluster) -> None:
    topic = cluster.topic("lossy", 2)
    cluster.produce(topic, [b"%d" % index for index in range(5)])
    cluster.delete_records(topic, {0: 3})
    start = {topic: {"0": 0}}
    strict, lax = stream(cluster, topic), stream(cluster, topic, failOnDataLoss="false")
    end = next_end(lax, start)
    assert read(lax, start, end) == [b"3", b"4"]
    with pytest.raises(DataLossError, match="offset 0 is gone, the log holds offsets 3 to 5"):
        read(strict, start, end)
    # Of a partition that is new to the query, and one that is gone.
    with pytest.raises(DataLossError, match=f"{topic}-0 is new and starts at offset 3"):
        strict.partitions({topic: {"1": 0}}, end)
    with pytest.raises(DataLossError, match=f"{topic}-7 is gone: it was read up to offset 9"):
        strict.partitions({topic: {"0": 5, "1": 0, "7": 9}}, end)
    assert read(lax, {topic: {"7": 9}}, end) == [b"3", b"4"]


def test_a_topic_made_again_is_an_error_or_read_from_its_beginning(cluster: Cluster) -> None:
    topic = cluster.topic("again")
    cluster.produce(topic, [b"old"] * 5)
    strict, lax = stream(cluster, topic), stream(cluster, topic, failOnDataLoss="false")
    start = {topic: {"0": 5}}
    for reader in (strict, lax):
        assert reader.partitions(start, start) == []
    cluster.delete(topic)
    cluster.create(topic)
    cluster.produce(topic, [b"new"] * 2)
    for reader in (strict, lax):
        assert next_end(reader, start) == {topic: {"0": 2}}
    with pytest.raises(DataLossError, match="deleted and made again"):
        strict.partitions(start, {topic: {"0": 2}})
    assert read(lax, start, {topic: {"0": 2}}) == [b"new", b"new"]
    # Known by its id even when it has grown past the old offsets.
    other = stream(cluster, topic)
    other.partitions({topic: {"0": 2}}, {topic: {"0": 2}})
    cluster.delete(topic)
    cluster.create(topic)
    cluster.produce(topic, [b"newer"] * 4)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and made again"):
        other.partitions({topic: {"0": 2}}, next_end(other, {topic: {"0": 2}}))


def test_a_topic_deleted_in_the_middle_of_a_run_is_an_error_or_left_out(cluster: Cluster) -> None:
    topic, deleted = cluster.topic("stays"), cluster.topic("goes")
    for one in (topic, deleted):
        cluster.produce(one, [b"%d" % index for index in range(4)])
    strict, lax = (
        stream(cluster, f"{topic},{deleted}", maxOffsetsPerTrigger="4", failOnDataLoss=fails)
        for fails in ("true", "false")
    )
    for reader in (strict, lax):
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        middle = next_end(reader, start)
        assert middle == {topic: {"0": 2}, deleted: {"0": 2}}
        assert read(reader, start, middle) == [b"0", b"1"] * 2
    cluster.delete(deleted)
    end = {topic: {"0": 4}, deleted: {"0": 4}}
    with pytest.raises(SourceError, match=f"topic '{deleted}' does not exist"):
        read(strict, middle, next_end(strict, middle))
    # The run reads what is left and comes to its end.
    assert next_end(lax, middle) == end
    assert read(lax, middle, end) == [b"2", b"3"]
    assert next_end(lax, end) == end
    # Another run knows of the topic from the checkpoint alone; one that never met it refuses to begin.
    again = stream(cluster, f"{topic},{deleted}", failOnDataLoss="false")
    assert next_end(again, end) == {topic: {"0": 4}}
    assert read(again, end, {topic: {"0": 4}}) == []
    with pytest.raises(SourceError, match=f"topic '{deleted}' does not exist"):
        stream(cluster, f"{topic},{deleted}", failOnDataLoss="false").initialOffset()


def test_tasks_are_one_for_little_and_as_many_as_asked(moldau_cluster: Cluster) -> None:
    topic = moldau_cluster.topic("tasks", 3)
    for partition in range(3):
        moldau_cluster.produce(topic, [b"x"] * 12, partition)

    def counts(**options: str) -> list[list[int]]:
        reader = stream(moldau_cluster, topic, **options)
        start = reader.initialOffset()
        tasks = reader.partitions(start, next_end(reader, start))
        assert all(isinstance(task, ReadTask) for task in tasks)
        return [[one.size for one in task.ranges] for task in tasks]  # type: ignore[attr-defined]

    assert counts() == [[12, 12, 12]]
    assert counts(minPartitions="3") == [[12], [12], [12]]
    assert counts(minPartitions="6") == [[6]] * 6
    assert counts(maxRecordsPerPartition="8") == [[6]] * 6


def test_a_batch_reads_between_its_bounds(cluster: Cluster) -> None:
    topic = cluster.topic("bounds")
    cluster.produce(topic, [b"%d" % index for index in range(9)])

    def found(**options: str) -> list[bytes]:
        return batch_values(cluster, topic, **options)

    def digits(start: int, end: int) -> list[bytes]:
        return [b"%d" % index for index in range(start, end)]

    assert found() == digits(0, 9)
    assert found(startingOffsets=f'{{"{topic}": {{"0": 3}}}}', endingOffsets=f'{{"{topic}": {{"0": 5}}}}') == digits(
        3, 5
    )
    assert found(startingTimestamp=str(TIMESTAMP_MS + 6000)) == digits(6, 9)
    assert found(endingTimestamp=str(TIMESTAMP_MS + 6000)) == digits(0, 6)
    assert found(endingTimestamp=str(TIMESTAMP_MS * 2)) == digits(0, 9)
    times = f'{{"{topic}": {{"0": {TIMESTAMP_MS + 1000}}}}}'
    assert found(startingOffsetsByTimestamp=times) == digits(1, 9)
    assert found(endingOffsetsByTimestamp=times) == digits(0, 1)
    assert found(minPartitions="4", maxRecordsPerPartition="2") == digits(0, 9)
    with pytest.raises(OptionError, match=f"{topic}-0 starts at offset 20, after its end 9"):
        found(startingOffsets=f'{{"{topic}": {{"0": 20}}}}')
    assigned = {"kafka.bootstrap.servers": cluster.bootstrap, "assign": f'{{"{topic}": [0]}}'}
    assert len(TopicReader(assigned).partitions()) == 1


def test_a_missing_topic_and_a_missing_broker_are_said_in_one_line(cluster: Cluster) -> None:
    for options, said in (
        ({"subscribe": "nowhere"}, f"topic 'nowhere' does not exist at {cluster.bootstrap}"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1: connection refused"),
    ):
        for ask in (stream(cluster, "x", **options).initialOffset, lambda: batch_values(cluster, "x", **options)):  # noqa: B023
            with pytest.raises(SourceError) as failed:
                ask()
            assert said in str(failed.value) and "\n" not in str(failed.value)


def test_an_idle_stream_waits_at_the_broker_and_asks_once_a_wait() -> None:
    with Broker({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        here = Cluster("moldau", broker.bootstrap, broker.data)
        topic = here.topic("idle")
        here.produce(topic, [b"x"])
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        reader = TopicStreamReader(given)
        start = reader.initialOffset()
        # The first finds that there is nothing, the second opens the connection on which it waits.
        assert next_end(reader, start) == next_end(reader, start) == start
        assert broker.node is not None and broker.node.http is not None
        url = f"http://127.0.0.1:{broker.node.http.port}/metrics"
        before = request_count(url)
        assert before > 0
        for _ in range(4):
            assert next_end(reader, start) == start
        assert request_count(url) - before <= 4
        # A record ends the wait.
        writing = threading.Timer(0.05, here.produce, (topic, [b"y"]))
        writing.start()
        ends = [next_end(reader, start) for _ in range(2)]
        writing.join()
        assert ends[-1] == {topic: {"0": 2}}


@pytest.mark.parametrize("why", ["longPollMs", "several sources"])
def test_where_nobody_may_wait_a_call_returns_and_asks_no_more_often(moldau_cluster: Cluster, why: str) -> None:
    topic = moldau_cluster.topic("nowait")
    given = {"kafka.bootstrap.servers": moldau_cluster.bootstrap, "subscribe": topic}
    reader = TopicStreamReader(given | ({"longPollMs": "0"} if why == "longPollMs" else {}))
    start = reader.initialOffset()
    assert next_end(reader, start) == start
    if why == "several sources":
        several_sources.note_started(os.getppid(), "run")
    try:
        assert next_end(reader, start) == start
        # Who waits is still out: nobody has waited for him.
        assert reader._watch is not None
        moldau_cluster.produce(topic, [b"x"])
        deadline = time.monotonic() + 30
        while (end := next_end(reader, start)) == start:
            assert time.monotonic() < deadline
        assert end == {topic: {"0": 1}}
    finally:
        several_sources.note_ended(os.getppid(), "run")


def request_count(url: str) -> int:
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("moldau_requests_total")))
