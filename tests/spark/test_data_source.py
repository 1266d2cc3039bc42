"""Spark finds the source by its name alone."""

from __future__ import annotations

import importlib

from pyspark.sql import SparkSession

import moldau.spark
from moldau.spark.data_source import MoldauDataSource


def test_spark_finds_the_data_source_without_any_registration(spark: SparkSession) -> None:
    session_state = spark._jsparkSession.sessionState()
    assert session_state.dataSourceManager().dataSourceExists(MoldauDataSource.name())


def test_every_name_of_the_package_is_what_it_says_each_time() -> None:
    for module in moldau.spark._DRIVER_SIDE.values():
        importlib.import_module(module)
    for _ in range(2):
        assert all(callable(getattr(moldau.spark, name)) for name in moldau.spark.__all__)
