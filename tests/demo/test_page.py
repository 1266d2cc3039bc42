"""The page: what it is told, and what a real browser makes of it. Its tables are filled without Spark."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moldau.client import BlockingProducer, ClusterClient
from moldau.demo.dashboard import Dashboard
from moldau.demo.detector import Detector
from moldau.demo.page_state import has_points
from moldau.demo.rehearsal import START_MS, measures
from moldau.demo.scale import scale_from
from moldau.demo.topics import ACTIVE, ANOMALIES, APPROXIMATE, DEAD_LETTERS, SITES, TREND, prepare
from moldau.demo.traffic import requests_of_minute, time_text
from moldau.demo.world import World
from moldau.spark.pipelines import row_key
from moldau.tables import TableView
from moldau.tables.service import HttpServer, listen
from moldau.testing import Broker
from tests.browser import look_at

SCALE = scale_from("5m")
SEED = 3
MINUTES = SCALE.minutes_per_day + 60
CHARTS = ("requests", "errors", "latency", "users", "trend", "hours")
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Shown:
    address: str
    folder: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    directory = tmp_path_factory.mktemp("page")
    folder = directory / "analytics"
    (folder / ".moldau").mkdir(parents=True)
    query = {"name": "demo_sites", "state": "running", "input_rows_per_second": 512.5, "batch_ms": 420, "lag": 7}
    told = {"pid": 1, "name": "analytics", "queries": [query | {"state_rows": 16}]}
    (folder / ".moldau" / "running.json").write_text(json.dumps(told))
    with Broker() as broker:
        fill(broker.bootstrap)
        listening = listen("127.0.0.1", 0)
        view = TableView(directory / "view.sqlite")
        dashboard = Dashboard(view, SCALE, [folder])
        server = HttpServer(dashboard.app)

        async def serve() -> None:
            async with dashboard.following(broker.bootstrap):
                await server.serve(sockets=[listening])

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        page = Shown(f"http://127.0.0.1:{listening.getsockname()[1]}", folder)
        try:
            wait_until_read(page)
            yield page
        finally:
            server.stop()
            thread.join()
            dashboard.close()
            view.close()


def fill(bootstrap: str) -> None:
    """What the pipeline would have written, by the same detector."""

    async def create() -> None:
        async with ClusterClient(bootstrap) as client:
            await prepare(client, SCALE)

    asyncio.run(create())
    world = World(SEED, SCALE, START_MS, sites=3)
    detectors = [Detector(SCALE.minutes_per_day) for _ in world.sites]
    first = START_MS // SCALE.minute_ms
    with BlockingProducer(bootstrap, {"linger.ms": 5}) as producer:

        def put(topic: str, keys: tuple[str, ...], start_ms: int, **columns: Any) -> None:
            start = time_text(start_ms)
            value = json.dumps({**columns, "window_start": start})
            producer.send(topic, value.encode(), key=row_key(keys, start))

        for minute in range(first, first + MINUTES):
            at = minute * SCALE.minute_ms
            requests = requests_of_minute(world, 400, minute)
            users = len(set(zip(requests.site.tolist(), requests.user.tolist(), strict=True)))
            for span, start in (("minute", at), ("hour", at - at % SCALE.hour_ms)):
                put(ACTIVE, (span,), start, span=span, users=users, sites=3)
                put(APPROXIMATE, (span,), start, span=span, users=users + 3)
            for index, measured in enumerate(measures(world, requests)):
                name = world.sites[index].name
                counts = {"requests": measured.requests, "errors": measured.errors, "users": 9}
                p95 = measured.latency_ms or 0.0
                put(SITES, (name,), at, site=name, **counts, p50=p95 / 2, p95=p95, p99=p95 * 1.3)
                seen = detectors[index].step(measured)
                for trend in seen.trends:
                    values = {"value": trend.value, "expected": trend.expected, "yesterday": trend.yesterday}
                    put(TREND, (name, trend.metric), at, site=name, metric=trend.metric, **values)
                for one in seen.anomalies:
                    columns = {
                        "site": name,
                        "metric": one.metric,
                        "window_end": time_text((one.last + 1) * SCALE.minute_ms),
                        "kind": one.kind,
                        "severity": one.severity,
                        "is_over": one.is_over,
                        "explanation": one.explanation,
                    }
                    put(ANOMALIES, (name, one.metric), one.first * SCALE.minute_ms, **columns)
        why = [("__connect.errors.topic", b"demo-events"), ("__connect.errors.partition", b"0")]
        why += [("__connect.errors.offset", b"17"), ("__connect.errors.exception.message", b"field at is <missing>")]
        for _ in range(7):
            producer.send(DEAD_LETTERS, b"{", headers=why)


def wait_until_read(page: Shown) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        state = page.get("/api/state")
        complete = all(one["is_complete"] for one in page.get("/tables"))
        if complete and state["dead_letters"]["count"] == 7:
            return
        assert time.monotonic() < deadline, page.get("/tables")
        time.sleep(0.05)


def test_the_state_has_the_newest_minutes_of_all_sites(shown: Shown) -> None:
    state = shown.get("/api/state")
    assert has_points(state)
    assert state["scale"] == {"day": 300_000, "hour": 12_500, "minute": 2_500}
    newest = START_MS + (MINUTES - 1) * SCALE.minute_ms
    assert len(state["sites"]) == len(state["trend"]) == 3
    for minutes in state["sites"].values():
        assert [one[0] for one in minutes] == list(range(newest - 144 * 2500, newest + 1, 2500))
    trends = next(iter(state["trend"].values()))
    assert set(trends) == {"requests", "errors", "latency"}
    yesterday = {ms: before for ms, _, _, before in trends["requests"]}
    assert yesterday[newest] is not None and yesterday[START_MS + 59 * 2500] is None
    assert state["active"]["minute"][-1][2] == 3 and len(state["active"]["hour"]) == MINUTES / 5
    starts = [one["start"] for one in state["anomalies"]]
    assert starts and starts == sorted(starts, reverse=True)
    assert state["dead_letters"]["newest"][0] == {"reason": "field at is <missing>", "offset": 17, "partition": 0}
    assert len(state["dead_letters"]["newest"]) == 5
    assert state["queries"][0]["pipeline"] == "analytics" and state["queries"][0]["lag"] == 7


def test_the_tables_answer_beside_the_page(shown: Shown) -> None:
    rows = shown.get("/tables/demo_active/rows?limit=1")["rows"]
    assert rows[0]["value"]["span"] == "hour"


def test_a_browser_shows_lines_in_every_chart_and_has_nothing_to_complain_about(shown: Shown) -> None:
    page = look_at(shown.address)
    assert page.console == []
    points = dict(re.findall(r'<div id="(\w+)"><div class="chart"><svg[^>]*data-points="(\d+)"', page.html))
    assert set(points) == set(CHARTS)
    assert all(int(count) > 20 for count in points.values()), points
    # Two lines, without the hour at hand, which is not complete.
    assert int(points["hours"]) == 2 * (len(shown.get("/api/state")["active"]["hour"]) - 1)
    lines = re.findall(r'<path d="M[^"]{100,}" class="line stroke', page.html)
    assert len(lines) >= len(CHARTS)
    assert 'class="band"' in page.html
    anomalies = shown.get("/api/state")["anomalies"]
    assert page.html.count('class="badge') == min(16, len(anomalies)) > 2
    assert anomalies[0]["explanation"] in page.html
    assert "7 records that could not be read" in page.html
    assert "field at is &lt;missing&gt;" in page.html
    assert "analytics.demo_sites" in page.html and "1 queries" not in page.html


def test_a_browser_says_so_while_there_is_nothing_yet(tmp_path: Path) -> None:
    with Broker() as broker:
        listening = listen("127.0.0.1", 0)
        view = TableView(tmp_path / "view.sqlite")
        dashboard = Dashboard(view, SCALE, [])
        server = HttpServer(dashboard.app)

        async def serve() -> None:
            async with ClusterClient(broker.bootstrap) as client:
                await prepare(client, SCALE)
            async with dashboard.following(broker.bootstrap):
                await server.serve(sockets=[listening])

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            page = look_at(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            server.stop()
            thread.join()
            dashboard.close()
            view.close()
    assert page.console == []
    assert "Spark is starting" in page.html and "no data yet" in page.html
