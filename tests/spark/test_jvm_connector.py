"""Spark's own connector for Kafka works on Moldau as it is: reads, writes, streams, and real-time mode."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.clusters import Cluster

WAIT_SECONDS_MAX = 60.0


def test_it_writes_and_reads_batches_and_streams(
    spark: SparkSession, moldau_cluster: Cluster, connector: None, tmp_path: Path
) -> None:
    source, target = moldau_cluster.topic("jvm-in", 2), moldau_cluster.topic("jvm-out", 2)
    bootstrap = {"kafka.bootstrap.servers": moldau_cluster.bootstrap}
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id * id AS STRING) AS value")
    rows.write.format("kafka").options(**bootstrap, topic=source).save()
    stream = spark.readStream.format("kafka").options(**bootstrap, subscribe=source, startingOffsets="earliest").load()
    writer = stream.selectExpr("key", "value").writeStream.format("kafka").options(**bootstrap, topic=target)
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    # Both connectors read what it wrote.
    for form in ("kafka", "moldau"):
        found = spark.read.format(form).options(**bootstrap, subscribe=target).load()
        pairs = {(row.key, row.value) for row in found.selectExpr("string(key)", "string(value)").collect()}
        assert pairs == {(str(number), str(number * number)) for number in range(1000)}


def test_its_real_time_mode_carries_records_from_topic_to_topic(
    spark: SparkSession, moldau_cluster: Cluster, connector: None, tmp_path: Path
) -> None:
    # A slot per partition: with fewer, real-time mode leaves data out.
    source, target = moldau_cluster.topic("rt-in", 2), moldau_cluster.topic("rt-out")
    bootstrap = {"kafka.bootstrap.servers": moldau_cluster.bootstrap}
    stream = spark.readStream.format("kafka").options(**bootstrap, subscribe=source, startingOffsets="earliest").load()
    writer = stream.selectExpr("key", "upper(string(value)) AS value").writeStream.format("kafka")
    writer = writer.options(**bootstrap, topic=target).option("checkpointLocation", str(tmp_path))
    query = writer.outputMode("update").trigger(realTime="5 seconds").start()
    try:
        moldau_cluster.produce(source, [b"a"], 0)
        moldau_cluster.produce(source, [b"b"], 1)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while values_of(moldau_cluster, target) != [b"A", b"B"]:
            assert query.exception() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        query.stop()


def values_of(cluster: Cluster, topic: str) -> list[bytes]:
    from tests.spark.test_range_reader import values, whole

    return sorted(values(whole(topic), bootstrap=cluster.bootstrap))
