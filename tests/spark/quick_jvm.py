"""Spark's JVM for the tests: one quick compiler, and a class archive of an earlier run.

The JVMs of a test run live for seconds to minutes, in which the two save half of what they take and more.

    python -m tests.spark.quick_jvm        # records the archive; without it JVMs are only slower
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.java import CDS_QUIET, ROOT

ARCHIVES = ROOT / ".cache" / "spark-classes"
QUICK_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def quick_jvm() -> str:
    """Options of Spark's JVMs. Java ignores an archive that is missing or does not fit."""
    return " ".join((*QUICK_COMPILER, f"-XX:SharedArchiveFile={_archive()}", *CDS_QUIET))


def _archive() -> Path:
    """That of the jars which are installed: it holds for them alone, as long as they are not installed anew."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    jars = Path(found.origin).with_name("jars")
    which = f"{jars} {jars.stat().st_mtime_ns}"
    return ARCHIVES / f"{hashlib.sha256(which.encode()).hexdigest()[:16]}.jsa"


def _make_archive() -> None:
    archive = _archive()
    if archive.exists():
        return
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    for old in ARCHIVES.iterdir():
        old.unlink()
    partial = archive.with_suffix(".partial")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*QUICK_COMPILER, f"-XX:ArchiveClassesAtExit={partial}", *CDS_QUIET))
    with tempfile.TemporaryDirectory() as directory:
        _use_spark(Path(directory))
    partial.replace(archive)


def _use_spark(directory: Path) -> None:
    """Something of what the tests do: a stateful stream, functions in Python, files."""
    from moldau.spark import session

    def same(batches: Iterable[Any]) -> Iterable[Any]:
        return batches

    spark = session(
        master="local[2]",
        settings={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.host": "127.0.0.1",
        },
    )
    columns = ["id % 10 AS key", "timestamp_seconds(id) AS at", "to_json(struct(id)) AS value"]
    numbers = spark.range(1000).selectExpr(*columns)
    numbers.write.parquet(str(directory / "in"))
    rows = spark.readStream.schema(numbers.schema).parquet(str(directory / "in")).withWatermark("at", "1 minute")
    counts = rows.mapInArrow(same, rows.schema).groupBy("key").count()
    written = counts.writeStream.outputMode("update").foreachBatch(lambda frame, number: frame.collect())
    written = written.option("checkpointLocation", str(directory / "checkpoint"))
    written.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    # The archive is written when the JVM ends, which it does with its input.
    jvm: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    _make_archive()
