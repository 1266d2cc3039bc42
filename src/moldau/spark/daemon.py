"""Spark's parent of Python workers (`spark.python.daemon.module`), with what source and sink import in it already.

Spark forks a worker for each task that finds none free, and after each that failed; one that finds its modules loaded
begins in milliseconds instead of most of a second. Nothing is begun here: threads and connections outlive no fork.
"""

import pyarrow.compute  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import moldau.spark.exactly_once_batches
import moldau.spark.exactly_once_sink
import moldau.spark.range_reader
import moldau.spark.sink
import moldau.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
