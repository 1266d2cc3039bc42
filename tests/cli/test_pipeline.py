"""`moldau pipeline`: a folder becomes queries that run, are looked at, fail, begin again and stop in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from moldau.client import BlockingProducer, ClusterClient, ConsumedRecord, read_partition
from moldau.testing import Broker
from tests.cli.conftest import Moldau

SECONDS_MAX = 150.0

QUERIES = """\
from pathlib import Path

from pyspark.sql import functions as F


def queries(pipeline):
    orders = pipeline.stream("orders", "user STRING NOT NULL, amount DOUBLE", dead_letters="bad-orders")
    yield orders.by("user").count().to_table("orders_by_user")
    trap = Path(__file__).with_name("trap")

    @F.udf("double")
    def looked_at(amount):
        # As often as a batch is tried before its query fails.
        if amount == 13 and (left := int(trap.read_text())):
            trap.write_text(str(left - 1))
            raise RuntimeError("thirteen")
        return amount

    yield orders.select("user", looked_at(F.col("amount")).alias("amount")).to_topic("copies")
"""


@pytest.fixture
def own() -> Iterator[Moldau]:
    """A broker of this test's own."""
    with Broker({"num.partitions": "1"}) as broker:
        yield Moldau(broker.bootstrap)


def send(moldau: Moldau, *orders: dict[str, Any]) -> None:
    with BlockingProducer(moldau.bootstrap) as producer:
        for order in orders:
            producer.send("orders", json.dumps(order).encode())


def records(moldau: Moldau, topic: str) -> list[ConsumedRecord]:
    async def work() -> list[ConsumedRecord]:
        async with ClusterClient(moldau.bootstrap) as client:
            return [record async for record in read_partition(client, topic, 0)]

    return asyncio.run(work())


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.timeout(400)
def test_a_pipeline_runs_is_looked_at_begins_again_after_a_failure_and_stops(own: Moldau, tmp_path: Path) -> None:
    shop, log = tmp_path / "shop", tmp_path / "log.txt"
    own("pipeline", "init", str(shop))
    (shop / "orders.py").write_text(QUERIES)
    settings = '[spark]\n"spark.sql.shuffle.partitions" = 1\n'
    (shop / "pipeline.toml").write_text(
        f'name = "shop"\nbootstrap = "{own.bootstrap}"\nmaster = "local[2]"\nfiles = ["orders.py"]\n{settings}'
    )
    (shop / "trap").write_text("3")
    send(own, {"user": "ann", "amount": 1}, {"user": "bob", "amount": 2}, {"amount": 3})
    assert "nothing is wrong" in own("pipeline", "run", str(shop), "--check").out
    with log.open("wb") as output:
        process = own.start("pipeline", "run", str(shop), stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: count(own, "copies") == 2 and count(own, "bad-orders") == 1, process, log)
        wait_for(lambda: count(own, "orders_by_user") == 2, process, log)
        assert "runs already" in own("pipeline", "run", str(shop), code=1).err
        told = own("pipeline", "describe", str(shop), "-o", "json").json
        assert {one["name"] for one in told["queries"]} == {"orders_by_user", "copies", "orders-dead-letters"}
        listed = own("pipeline", "list", str(tmp_path), "-o", "json").json
        assert [(one["pipeline"], one["state"], one["queries"]) for one in listed] == [("shop", "running", 3)]
        send(own, {"user": "eva", "amount": 13})
        wait_for(lambda: count(own, "copies") == 3, process, log)
        lags = own("pipeline", "lag", str(shop), "-o", "json").json
        assert {row["query"] for row in lags} >= {"orders_by_user", "copies"}
        assert "has stopped" in own("pipeline", "stop", str(shop)).out
        assert process.wait(SECONDS_MAX) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS_MAX)
    text = log.read_text()
    assert "shop.copies running" in text and "shop.copies failed" in text and "thirteen" in text
    assert "\tat " not in text and "UserWarning" not in text
    assert "does not run" in own("pipeline", "describe", str(shop), code=3).err
    with (shop / "orders.py").open("a") as queries:
        queries.write('    yield orders.select("user").to_postgres("host=127.0.0.1 port=1", "t", name="nowhere")\n')
    with log.open("wb") as output:
        process = own.start("pipeline", "run", str(shop), stdout=output, stderr=subprocess.STDOUT)
    wait_for(lambda: "shop.orders_by_user running" in log.read_text(), process, log)
    assert "shop.nowhere failed: PostgreSQL cannot take rows for table t: connection" in log.read_text()
    os.kill(java_of(process.pid), signal.SIGKILL)
    assert process.wait(SECONDS_MAX) == 1
    assert "error: Spark's JVM has ended" in log.read_text() and "Traceback" not in log.read_text()
    values = sorted(json.loads(record.value or b"")["user"] for record in records(own, "copies"))
    assert values == ["ann", "bob", "eva"]


def java_of(pid: int) -> int:
    """The JVM that a process has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            if name.endswith("(java") and int(rest.split()[1]) == pid:
                return int(path.parent.name)
    raise AssertionError(f"process {pid} has no JVM")


def count(moldau: Moldau, topic: str) -> int:
    from moldau.kernel import KafkaError

    try:
        return len(records(moldau, topic))
    except KafkaError:
        return 0


def test_what_is_wrong_in_a_folder_is_told_without_starting_spark(moldau: Moldau, tmp_path: Path) -> None:
    assert "has no pipeline.toml" in moldau("pipeline", "run", str(tmp_path), code=2).err
    moldau("pipeline", "init", str(tmp_path / "a"))
    (tmp_path / "a" / "orders.py").write_text("def queries(pipeline):\n    yield (\n")
    assert "orders.py:2: '(' was never closed" in moldau("pipeline", "run", str(tmp_path / "a"), code=2).err
    assert "does not run: `moldau pipeline run" in moldau("pipeline", "stop", str(tmp_path / "a"), code=3).err
    # What a run that was killed left behind names a process that is another one by now.
    bystander = subprocess.Popen(["sleep", "600"])
    (tmp_path / "a" / ".moldau").mkdir()
    left = {"pid": bystander.pid, "name": "a", "queries": []}
    (tmp_path / "a" / ".moldau" / "running.json").write_text(json.dumps(left))
    assert "does not run: `moldau pipeline run" in moldau("pipeline", "stop", str(tmp_path / "a"), code=3).err
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert moldau("pipeline", "list", str(tmp_path), "-o", "json").json[0]["state"] == "stopped"
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pipeline.toml").write_text("nam = 3\n")
    listed = moldau("pipeline", "list", str(tmp_path))
    assert re.search(r"broken +broken", listed.out) and re.search(r"\ba +stopped", listed.out)
    assert "pipeline.toml:1: there is no key nam; did you mean name?" in listed.err
    moldau("pipeline", "init", str(tmp_path / "b" / "a"))
    assert (
        "two folders have the name a"
        in moldau("pipeline", "run", str(tmp_path / "a"), str(tmp_path / "b" / "a"), code=2).err
    )


def test_a_load_of_the_last_hours_says_how_to_go_on_with_it(moldau: Moldau) -> None:
    told = moldau("pipeline", "load", "orders", "--to", "x", "--from", "2h", "--until", "2026-11-18T10:00Z", code=2).err
    assert re.search(r"--from 2h is --from \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z: write that", told)
    assert "--until" not in told


@pytest.mark.parametrize("command", [("load", "t", "--to"), ("unload", "--to", "t"), ("run",)], ids=lambda it: it[0])
def test_a_master_that_is_none_is_told_before_spark_is_started(command: tuple[str, ...], moldau: Moldau) -> None:
    told = moldau("pipeline", *command, "parquet:/nowhere", "--master", "foo://x", code=2).err
    assert "--master foo://x is none: write local[*]" in told
