"""`writeStream.format("moldau").option("exactlyOnce", "true")`: exactly once for plans with one task per partition.

Spark makes the writer anew for each batch in the process that plans it, and pickles it for the tasks: that is when the
transaction begins. In the process that commits, Spark makes another one, which goes on with what the tasks report. No
rows are shuffled here, so a plan in which two tasks write to one output partition is refused before anything becomes
visible; `foreach_batch` shuffles. What fails ends the query: its restart aborts and does the batch again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.client import ProducerFenced
from moldau.spark.exactly_once import ExactlyOnceRefused, parse_offset_log
from moldau.spark.exactly_once_driver import NumberedBatch, Transactor
from moldau.spark.sink_columns import check_schema, columns_of
from moldau.spark.sink_options import SinkOptions
from moldau.spark.sink_task import Membership, Written, write_or_refuse

_USE_FOREACH_BATCH = "write with writeStream.foreachBatch(moldau.spark.foreach_batch(...))"


class ExactlyOnceSink(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options
        self._columns = columns_of(schema, options.topic)
        self._checkpoint = local_checkpoint(options.checkpoint)
        self._membership: Membership | None = None

    def __getstate__(self) -> dict[str, Any]:
        """On its way to the tasks: begin, once, for Spark pickles the writer twice."""
        if self._membership is None:
            self._membership = Transactor(self._options, self._query_id()).begin()
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError(
                "an earlier attempt of this task may have written, so the batch must be done again as a whole: restart "
                f"the query, or {_USE_FOREACH_BATCH}, which does so by itself"
            )
        assert self._membership is not None
        return write_or_refuse(self._options, (batch.select(self._columns) for batch in iterator), self._membership)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(messages)
        memberships = {one.membership for one in written if one.membership is not None}
        if not memberships:
            return  # no task, no rows
        if len(memberships) > 1 or len(written) < len(messages):
            raise ExactlyOnceRefused(f"tasks of batch {batchId} wrote in different transactions: restart the query")
        query_id = self._query_id()
        text = (self._checkpoint / "offsets" / str(batchId)).read_text(encoding="utf-8")
        batch = NumberedBatch(query_id, batchId, parse_offset_log(text))
        transactor = Transactor(self._options, query_id)
        try:
            if transactor.resume(memberships.pop(), batch):
                transactor.commit(batch, written)
            else:
                transactor.abandon()  # the batch is in already: what was written now is a second copy
        except ProducerFenced as error:
            raise ExactlyOnceRefused(
                f"transactional id {transactor.transactional_id!r} was taken by another driver of this query, or the "
                "batch took longer than kafka.transaction.timeout.ms: nothing of it was committed"
            ) from error
        except Exception:
            transactor.abandon()
            raise

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """So that readers need not wait for the transaction's timeout; a restart would end it as well."""
        memberships = {one.membership for one in _written(messages) if one.membership is not None}
        if len(memberships) == 1:
            transactor = Transactor(self._options, self._query_id())
            transactor.adopt(memberships.pop())
            transactor.abandon()

    def _query_id(self) -> str:
        return str(json.loads((self._checkpoint / "metadata").read_text(encoding="utf-8"))["id"])


def local_checkpoint(location: str | None) -> Path:
    """Where the query's own files are; refuses where they are unknown or cannot be read here."""
    if not location:
        raise ExactlyOnceRefused(
            "exactlyOnce needs to know the query's checkpoint: set option checkpointLocation on the query itself, or "
            + _USE_FOREACH_BATCH
        )
    path = Path(location.removeprefix("file:").replace("///", "/", 1))
    if "://" in location.removeprefix("file://") or not (path / "metadata").exists():
        raise ExactlyOnceRefused(
            f"the checkpoint {location!r} cannot be read here as a directory: {_USE_FOREACH_BATCH}"
        )
    return path


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
