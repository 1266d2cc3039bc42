"""`Pipeline`: topics as streams and tables, and the queries that run on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from moldau.spark.pipelines import dead_letters, streams
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.formats import ROWS, Format, format_of
from moldau.spark.pipelines.project import check_name
from moldau.spark.pipelines.queries import Query, TopicSink
from moldau.spark.pipelines.streams import METADATA, Stream
from moldau.spark.pipelines.tables import DELETED, Table

# State larger than memory, kept on local disks, written to the checkpoint as changes.
STATE_IN_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
# The first batch of a query must have all of a table: events that find a part of it would miss rows.
_ALL_OFFSETS = str((1 << 63) - 1)
_HEADERS = "array<struct<key:string,value:binary>>"
_COMPLAINT = StructType([StructField(name, StringType()) for name in ("kind", "reason", "stack")])


class Pipeline:
    """The streams, tables and queries of one name.

    `name` is that of its transactions and consumer groups, `checkpoints` the directory (or the URL of one that all
    machines see) where each query has its place. `options` are the source's, for all topics.
    """

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        name: str,
        checkpoints: str | Path,
        options: Mapping[str, str] | None = None,
    ) -> None:
        check_name(name)
        self.spark = spark
        self.bootstrap = bootstrap
        self.name = name
        self._checkpoints = str(checkpoints)
        self._options = {"kafka.bootstrap.servers": bootstrap, **(options or {})}
        self._dead_letters: dict[str, Query] = {}
        self._complaining: dict[str, tuple[Format, str]] = {}  # by topic: who says what is bad, and where that goes
        self._running: dict[str, StreamingQuery] = {}
        for key, value in STATE_IN_ROCKSDB.items():
            if spark.conf.get(key, None) in (None, _DEFAULTS.get(key)):
                spark.conf.set(key, value)

    # -- in ------------------------------------------------------------------------------------------------------------

    def stream(
        self,
        topic: str,
        schema: str | StructType | Format,
        *,
        starting: str = "earliest",
        dead_letters: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Stream:
        """A topic's records as rows.

        `schema` is DDL for JSON objects (`"user STRING NOT NULL, at TIMESTAMP"`), or `Avro("order.avsc")`, `Text()`,
        `Bytes()`. Beside its columns a row has `_key`, `_partition`, `_offset` and `_timestamp`. Records that do not
        fit are left out, and sent to the topic `dead_letters` when it is given.
        """
        form = format_of(schema)
        records = self._read_stream(topic, starting, options)
        self._check_names(topic, form)
        if dead_letters is not None:
            bad = self._read_stream(topic, starting, {**(options or {}), "includeHeaders": "true"})
            self._send_dead_letters(topic, dead_letters, form, bad)
        rows = form.with_rows(records).select(*_metadata(), F.inline(ROWS))
        return Stream(rows.select(*form.schema.names, *METADATA))

    def table(
        self,
        topic: str,
        schema: str | StructType | Format,
        *,
        dead_letters: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Table:
        """A compacted topic as a table: the newest row of each key, where a null value deletes.

        Records that do not fit the schema are left out: their key keeps the row that it had.
        """
        form = format_of(schema)
        self._check_names(topic, form)
        given = {"maxOffsetsPerTrigger": _ALL_OFFSETS, **(options or {})}
        if dead_letters is not None:
            bad = self._read_stream(topic, "earliest", {**given, "includeHeaders": "true"})
            self._send_dead_letters(topic, dead_letters, form, bad.where("value IS NOT NULL"))

        def read_now() -> DataFrame:
            allowed = {name: value for name, value in self._options.items() if name.startswith("kafka.")}
            records = self.spark.read.format("moldau").options(**allowed, subscribe=topic).load()
            return _changes(records, form)

        changes = _changes(self._read_stream(topic, "earliest", given), form)
        return Table(topic, form.schema, changes, read_now)

    def of(self, rows: DataFrame) -> Stream:
        """Any streaming DataFrame as a stream."""
        return Stream(rows)

    def _read_stream(self, topic: str, starting: str, options: Mapping[str, str] | None) -> DataFrame:
        given = {**self._options, "subscribe": topic, "startingOffsets": starting, **(options or {})}
        return self.spark.readStream.format("moldau").options(**given).load()

    def _check_names(self, topic: str, form: Format) -> None:
        taken = sorted({name for name in form.schema.names if name in (*METADATA, DELETED)})
        if taken:
            raise PipelineError(f"the schema of {topic} has {', '.join(taken)}, which is what records bring along")

    # -- dead letters --------------------------------------------------------------------------------------------------

    def _send_dead_letters(self, topic: str, target: str, form: Format, records: DataFrame) -> None:
        """A query beside those that use the stream: whatever becomes of the rows, their query has one sink, and a
        record that cannot be read must not be sent once for each query that cannot."""
        if self._complaining.setdefault(topic, (form, target)) != (form, target):
            raise PipelineError(
                f"{topic} is read twice with dead_letters, and not alike: what is bad is one question, so give "
                "dead_letters to one of the two"
            )
        complain = form.complainer()

        def complaint(value: Any) -> tuple[str, str, str]:
            found = complain(None if value is None else bytes(value))
            return found.kind, found.reason, found.stack

        # Spark reads type hints, and warns of those that it makes nothing of: a lambda has none.
        told_by = F.udf(lambda value: complaint(value), _COMPLAINT)
        bad = form.with_rows(records).where(F.size(ROWS) == 0).drop(ROWS).withColumn("why", told_by("value"))
        told = {
            dead_letters.TOPIC: F.col("topic"),
            dead_letters.PARTITION: F.col("partition").cast("string"),
            dead_letters.OFFSET: F.col("offset").cast("string"),
            dead_letters.PIPELINE: F.lit(self.name),
            dead_letters.STAGE: F.lit(dead_letters.VALUE_STAGE),
            dead_letters.EXCEPTION: F.col("why.kind"),
            dead_letters.REASON: F.col("why.reason"),
            dead_letters.STACK: F.col("why.stack"),
        }
        added = F.array(*(_header(name, value) for name, value in told.items())).cast(_HEADERS)
        own = F.coalesce(F.col("headers"), F.array().cast(_HEADERS))
        letters = bad.select("key", "value", F.concat(own, added).alias("headers"))
        name = f"{topic}-dead-letters"
        self._dead_letters[name] = Query(name, letters, TopicSink(target))

    @property
    def dead_letter_queries(self) -> tuple[Query, ...]:
        """Those that send what streams and tables could not read; `start` and `run` have them run."""
        return tuple(self._dead_letters.values())

    # -- out -----------------------------------------------------------------------------------------------------------

    def start(self, *queries: Query, every: str | None = None) -> list[StreamingQuery]:
        """Let the queries run until they are stopped; a batch `every` so often, or whenever there is something."""
        trigger: dict[str, Any] = {} if every is None else {"processingTime": every}
        return self._start(queries, trigger)

    def run(self, *queries: Query) -> list[StreamingQuery]:
        """Let the queries read what is there, and wait for them."""
        started = self._start(queries, {"availableNow": True})
        for query in started:
            query.awaitTermination()
        return started

    def stop(self) -> None:
        """Stop what was started here."""
        for query in self._running.values():
            query.stop()
        self._running.clear()

    def checkpoint(self, query: str) -> str:
        return f"{self._checkpoints.rstrip('/')}/{query}"

    def _start(self, queries: Sequence[Query], trigger: Mapping[str, Any]) -> list[StreamingQuery]:
        asked = {one.name: one for one in (*queries, *self._dead_letters.values())}
        if len(asked) < len({id(one) for one in (*queries, *self._dead_letters.values())}):
            raise PipelineError("two queries have one name, and with it one checkpoint: give name='...' to one of them")
        fresh = [one for one in asked.values() if not self._is_active(one.name)]
        # All sinks first: what is wrong with one is said before any of them runs.
        opened = [(one, one.sink.open(self.bootstrap, f"{self.name}.{one.name}")) for one in fresh]
        for query, write in opened:
            writer = query.rows.writeStream.foreachBatch(write).queryName(f"{self.name}.{query.name}")
            writer = writer.outputMode(query.output_mode).option("checkpointLocation", self.checkpoint(query.name))
            if trigger:
                writer = writer.trigger(**trigger)
            self._running[query.name] = writer.start()
            _wait_initialized(self._running[query.name])
        return [self._running[name] for name in asked]

    def _is_active(self, name: str) -> bool:
        return name in self._running and self._running[name].isActive


_LOOK_SECONDS = 0.02
_DEFAULTS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}


def _wait_initialized(query: StreamingQuery) -> None:
    """Each source is a Python process, and Spark gives it 10 s to come up: a dozen at once take longer on a laptop."""
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(_LOOK_SECONDS)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), F.encode(value, "UTF-8").alias("value"))


def _changes(records: DataFrame, form: Format) -> DataFrame:
    deleted = F.col("value").isNull()
    nothing = F.array(F.lit(None).cast(form.schema)).cast(ArrayType(form.schema))
    rows = F.when(deleted, nothing).otherwise(F.col(ROWS))
    kept = form.with_rows(records).select(*_metadata(), deleted.alias(DELETED), F.inline(rows))
    key = F.col(streams.KEY).cast("string").alias(streams.KEY)
    return kept.where(f"{streams.KEY} IS NOT NULL").select(key, *form.schema.names, DELETED, *METADATA[1:])


def _metadata() -> list[Column]:
    return [F.col(name.removeprefix("_")).alias(name) for name in METADATA]
