"""`Stream`: rows that come one after the other, and what can be made of them.

A thin layer: every method says in one line what it asks of Spark. `df` is the DataFrame underneath, `through` takes
plain Spark code, and whatever comes out of that is a stream again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from moldau.spark.pipelines import lookups
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.keys import TIME_PATTERN
from moldau.spark.pipelines.lake import DeltaSink, IcebergSink, lake_rows
from moldau.spark.pipelines.parquet import ParquetSink
from moldau.spark.pipelines.postgres import PostgresSink, target_table
from moldau.spark.pipelines.queries import COMPACTED, FunctionSink, OutputMode, Query, TopicSink, WriteBatch
from moldau.spark.pipelines.redshift import redshift_sink

if TYPE_CHECKING:
    from moldau.spark.pipelines.tables import Table

# What a record brings along beside its value.
KEY, PARTITION, OFFSET, TIMESTAMP = METADATA = ("_key", "_partition", "_offset", "_timestamp")
WINDOW_START, WINDOW_END = "window_start", "window_end"
_WINDOW = "__moldau_window"
_UTC = {"timeZone": "UTC"}  # what is written does not depend on where it runs
JoinHow = Literal["inner", "left"]


@dataclass(frozen=True)
class Watermark:
    """Which column says when something happened, and how late it may come."""

    column: str
    delay: str


@dataclass(frozen=True)
class Stream:
    """Rows without end."""

    df: DataFrame
    event_time: Watermark | None = None

    # -- row by row ----------------------------------------------------------------------------------------------------

    def through(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Plain Spark code: `stream.through(lambda df: df.where("amount > 0"))`."""
        return replace(self, df=function(self.df))

    def where(self, condition: str | Column) -> Stream:
        return replace(self, df=self.df.where(condition))

    def select(self, *columns: str | Column) -> Stream:
        """Columns and expressions, `"amount * 2 AS double"`."""
        return replace(self, df=self.df.select(*(F.expr(one) if isinstance(one, str) else one for one in columns)))

    def with_column(self, name: str, value: str | Column) -> Stream:
        return replace(self, df=self.df.withColumn(name, F.expr(value) if isinstance(value, str) else value))

    # -- time ----------------------------------------------------------------------------------------------------------

    def watermark(self, column: str, delay: str) -> Stream:
        """Events are at the time in `column`, and at most `delay` late; later ones are left out of windows."""
        self._check_columns([column])
        return Stream(self.df.withWatermark(column, delay), Watermark(column, delay))

    def deduplicate(self, *columns: str, within: str | None = None) -> Stream:
        """The first row of each combination. Without `within` the event's time is a part of it, and it is remembered
        until the watermark is past; `within` the watermark's delay, rows count as the same whatever their time."""
        self._check_columns(columns)
        time = self._time("deduplicate")
        if within is None:
            return replace(self, df=self.df.dropDuplicates([*columns, *({time.column} - set(columns))]))
        if within != time.delay:
            raise PipelineError(
                f"deduplicate(within={within!r}): Spark keeps what it has seen for the watermark's delay, which is "
                f"{time.delay!r}: give that, or change the watermark"
            )
        return replace(self, df=self.df.dropDuplicatesWithinWatermark([*columns]))

    # -- joins ---------------------------------------------------------------------------------------------------------

    def join(self, table: Table, on: str, how: JoinHow = "inner", prefix: str = "") -> Stream:
        """Each event with the row of `table` whose key is the event's column `on`, as the table is when it comes.

        A change or a tombstone of the table is seen by the events of the same micro-batch and of all later ones.
        """
        self._check_columns([on])
        joined = lookups.join(self.df, table, on, how, prefix)
        return Stream(joined, None)

    def join_stream(
        self, other: Stream, on: str | Sequence[str], within: str, how: JoinHow = "inner", prefix: str = ""
    ) -> Stream:
        """Events of both streams that are equal in `on` and at most `within` apart."""
        mine, theirs = self._time("join_stream"), other._time("join_stream")
        keys = [on] if isinstance(on, str) else [*on]
        self._check_columns(keys)
        other._check_columns(keys)
        right = other.df.drop(*METADATA)
        renamed = {name: f"__moldau_{name}" if name in keys else prefix + name for name in right.columns}
        _check_distinct(self.df.columns, [renamed[name] for name in right.columns if name not in keys])
        for name, new in renamed.items():
            right = right.withColumnRenamed(name, new)
        time, other_time = F.col(mine.column), F.col(renamed[theirs.column])
        margin = F.expr(f"INTERVAL {within}")
        condition = (other_time >= time - margin) & (other_time <= time + margin)
        for name in keys:
            condition = condition & (F.col(name) == F.col(renamed[name]))
        joined = self.df.join(right, condition, how).drop(*(renamed[name] for name in keys))
        return Stream(joined, self.event_time)

    # -- groups --------------------------------------------------------------------------------------------------------

    def by(self, *columns: str) -> Grouped:
        """All rows of a key, from the beginning; the state has a row for every key."""
        return self._grouped(columns, None, "update")

    def tumbling(self, size: str, by: str | Sequence[str] = ()) -> Grouped:
        """Windows side by side: each row is in one."""
        time = self._time("tumbling").column
        return self._grouped(_names(by), F.window(time, size), "update")

    def hopping(self, size: str, every: str, by: str | Sequence[str] = ()) -> Grouped:
        """Windows that begin `every` so often and overlap."""
        time = self._time("hopping").column
        return self._grouped(_names(by), F.window(time, size, every), "update")

    def session(self, gap: str, by: str | Sequence[str]) -> Grouped:
        """Windows that end when nothing came for `gap`. A row comes once, when its session is over: sessions grow
        together, so that what is said earlier may have to be taken back."""
        time = self._time("session").column
        return self._grouped(_names(by), F.session_window(time, gap), "append")

    def _grouped(self, columns: Sequence[str], window: Column | None, mode: OutputMode) -> Grouped:
        self._check_columns(columns)
        if not columns and window is None:
            raise PipelineError("by() needs a column")
        return Grouped(self.df, tuple(columns), window, mode)

    # -- out -----------------------------------------------------------------------------------------------------------

    def to_topic(
        self, topic: str, key: str | Column | None = None, *, name: str | None = None, partitions: int = -1
    ) -> Query:
        """Rows as JSON objects into a topic, exactly once."""
        columns = [one for one in self.df.columns if one not in METADATA]
        value = F.to_json(F.struct(*columns), _UTC).alias("value")
        keys = [] if key is None else [(F.col(key) if isinstance(key, str) else key).cast("string").alias("key")]
        return Query(name or topic, self.df.select(*keys, value), TopicSink(topic, partitions))

    def to_postgres(
        self, dsn: str, table: str, key: str | Sequence[str] = (), *, newest: str | None = None, name: str | None = None
    ) -> Query:
        """Rows into a table of PostgreSQL, exactly once; the table is made when it is not there.

        With `key`, columns, a row replaces the one that has the same. Of several in one micro-batch the one with the
        highest `newest` stays, or the last of the topic's partition.
        """
        keys = tuple(_names(key))
        order = self._order(keys, newest)
        metadata = tuple(one for one in order if one in METADATA)
        columns = [one for one in self.df.columns if one not in METADATA]
        target = target_table(table, self.df.schema, columns, keys, order=order, order_columns=metadata)
        return Query(name or table, self.df.select(*target.staged), PostgresSink(target, dsn))

    def to_parquet(self, directory: str | Path, topic: str, *, by: str | None = None, name: str | None = None) -> Query:
        """Rows into Parquet files, exactly once, laid out and named as `moldau topic export` does it; with `by`, a
        column of texts, in a directory for each of its values."""
        lost = [one for one in (PARTITION, OFFSET) if one not in self.df.columns]
        if lost:
            raise PipelineError(f"the stream has no {lost[0]}, which names the files: keep {PARTITION} and {OFFSET}")
        if by is not None:
            self._check_columns([by])
        return Query(name or f"{topic}-parquet", self.df, ParquetSink(str(directory), topic, by))

    def to_delta(
        self,
        uri: str | Path,
        key: str | Sequence[str] = (),
        *,
        newest: str | None = None,
        name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Query:
        """Rows into a Delta table, exactly once; the table is made when it is not there.

        With `key`, columns, a row replaces the one that has the same, as in `to_postgres`. `options` are those of
        deltalake's storage, for tables that are not on a disk.
        """
        keys = tuple(_names(key))
        rows = lake_rows(self.df.schema, self.df.columns, keys, self._order(keys, newest))
        return Query(name or f"{_last(uri)}-delta", self.df, DeltaSink(str(uri), rows, dict(options or {})))

    def to_iceberg(
        self,
        table: str,
        key: str | Sequence[str] = (),
        *,
        catalog: str | Mapping[str, str],
        newest: str | None = None,
        name: str | None = None,
    ) -> Query:
        """Rows into an Iceberg table, exactly once; it is made when it is not there. With `key` as in `to_delta`.

        `catalog` is the name of one that pyiceberg is configured with, or its properties: `{"uri": ..., "warehouse":
        ...}`.
        """
        keys = tuple(_names(key))
        rows = lake_rows(self.df.schema, self.df.columns, keys, self._order(keys, newest))
        return Query(name or f"{table}-iceberg", self.df, IcebergSink(catalog, table, rows))

    def to_redshift(
        self,
        dsn: str,
        table: str,
        key: str | Sequence[str] = (),
        *,
        s3: str,
        iam_role: str = "default",
        newest: str | None = None,
        name: str | None = None,
        s3_options: Mapping[str, Any] | None = None,
    ) -> Query:
        """Rows into a table of Redshift by way of files in `s3`, exactly once; it is made when it is not there. With
        `key` as in `to_postgres`. `s3_options` are those of Arrow's S3FileSystem."""
        keys = tuple(_names(key))
        columns = [one for one in self.df.columns if one not in METADATA]
        order = self._order(keys, newest)
        sink = redshift_sink(
            dsn, table, self.df.schema, columns, keys, order, s3=s3, iam_role=iam_role, s3_options=s3_options
        )
        return Query(name or f"{table}-redshift", self.df, sink)

    def to_function(self, write: WriteBatch, *, name: str, output_mode: OutputMode = "append") -> Query:
        """Batches to a function of your own, as `foreachBatch` calls it."""
        return Query(name, self.df, FunctionSink(write), output_mode)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _time(self, what: str) -> Watermark:
        if self.event_time is None:
            raise PipelineError(
                f"{what} needs to know when things happened: call watermark(column, delay) first, after a join with a "
                "table once more"
            )
        return self.event_time

    def _order(self, keys: Sequence[str], newest: str | None) -> tuple[str, ...]:
        """The columns that tell which of several rows with one key is the last."""
        metadata = tuple(one for one in (PARTITION, OFFSET) if keys and one in self.df.columns)
        if newest is not None:
            self._check_columns([newest])
        elif keys and OFFSET not in metadata:
            raise PipelineError(
                f"which of two rows with one key is the newer? give newest='a column', or keep {OFFSET}"
            )
        return (*(() if newest is None else (newest,)), *metadata)

    def _check_columns(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in self.df.columns:
                raise PipelineError(f"there is no column {name!r}; there is {', '.join(self.df.columns)}")


@dataclass(frozen=True)
class Grouped:
    """Rows by key and window, to be aggregated."""

    df: DataFrame
    columns: tuple[str, ...]
    window: Column | None
    mode: OutputMode

    def count(self, name: str = "count") -> Aggregation:
        return self.agg(**{name: F.count("*")})

    def agg(self, **columns: str | Column) -> Aggregation:
        """Columns of Spark's aggregate functions: `agg(total=F.sum("amount"), last="max(at)")`."""
        chosen = [(F.expr(one) if isinstance(one, str) else one).alias(name) for name, one in columns.items()]
        if not chosen:
            raise PipelineError("agg() needs a column, such as total=F.sum('amount')")
        if self.window is None:
            return Aggregation(self.df.groupBy(*self.columns).agg(*chosen), self.columns, False, self.mode)
        grouped = self.df.groupBy(*self.columns, self.window.alias(_WINDOW)).agg(*chosen)
        bounds = [F.col(_WINDOW)["start"].alias(WINDOW_START), F.col(_WINDOW)["end"].alias(WINDOW_END)]
        return Aggregation(grouped.select(*self.columns, *bounds, *columns), self.columns, True, self.mode)


@dataclass(frozen=True)
class Aggregation:
    """One row per key and window; `df` has each row's newest state whenever it changes."""

    df: DataFrame
    keys: tuple[str, ...]
    is_windowed: bool
    output_mode: OutputMode

    def through(self, function: Callable[[DataFrame], DataFrame]) -> Aggregation:
        """Plain Spark code that keeps the key's columns."""
        return replace(self, df=function(self.df))

    def to_table(
        self, topic: str, *, name: str | None = None, partitions: int = -1, configs: Mapping[str, str] | None = None
    ) -> Query:
        """Rows as JSON objects into a compacted topic, one record per key and window, exactly once.

        `configs` are the topic's, when it is made: `{"cleanup.policy": "compact,delete", "retention.ms": ...}` lets old
        windows go.
        """
        value = F.to_json(F.struct(*self.df.columns), {**_UTC, "ignoreNullFields": "false"}).alias("value")
        rows = self.df.select(key_column(self.keys, self.is_windowed).alias("key"), value)
        sink = TopicSink(topic, partitions, {**COMPACTED, **(configs or {})})
        return Query(name or topic, rows, sink, self.output_mode)

    def to_postgres(self, dsn: str, table: str, *, name: str | None = None) -> Query:
        """One row per key and window in a table of PostgreSQL, replaced when it changes, exactly once."""
        target = target_table(table, self.df.schema, self.df.columns, self._row_keys)
        return Query(name or table, self.df, PostgresSink(target, dsn), self.output_mode)

    def to_delta(self, uri: str | Path, *, name: str | None = None, options: Mapping[str, str] | None = None) -> Query:
        """One row per key and window in a Delta table, replaced when it changes, exactly once."""
        rows = lake_rows(self.df.schema, self.df.columns, self._row_keys)
        sink = DeltaSink(str(uri), rows, dict(options or {}))
        return Query(name or f"{_last(uri)}-delta", self.df, sink, self.output_mode)

    def to_function(self, write: WriteBatch, *, name: str) -> Query:
        """Batches to a function of your own, as `foreachBatch` calls it."""
        return Query(name, self.df, FunctionSink(write), self.output_mode)

    def to_iceberg(self, table: str, *, catalog: str | Mapping[str, str], name: str | None = None) -> Query:
        """One row per key and window in an Iceberg table, replaced when it changes, exactly once."""
        rows = lake_rows(self.df.schema, self.df.columns, self._row_keys)
        return Query(name or f"{table}-iceberg", self.df, IcebergSink(catalog, table, rows), self.output_mode)

    def to_redshift(
        self,
        dsn: str,
        table: str,
        *,
        s3: str,
        iam_role: str = "default",
        name: str | None = None,
        s3_options: Mapping[str, Any] | None = None,
    ) -> Query:
        """One row per key and window in a table of Redshift, replaced when it changes, exactly once."""
        columns, keys = self.df.columns, self._row_keys
        sink = redshift_sink(
            dsn, table, self.df.schema, columns, keys, (), s3=s3, iam_role=iam_role, s3_options=s3_options
        )
        return Query(name or f"{table}-redshift", self.df, sink, self.output_mode)

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return (*self.keys, WINDOW_START) if self.is_windowed else self.keys


def key_column(keys: Sequence[str], is_windowed: bool) -> Column:
    """The rule of `keys.row_key` in Spark's words."""
    texts = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in keys]
    if len(texts) == 1 and not is_windowed:
        return texts[0]
    if is_windowed:
        # Not through the session's time zone: in the night when clocks go back, two hours have one name there.
        start = F.to_json(
            F.struct(F.col(WINDOW_START).alias("t")), {"timeZone": "UTC", "timestampFormat": TIME_PATTERN}
        )
        texts.append(F.get_json_object(start, "$.t"))
    return F.to_json(F.array(*texts))


def _last(uri: str | Path) -> str:
    return str(uri).rstrip("/").rpartition("/")[2]


def _names(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _check_distinct(left: Sequence[str], right: Sequence[str]) -> None:
    twice = sorted(set(left) & set(right))
    if twice:
        raise PipelineError(f"both sides have {', '.join(twice)}: give prefix='...' for those of the second one")
