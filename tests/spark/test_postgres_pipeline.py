"""Streams and aggregations into PostgreSQL through a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from moldau.client import BlockingProducer
from moldau.spark.pipelines import Pipeline, PipelineError
from tests.postgres import Postgres
from tests.spark.clusters import Cluster


def test_rows_and_totals_are_in_postgresql_once_however_often_a_batch_comes(
    spark: SparkSession, moldau_cluster: Cluster, postgres: Postgres, tmp_path: Path
) -> None:
    topic = moldau_cluster.topic("orders", 2)
    shop = Pipeline(spark, moldau_cluster.bootstrap, name=topic.replace("orders", "shop"), checkpoints=tmp_path)
    orders = shop.stream(topic, "id BIGINT, user STRING, amount DECIMAL(10,2), raw BINARY, tags ARRAY<STRING>")
    last, totals = f"last of {topic}", f"totals of {topic}"
    queries = (
        orders.to_postgres(postgres.dsn, last, key="user"),
        orders.by("user").agg(total=F.sum("amount")).to_postgres(postgres.dsn, totals),
    )

    def order(*numbers: int) -> None:
        with BlockingProducer(moldau_cluster.bootstrap) as producer:
            for number in numbers:
                user = f"user-{number % 3}"
                value = {"id": number, "user": user, "amount": number, "raw": "AAH/", "tags": ["a\0b", "\\u0000 told"]}
                producer.send(topic, json.dumps(value).encode(), key=user.encode())
            producer.send(topic, json.dumps({"id": -1, "amount": 1}).encode(), key=b"nobody")

    order(*range(30))
    shop.run(*queries)
    # As if the driver had been killed behind the commit, before Spark wrote down that the batch is done.
    for query in queries:
        for name in ("0", ".0.crc"):
            (tmp_path / query.name / "commits" / name).unlink()
    order(30, 31)
    shop.run(*queries)
    newest = postgres.ask(f'SELECT "user", id FROM "{last}" ORDER BY id')
    assert newest == [(None, -1), ("user-2", 29), ("user-0", 30), ("user-1", 31)]
    told = postgres.ask(f'SELECT raw, tags FROM "{last}" WHERE id = 31')
    assert told == [(b"\0\1\xff", ["a\ufffdb", "\\u0000 told"])]
    sums = postgres.ask(f'SELECT "user", total FROM "{totals}" ORDER BY "user"')
    assert sums == [
        *((f"user-{user}", sum(number for number in range(32) if number % 3 == user)) for user in range(3)),
        (None, 2),
    ]
    marks = postgres.ask(f"SELECT batch_id, offsets FROM moldau_batches WHERE query LIKE '{shop.name}.%'")
    assert len(marks) == 2
    for batch_id, offsets in marks:
        assert batch_id >= 1 and sum(offsets[topic].values()) == 34


def test_a_stream_that_cannot_go_to_postgresql_says_why(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    topic = moldau_cluster.topic("orders", 1)
    shop = Pipeline(spark, moldau_cluster.bootstrap, name="shop", checkpoints=tmp_path)
    orders = shop.stream(topic, "id BIGINT, user STRING")
    with pytest.raises(PipelineError, match="which of two rows with one key is the newer"):
        orders.select("id", "user").to_postgres("", "orders", key="user")
    with pytest.raises(PipelineError, match="there is no column 'at'; there is id, user"):
        orders.to_postgres("", "orders", key="user", newest="at")
    with pytest.raises(PipelineError, match="column i is interval second, which PostgreSQL has not"):
        orders.select("INTERVAL '1' SECOND AS i").to_postgres("", "orders")
    assert "secret" not in repr(orders.to_postgres("password=secret", "orders").sink)
