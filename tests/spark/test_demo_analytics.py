"""The demo's pipeline on Spark, over two days of traffic that are there already: every count is that of the traffic,
the anomalies are those that were put in, and what is kept is all of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from moldau.client import BlockingProducer
from moldau.demo.comparing import read_score
from moldau.demo.folders import PipelineSettings, write_folders
from moldau.demo.rehearsal import START_MS, rehearse
from moldau.demo.scale import scale_from
from moldau.demo.topics import ACTIVE, ANOMALIES, APPROXIMATE, EVENTS, SITES, TREND, TRUTH, prepare
from moldau.demo.traffic import Requests, requests_of_minute, sendings_of_minute, time_text
from moldau.demo.world import World
from moldau.spark.pipelines import Pipeline
from moldau.spark.pipelines.loading import load_queries
from moldau.spark.pipelines.project import read_project
from moldau.testing import Broker
from tests.postgres import Postgres
from tests.spark.clusters import Cluster

SCALE = scale_from("5m")
# A quarter of the traffic that a site usually has: what is proved here is that Spark counts and finds what the traffic
# and the rehearsal of it say. How good that is, `tests/demo/test_score.py` says.
SEED, SITE_COUNT, RATE, DAYS = 101, 2, 60, 2
# The state of one query is the input of the next.
STAGES = (("demo-requests",), (SITES, "demo-seen", APPROXIMATE), (ACTIVE, TREND), (ANOMALIES,))


@pytest.mark.timeout(400)
def test_every_count_is_that_of_the_traffic_and_the_anomalies_are_found(
    spark: SparkSession, postgres: Postgres, tmp_path: Path
) -> None:
    world = World(SEED, SCALE, START_MS, SITE_COUNT)
    first = world.start_ms // SCALE.minute_ms
    days = [requests_of_minute(world, RATE, minute) for minute in range(first, first + DAYS * SCALE.minutes_per_day)]
    with Broker() as broker:
        cluster = Cluster("moldau", broker.bootstrap, broker.data)
        sent, bad = send(world, days, cluster)
        settings = PipelineSettings(cluster.bootstrap, "5m", str(tmp_path / "lake"), postgres.dsn)
        run_pipelines(spark, settings, tmp_path)
        tables = {name: table(cluster, name) for name in (SITES, ACTIVE, APPROXIMATE, TREND, ANOMALIES)}
        assert len(cluster.read("demo-dead-letters")) == bad > 30
        check_sites(world, days, tables[SITES])
        check_active(world, days, tables[ACTIVE], tables[APPROXIMATE])
        check_trend(days, tables[TREND])
        check_archive(spark, tmp_path / "lake", sent - bad, postgres, tables)
        result = cluster.do(read_score)
        assert result == rehearse(SEED, SCALE, DAYS, RATE, SITE_COUNT)
        print(f"seed {SEED}: precision {result.precision:.3f}, recall {result.recall:.3f} of {result.put_in}")
        assert result.met == result.put_in >= 5, result.missed


def send(world: World, days: list[Requests], cluster: Cluster) -> tuple[int, int]:
    """The records of all minutes, in the order in which they leave; how many there are, and how many are bad."""
    cluster.do(lambda client: prepare(client, SCALE))
    sendings = sorted((one for minute in days for one in sendings_of_minute(world, minute)), key=lambda one: one.at_ms)
    with BlockingProducer(cluster.bootstrap, {"linger.ms": 5, "compression.type": "lz4"}) as producer:
        for one in sendings:
            producer.send(EVENTS, one.value, key=one.key)
        until = world.start_ms + DAYS * SCALE.day_ms
        run = {"start_ms": world.start_ms, "until_ms": until, "minute_ms": SCALE.minute_ms, "seed": SEED}
        producer.send(TRUTH, json.dumps({"run": run}).encode(), key=b"run")
        for number, one in enumerate(world.anomalies(until)):
            told = {name: getattr(one, name) for name in ("site", "metric", "kind", "start_ms", "end_ms")}
            value = json.dumps({"anomaly": told | {"is_cut": False}}).encode()
            producer.send(TRUTH, value, key=b"%d" % number)
    return len(sendings), sum(is_bad(one.value) for one in sendings)


def is_bad(value: bytes) -> bool:
    try:
        event = json.loads(value)
        return "site" not in event or not isinstance(event["status"], int)
    except ValueError:
        return True


def run_pipelines(spark: SparkSession, settings: PipelineSettings, directory: Path) -> None:
    """As `moldau pipeline run` loads them, stage by stage; each until it has read what is there."""
    analytics, archive = (read_project(folder) for folder in write_folders(directory, settings))
    # In a session of its own, for the settings are those of these pipelines.
    spark = spark.newSession()
    for name, value in {**analytics.spark, **archive.spark}.items():
        if "driver" not in name:
            spark.conf.set(name, value)
    for project, stages in ((analytics, STAGES), (archive, (None,))):
        # Several batches, so that watermarks move in between.
        options = {"maxOffsetsPerTrigger": "25000"}
        given = {"name": project.name, "checkpoints": project.checkpoints, "options": options}
        pipeline = Pipeline(spark, project.bootstrap, **given)
        queries = {query.name: query for query in load_queries(project, pipeline)}
        for stage in stages:
            pipeline.run(*(queries[name] for name in stage or queries))


def table(cluster: Cluster, topic: str) -> dict[tuple[str, ...], dict[str, Any]]:
    newest = {tuple(json.loads(record.key or b"")): record for record in cluster.read(topic)}
    return {key: json.loads(record.value or b"") for key, record in newest.items()}


def check_sites(world: World, days: list[Requests], found: dict[tuple[str, ...], dict[str, Any]]) -> None:
    expected = {}
    for minute in days:
        for index, site in enumerate(world.sites):
            own = minute.site == index
            if own.any():
                percentile = float(np.percentile(minute.latency_ms[own], 95, method="inverted_cdf"))
                key = (site.name, time_text(minute.minute * SCALE.minute_ms))
                expected[key] = (int(own.sum()), int(minute.failed[own].sum()), percentile)
    assert {key: (row["requests"], row["errors"]) for key, row in found.items()} == {
        key: value[:2] for key, value in expected.items()
    }
    assert all(row["p50"] <= row["p95"] <= row["p99"] for row in found.values())
    off = [abs(found[key]["p95"] / value[2] - 1) for key, value in expected.items()]
    assert max(off) < 0.01


def check_active(world: World, days: list[Requests], found: Any, estimated: Any) -> None:
    users: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for minute in days:
        begin = minute.minute * SCALE.minute_ms
        seen = set(zip(minute.site.tolist(), minute.user.tolist(), strict=True))
        users["minute", time_text(begin)] |= seen
        users["hour", time_text(begin - begin % SCALE.hour_ms)] |= seen
    assert {key: (row["users"], row["sites"]) for key, row in found.items()} == {
        key: (len(seen), len({site for site, _ in seen})) for key, seen in users.items()
    }
    assert set(estimated) == set(users)
    # Three deviations as they are asked for. The sketch of the same users is the same each time: 0.046 at most.
    assert max(abs(row["users"] / len(users[key]) - 1) for key, row in estimated.items()) < 0.06


def check_trend(days: list[Requests], found: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """The second day's rows have the first day's values beside them."""
    requests = {key: row for key, row in found.items() if row["metric"] == "requests"}
    assert len(requests) > 0.95 * SITE_COUNT * len(days)
    by_time = {(site, row["window_start"]): row["value"] for (site, *_), row in requests.items()}
    compared = 0
    for (site, *_), row in requests.items():
        if row["yesterday"] is not None:
            start = int(np.datetime64(row["window_start"][:-1], "ms").astype(np.int64))
            assert row["yesterday"] == by_time[site, time_text(start - SCALE.day_ms)]
            compared += 1
    assert compared > 0.95 * SITE_COUNT * SCALE.minutes_per_day


def check_archive(spark: SparkSession, lake: Path, good: int, postgres: Postgres, tables: Any) -> None:
    """Each event that can be read is in a file of its day, each row of the tables in PostgreSQL."""
    days = sorted(path.name for path in lake.glob("topic=demo-events/day=*"))
    assert len(days) == DAYS
    assert spark.read.parquet(str(lake / "topic=demo-events")).count() == good
    asked = "SELECT count(*), sum(requests) FROM demo_sites"
    assert postgres.ask(asked) == [(len(tables[SITES]), sum(row["requests"] for row in tables[SITES].values()))]
    assert postgres.ask("SELECT count(*) FROM demo_anomalies") == [(len(tables[ANOMALIES]),)]
    users = sum(row["users"] for row in tables[ACTIVE].values())
    assert postgres.ask("SELECT count(*), sum(users) FROM demo_active") == [(len(tables[ACTIVE]), users)]
