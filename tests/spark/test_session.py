"""What a session's Python processes run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from moldau.spark.spark_session import WORKER_PYTHON, choose_python


def test_workers_of_one_machine_load_the_installed_pyspark_and_not_spark_s_zip(spark: SparkSession) -> None:
    def loaded(_: Iterator[int]) -> Iterator[tuple[str, str]]:
        import pyspark as seen

        yield sys.executable, seen.__file__

    found = spark.sparkContext.range(1, numSlices=1).mapPartitions(loaded).collect()
    assert found == [(sys.executable, pyspark.__file__)]


@pytest.mark.parametrize(
    ("master", "given", "runs"),
    [
        ("local[2]", {}, str(WORKER_PYTHON)),
        ("local[2]", {"PYSPARK_PYTHON": str(WORKER_PYTHON)}, str(WORKER_PYTHON)),
        ("local[2]", {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ("local[2]", {"SPARK_HOME": "/opt/spark"}, sys.executable),
        ("spark://host:7077", {"PYSPARK_PYTHON": str(WORKER_PYTHON)}, sys.executable),
        ("spark://host:7077", {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        (None, {}, sys.executable),
    ],
)
def test_the_user_s_python_goes_first_and_other_machines_get_plain_python(
    monkeypatch: pytest.MonkeyPatch, master: str | None, given: dict[str, str], runs: str
) -> None:
    # First set, so that all of them are put back.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "MOLDAU_SPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    choose_python(master)
    assert os.environ["PYSPARK_PYTHON"] == runs
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(runs).is_absolute() and (not runs.endswith("worker-python") or os.access(runs, os.X_OK))
