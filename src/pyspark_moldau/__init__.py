"""Spark registers the `DefaultSource` of every package named `pyspark_*` by itself: `format("moldau")` just works."""

from moldau.spark.data_source import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
