"""`foreach_batch`: exactly once into topics for `writeStream.foreachBatch`, whatever the query and its output mode.

    query = df.writeStream.foreachBatch(moldau.spark.foreach_batch(**{
        "kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders"})).option("checkpointLocation", ...).start()

Rows are encoded and then shuffled so that each output partition is one task's (`parcels`).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import SparkStageInfo, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from moldau.spark.exactly_once import ExactlyOnceRefused, parse_offset_log
from moldau.spark.exactly_once_driver import NumberedBatch, Transactor
from moldau.spark.parcels import PARCELS, SPREAD, TARGET, asked_partition_count, encode_rows, write_parcels
from moldau.spark.sink_columns import KEY, VALUE, check_schema, columns_of
from moldau.spark.sink_options import SinkOptions, sink_options
from moldau.spark.sink_task import Membership, Written, write_or_refuse

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
WriteParcels = Callable[[SinkOptions, Iterator[Any], Membership], Written]

REPORTS = "written binary"
TRACKER_LOOKS_MAX = 5000
_LOOK_SECONDS = 0.002
_NO_CHECKPOINT = (
    "the query's checkpoint is unknown here, and with it the number of the batch: call foreach_batch's function from "
    "writeStream.foreachBatch of a classic Spark session"
)


def _wait() -> None:
    time.sleep(_LOOK_SECONDS)


def foreach_batch(options: Mapping[str, str] | None = None, /, **more: str) -> Callable[[DataFrame, int], None]:
    """The function for `writeStream.foreachBatch` that writes each batch exactly once, with the options of the sink."""
    return ExactlyOnceBatches(sink_options({**(options or {}), **more, "exactlyOnce": "true"}))


class ExactlyOnceBatches:
    """One sink's batches. `write` is what tasks do with their parcels."""

    def __init__(self, options: SinkOptions, write: WriteParcels = write_parcels) -> None:
        self._options = options
        self._write = write
        self._transactors: dict[str, Transactor] = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        check_schema(rows.schema, self._options.topic)
        spark = rows.sparkSession
        batch = numbered_batch(spark, batch_id)
        _check_speculation(spark)
        transactor = self._transactors.get(batch.query_id)
        if transactor is None:
            transactor = self._transactors[batch.query_id] = Transactor(self._options, batch.query_id)
        if not transactor.run(batch, lambda membership: self._run_tasks(rows, membership)):
            # In the topics already, but Spark did not write down the state that comes of it.
            rows.write.format("noop").mode("overwrite").save()

    def _run_tasks(self, rows: DataFrame, membership: Membership) -> Sequence[Written]:
        reports = _reports(rows, self._options, _task(self._options, membership, self._write)).collect()
        written: list[Written] = [pickle.loads(bytes(report[0])) for report in reports]
        _check_stages(rows.sparkSession, written)
        return written


# -- the query ---------------------------------------------------------------------------------------------------------


def numbered_batch(spark: SparkSession, batch_id: int) -> NumberedBatch:
    """The batch that `foreachBatch` hands over, with its query and the offsets from the checkpoint."""
    try:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        session = spark._jsparkSession
        jvm = spark._jvm
    except Exception as error:
        raise ExactlyOnceRefused(_NO_CHECKPOINT) from error
    if not query_id or jvm is None:
        raise ExactlyOnceRefused(_NO_CHECKPOINT)
    execution = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise ExactlyOnceRefused(_NO_CHECKPOINT)
    path = jvm.org.apache.hadoop.fs.Path(f"{execution.resolvedCheckpointRoot()}/offsets/{batch_id}")
    stream = path.getFileSystem(session.sessionState().newHadoopConf()).open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return NumberedBatch(query_id, batch_id, parse_offset_log(text))


def _check_speculation(spark: SparkSession) -> None:
    if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise ExactlyOnceRefused(
            "spark.speculation=true runs tasks twice at once, and each output partition may have one writer: set it to "
            "false for exactly once"
        )


def _check_stages(spark: SparkSession, written: Sequence[Written]) -> None:
    """A stage that Spark began anew may have writers that it has forgotten."""
    tracker = spark.sparkContext.statusTracker()
    for stage_id in {one.stage_id for one in written}:
        check_stage(stage_id, partial(tracker.getStageInfo, stage_id))


def check_stage(stage_id: int, look: Callable[[], SparkStageInfo | None], wait: Callable[[], None] = _wait) -> None:
    """Spark's tracker hears of tasks later than the job's result comes, and in order: once it has heard of all of them
    it has heard of everything before. A stage begun anew must not be taken for one that was not."""
    for _ in range(TRACKER_LOOKS_MAX):
        info = look()
        if info is not None and (info.currentAttemptId > 0 or info.numFailedTasks > 0):
            raise RuntimeError(f"stage {stage_id} was begun anew, or a task of it was: the batch is done again")
        if info is not None and info.numCompletedTasks >= info.numTasks:
            return
        wait()
    raise RuntimeError(f"Spark does not say how stage {stage_id} went: the batch is done again")


# -- placing -----------------------------------------------------------------------------------------------------------


def _reports(rows: DataFrame, options: SinkOptions, task: Task) -> DataFrame:
    """What the tasks report, each of which gets all parcels of its output partitions."""
    bootstrap, topic = options.bootstrap, options.topic
    task_count = options.tasks or rows.sparkSession.sparkContext.defaultParallelism
    known: dict[str, int] = {}
    if topic is not None:
        known[topic] = asked_partition_count(bootstrap, topic)
        task_count = min(task_count, known[topic])

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def partition_count(name: str) -> int:
            if name not in known:
                known[name] = asked_partition_count(bootstrap, name)
            return known[name]

        yield from encode_rows(options, task_count, partition_count, batches)

    def encode_and_write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(encode(batches))

    chosen = _with_spread(rows.select(*columns_of(rows.schema, topic)))
    # What one task computes is not shuffled: most batches of a query that keeps up are so small (`offsets`).
    if task_count == 1 or rows._jdf.queryExecution().toRdd().getNumPartitions() == 1:
        return chosen.coalesce(1).mapInArrow(encode_and_write, REPORTS)
    parcels = chosen.mapInArrow(encode, PARCELS)
    return parcels.repartitionById(task_count, F.col(TARGET)).mapInArrow(task, REPORTS)


def _with_spread(rows: DataFrame) -> DataFrame:
    spread = F.xxhash64(F.col(VALUE), F.spark_partition_id())
    return rows.withColumn(SPREAD, F.when(F.col(KEY).isNull(), spread) if KEY in rows.columns else spread)


# -- tasks -------------------------------------------------------------------------------------------------------------


def _task(options: SinkOptions, membership: Membership, write: WriteParcels) -> Task:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() > 0:
            raise RuntimeError("an earlier attempt of this task may have written: the batch is done again as a whole")
        written = write_or_refuse(options, batches, membership, write, is_only_writer=True)
        written.stage_id = context.stageId()
        yield pa.record_batch([pa.array([pickle.dumps(written)], pa.binary())], names=["written"])

    return run
