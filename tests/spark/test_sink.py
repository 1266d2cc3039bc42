"""The sink, at least once: what a DataFrame's rows become in topics, on Moldau and on Apache Kafka."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from moldau.client import partition_of_key
from tests.oracle import run_tool
from tests.spark.clusters import Cluster

PARTITIONS = 6
ROWS = 20_000


def test_rows_become_records_where_javas_partitioner_puts_them(spark: SparkSession, cluster: Cluster) -> None:
    topic = cluster.create_topic(PARTITIONS)
    rows = (
        spark.range(0, ROWS, numPartitions=4)
        # Skewed: half of the keyed rows have one key; every third row has none.
        .withColumn("key", F.expr("if(id % 3 = 0, null, if(id % 3 = 1, 'hot', concat('key-', id)))"))
        .withColumn("value", F.expr("cast(concat('value-', id) as binary)"))
        .withColumn(
            "headers", F.expr("if(id % 2 = 0, array(named_struct('key', 'n', 'value', cast('h' as binary))), null)")
        )
    )
    rows.write.format("moldau").option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", topic).option(
        "kafka.compression.type", "lz4"
    ).option("kafka.batch.size", "1000").mode("append").save()
    found = cluster.read(topic)
    assert sorted(int(record.value.removeprefix(b"value-")) for record in found if record.value) == list(range(ROWS))
    for record in found:
        number = int((record.value or b"").removeprefix(b"value-"))
        assert [tuple(header) for header in record.headers] == ([("n", b"h")] if number % 2 == 0 else [])
        assert (record.key is None) == (number % 3 == 0)
        if record.key is not None:
            assert record.partition == partition_of_key(record.key, PARTITIONS)
    unkeyed = Counter(record.partition for record in found if record.key is None)
    assert len(unkeyed) == PARTITIONS and max(unkeyed.values()) < 3 * min(unkeyed.values())
    if cluster.name == "kafka":
        check_against_java(cluster, {record.key: record.partition for record in found if record.key is not None})


def check_against_java(cluster: Cluster, placed: dict[bytes, int]) -> None:
    """Java's own producer puts the same keys at the same places."""
    topic = cluster.create_topic(PARTITIONS)
    lines = "".join(f"{key.decode()}:v\n" for key in placed)
    options = ("--topic", topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    run_tool("console-producer", *options, bootstrap=cluster.bootstrap, stdin=lines)
    assert {record.key: record.partition for record in cluster.read(topic)} == placed


def test_topic_and_partition_columns_decide_and_rows_that_no_broker_takes_fail_in_words(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    first, second = cluster.create_topic(2), cluster.create_topic(3)
    rows = spark.range(0, 300, numPartitions=2).selectExpr(
        f"if(id % 2 = 0, '{first}', '{second}') as topic",
        "if(id % 3 = 0, cast(null as int), 1) as partition",
        "cast(id as string) as key",
        "cast(id as string) as value",
        "id as other",
    )
    writer = rows.write.format("moldau").option("kafka.bootstrap.servers", cluster.bootstrap).mode("append")
    writer.save()
    for topic, remainder, count in ((first, 0, 2), (second, 1, 3)):
        found = cluster.read(topic)
        assert sorted(int(record.value or b"") for record in found) == list(range(remainder, 300, 2))
        for record in found:
            by_key = partition_of_key(record.key or b"", count)
            assert record.partition == (by_key if int(record.value or b"") % 3 == 0 else 1)

    # A streaming query, at least once: each row is there, for nothing went wrong.
    rows.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    topic = cluster.create_topic(1)
    query = (
        stream.drop("partition")
        .writeStream.format("moldau")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", topic)  # outweighs the column
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(int(record.value or b"") for record in cluster.read(topic)) == list(range(300))

    small = cluster.create_topic(1, configs={"max.message.bytes": "1000"})
    too_large = spark.range(1).selectExpr("repeat('x', 2000) as value").write.format("moldau").mode("append")
    with pytest.raises(PythonException, match=r"exceeds the topic's max\.message\.bytes"):
        too_large.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", small).save()
    with pytest.raises(PythonException, match="no partition 7"):
        rows.withColumn("partition", F.lit(7)).write.format("moldau").mode("append").option(
            "kafka.bootstrap.servers", cluster.bootstrap
        ).save()
