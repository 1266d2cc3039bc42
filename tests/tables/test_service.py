"""`moldau table` as users have it: a server that is asked, killed and started again."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.client import BlockingProducer
from moldau.testing import Broker

SECONDS_MAX = 30.0


class Tables:
    """Commands and a server against one broker."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.address = ""

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "MOLDAU_BOOTSTRAP": self.broker.bootstrap, "MOLDAU_TABLES": self.address}
        return subprocess.run(
            [sys.executable, "-m", "moldau", "table", *args],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *args: str) -> Any:
        done = self.command(*args, "-o", "json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    @contextmanager
    def serving(self, *topics: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau", "table", "serve", *topics, "--port", "0", "--data", str(self.directory)],
            env={**os.environ, "MOLDAU_BOOTSTRAP": self.broker.bootstrap},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            self.address = line.split(" at ")[1].strip().removesuffix("/tables")
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(SECONDS_MAX)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=SECONDS_MAX) as answer:
            return json.load(answer)

    def seconds_of(self, count: int, path: str) -> float:
        """So many questions over one connection."""
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=SECONDS_MAX)
        began = time.monotonic()
        for _ in range(count):
            connection.request("GET", path)
            connection.getresponse().read()
        connection.close()
        return time.monotonic() - began

    def wait_complete(self, reflected: int) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            (state,) = self.get("/tables")
            if state["is_complete"] and sum(state["reflects"].values()) >= reflected:
                return dict(state)
            assert time.monotonic() < deadline, state
            time.sleep(0.02)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with Broker({"num.partitions": "2", "log.cleanup.policy": "compact"}) as broker:
        yield Tables(broker, tmp_path / "view")


def fill(tables: Tables, topic: str, rows: dict[str, Any]) -> None:
    with BlockingProducer(tables.broker.bootstrap) as producer:
        for key, value in rows.items():
            producer.send(topic, None if value is None else json.dumps(value).encode(), key=key.encode())


def test_rows_are_asked_for_over_http_and_from_the_shell(tables: Tables) -> None:
    window = '["eu","42","2026-11-18T10:00:00.000Z"]'
    fill(tables, "orders", {"42": {"city": "Praha", "n": 3}, "a/b c": {"n": 1}, window: {"n": 9}, "gone": {"n": 0}})
    fill(tables, "orders", {"gone": None})
    with tables.serving("orders") as process:
        tables.wait_complete(5)
        found = tables.json("get", "orders", "--key", "42")
        assert found["value"] == {"city": "Praha", "n": 3} and found["key"] == "42" and found["table"] == "orders"
        assert found["reflects"] == {str(found["partition"]): found["reflects"][str(found["partition"])]}
        assert found["reflects"][str(found["partition"])] > found["offset"]
        assert tables.json("get", "orders", "--key", "a/b c")["value"] == {"n": 1}
        assert tables.json("get", "orders", "-k", "eu", "-k", "42", "--window", "2026-11-18T10:00Z")["value"] == {
            "n": 9
        }
        page = tables.json("scan", "orders", "--where", "n >= 3", "--limit", "1")
        assert [row["key"] for row in page["rows"]] == ["42"] and page["after"] == "42"
        assert len(page["reflects"]) == 2
        rest = tables.json("scan", "orders", "--where", "n >= 3", "--after", page["after"])
        assert [row["key"] for row in rest["rows"]] == [window] and rest["after"] is None
        text = tables.command("get", "orders", "--key", "42").stdout
        assert "Praha" in text and "reflects" in text
        assert tables.json("list")[0]["is_complete"]
        shown = tables.command("scan", "orders", "--prefix", "4")
        assert "CITY" in shown.stdout and "reflects" in shown.stderr
        for args, code, error in (
            (("get", "orders", "--key", "gone"), 3, "table orders has no row 'gone'"),
            (("get", "users", "--key", "1"), 3, "table 'users' is not served here; there is orders"),
            (("scan", "orders", "--where", "n >"), 2, "where: the end at character 4"),
            (("get", "orders", "--key", "1", "--server", "127.0.0.1:1"), 1, "start one with `moldau table serve"),
            (("serve", "orders", "--data", str(tables.directory)), 1, "another process keeps"),
            (("serve", "nowhere", "--data", "/dev/null"), 3, "nowhere"),
        ):
            done = tables.command(*args)
            assert done.returncode == code and error in done.stderr and "Traceback" not in done.stderr, done
        with pytest.raises(urllib.error.HTTPError, match="400"):
            tables.get("/tables/orders/rows?limit=0")
        assert tables.seconds_of(50, "/tables/orders/rows/42") < 1
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0


def test_keys_that_are_no_text_and_values_of_any_kind_are_answered_row_by_row(tables: Tables) -> None:
    keys = [b"\x00\x80", b"a", b"\xff\x01", b"\xff\x02"]
    with BlockingProducer(tables.broker.bootstrap) as producer:
        for number, key in enumerate(keys):
            producer.send("longs", b"%d" % number, key=key)
        producer.send("longs", b"[" * 200_000, key=b"deep")
    with tables.serving("longs"):
        tables.wait_complete(5)
        assert tables.get("/tables/longs/rows/%00%80")["value"] == 0
        assert tables.get("/tables/longs/rows/%FF%02")["key_base64"] == "/wI="
        assert tables.get("/tables/longs/rows/deep")["value"] == "[" * 200_000
        found, after = [], ""
        while True:
            page = tables.get(f"/tables/longs/rows?limit=1{after}")
            found += [row.get("key") or base64.b64decode(row["key_base64"]) for row in page["rows"]]
            if "after" in page and page["after"] is None:
                break
            name = "after" if "after" in page else "after_base64"
            after = f"&{name}={urllib.parse.quote(page[name])}"
        assert found == [keys[0], "a", "deep", *keys[2:]]
        assert "more with --after-base64 /wE=" in tables.command("scan", "longs", "--after", "deep", "-n", "1").stderr
        assert tables.json("scan", "longs", "--after-base64", "/wE=")["rows"][0]["value"] == 3
        for question in ("limit=" + "9" * 5000, "after_base64=x"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                tables.get(f"/tables/longs/rows?{question}")


def test_a_server_that_is_killed_while_it_reads_goes_on_with_each_record_once(tables: Tables) -> None:
    rows = {f"key-{number}": {"n": number} for number in range(60_000)}
    fill(tables, "many", rows)
    read = []
    for reads_until in (5_000, 20_000):
        with tables.serving("many") as process:
            deadline = time.monotonic() + SECONDS_MAX
            while (state := tables.get("/tables")[0])["records_read"] + sum(read) < reads_until:
                assert time.monotonic() < deadline
            process.kill()
            process.wait(SECONDS_MAX)
            read.append(state["records_read"])
    changed = {f"key-{number}": {"n": -number} for number in range(0, 60_000, 1000)}
    fill(tables, "many", changed | {"key-1": None})
    with tables.serving("many"):
        state = tables.wait_complete(len(rows) + len(changed) + 1)
        # What was read before the kills is not read again.
        assert state["records_read"] <= len(rows) + len(changed) + 1 - sum(read)
        expected = rows | changed
        del expected["key-1"]
        found: dict[str, Any] = {}
        after = ""
        while after is not None:
            page = tables.get(f"/tables/many/rows?limit=10000&after={after}")
            found |= {row["key"]: row["value"] for row in page["rows"]}
            after = page["after"]
        assert found == expected
        assert tables.get("/tables/many/rows?where=n%20%3C%200&limit=1000")["rows"][0]["value"]["n"] < 0
