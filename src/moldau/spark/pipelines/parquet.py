"""Rows into Parquet files, exactly once: tasks write hidden files, and the driver commits them (`parquet_journal`)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from moldau.spark.exactly_once_batches import numbered_batch
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.parquet_journal import OFFSET, PARTITION, ParquetJournal, WrittenFile, write_files
from moldau.spark.pipelines.queries import WriteBatch

_REPORTS = "written binary"


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """A directory that the driver and all tasks see under one path."""

    directory: str
    topic: str
    by: str | None = None  # the column that names a directory for its rows

    def __post_init__(self) -> None:
        if "://" in self.directory:
            raise PipelineError(
                f"{self.directory}: Parquet files go into a directory that all machines see, not to a URL: mount it"
            )
        if not self.topic or "/" in self.topic:
            raise PipelineError(f"{self.topic!r} cannot name a directory: give the topic's name")

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        journal = ParquetJournal(os.path.abspath(self.directory), self.topic, query)

        def write(rows: DataFrame, batch_id: int) -> None:
            mark = numbered_batch(rows.sparkSession, batch_id).mark
            prefix = journal.begin(mark)
            if prefix is None:
                # In the files already, but Spark did not write down the state that comes of it.
                rows.write.format("noop").mode("overwrite").save()
                return
            journal.commit(mark, self._write(rows, str(journal.root), prefix))

        return write

    def _write(self, rows: DataFrame, root: str, prefix: str) -> list[WrittenFile]:
        by = self.by

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            written = write_files(root, prefix, context.taskAttemptId(), batches, by)
            yield pa.record_batch([pa.array([pickle.dumps(written)], pa.binary())], names=["written"])

        # All rows of a partition in one task: what a file is called depends on the batch alone.
        order = (PARTITION, OFFSET) if by is None else (by, PARTITION, OFFSET)
        ordered = rows.repartition(PARTITION).sortWithinPartitions(*order)
        return [one for row in ordered.mapInArrow(task, _REPORTS).collect() for one in pickle.loads(bytes(row[0]))]
