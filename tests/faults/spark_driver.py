"""A Spark driver to be killed: exactly-once queries from topics to topics in one session, until someone ends it.

    python -m tests.faults.spark_driver DIRECTORY MASTER

`DIRECTORY/queries.json` lists the queries (`QuerySpec`). The n-th record of a source's partition is the number n.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from moldau.spark import session
from moldau.spark.exactly_once_batches import ExactlyOnceBatches
from moldau.spark.parcels import write_parcels
from moldau.spark.sink_options import SinkOptions, sink_options
from moldau.spark.sink_task import Membership, Written
from tests.spark.quick_jvm import quick_jvm

SOURCES = 4
PER_BATCH = 400  # numbers of each partition
GROUPS = 50


@dataclass(frozen=True)
class QuerySpec:
    bootstrap: str
    source: str
    output: str
    kind: str  # "stateless", "stateful"

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def source_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(SOURCES * PER_BATCH),
        }

    def sink_options(self) -> SinkOptions:
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.output, "transactionalId": self.output}
        return sink_options({**given, "exactlyOnce": "true"})


def rows_of(spec: QuerySpec, records: DataFrame) -> tuple[DataFrame, str]:
    """The query's rows and its output mode."""
    numbers = records.select(F.col("partition").alias("source"), F.col("offset").alias("number"))
    if spec.kind == "stateless":
        key = F.expr("if(number % 3 = 0, null, concat('key-', number % 100))").alias("key")
        return numbers.select(key, F.concat_ws("-", "source", "number").alias("value")), "append"
    grouped = numbers.groupBy((F.col("number") % GROUPS).alias("group")).agg(F.count("*"), F.sum("number"))
    named = grouped.toDF("group", "count", "sum")
    return named.select(F.col("group").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")), "update"


class KillsItsExecutor:
    """A task's work that ends its executor after it has produced, once: only while the file is there."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __call__(self, options: SinkOptions, batches: Iterator[Any], membership: Membership) -> Written:
        written = write_parcels(options, batches, membership)
        try:
            self.trap.unlink()
        except FileNotFoundError:
            return written
        os.kill(_parent(os.getppid()), signal.SIGKILL)
        return written


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def main() -> None:
    directory, master = Path(sys.argv[1]), sys.argv[2]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = session(
        "killed",
        master=master,
        settings={
            "spark.ui.enabled": "false",
            # Executors of a cluster run elsewhere, and import what tasks do here.
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
            "spark.sql.shuffle.partitions": "2",
            # What each batch has read is looked up in the end.
            "spark.sql.streaming.minBatchesToRetain": "100000",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
            "spark.executor.extraJavaOptions": quick_jvm(),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.host": "127.0.0.1",
        },
    )
    for spec in (QuerySpec(**one) for one in json.loads((directory / "queries.json").read_text())):
        rows, mode = rows_of(spec, spark.readStream.format("moldau").options(**spec.source_options()).load())
        sink = ExactlyOnceBatches(spec.sink_options(), KillsItsExecutor(directory / "trap"))
        rows.writeStream.foreachBatch(sink).outputMode(mode).option(
            "checkpointLocation", str(directory / spec.output)
        ).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
