"""What Spark calls to write: `df.write.format("moldau")` and `df.writeStream.format("moldau")`, at least once.

Every task has an idempotent producer of its own, so a batch that a broker took twice is in the log once. A task or a
micro-batch that Spark runs again is written again, as by Spark's own `kafka` sink; `exactly_once_sink` does better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.spark.sink_columns import check_schema, columns_of
from moldau.spark.sink_options import SinkOptionError, SinkOptions
from moldau.spark.sink_task import Written, write_rows


class BatchSink(DataSourceArrowWriter):
    """A batch query's writer. Nothing is left to do at its end: tasks wait for their records."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkOptionError("a topic cannot be overwritten: write with mode append")
        if options.exactly_once:
            raise SinkOptionError(
                "option exactlyOnce is for streaming queries, whose batches are numbered: a batch query that is run "
                "again is another one"
            )
        check_schema(schema, options.topic)
        self._options = options
        self._columns = columns_of(schema, options.topic)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_rows(self._options, (batch.select(self._columns) for batch in iterator))


class StreamSink(DataSourceStreamArrowWriter):
    """A streaming query's writer, at least once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options
        self._columns = columns_of(schema, options.topic)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_rows(self._options, (batch.select(self._columns) for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: tasks have waited for their records."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what is written stays, and is written again."""
