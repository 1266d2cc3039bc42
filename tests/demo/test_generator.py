"""`moldau demo events` against a broker, and the truth that it leaves; the folders that `moldau demo init` writes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moldau.client import BlockingProducer, ClusterClient, read_partition
from moldau.demo.comparing import NothingToScore, read_score
from moldau.demo.generator import Generator
from moldau.demo.scale import scale_from
from moldau.demo.topics import ANOMALIES, EVENTS, TREND, TRUTH, prepare
from moldau.demo.traffic import time_text
from moldau.demo.world import World
from moldau.spark.pipelines import row_key
from moldau.spark.pipelines.project import read_project
from moldau.testing import Broker
from tests.cli.conftest import Moldau

SCALE = scale_from("5m")
SEED = 4


def values(bootstrap: str, topic: str) -> list[Any]:
    async def work() -> list[Any]:
        async with ClusterClient(bootstrap) as client:
            found = [record async for record in read_partition(client, topic, 0)]
            return [record.value for record in found]

    return asyncio.run(work())


def is_event(value: bytes) -> bool:
    try:
        return {"id", "site", "user", "at"} <= set(json.loads(value))
    except ValueError:
        return False


def test_a_stop_sends_the_rest_of_the_minute(tmp_path: Path) -> None:
    with Broker() as broker:
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau", "demo", "events", "-b", broker.bootstrap, "--rate", "400", "--seed", "4"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "400 events a second to demo-events, seed 4" in process.stdout.readline()
        deadline = time.monotonic() + 60
        while not (sent := _count(broker.bootstrap)):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        events = values(broker.bootstrap, EVENTS)
        assert f"sent {len(events)} records" in rest and len(events) > sent
        good = [json.loads(one) for one in events if is_event(one)]
        minutes = {round(_ms(one["at"])) // SCALE.minute_ms for one in good}
        # All that happened in the last minute is there: its events reach up to its end.
        last = max(_ms(one["at"]) for one in good)
        assert (max(minutes) + 1) * SCALE.minute_ms - last < 100
        runs = [json.loads(one)["run"] for one in values(broker.bootstrap, TRUTH) if b'"run"' in one]
        assert runs[-1]["seed"] == 4 and runs[-1]["until_ms"] == (max(minutes) + 1) * SCALE.minute_ms


def _count(bootstrap: str) -> int:
    from moldau.kernel import KafkaError

    try:
        return len(values(bootstrap, EVENTS))
    except KafkaError:
        return 0


def _ms(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() * 1000


def test_the_truth_has_each_anomaly_that_has_begun_and_says_which_are_cut_short() -> None:
    world = World(SEED, SCALE, 1_790_000_100_000)
    begun = [one for one in world.anomalies(world.start_ms + SCALE.day_ms) if one.end_ms - one.start_ms > 5000]
    now = begun[-1].start_ms + 100
    times = iter([world.start_ms, now - 60_000, now])
    with Broker() as broker:
        # The clock goes in leaps: what lies between is sent at once.
        generator = Generator(broker.bootstrap, world, 5, lambda: next(times, now))

        async def run() -> None:
            running = asyncio.create_task(generator.run())
            while generator.minute * SCALE.minute_ms <= now:
                await asyncio.sleep(0.01)
            generator.stopping.set()
            await running

        asyncio.run(run())
        newest = {}
        for value in values(broker.bootstrap, TRUTH):
            told = json.loads(value).get("anomaly")
            if told is not None:
                newest[told["site"], told["metric"], told["start_ms"]] = told
    expected = {(one.site, one.metric, one.start_ms): one for one in world.anomalies(now + 1)}
    assert set(newest) == set(expected)
    end = (now // SCALE.minute_ms + 1) * SCALE.minute_ms
    for key, told in newest.items():
        assert told["is_cut"] == (expected[key].end_ms > end)
        assert told["end_ms"] == min(expected[key].end_ms, end)
    assert any(told["is_cut"] for told in newest.values())


def test_the_score_of_a_cluster_leaves_out_what_cannot_be_seen_yet() -> None:
    start = 1_790_000_100_000

    def put(producer: BlockingProducer, topic: str, key: bytes, value: Any) -> None:
        producer.send(topic, json.dumps(value).encode(), key=key)

    def injected(site: str, begin: int, end: int, *, is_cut: bool = False) -> dict[str, Any]:
        spans = {"start_ms": start + begin * 2500, "end_ms": start + end * 2500}
        return {"anomaly": {"site": site, "metric": "requests", "kind": "spike", **spans, "is_cut": is_cut}}

    def found(producer: BlockingProducer, site: str, begin: int, end: int) -> None:
        first = time_text(start + begin * 2500)
        row = {"site": site, "metric": "requests", "kind": "spike", "window_start": first}
        row["window_end"] = time_text(start + end * 2500)
        put(producer, ANOMALIES, row_key((site, "requests"), first), row)

    async def scored(bootstrap: str) -> Any:
        async with ClusterClient(bootstrap) as client:
            return await read_score(client)

    async def create(bootstrap: str) -> None:
        async with ClusterClient(bootstrap) as client:
            await prepare(client, SCALE)

    with Broker() as broker:
        with pytest.raises(NothingToScore, match="start one with `moldau demo run`"):
            asyncio.run(scored(broker.bootstrap))
        asyncio.run(create(broker.bootstrap))
        with pytest.raises(NothingToScore, match="nothing has been analysed yet"):
            asyncio.run(scored(broker.bootstrap))
        with BlockingProducer(broker.bootstrap) as producer:
            run = {"start_ms": start, "until_ms": start + 250_000, "minute_ms": 2500, "seed": 1}
            put(producer, TRUTH, b"run", {"run": run})
            put(producer, TRUTH, b"a", injected("praha", 10, 13))
            put(producer, TRUTH, b"b", injected("brno", 20, 23))
            put(producer, TRUTH, b"cut", injected("tabor", 30, 33, is_cut=True))
            put(producer, TRUTH, b"late", injected("pisek", 92, 95))
            put(producer, TREND, b"t", {"window_start": time_text(start + 100 * 2500)})
            found(producer, "praha", 10, 12)
            found(producer, "tabor", 30, 31)
            found(producer, "zlin", 50, 51)
        told = Moldau(broker.bootstrap)("demo", "score", "-o", "json").json
        assert (told["put_in"], told["met"], told["found"], told["right"]) == (2, 1, 3, 2)
        assert told["missed"][0]["site"] == "brno" and told["wrong"][0]["site"] == "zlin"
        shown = Moldau(broker.bootstrap)("demo", "score").out
        assert "recall:    0.500 (1 of 2 that were put in)" in shown and re.search("missed +brno", shown)


def test_the_folders_are_pipelines_with_the_settings_written_in(moldau: Moldau, tmp_path: Path) -> None:
    told = moldau("demo", "init", str(tmp_path / "mine"), "--day", "24h", "-b", "10.0.0.1:9092").out
    assert "moldau pipeline run" in told
    analytics, archive = (read_project(tmp_path / "mine" / name) for name in ("analytics", "archive"))
    assert analytics.bootstrap == archive.bootstrap == "10.0.0.1:9092"
    assert analytics.spark["spark.moldau.demo.day"] == archive.spark["spark.moldau.demo.day"] == "24h"
    assert archive.spark["spark.moldau.demo.lake"] == str(tmp_path / "mine" / "lake")
    assert (
        "nothing is wrong"
        in moldau("pipeline", "run", *(str(one.directory) for one in (analytics, archive)), "--check").out
    )
    assert "is there already" in moldau("demo", "init", str(tmp_path / "mine"), code=1).err
    assert (
        "--day 5x: '5x' is no length of a day" in moldau("demo", "init", str(tmp_path / "x"), "--day", "5x", code=2).err
    )


def test_a_rehearsal_prints_its_score(moldau: Moldau) -> None:
    done = moldau("demo", "score", "--rehearse", "--seed", "1", "--days", "1")
    assert "rehearsing 1 days of seed 1" in done.err and "precision: " in done.out
