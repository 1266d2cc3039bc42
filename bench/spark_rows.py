"""`make bench-spark`: our source and sink beside Spark's own connector, on Moldau and on Apache Kafka.

Each connector has a driver process (`spark_driver`) for the whole run; the brokers run side by side, unpinned, and one
measurement runs at a time. What is measured first changes from round to round. A round takes about ten minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import quantiles
from typing import IO, Any

from bench import pipeline_rows
from bench.report import show
from bench.rows import both, create
from bench.servers import Server
from bench.spark_load import Arrivals, SteadyLoad, fill
from bench.spark_report import SparkRow

PARTITIONS = 4
ROWS_100, ROWS_1K, ROWS_JSON, ROWS_WRITTEN, ROWS_COPIED = 5_000_000, 1_000_000, 2_000_000, 2_000_000, 1_000_000
DRAIN_BATCHES, COPY_BATCH_ROWS = 10, 100_000
LATENCY_RATE, LATENCY_WARM_SECONDS, LATENCY_SECONDS = 1000, 5.0, 12.0
IDLE_SECONDS = 60
STOP_SECONDS = 60

FROM_START = {"startingOffsets": "earliest"}
TUNED_READ = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(50 << 20),
    "kafka.receive.buffer.bytes": str(4 << 20),
}
TUNED_WRITE = {"kafka.batch.size": str(256 << 10), "kafka.linger.ms": "5"}


class Driver:
    """A Spark driver process."""

    def __init__(self, connector: str) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the process's own
        command = [sys.executable, "-m", "bench.spark_driver", connector]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def wait_ready(self) -> None:
        self._answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"a Spark driver failed: {self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Run:
    """The two drivers and the two brokers, with topics to read, and where the rows go."""

    def __init__(self, ours: Driver, theirs: Driver, servers: tuple[Server, ...], rounds: int) -> None:
        self.ours = ours
        self.theirs = theirs
        self.servers = servers
        self.rounds = rounds
        self.rows: list[SparkRow] = []
        self._topics = 0
        self._filled: set[tuple[str, str]] = set()

    def fresh_topic(self, server: Server) -> str:
        self._topics += 1
        (name,) = create(server, 1, PARTITIONS, f"spark-{self._topics}-")
        return name

    def filled_topic(self, server: Server, row_count: int, value_bytes: int) -> str:
        name = f"rows-{row_count}-{value_bytes}-0"
        if (server.name, name) not in self._filled:
            began = time.monotonic()
            create(server, 1, PARTITIONS, name.removesuffix("0"))
            fill(server.bootstrap, name, row_count, value_bytes)
            self._filled.add((server.name, name))
            note(f"{server.name}: {row_count:,} rows of {value_bytes} B in {time.monotonic() - began:.1f} s")
        return name

    def note(self, text: str) -> None:
        note(text)

    def add(self, *rows: SparkRow) -> None:
        for row in rows:
            self.rows.append(row)
            print(row.line(), flush=True)


def note(text: str) -> None:
    print(f"   {time.strftime('%H:%M:%S')} {text}", flush=True)


def spark_rows(names: list[str], rounds: int) -> Iterator[list[SparkRow]]:
    """The rows of one part after the other."""
    with started() as (ours, theirs), both(prefix=()) as servers:
        run = Run(ours, theirs, servers, rounds)
        ours.wait_ready()
        theirs.wait_ready()
        for name in names or PARTS:
            print(f"-- {name}", flush=True)
            PARTS[name](run)
            yield run.rows
            run.rows = []


@contextmanager
def started() -> Iterator[tuple[Driver, Driver]]:
    drivers = Driver("moldau"), Driver("kafka")
    try:
        yield drivers
    finally:
        for driver in drivers:
            driver.stop()


# -- throughput --------------------------------------------------------------------------------------------------------


class Contest:
    """The same work by three: ours, theirs with defaults, theirs tuned. Two rows for each broker."""

    def __init__(self, run: Run, work: Callable[[Driver, Server, dict[str, str]], dict[str, Any]]) -> None:
        self._run = run
        self._work = work

    def hold(self, tuned: dict[str, str] | None, rates: dict[str, SparkRow], costs: dict[str, SparkRow]) -> None:
        sides: list[tuple[str, Driver, dict[str, str]]] = [
            ("ours", self._run.ours, {}),
            ("default", self._run.theirs, {}),
        ]
        if tuned is not None:
            sides.append(("tuned", self._run.theirs, tuned))
        for _, driver, options in sides:
            self._work(driver, self._run.servers[0], options)
        for number in range(self._run.rounds):
            for server in self._run.servers:
                for side, driver, options in sides if number % 2 == 0 else sides[::-1]:
                    answer = self._work(driver, server, options)
                    rate = answer["rows"] / answer["seconds"]
                    per_cpu = answer["rows"] / answer["cpu_seconds"]
                    getattr(rates[server.name], side).append(rate)
                    getattr(costs[server.name], side).append(per_cpu)
                    note(f"{server.name}, {side}: {rate:,.0f} rows/s, {per_cpu:,.0f} per CPU second")
        for server in self._run.servers:
            self._run.add(rates[server.name], costs[server.name])


def _rows_of(run: Run, name: str, unit: str, **goals: float) -> dict[str, SparkRow]:
    """`unit` is rows/s or rows/CPU s: both are measured, so the name says which."""
    return {one.name: SparkRow(f"{name}: {unit}, on {one.name}", unit, "higher", **goals) for one in run.servers}


def read_100(run: Run) -> None:
    _read(run, "batch read 5 M x 100 B", ROWS_100, 100, {"of_default": 1.7, "of_tuned": 1.0}, {"of_tuned": 0.75})


def read_1k(run: Run) -> None:
    _read(run, "batch read 1 M x 1 KiB", ROWS_1K, 1024, {"of_tuned": 0.9}, {"of_tuned": 0.6})


def _read(
    run: Run, name: str, row_count: int, value_bytes: int, rate: dict[str, float], per_cpu: dict[str, float]
) -> None:
    for server in run.servers:
        run.filled_topic(server, row_count, value_bytes)

    def work(driver: Driver, server: Server, options: dict[str, str]) -> dict[str, Any]:
        topic = run.filled_topic(server, row_count, value_bytes)
        answer = driver.ask("read", bootstrap=server.bootstrap, topic=topic, options={**FROM_START, **options})
        assert answer["rows"] == row_count and answer["bytes"] == row_count * value_bytes, answer
        return answer

    Contest(run, work).hold(
        TUNED_READ, _rows_of(run, name, "rows/s", **rate), _rows_of(run, name, "rows/CPU s", **per_cpu)
    )


def group(run: Run) -> None:
    def work(driver: Driver, server: Server, options: dict[str, str]) -> dict[str, Any]:
        topic = run.filled_topic(server, ROWS_JSON, 100)
        answer = driver.ask("group", bootstrap=server.bootstrap, topic=topic, options={**FROM_START, **options})
        assert answer["rows"] == ROWS_JSON, answer
        return answer

    name = "JSON and group by, 100 B"
    Contest(run, work).hold(TUNED_READ, _rows_of(run, name, "rows/s", of_tuned=1.0), _rows_of(run, name, "rows/CPU s"))


def write(run: Run) -> None:
    def work(driver: Driver, server: Server, options: dict[str, str]) -> dict[str, Any]:
        topic = run.fresh_topic(server)
        return driver.ask("write", bootstrap=server.bootstrap, topic=topic, options=options, rows=ROWS_WRITTEN)

    name = "batch write 100 B, keyed and idempotent"
    Contest(run, work).hold(TUNED_WRITE, _rows_of(run, name, "rows/s", of_tuned=1.0), _rows_of(run, name, "rows/CPU s"))


def drain(run: Run) -> None:
    options = {**FROM_START, "maxOffsetsPerTrigger": str(ROWS_100 // DRAIN_BATCHES)}

    def work(driver: Driver, server: Server, _: dict[str, str]) -> dict[str, Any]:
        topic = run.filled_topic(server, ROWS_100, 100)
        answer = driver.ask("drain", bootstrap=server.bootstrap, topic=topic, options=options)
        assert answer["rows"] == ROWS_100 and answer["batches"] == DRAIN_BATCHES, answer
        return answer

    name = f"drain of 5 M rows in {DRAIN_BATCHES} micro-batches"
    Contest(run, work).hold(None, _rows_of(run, name, "rows/s"), _rows_of(run, name, "rows/CPU s", of_default=0.8))


# -- exactly once ------------------------------------------------------------------------------------------------------


def exactly_once(run: Run) -> None:
    options = {**FROM_START, "maxOffsetsPerTrigger": str(COPY_BATCH_ROWS)}
    guarantees = ["at least once", "exactly once"]

    def rate(server: Server, guarantee: str) -> float:
        answer = run.ours.ask(
            "copy",
            bootstrap=server.bootstrap,
            topic=run.filled_topic(server, ROWS_COPIED, 100),
            target=run.fresh_topic(server),
            options=options,
            guarantee=guarantee,
        )
        rate: float = answer["rows"] / answer["seconds"]
        note(f"{server.name}, {guarantee}: {rate:,.0f} rows/s")
        return rate

    for guarantee in guarantees:
        rate(run.servers[0], guarantee)
    for server in run.servers:
        row = SparkRow(f"exactly once, 100 k rows a batch, on {server.name}", "of at least once", "higher", limit=0.8)
        for number in range(run.rounds):
            order = guarantees if number % 2 == 0 else guarantees[::-1]
            rates = {guarantee: rate(server, guarantee) for guarantee in order}
            row.ours.append(rates["exactly once"] / rates["at least once"])
        run.add(row)


# -- latency -----------------------------------------------------------------------------------------------------------


def latency(run: Run) -> None:
    for kind, name in (("foreachBatch", "foreachBatch"), ("topic", "a topic"), ("window", "a windowed count")):
        for server in run.servers:
            middle = SparkRow(f"1 k msg/s to {name}: p50, on {server.name}", "ms", "lower", of_default=1.5)
            tail = SparkRow(f"1 k msg/s to {name}: p99, on {server.name}", "ms", "lower", of_default=1.2)
            for number in range(run.rounds):
                sides = [("ours", run.ours), ("default", run.theirs)]
                for side, driver in sides if number % 2 == 0 else sides[::-1]:
                    cuts = quantiles(_latencies_ms(run, driver, server, kind), n=100)
                    getattr(middle, side).append(cuts[49])
                    getattr(tail, side).append(cuts[98])
                    note(f"{server.name}, {side}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
            run.add(middle, tail)


def _latencies_ms(run: Run, driver: Driver, server: Server, kind: str) -> list[float]:
    topic, target = run.fresh_topic(server), run.fresh_topic(server)
    driver.ask("begin_stream", kind=kind, bootstrap=server.bootstrap, topic=topic, target=target)
    load = SteadyLoad(server.bootstrap, topic, LATENCY_RATE)
    arrivals = Arrivals(server.bootstrap, target, PARTITIONS) if kind == "topic" else None
    try:
        driver.ask("wait_stream")
        time.sleep(LATENCY_WARM_SECONDS)
        counted_from_ns = time.time_ns()
        time.sleep(LATENCY_SECONDS)
    finally:
        load.stop()
        if arrivals is not None:
            arrivals.stop()
    answer = driver.ask("end_stream")
    steps = ", ".join(f"{name} {ms:.0f}" for name, ms in answer["step_ms"].items())
    note(f"{answer['batches']} batches; ms of each: {steps}")
    if kind == "topic":
        assert arrivals is not None
        times = arrivals.times_ns
    elif kind == "foreachBatch":
        times = [(sent, seen) for seen, values in answer["seen"] for sent in values]
    else:
        times = _times_of_counts(answer["seen"], load.sent_ns)
    return [(seen - sent) / 1e6 for sent, seen in times if sent >= counted_from_ns]


def _times_of_counts(seen: list[Any], sent_ns: list[int]) -> list[tuple[int, int]]:
    """A count of n tells of the first n records that were sent."""
    counts: dict[str, int] = {}
    times: list[tuple[int, int]] = []
    for seen_ns, changed in seen:
        counts |= changed
        times += [(sent, seen_ns) for sent in sent_ns[len(times) : sum(counts.values())]]
    return times


# -- idle --------------------------------------------------------------------------------------------------------------


def idle(run: Run) -> None:
    for server in run.servers:
        (topic,) = create(server, 1, PARTITIONS, "idle-")
    bootstraps = [server.bootstrap for server in run.servers]
    share = SparkRow("an idle query: Python side", "% of a core", "lower", limit=2)
    requests = [
        SparkRow(f"an idle query: requests, on {one.name}", "/s/partition", "lower", limit=4) for one in run.servers
    ]
    for _ in range(run.rounds):
        answer = run.ours.ask("idle", bootstraps=bootstraps, topic=topic, seconds=IDLE_SECONDS)
        share.ours.append(answer["python_cpu_seconds"] / IDLE_SECONDS * 100)
        for row, count in zip(requests, answer["requests"], strict=True):
            row.ours.append(count / IDLE_SECONDS / PARTITIONS)
    note(f"{show(share.ours)} % of a core")
    run.add(share, *requests)


PARTS: dict[str, Callable[[Run], None]] = {
    # First, before there are processes and connections of other queries that end meanwhile.
    "idle": idle,
    "read-100": read_100,
    "read-1k": read_1k,
    "json": group,
    "write": write,
    "drain": drain,
    "exactly-once": exactly_once,
    "latency": latency,
    "sinks": pipeline_rows.sinks,
    "windows": pipeline_rows.windows,
}
