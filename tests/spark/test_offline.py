"""Topics into tables and back, offline: what was loaded is there once, and what is unloaded is what was loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.client import BlockingProducer
from moldau.spark.pipelines import PipelineError, Text
from moldau.spark.pipelines.offline import check_same_load, load, target, unload
from tests.postgres import Postgres
from tests.redshift import ROLE, running_redshift
from tests.spark.clusters import Cluster
from tests.spark.lakes import catalog_in

SCHEMA = "id BIGINT, user STRING"
DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS


def order(cluster: Cluster, topic: str, numbers: range) -> None:
    with BlockingProducer(cluster.bootstrap) as producer:
        for number in numbers:
            value = json.dumps({"id": number, "user": f"user-{number % 3}"}).encode()
            producer.send(topic, value, key=b"%d" % number, timestamp_ms=START_MS + number * DAY_MS)


def ids(cluster: Cluster, topic: str) -> list[tuple[bytes | None, int]]:
    return sorted((record.key, json.loads(record.value or b"")["id"]) for record in cluster.read(topic))


def test_a_range_of_times_goes_into_each_kind_of_table_and_back_into_a_topic(
    spark: SparkSession, moldau_cluster: Cluster, postgres: Postgres, tmp_path: Path
) -> None:
    topic = moldau_cluster.topic("orders", 2)
    order(moldau_cluster, topic, range(10))
    name = topic.replace("-", "_")
    with running_redshift(postgres) as redshift:
        s3 = {f"s3.{key}": value for key, value in redshift.s3.options.items()}
        places = {
            "delta": (str(tmp_path / "delta"), {}),
            "iceberg": (f"shop.{name}", catalog_in(tmp_path)),
            "postgres": (name, {"dsn": postgres.dsn}),
            "redshift": (name, {"dsn": redshift.dsn, "s3": "s3://lake/loads", "iam_role": ROLE, **s3}),
        }
        for kind, (place, options) in places.items():
            table, again = target(f"{kind}:{place}", options), moldau_cluster.topic(f"again-{kind}", 2)
            # Whole records for the databases, columns for the others.
            is_whole = kind in ("postgres", "redshift")
            load(
                spark,
                moldau_cluster.bootstrap,
                topic,
                Text() if is_whole else SCHEMA,
                table,
                checkpoints=tmp_path / kind,
                start_ms=START_MS + 2 * DAY_MS,
                until_ms=START_MS + 8 * DAY_MS,
            )
            assert unload(spark, moldau_cluster.bootstrap, table, again, key=None if is_whole else "id") == 6
            assert ids(moldau_cluster, again) == [(b"%d" % number, number) for number in range(2, 8)], kind


def test_a_load_goes_on_where_the_one_before_it_stopped(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lake = moldau_cluster.topic("orders", 1), f"parquet:{tmp_path}/lake"
    order(moldau_cluster, topic, range(5))
    asked = [sys.executable, "-m", "moldau", "pipeline", "load", topic, "--to", lake, "--schema", SCHEMA]
    done = subprocess.run(
        [*asked, "--master", "local[1]", "--checkpoints", str(tmp_path / "loads")],
        env={**os.environ, "MOLDAU_BOOTSTRAP": moldau_cluster.bootstrap},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{topic} is in {lake}\n"), done.stderr
    order(moldau_cluster, topic, range(5, 8))
    load(spark, moldau_cluster.bootstrap, topic, SCHEMA, target(lake), checkpoints=tmp_path / "loads")
    found = sorted(path.name for path in (tmp_path / "lake" / f"topic={topic}" / "partition=0").glob("*.parquet"))
    assert found == [f"offsets-{0:020d}-{4:020d}.parquet", f"offsets-{5:020d}-{7:020d}.parquet"]

    # A directory may have several topics, and they are not mixed.
    again, other = moldau_cluster.topic("again", 1), tmp_path / "lake" / "topic=other" / "partition=0"
    other.mkdir(parents=True)
    (other / f"offsets-{0:020d}-{4:020d}.parquet").touch()
    with pytest.raises(PipelineError, match=rf"has files of 2 topics: name one, such as {lake}/topic="):
        unload(spark, moldau_cluster.bootstrap, target(lake), again, key="id")
    assert unload(spark, moldau_cluster.bootstrap, target(f"{lake}/topic={topic}"), again, key="id") == 8


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (
            ("postgres:t", {"dsn": "host=a dbname=shop user=x"}),
            ("postgres:t", {"dsn": "host=a dbname=shop user=y"}),
            None,
        ),
        (
            ("postgres:t", {"dsn": "host=a dbname=shop"}),
            ("postgres:t", {"dsn": "postgresql://b/shop"}),
            "host=b dbname=shop",
        ),
        (("iceberg:s.t", {"uri": "a"}), ("iceberg:s.t", {"uri": "b"}), "it is b"),
        (("parquet:lake", {}), ("parquet:lake", {}), None),
    ],
)
def test_a_load_that_goes_elsewhere_is_not_taken_for_done(
    first: tuple[str, dict[str, str]], then: tuple[str, dict[str, str]], said: str | None, tmp_path: Path
) -> None:
    check_same_load(tmp_path / "load", "one", target(*first))
    with nullcontext() if said is None else pytest.raises(PipelineError, match=said):
        check_same_load(tmp_path / "load", "one", target(*then))
    with pytest.raises(PipelineError, match="has a load of cluster one, and now it is two: give another --checkpoints"):
        check_same_load(tmp_path / "load", "two", target(*first))


def test_what_is_no_table_is_told() -> None:
    with pytest.raises(PipelineError, match=r"'orders' is no table: write one of delta:"):
        target("orders")
    with pytest.raises(PipelineError, match=r"redshift:orders needs s3: give --with 's3=s3://bucket/prefix'"):
        target("redshift:orders", {"dsn": "host=x"})
    asked = [sys.executable, "-m", "moldau", "pipeline", "unload", "oracle:orders", "--to", "orders"]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 2 and "is no table" in done.stderr
