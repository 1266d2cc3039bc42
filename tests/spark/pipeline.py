"""A streaming query for tests: numbers of four partitions into six of another topic, and a look at what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from moldau.client import OffsetAndMetadata, group_admin, partition_of_key, transaction_admin
from moldau.kernel import KafkaError, TopicPartition
from moldau.spark.exactly_once import Mark, mark_from, parse_offset_log
from moldau.spark.sink_task import Membership
from tests.spark.clusters import Cluster

INPUTS, OUTPUTS = 4, 6
PER_BATCH = 500  # numbers of each partition


class Pipeline:
    """Numbers of four partitions into six of another topic; keyed, skewed and without keys."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.spark, self.cluster, self.directory = spark, cluster, directory
        self.source = cluster.create_topic(INPUTS, "source")
        self.output = cluster.create_topic(OUTPUTS, "output")
        self.limit = 0

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": self.output, "tasks": "4", **more}

    def numbers(self, **options: str) -> DataFrame:
        """The source's rows, a batch of them at a time."""
        given = {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(INPUTS * PER_BATCH),
        }
        return self.spark.readStream.format("moldau").options(**given | options).load()

    def rows(self, **options: str) -> DataFrame:
        return self.numbers(**options).select(
            F.expr("if(offset % 3 = 0, null, if(offset % 3 = 1, 'hot', concat('key-', offset)))").alias("key"),
            F.concat_ws("-", "partition", "offset").alias("value"),
        )

    def feed(self, batches: int) -> None:
        """So many batches more in the source."""
        for partition in range(INPUTS):
            self.cluster.produce(self.source, [b""] * (batches * PER_BATCH), partition)
        self.limit += batches * PER_BATCH

    def run(
        self,
        sink: Callable[[DataFrame, int], None],
        batches: int,
        checkpoint: str = "checkpoint",
        rows: DataFrame | None = None,
        mode: str = "append",
    ) -> None:
        """Let the query read so many batches more."""
        self.feed(batches)
        query = (
            (self.rows() if rows is None else rows)
            .writeStream.foreachBatch(sink)
            .outputMode(mode)
            .option("checkpointLocation", str(self.directory / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def check_output(self) -> None:
        """Every number is in the output once, where Java's partitioner puts its key."""
        found = self.cluster.read(self.output)
        expected = Counter(f"{source}-{number}" for source in range(INPUTS) for number in range(self.limit))
        assert Counter((record.value or b"").decode() for record in found) == expected
        for record in found:
            number = int((record.value or b"").split(b"-")[1])
            assert (record.key is None) == (number % 3 == 0)
            if record.key is not None:
                assert record.partition == partition_of_key(record.key, OUTPUTS)

    def check_group(self, group: str, checkpoint: str = "checkpoint") -> Mark:
        """The group's offsets are those of the query's offset log, at the end of the source."""
        stored = self.stored(group)
        mark = mark_from(one.metadata for one in stored.values())
        assert mark is not None
        assert {where: one.offset for where, one in stored.items()} == {
            TopicPartition(self.source, partition): self.limit for partition in range(INPUTS)
        }
        logged = parse_offset_log((self.directory / checkpoint / "offsets" / str(mark.batch_id)).read_text())
        assert {where: one.offset for where, one in stored.items()} == logged.by_partition
        assert mark.digest == logged.digest
        return mark

    def wait_epoch_after(self, membership: Membership) -> None:
        """Until the coordinator has given up a transaction."""
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "no coordinator gave the transaction up"
            described = self.cluster.do(
                lambda client: transaction_admin.describe_transactions(client, [membership.transactional_id])
            )[membership.transactional_id]
            if not isinstance(described, KafkaError) and described.state in ("CompleteAbort", "Empty"):
                return
            time.sleep(0.1)

    def stored(self, group: str) -> dict[Any, OffsetAndMetadata]:
        return self.cluster.do(lambda client: group_admin.stable_group_offsets(client, group))
