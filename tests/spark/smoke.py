"""Source, sink and exactly once in a minute, on whatever pyspark this interpreter has.

    python -m tests.spark.smoke

`make test-spark-4.3` runs it on pyspark 4.3, for which Spark's own connector has no jar yet.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

import moldau.spark
from moldau.testing import Broker
from tests.spark.clusters import Cluster

ROWS = 1000


def main() -> None:
    with Broker() as broker, tempfile.TemporaryDirectory(prefix="moldau-spark-smoke-") as directory:
        spark = moldau.spark.session(
            "smoke",
            master="local[2]",
            settings={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.host": "127.0.0.1",
                "spark.ui.showConsoleProgress": "false",
            },
        )
        try:
            check(spark, Cluster("moldau", broker.bootstrap, broker.data), Path(directory))
        finally:
            spark.stop()
    print(f"pyspark {pyspark.__version__}: source, sink and exactly once work")


def check(spark: SparkSession, cluster: Cluster, directory: Path) -> None:
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    source, at_least_once, by_sink, by_batches = (cluster.topic(name, 4) for name in ("in", "once", "sink", "batches"))
    rows = spark.range(ROWS).selectExpr("cast(id % 7 as string) as key", "cast(id as string) as value")
    rows.write.format("moldau").options(**servers, topic=source).mode("append").save()
    assert spark.read.format("moldau").options(**servers, subscribe=source).load().count() == ROWS

    def stream(**options: str) -> DataFrame:
        reader = spark.readStream.format("moldau").options(**servers, subscribe=source, startingOffsets="earliest")
        return reader.options(maxOffsetsPerTrigger="400", **options).load().select("key", "value")

    for topic, exactly_once in ((at_least_once, "false"), (by_sink, "true")):
        given = {**servers, "topic": topic, "exactlyOnce": exactly_once, "checkpointLocation": str(directory / topic)}
        if exactly_once == "true":
            given["transactionalId"] = topic
        writer = stream(groupId=f"group-{topic}").writeStream.format("moldau").options(**given)
        writer.trigger(availableNow=True).start().awaitTermination()
    sink = moldau.spark.foreach_batch({**servers, "topic": by_batches, "transactionalId": by_batches})
    counts = stream().groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    writer = counts.writeStream.foreachBatch(sink).outputMode("update")
    writer = writer.option("checkpointLocation", str(directory / by_batches)).trigger(availableNow=True)
    writer.start().awaitTermination()

    for topic in (at_least_once, by_sink):
        found = Counter(int(record.value or b"") for record in cluster.read(topic))
        assert found == Counter(range(ROWS)), topic
    newest = {record.key: int(record.value or b"") for record in cluster.read(by_batches)}
    assert sum(newest.values()) == ROWS and len(newest) == 7
    for group in (by_sink, by_batches):
        assert sum(cluster.committed(group).values()) == ROWS, group


if __name__ == "__main__":
    main()
