"""What tests of sinks share: numbered batches without Spark, and a stream that goes through a sink twice."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from moldau.client import BlockingProducer
from moldau.kernel import TopicPartition
from moldau.spark.exactly_once import SourceOffsets
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import Pipeline, Query, Stream
from tests.spark.clusters import Cluster

QUERY_ID = "6f1c"
ORDERS_SCHEMA = "id BIGINT, user STRING, amount DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>"


def numbered(batch_id: int, query_id: str = QUERY_ID, digest: str | None = None) -> NumberedBatch:
    offsets = {TopicPartition("orders", 0): 10 * batch_id, TopicPartition("orders", 1): 7}
    return NumberedBatch(query_id, batch_id, SourceOffsets(digest or f"digest-{batch_id}", offsets))


class Shop:
    """A topic of orders, and queries on it whose driver may die behind a commit."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.topic = cluster.topic("orders", 2)
        self._bootstrap, self._directory = cluster.bootstrap, directory
        name = self.topic.replace("orders", "shop")
        self.pipeline = Pipeline(spark, cluster.bootstrap, name=name, checkpoints=directory)

    def elsewhere(self, directory: Path) -> Pipeline:
        """A pipeline of the same name with its checkpoints in another place."""
        return Pipeline(self.pipeline.spark, self._bootstrap, name=self.pipeline.name, checkpoints=directory)

    def orders(self) -> Stream:
        return self.pipeline.stream(self.topic, ORDERS_SCHEMA)

    def order(self, *numbers: int) -> None:
        with BlockingProducer(self._bootstrap) as producer:
            for number in numbers:
                user = f"user-{number % 3}"
                value = {"id": number, "user": user, "amount": number, "at": "2026-11-18T10:00:00Z", "tags": ["a", "ř"]}
                producer.send(self.topic, json.dumps(value).encode(), key=user.encode())

    def run(self, *queries: Query) -> None:
        self.pipeline.run(*queries)

    def forget_commit(self, *queries: Query) -> None:
        """As if the driver had been killed behind the sink's commit, before Spark wrote down that the batch is done."""
        for query in queries:
            commits = self._directory / query.name / "commits"
            newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
            for name in (str(newest), f".{newest}.crc"):
                (commits / name).unlink()
