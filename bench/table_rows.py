"""Questions to a table of a million keys, over one HTTP connection and from the shell; Apache Kafka has none."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from bench.report import Row
from moldau.client import BlockingProducer
from moldau.testing import Broker

KEYS = 1_000_000
QUESTIONS, COMMANDS = 5_000, 20
LOAD_SECONDS_MAX = 300.0


def tables(rows: list[Row], rounds: int) -> None:
    get = Row("table of 1 M keys: HTTP get, p99", "ms", "lower", limit=10)
    command = Row("table of 1 M keys: `moldau table get` from the shell, slowest of 20", "s", "lower", limit=0.5)
    load = Row("table of 1 M keys: read for the first time", "keys/s", "higher")
    with Broker({"log.cleanup.policy": "compact", "num.partitions": "4"}) as broker:
        with BlockingProducer(broker.bootstrap, {"linger.ms": 5, "compression.type": "lz4"}) as producer:
            for number in range(KEYS):
                value = b'{"user": %d, "count": %d, "total": %d.5, "city": "Praha"}' % (number, number % 97, number)
                producer.send("orders_by_user", value, key=b"%d" % number)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as directory, _serving(broker.bootstrap, directory) as port:
                load.moldau.append(KEYS / _seconds_until_complete(port))
                get.moldau.append(quantiles(_answer_times(port), n=100)[98] * 1000)
                command.moldau.append(max(_command_times(port)))
    rows += [load, get, command]


@contextmanager
def _serving(bootstrap: str, directory: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau", "table", "serve", "orders_by_user", "--port", "0", "--data", directory],
        env={**os.environ, "MOLDAU_BOOTSTRAP": bootstrap},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2].partition("/")[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _seconds_until_complete(port: int) -> float:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while time.monotonic() < began + LOAD_SECONDS_MAX:
        connection.request("GET", "/tables")
        if json.loads(connection.getresponse().read())[0]["is_complete"]:
            return time.monotonic() - began
        time.sleep(0.05)
    raise TimeoutError(f"the table was not read in {LOAD_SECONDS_MAX:g} s")


def _answer_times(port: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(QUESTIONS):
        number = random.randrange(KEYS)
        began = time.perf_counter()
        connection.request("GET", f"/tables/orders_by_user/rows/{number}")
        answer = connection.getresponse().read()
        times.append(time.perf_counter() - began)
        assert json.loads(answer)["value"]["user"] == number
    return times


def _command_times(port: int) -> Iterator[float]:
    for number in range(COMMANDS):
        began = time.perf_counter()
        asked = ["get", "orders_by_user", "--key", str(number), "--server", f"http://127.0.0.1:{port}", "-o", "jsonl"]
        subprocess.run([sys.executable, "-m", "moldau", "table", *asked], check=True, stdout=subprocess.DEVNULL)
        yield time.perf_counter() - began
