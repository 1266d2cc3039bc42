"""Topics read by a real Spark, on Moldau and on Apache Kafka, beside Spark's own connector: change one word."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from moldau.kernel import TopicPartition
from moldau.spark import publish_progress, reason, several_sources
from moldau.testing import BrokerProcess
from tests.spark.clusters import TIMESTAMP_MS, Cluster

WAIT_SECONDS_MAX = 60.0
AVAILABLE_NOW = {"availableNow": True}
LITTLE = {"maxOffsetsPerTrigger": "1"}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def frame_of(spark: SparkSession, form: str, cluster: Cluster, options: dict[str, str]) -> DataFrame:
    return spark.read.format(form).options(**{"kafka.bootstrap.servers": cluster.bootstrap} | options).load()


def start_query(
    spark: SparkSession,
    form: str,
    cluster: Cluster,
    checkpoint: Path,
    table: str,
    trigger: Mapping[str, bool] = AVAILABLE_NOW,
    **options: str,
) -> StreamingQuery:
    """Append what comes to a table in memory, until nothing is left."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest", **options}
    frame = spark.readStream.format(form).options(**given).load()
    writer = frame.writeStream.foreachBatch(lambda batch, _: collected(table).extend(rows_of(batch)))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


_collected: dict[str, list[Row]] = {}


def collected(table: str) -> list[Row]:
    return _collected.setdefault(table, [])


def test_a_batch_read_equals_that_of_sparks_own_connector(
    spark: SparkSession, cluster: Cluster, connector: None
) -> None:
    topic = cluster.topic("equal", 3)
    cluster.produce(topic, [b"%d" % index for index in range(20)], 0, compression_type="lz4")
    cluster.produce(topic, [b"", b"x"], 1)
    cluster.produce_transactions(topic, [(b"a", True), (b"b", False), (b"c", True)], 2)
    all_offsets = f'{{"{topic}": {{"0": 3, "1": -2, "2": 2}}}}'
    ends = f'{{"{topic}": {{"0": 12, "1": -1, "2": 5}}}}'
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    for options in (
        {"subscribe": topic, "includeHeaders": "true"},
        {"subscribe": topic, "kafka.isolation.level": "read_committed", "minPartitions": "7"},
        {"subscribePattern": f"{topic[2:]}$", "maxRecordsPerPartition": "5"},
        {"assign": f'{{"{topic}": [1, 0]}}', "startingTimestamp": str(TIMESTAMP_MS + 1500), **latest},
        {"subscribe": topic, "startingOffsets": all_offsets, "endingOffsets": ends},
        {"subscribe": topic, "endingTimestamp": str(TIMESTAMP_MS + 7000)},
    ):
        ours, theirs = (frame_of(spark, form, cluster, options) for form in ("moldau", "kafka"))
        assert ours.schema == theirs.schema
        rows = rows_of(ours)
        assert rows == rows_of(theirs) and rows, options
    # Spark keeps the plan of a DataFrame; records that came meanwhile are read nevertheless, as theirs are.
    ours = frame_of(spark, "moldau", cluster, {"subscribe": topic})
    count = ours.count()
    cluster.produce(topic, [b"more"], 1)
    assert ours.count() == count + 1


def test_a_query_moves_between_the_connectors_with_its_checkpoint(
    spark: SparkSession, cluster: Cluster, connector: None, tmp_path: Path
) -> None:
    topic = cluster.topic("moves", 2)
    publish_progress(spark)
    table = f"moves-{cluster.name}"
    expected: list[bytes] = []
    for turn, form in enumerate(("moldau", "kafka", "moldau")):
        if turn == 2:
            cluster.add_partitions(topic, 3)
        values = [b"%d-%d" % (turn, index) for index in range(30)]
        cluster.produce(topic, values, partition=turn)
        expected += values
        options = {"subscribe": topic, "maxOffsetsPerTrigger": "20", "groupId": f"group-{topic}"}
        query = start_query(spark, form, cluster, tmp_path, table, **options)
        query.awaitTermination()
        assert [row.value for row in collected(table)] == expected
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [20, 10]
        if form == "moldau":
            ends = {TopicPartition(topic, 0): 30, TopicPartition(topic, 1): 30 * (turn > 0)}
            if turn == 2:
                ends[TopicPartition(topic, 2)] = 30
            # The last batch of the run included.
            wait_until(lambda ends=ends: cluster.committed(f"group-{topic}") == ends)  # type: ignore[misc]


def test_a_running_stream_of_two_sees_records_new_partitions_and_a_broker_that_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    broker = BrokerProcess(data=str(tmp_path / "data")).start()
    try:
        cluster = Cluster("moldau", broker.bootstrap, str(tmp_path / "data"))
        topic, other = cluster.topic("running"), cluster.topic("other")
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.metadata.max.age.ms": "500"}
        reader = spark.readStream.format("moldau").options(**given, startingOffsets="earliest")
        frame = reader.option("subscribe", topic).load().union(reader.option("subscribe", other).load())
        publisher = publish_progress(spark)
        values: list[bytes] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: values.extend(row.value for row in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert several_sources.is_any_running(publisher._jvm_pid)
            cluster.produce(other, [b"a"])
            wait_until(lambda: values == [b"a"])
            cluster.add_partitions(topic, 2)
            cluster.produce(topic, [b"b"], partition=1)
            wait_until(lambda: values == [b"a", b"b"])
            broker.kill()
            broker.start()
            cluster.produce(topic, [b"c"])
            wait_until(lambda: values == [b"a", b"b", b"c"])
            assert query.exception() is None
        finally:
            query.stop()
        wait_until(lambda: not several_sources.is_any_running(publisher._jvm_pid))
    finally:
        broker.close()


def test_what_goes_wrong_is_one_line(spark: SparkSession, moldau_cluster: Cluster) -> None:
    cluster = moldau_cluster
    topic = cluster.topic("wrong")
    cluster.produce(topic, [b"x" * 50])

    def batch_error(**options: str) -> str:
        with pytest.raises(Exception) as failed:
            frame_of(spark, "moldau", cluster, {"subscribe": topic} | options).collect()
        return told(failed.value)

    def stream_error(**options: str) -> str:
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        with pytest.raises(Exception) as failed:
            frame = spark.readStream.format("moldau").options(**given | options).load()
            frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
        return told(failed.value)

    def told(error: BaseException) -> str:
        assert "Traceback" not in str(error), str(error)
        line = reason(error)
        assert "\n" not in line and line in str(error)
        return line

    missing = f"topic 'nowhere' does not exist at {cluster.bootstrap}"
    refused = "kafka.auto.offset.reset cannot be set: where a query starts is said by startingOffsets"
    assert batch_error(subscribe="nowhere") == missing == stream_error(subscribe="nowhere")
    assert batch_error(**{"kafka.auto.offset.reset": "latest"}) == refused
    assert stream_error(**{"kafka.auto.offset.reset": "latest"}) == refused
    assert stream_error(endingOffsets="latest") == "endingOffsets is for batch reads: a stream has no end"
    assert "connection refused" in batch_error(**{"kafka.bootstrap.servers": "127.0.0.1:1"})
    segment = cluster.segment(topic)
    with segment.open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"?")
    assert batch_error() == f"{topic}-0: batch at offset 0 has a wrong checksum"
    assert stream_error() == f"{topic}-0: batch at offset 0 has a wrong checksum"


def test_a_stream_that_lost_records_or_its_checkpoint_says_so_or_goes_on(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = moldau_cluster
    topic = cluster.topic("lost")
    cluster.produce(topic, [b"0", b"1"])
    table = f"lost-{cluster.name}"
    start_query(spark, "moldau", cluster, tmp_path, table, subscribe=topic).awaitTermination()
    cluster.produce(topic, [b"2", b"3", b"4"])
    cluster.delete_records(topic, {0: 4})
    with pytest.raises(Exception) as failed:
        start_query(spark, "moldau", cluster, tmp_path, table, subscribe=topic).awaitTermination()
    assert reason(failed.value).startswith(
        f"{topic}-0: offset 2 is gone, the log holds offsets 4 to 5; set failOnDataLoss"
    )
    lax = {"subscribe": topic, "failOnDataLoss": "false"}
    start_query(spark, "moldau", cluster, tmp_path, table, **lax).awaitTermination()
    assert [row.value for row in collected(table)] == [b"0", b"1", b"4"]

    # A query whose checkpoint is lost is another one, and starts where it is told; once is everything at once.
    shutil.rmtree(tmp_path)
    cluster.produce(topic, [b"5", b"6"])
    once = start_query(spark, "moldau", cluster, tmp_path, table, {"once": True}, subscribe=topic, **LITTLE)
    once.awaitTermination()
    assert [row.value for row in collected(table)[3:]] == [b"4", b"5", b"6"]
    assert [progress.numInputRows for progress in once.recentProgress] == [3]
