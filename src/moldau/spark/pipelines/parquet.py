"""Rows into Parquet files, exactly once: tasks write hidden files, and the driver commits them (`parquet_journal`)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyspark.sql import DataFrame

from moldau.spark.pipelines.batch_writing import column_of, in_tasks, write_batches
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.parquet_journal import OFFSET, PARTITION, ParquetJournal, WrittenFile, write_files
from moldau.spark.pipelines.queries import WriteBatch


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
        return write_batches(ParquetJournal(os.path.abspath(self.directory), self.topic, query), self._write)

    def _write(self, rows: DataFrame, prefix: str) -> list[WrittenFile]:
        root, by = os.path.join(os.path.abspath(self.directory), f"topic={self.topic}"), self.by
        # All rows of a partition in one task: what a file is called depends on the batch alone.
        tasks = rows.sparkSession.sparkContext.defaultParallelism
        order = (PARTITION, OFFSET) if by is None else (by, PARTITION, OFFSET)
        ordered = rows.repartitionById(tasks, column_of(PARTITION)).sortWithinPartitions(*order)
        reports = in_tasks(ordered, lambda attempt, batches: write_files(root, prefix, attempt, batches, by))
        return [one for report in reports for one in report]
