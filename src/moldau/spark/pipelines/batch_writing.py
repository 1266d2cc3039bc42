"""How a sink's batches run in Spark: the driver begins, tasks write and report, the driver commits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from moldau.spark.exactly_once_batches import numbered_batch
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.queries import WriteBatch

P = TypeVar("P")
R = TypeVar("R")
Report = TypeVar("Report", contravariant=True)
_REPORTS = "report binary"


class BatchWriter(Protocol[P, Report]):
    """The driver's side of a sink."""

    def begin(self, batch: NumberedBatch) -> P | None:
        """Where tasks may put the batch's rows, seen by nobody; None when the batch is in already."""
        ...

    def commit(self, batch: NumberedBatch, place: P, reports: Sequence[Report]) -> bool:
        """Make visible what tasks reported, together with the batch's mark. False when another driver did before."""
        ...


def write_batches(writer: BatchWriter[P, R], write_rows: Callable[[DataFrame, P], list[R]]) -> WriteBatch:
    """A function for `foreachBatch`."""

    def write(rows: DataFrame, batch_id: int) -> None:
        batch = numbered_batch(rows.sparkSession, batch_id)
        place = writer.begin(batch)
        if place is None:
            # In already, but Spark did not write down the state that comes of it.
            rows.write.format("noop").mode("overwrite").save()
            return
        writer.commit(batch, place, write_rows(rows, place))

    return write


def in_tasks(rows: DataFrame, work: Callable[[int, Iterator[Any]], R]) -> list[R]:
    """What `work(attempt, batches of rows)` returns in each task; no two attempts have one number."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        report = work(context.taskAttemptId(), batches)
        yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return [pickle.loads(bytes(row[0])) for row in rows.mapInArrow(task, _REPORTS).collect()]


def newest_of_each_key(rows: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """One row per key: the last one by the columns `order`."""
    newest_first = Window.partitionBy(*map(column_of, keys)).orderBy(
        *(column_of(name).desc_nulls_last() for name in order)
    )
    return rows.withColumn(_RANK, F.row_number().over(newest_first)).where(f"{_RANK} = 1").drop(_RANK)


_RANK = "__moldau_rank"


def column_of(name: str) -> Column:
    """A column of exactly that name, whatever is in it."""
    return F.col(f"`{name.replace('`', '``')}`")
