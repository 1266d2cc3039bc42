"""Pipelines: their sinks for PostgreSQL and Parquet, and windows beside Kafka Streams."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.servers import KAFKA_JVM, Server
from bench.spark_report import SparkRow
from tests.java import java_command
from tests.postgres import Postgres

if TYPE_CHECKING:
    from bench.spark_rows import Run

ROWS_POSTGRES, ROWS_PARQUET, ROWS_WINDOWED = 1_000_000, 2_000_000, 5_000_000
STREAMS = "Kafka Streams"


def sinks(run: Run) -> None:
    """JSON rows of 100 B; the first round of each warms up and does not count."""
    server = run.servers[0]
    postgres_row = SparkRow("pipeline into PostgreSQL, 1 M rows", "rows/s", "higher", limit=50_000)
    parquet_row = SparkRow("pipeline into Parquet, 2 M rows", "rows/s", "higher", limit=250_000)
    with Postgres() as postgres:
        for row, sink, count in ((postgres_row, "postgres", ROWS_POSTGRES), (parquet_row, "parquet", ROWS_PARQUET)):
            topic = run.filled_topic(server, count, 100)
            for number in range(run.rounds + 1):
                answer = run.ours.ask(
                    "pipe", bootstrap=server.bootstrap, topic=topic, sink=sink, dsn=postgres.dsn, number=number
                )
                assert answer["rows"] == count, answer
                run.note(f"{sink}: {count / answer['seconds']:,.0f} rows/s")
                if number:
                    row.ours.append(count / answer["seconds"])
            run.add(row)


def windows(run: Run) -> None:
    """Records per key and minute into a topic: ours exactly once, Kafka Streams as it comes, at least once."""
    for server in run.servers:
        row = SparkRow(
            f"windowed count per key beside Kafka Streams (2 threads), 5 M x 100 B, on {server.name}",
            "rows/s",
            "higher",
            of_default=1.5,
        )
        topic = run.filled_topic(server, ROWS_WINDOWED, 100)
        for number in range(run.rounds + 1):
            answer = run.ours.ask("window", bootstrap=server.bootstrap, topic=topic, target=run.fresh_topic(server))
            assert answer["rows"] == ROWS_WINDOWED, answer
            ours = ROWS_WINDOWED / answer["seconds"]
            theirs = _kafka_streams(server, topic, run.fresh_topic(server))
            run.note(f"{server.name}: {ours:,.0f} rows/s, {STREAMS} {theirs:,.0f} rows/s")
            if number:
                row.ours.append(ours)
                row.default.append(theirs)
        run.add(row)


def _kafka_streams(server: Server, topic: str, target: str) -> float:
    source = str(Path(__file__).parent / "WindowedCount.java")
    with tempfile.TemporaryDirectory(prefix="moldau-bench-streams-") as state:
        arguments = (server.bootstrap, topic, target, str(ROWS_WINDOWED), state)
        command = java_command(source, *arguments, jvm_options=KAFKA_JVM)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"WindowedCount failed: {result.stderr[-1000:]}")
    answer = json.loads(result.stdout.splitlines()[-1])
    rate: float = answer["rows"] / answer["seconds"]
    return rate
