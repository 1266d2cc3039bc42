"""Rows into Redshift, exactly once: tasks write Parquet files into S3, the driver has Redshift COPY them by a manifest.

What is decided is in `redshift_rules`; here it is done.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from moldau.spark.exactly_once import Mark
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.batch_rules import is_next, offsets_by_topic
from moldau.spark.pipelines.batch_writing import column_of, write_batches
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.lake import lake_rows, stage_rows
from moldau.spark.pipelines.lake_rules import LakeRows, first_line
from moldau.spark.pipelines.postgres import psycopg
from moldau.spark.pipelines.postgres_rules import LEDGER
from moldau.spark.pipelines.queries import WriteBatch
from moldau.spark.pipelines.redshift_rules import RedshiftTable, manifest, range_name, sql_type, staged_type
from moldau.spark.pipelines.staged_files import Place, StagedFile, directory_of

_NESTED = ("array<", "struct<", "map<")


class RowsLost(RuntimeError):
    """Redshift has copied another number of rows than tasks wrote: the batch must be done again."""


@dataclass(frozen=True, slots=True)
class S3Storage:
    """A bucket, or a part of it. `options` are those of Arrow's S3FileSystem; credentials that are not among them are
    found where AWS's own tools find them."""

    url: str
    options: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith("s3://") or not self.url.removeprefix("s3://").strip("/"):
            raise PipelineError(f"{self.url!r} is no place in S3: write s3://bucket/prefix")

    @property
    def root(self) -> str:
        return self.url.rstrip("/")

    def open(self) -> Any:
        return pafs.SubTreeFileSystem(self.root.removeprefix("s3://"), pafs.S3FileSystem(**self.options))


class RedshiftWriter:
    """The batches of one query, one after the other. A connection per step: minutes may lie between two batches."""

    def __init__(self, dsn: str, table: RedshiftTable, storage: S3Storage, iam_role: str, query: str) -> None:
        self.storage = storage
        self._dsn = dsn
        self._table = table
        self._iam_role = iam_role
        self._query = query

    def prepare(self) -> None:
        """Make the tables that are not there, and look whether the target can take the rows."""
        table, place = self._table, Place.of("", self._query, 0)
        try:
            with self._connect() as connection:
                connection.execute(table.create_ledger())
                connection.execute(table.create())
                connection.execute(table.create_staging(place.token))
                # Planned, not done: Redshift says what does not fit.
                for statement in table.take_over(place.token):
                    connection.execute("EXPLAIN " + statement)
                connection.execute(table.drop_staging(place.token))
        except psycopg().Error as error:
            raise PipelineError(f"Redshift cannot take rows for table {table.name}: {first_line(error)}") from error
        try:
            self.storage.open().get_file_info(place.directory)
        except OSError as error:
            raise PipelineError(f"{self.storage.url} cannot be reached: {first_line(error)}") from error

    def begin(self, batch: NumberedBatch) -> Place | None:
        with self._connect() as connection:
            stored, before = self._stored(connection)
        prefix = f"{directory_of(self._query)}/batch-{batch.batch_id:020d}_"
        if not self._is_next(stored, batch.mark):
            self._remove_left(prefix)
            return None
        return Place.fresh(prefix + range_name(before, offsets_by_topic(batch.sources)))

    def _remove_left(self, prefix: str) -> None:
        """What a driver has left that was killed behind its commit. The ledger no longer knows the directory's name."""
        filesystem = self.storage.open()
        selector = pafs.FileSelector(prefix.rpartition("/")[0], allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            if info.path.startswith(prefix):
                filesystem.delete_dir_contents(info.path, missing_dir_ok=True)

    def commit(self, batch: NumberedBatch, place: Place, files: Sequence[StagedFile]) -> bool:
        filesystem = self.storage.open()
        named = f"{place.directory}/{place.token}.manifest"
        if files:
            with filesystem.open_output_stream(named) as out:
                out.write(manifest(self.storage.root, files).encode())
        with self._connect() as connection:
            # First of all: what is read behind it is what the driver before has left.
            connection.execute(self._table.lock_ledger())
            is_wanted = self._is_next(self._stored(connection)[0], batch.mark)
            if is_wanted:
                if files:
                    self._copy(connection, place.token, f"{self.storage.root}/{named}", files)
                self._write_mark(connection, batch)
        if is_wanted:
            # All begins of the batch: from now on none of them can be committed.
            filesystem.delete_dir_contents(place.directory, missing_dir_ok=True)
        return is_wanted

    def _copy(self, connection: Any, token: str, manifest_url: str, files: Sequence[StagedFile]) -> None:
        table, expected = self._table, sum(one.row_count for one in files)
        connection.execute(table.create_staging(token))
        connection.execute(table.copy(token, manifest_url, self._iam_role))
        (found,) = connection.execute(table.count_staged(token)).fetchone()
        if found != expected:
            raise RowsLost(f"Redshift copied {found} of the {expected} rows that {manifest_url} names")
        for statement in table.take_over(token):
            connection.execute(statement)
        connection.execute(table.drop_staging(token))

    def _write_mark(self, connection: Any, batch: NumberedBatch) -> None:
        offsets = json.dumps(offsets_by_topic(batch.sources))
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None).isoformat(" ")
        mark = batch.mark
        connection.execute(self._table.forget(), (self._query,))
        connection.execute(
            self._table.write_ledger(), (self._query, mark.query_id, mark.batch_id, mark.digest, offsets, now)
        )

    def _stored(self, connection: Any) -> tuple[Mark | None, dict[str, dict[str, int]]]:
        row = connection.execute(self._table.read_ledger(), (self._query,)).fetchone()
        return (None, {}) if row is None else (Mark(*row[:3]), json.loads(row[3]))

    def _is_next(self, stored: Mark | None, mark: Mark) -> bool:
        name = f"{self._query!r} in Redshift's table {LEDGER}"
        return is_next(stored, mark, name, "name of the pipeline or the query")

    def _connect(self) -> Any:
        pg = psycopg()
        # Plain queries with their values in them: Redshift knows no types of psycopg's parameters.
        return pg.connect(self._dsn, cursor_factory=pg.ClientCursor)


@dataclass(frozen=True, slots=True)
class RedshiftSink:
    """A table, which is made when it is not there. `dsn` and `storage` may hold secrets, so they are not shown."""

    table: RedshiftTable
    rows: LakeRows
    dsn: str = field(repr=False)
    storage: S3Storage
    iam_role: str

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        writer = RedshiftWriter(self.dsn, self.table, self.storage, self.iam_role, query)
        writer.prepare()
        return write_batches(writer, self._stage)

    def _stage(self, rows: DataFrame, place: Place) -> list[StagedFile]:
        return stage_rows(_with_texts(rows), self.storage, place, self.rows)


def redshift_sink(
    dsn: str,
    table: str,
    schema: StructType,
    columns: Sequence[str],
    keys: Sequence[str],
    order: Sequence[str],
    *,
    s3: str,
    iam_role: str,
    s3_options: Mapping[str, Any] | None,
) -> RedshiftSink:
    """The sink for `columns` of rows with that schema; `order` may name others that are not kept."""
    typed, fields = [], []
    for column in columns:
        spark_type = schema[column].dataType.simpleString()
        kind = sql_type("string" if spark_type.startswith(_NESTED) else spark_type)
        if kind is None:
            raise PipelineError(
                f"column {column} is {spark_type}, which cannot be copied into Redshift: cast it, or leave it out"
            )
        typed.append((column, kind))
        staged = pa.string() if spark_type.startswith(_NESTED) else lake_rows(schema, [column]).schema.field(0).type
        fields.append(pa.field(column, staged_type(staged)))
    rows = LakeRows(pa.schema(fields), tuple(keys), tuple(order))
    target = RedshiftTable(table, tuple(typed), tuple(keys))
    return RedshiftSink(target, rows, dsn, S3Storage(s3, dict(s3_options or {})), iam_role)


def _with_texts(rows: DataFrame) -> DataFrame:
    """What is nested as JSON."""
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    for one in rows.schema.fields:
        if one.dataType.simpleString().startswith(_NESTED):
            rows = rows.withColumn(one.name, F.to_json(column_of(one.name), options))
    return rows
