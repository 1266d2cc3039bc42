"""A Spark session with what the source and the sink are best with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from moldau.spark.java import find_java
from moldau.spark.progress import publish_progress

# Each micro-batch writes two small files into the checkpoint; these settings halve what that takes. Renames are atomic
# on local disks and HDFS alike; for object stores set the manager that your store's connector names.
CHEAP_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# Workers begin with their modules loaded (see there). Unix sockets take a seventh off the CPU that rows cost.
WORKERS = {
    "spark.python.daemon.module": "moldau.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
}
# What Spark's workers run, see there.
WORKER_PYTHON = Path(__file__).with_name("worker-python")


def session(
    app_name: str = "moldau", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Find Java, and start or join a session that publishes the progress of its queries.

    `settings` are Spark's, and go before ours. Without `master`, Spark's configuration decides (local[*] when it says
    nothing).
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    choose_python(master)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**CHEAP_CHECKPOINTS, **WORKERS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    publish_progress(spark)
    return spark


def choose_python(master: str | None) -> None:
    """This one, for the driver and its workers.

    On one machine without Spark's zip: the installed pyspark stands in for it, which other machines may not have.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if os.environ.get("PYSPARK_PYTHON") not in (None, str(WORKER_PYTHON)):
        return  # the user's own choice
    if master is not None and master.startswith("local") and "SPARK_HOME" not in os.environ:
        os.environ["MOLDAU_SPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = str(WORKER_PYTHON)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
