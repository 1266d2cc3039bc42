"""One Spark session with one connector, in a process of its own: commands in, figures out, a line of JSON each.

    python -m bench.spark_driver moldau | kafka

CPU seconds are those of this process and of all that it started: the JVM and Spark's Python workers, ended ones too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from moldau import spark as moldau_spark
from moldau.spark.pipelines import Bytes, Pipeline, Query
from tests.oracle import ROOT

JARS = ROOT / ".cache" / "spark-connector" / "libs"
CORES = 2
EVENT = "user STRING, amount BIGINT"
QUERY_SECONDS_MAX = 300
SETTLE_SECONDS = 5


def start_session(connector: str, home: Path) -> SparkSession:
    """Ours as our users start it, Spark's own as Spark's do."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if connector == "moldau":
        return moldau_spark.session("bench", master=f"local[{CORES}]", settings=settings)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]")
    for name, value in {**settings, "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar"))))}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# -- what it cost ------------------------------------------------------------------------------------------------------


class Process(NamedTuple):
    name: str
    own_seconds: float
    ended_children_seconds: float


def tree(root: int) -> dict[int, Process]:
    """A process and those it started, with their CPU time."""
    parents: dict[int, int] = {}
    found: dict[int, Process] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, _, rest = text.partition(" (")[2].rpartition(") ")
        fields = rest.split()
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        own, ended = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
        found[pid] = Process(name, own, ended)

    def belongs(pid: int) -> bool:
        while pid > 1:
            if pid == root:
                return True
            pid = parents.get(pid, 0)
        return False

    return {pid: process for pid, process in found.items() if belongs(pid)}


def cpu_seconds(*, python_only: bool = False) -> float:
    # What the JVM started is Python, and so is what of it has ended.
    return sum(
        one.ended_children_seconds + (0 if python_only and one.name == "java" else one.own_seconds)
        for one in tree(os.getpid()).values()
    )


def request_count(port: int) -> int:
    """Segments with data that our processes have sent to a broker: a small request is one."""
    ours = tree(os.getpid())
    command = ["ss", "-tinpHO", "state", "established", "dport", "=", f":{port}"]
    total = 0
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        sent = re.search(r"\bdata_segs_out:(\d+)", line)
        if sent and any(int(pid) in ours for pid in re.findall(r"pid=(\d+)", line)):
            total += int(sent[1])
    return total


class _Cost:
    def __init__(self) -> None:
        self.figures: dict[str, float] = {}


@contextmanager
def measured() -> Iterator[_Cost]:
    cost = _Cost()
    began, cpu = time.monotonic(), cpu_seconds()
    yield cost
    cost.figures = {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - cpu}


# -- what is done ------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, connector: str, spark: SparkSession, home: Path) -> None:
        self._format = connector
        self._spark = spark
        self._home = home
        self._query: StreamingQuery | None = None
        self._seen: list[Any] = []

    def _checkpoint(self) -> str:
        return tempfile.mkdtemp(dir=self._home)

    def _topic(self, bootstrap: str, topic: str, options: Mapping[str, str]) -> DataFrame:
        reader = self._spark.read.format(self._format).option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def _stream(self, bootstrap: str, topic: str, options: Mapping[str, str]) -> DataFrame:
        reader = self._spark.readStream.format(self._format).option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def read(self, bootstrap: str, topic: str, options: dict[str, str]) -> dict[str, float]:
        with measured() as cost:
            rows = self._topic(bootstrap, topic, options)
            count, size = rows.agg(F.count("*"), F.sum(F.length("value"))).head()
        return {"rows": count, "bytes": size, **cost.figures}

    def group(self, bootstrap: str, topic: str, options: dict[str, str]) -> dict[str, float]:
        with measured() as cost:
            rows = self._topic(bootstrap, topic, options)
            event = F.from_json(F.col("value").cast("string"), EVENT)
            users = rows.select(event.alias("event")).groupBy("event.user")
            found = users.agg(F.count("*").alias("rows"), F.sum("event.amount")).collect()
        return {"rows": sum(one["rows"] for one in found), "groups": len(found), **cost.figures}

    def write(self, bootstrap: str, topic: str, options: dict[str, str], rows: int) -> dict[str, float]:
        number = F.col("id").cast("string")
        made = self._spark.range(0, rows, 1, CORES).select(
            number.cast("binary").alias("key"), F.rpad(number, 100, "x").cast("binary").alias("value")
        )
        with measured() as cost:
            writer = made.write.format(self._format).option("kafka.bootstrap.servers", bootstrap)
            writer.option("topic", topic).options(**options).mode("append").save()
        return {"rows": rows, **cost.figures}

    def drain(self, bootstrap: str, topic: str, options: dict[str, str]) -> dict[str, float]:
        with measured() as cost:
            stream = self._stream(bootstrap, topic, options)
            query = self._available_now(stream.writeStream.format("noop"))
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        return {"rows": sum(one["numInputRows"] for one in batches), "batches": len(batches), **cost.figures}

    def copy(self, bootstrap: str, topic: str, target: str, options: dict[str, str], guarantee: str) -> dict[str, Any]:
        """From topic to topic; the first batch opens connections and does not count."""
        sink = {"kafka.bootstrap.servers": bootstrap, "topic": target}
        stream = self._stream(bootstrap, topic, options).select("key", "value")
        if guarantee == "exactly once":
            query = self._available_now(stream.writeStream.foreachBatch(moldau_spark.foreach_batch(sink)))
        else:
            query = self._available_now(stream.writeStream.format(self._format).options(**sink))
        batches = [one for one in query.recentProgress if one["numInputRows"]][1:]
        return {
            "rows": sum(one["numInputRows"] for one in batches),
            "seconds": sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000,
        }

    def _available_now(self, writer: Any) -> StreamingQuery:
        query: StreamingQuery = (
            writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
        return query

    # -- pipelines -----------------------------------------------------------------------------------------------------

    def pipe(self, bootstrap: str, topic: str, sink: str, dsn: str, number: int) -> dict[str, Any]:
        """JSON rows into a fresh table or directory."""
        shop = Pipeline(self._spark, bootstrap, name=f"bench-{sink}-{number}", checkpoints=self._checkpoint())
        rows = shop.stream(topic, EVENT)
        if sink == "postgres":
            return self._run(shop, rows.to_postgres(dsn, f"rows_{number}"))
        return self._run(shop, rows.to_parquet(self._checkpoint(), topic))

    def window(self, bootstrap: str, topic: str, target: str) -> dict[str, Any]:
        """Records per key and minute, into a table topic."""
        shop = Pipeline(self._spark, bootstrap, name=target, checkpoints=self._checkpoint())
        keyed = shop.stream(topic, Bytes()).select("CAST(_key AS STRING) AS user", "_timestamp")
        counts = keyed.watermark("_timestamp", "1 minute").tumbling("1 minute", by="user").count()
        return self._run(shop, counts.to_table(f"{target}-counts"))

    def _run(self, pipeline: Pipeline, query: Query) -> dict[str, Any]:
        with measured() as cost:
            (ran,) = pipeline.run(query)
        return {"rows": sum(one["numInputRows"] for one in ran.recentProgress), **cost.figures}

    # -- latency: started, left alone while others send, stopped ----------------------------------------------------

    def begin_stream(self, kind: str, bootstrap: str, topic: str, target: str) -> dict[str, Any]:
        stream = self._stream(bootstrap, topic, {"startingOffsets": "earliest"})
        self._seen = []
        if kind == "topic":
            writer = stream.select("key", "value").writeStream.format(self._format)
            writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        elif kind == "foreachBatch":
            writer = stream.select("value").writeStream.foreachBatch(self._note_values)
        else:
            counts = stream.groupBy(F.window("timestamp", "1 second")).count()
            writer = counts.writeStream.outputMode("update").foreachBatch(self._note_counts)
        self._query = writer.option("checkpointLocation", self._checkpoint()).start()
        return {}

    def _note_values(self, rows: DataFrame, batch_id: int) -> None:
        sent = [int(bytes(row[0])[:19]) for row in rows.collect()]
        self._seen.append((time.time_ns(), sent))

    def _note_counts(self, rows: DataFrame, batch_id: int) -> None:
        counts = {str(row[0]["start"]): row[1] for row in rows.collect()}
        self._seen.append((time.time_ns(), counts))

    def wait_stream(self) -> dict[str, Any]:
        """Until it has read something."""
        query = self._query
        assert query is not None
        while not any(one["numInputRows"] for one in query.recentProgress):
            assert query.isActive, query.exception()
            time.sleep(0.05)
        return {}

    def end_stream(self) -> dict[str, Any]:
        query = self._query
        assert query is not None and query.isActive, query and query.exception()
        batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]]
        query.stop()
        half = batches[len(batches) // 2 :]
        steps = {name: sum(one.get(name, 0) for one in half) / len(half) for name in half[-1]} if half else {}
        return {"seen": self._seen, "batches": len(batches), "step_ms": steps}

    # -- idle ----------------------------------------------------------------------------------------------------------

    def idle(self, bootstraps: list[str], topic: str, seconds: float) -> dict[str, Any]:
        """A query on each broker with nothing to read."""
        queries = [
            self._stream(bootstrap, topic, {"startingOffsets": "latest"})
            .writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .start()
            for bootstrap in bootstraps
        ]
        time.sleep(SETTLE_SECONDS)
        ports = [int(bootstrap.rpartition(":")[2]) for bootstrap in bootstraps]
        cpu, requests = cpu_seconds(python_only=True), [request_count(port) for port in ports]
        time.sleep(seconds)
        used = cpu_seconds(python_only=True) - cpu
        asked = [request_count(port) - before for port, before in zip(ports, requests, strict=True)]
        for query in queries:
            assert query.isActive, query.exception()
            query.stop()
        return {"python_cpu_seconds": used / len(queries), "requests": asked}


def main() -> None:
    connector = sys.argv[1]
    # What the JVM prints must not come between our answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    home = Path(tempfile.mkdtemp(prefix="moldau-bench-spark-"))
    try:
        spark = start_session(connector, home)
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(connector, spark, home)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            work: Callable[..., dict[str, Any]] = getattr(bench, command.pop("do"))
            print(json.dumps(work(**command)), file=answers, flush=True)
        spark.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
