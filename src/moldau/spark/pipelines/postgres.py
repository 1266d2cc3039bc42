"""Rows into PostgreSQL, exactly once: tasks copy into a staging table, the driver takes over in one transaction.

What is decided is in `postgres_rules`; here it is done. `BatchWriter` is the driver's side, `copy_rows` the tasks', and
both work without Spark; `PostgresSink` has Spark run them.
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from moldau.spark.exactly_once import Mark
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.batch_rules import is_next, offsets_by_topic
from moldau.spark.pipelines.batch_writing import column_of, in_tasks, write_batches
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.postgres_rules import LEDGER, Copied, TargetTable, copy_text, sql_type
from moldau.spark.pipelines.queries import WriteBatch

# Any number, as long as all drivers take the same one: tables are made by one of them at a time.
_MAKING_TABLES = 0x6D6F6C6461750001
_NUL, _REPLACEMENT = "\0", "\ufffd"
# A NUL in JSON, which jsonb refuses as text does; not the text `u0000` behind an escaped backslash.
_NUL_IN_JSON = r"(?<!\\)((?:\\\\)*)\\u0000"


class BatchLost(RuntimeError):
    """The staging table has not what the tasks copied: the batch must be done again."""


def psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError:
        raise PipelineError("PostgreSQL needs psycopg: pip install 'moldau[postgres]'") from None


# -- the driver --------------------------------------------------------------------------------------------------------


class BatchWriter:
    """The batches of one query, one after the other. A connection per step: minutes may lie between two batches."""

    def __init__(self, dsn: str, table: TargetTable, query: str) -> None:
        self._dsn = dsn
        self._table = table
        self._query = query

    def prepare(self) -> None:
        """Make the tables that are not there, and look whether the target can take the rows."""
        pg = psycopg()
        table = self._table
        try:
            with pg.connect(self._dsn) as connection:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING_TABLES,))
                connection.execute(table.create_ledger())
                if connection.execute("SELECT to_regclass(%s)", (table.quoted,)).fetchone() == (None,):
                    connection.execute(table.create())
                staging = self._staging_name()
                connection.execute(table.create_staging(staging))
                # Planned, not done: PostgreSQL says what does not fit.
                connection.execute("EXPLAIN " + table.take_over(staging, ()))
                connection.execute(table.drop_staging(staging))
        except pg.errors.InvalidColumnReference:
            raise PipelineError(
                f"PostgreSQL's table {table.name} has no unique constraint on ({', '.join(table.keys)}), and rows are "
                "replaced by these columns: add one, or let the pipeline make the table"
            ) from None
        except pg.Error as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PipelineError(f"PostgreSQL cannot take rows for table {table.name}: {said}") from error

    def begin(self, batch: NumberedBatch) -> str | None:
        """An empty staging table for the batch; None when the batch is in already."""
        with psycopg().connect(self._dsn) as connection:
            if not self._is_next(connection, batch.mark):
                return None
            for left in self._left_behind(connection):
                connection.execute(self._table.drop_staging(left))
            staging = self._staging_name()
            connection.execute(self._table.create_staging(staging))
        return staging

    def commit(self, batch: NumberedBatch, staging: str, copied: Sequence[Copied]) -> bool:
        """Take over what the tasks copied, together with the batch's mark. False when another driver did before."""
        table, mark = self._table, batch.mark
        with psycopg().connect(self._dsn) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self._query,))
            is_wanted = self._is_next(connection, mark)
            if is_wanted:
                expected = sum(one.row_count for one in copied)
                try:
                    (found,) = connection.execute(table.count_staged(staging, copied)).fetchone()
                except psycopg().errors.UndefinedTable:
                    raise BatchLost(_lost(batch, 0, expected)) from None
                if found != expected:
                    raise BatchLost(_lost(batch, found, expected))
                connection.execute(table.take_over(staging, copied))
                stored = (
                    self._query,
                    mark.query_id,
                    mark.batch_id,
                    mark.digest,
                    json.dumps(offsets_by_topic(batch.sources)),
                )
                connection.execute(table.write_ledger(), stored)
            connection.execute(table.drop_staging(staging))
        return is_wanted

    def _is_next(self, connection: Any, mark: Mark) -> bool:
        row = connection.execute(self._table.read_ledger(), (self._query,)).fetchone()
        name = f"{self._query!r} in PostgreSQL's table {LEDGER}"
        return is_next(None if row is None else Mark(*row), mark, name, "name of the pipeline or the query")

    def _left_behind(self, connection: Any) -> list[str]:
        """Staging tables of batches that were not finished. One whose driver still runs fails, and begins again."""
        schema = self._table.name.rpartition(".")[0] or None
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) "
            "AND starts_with(tablename, %s)",
            (schema, self._table.staging_prefix(self._query)),
        )
        return [name for (name,) in found]

    def _staging_name(self) -> str:
        return self._table.staging_prefix(self._query) + secrets.token_hex(8)


def _lost(batch: NumberedBatch, found: int, expected: int) -> str:
    return (
        f"batch {batch.batch_id}: PostgreSQL holds {found} of the {expected} rows that tasks copied, for it was "
        "restarted or another driver runs the query: nothing of the batch is visible, and it is done again"
    )


# -- tasks -------------------------------------------------------------------------------------------------------------


def copy_rows(dsn: str, table: TargetTable, staging: str, attempt: int, batches: Iterable[Any]) -> Copied:
    """Copy rows in one transaction: all that an attempt reports is there, and of one that failed nothing."""
    row_count = 0
    with psycopg().connect(dsn) as connection, connection.cursor().copy(table.copy(staging)) as copy:
        for batch in batches:
            copy.write(copy_text(batch, attempt))
            row_count += batch.num_rows
    return Copied(attempt, row_count)


# -- Spark -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """A table, which is made when it is not there. `dsn` may hold a password, so it is not shown."""

    table: TargetTable
    dsn: str = field(repr=False)

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        writer = BatchWriter(self.dsn, self.table, query)
        writer.prepare()

        return write_batches(writer, self._copy)

    def _copy(self, rows: DataFrame, staging: str) -> list[Copied]:
        dsn, table = self.dsn, self.table
        staged = rows.select(*(_writable(rows.schema, name) for name in table.staged))
        return in_tasks(staged, lambda attempt, batches: copy_rows(dsn, table, staging, attempt, batches))


def target_table(
    name: str,
    schema: StructType,
    columns: Sequence[str],
    keys: Sequence[str] = (),
    *,
    order: tuple[str, ...] = (),
    order_columns: tuple[str, ...] = (),
) -> TargetTable:
    """The table for `columns` of rows with that schema."""
    typed = []
    for column in columns:
        spark_type = schema[column].dataType.simpleString()
        kind = sql_type(spark_type)
        if kind is None:
            raise PipelineError(f"column {column} is {spark_type}, which PostgreSQL has not: cast it, or leave it out")
        typed.append((column, kind))
    return TargetTable(name, tuple(typed), tuple(keys), order, order_columns)


def _writable(schema: StructType, name: str) -> Column:
    """A column as COPY's text can hold it."""
    column = column_of(name)
    spark_type = schema[name].dataType.simpleString()
    if spark_type == "string":
        written = F.translate(column, _NUL, _REPLACEMENT)
    elif spark_type == "binary":
        written = F.concat(F.lit("\\x"), F.hex(column))
    elif sql_type(spark_type) == "jsonb":
        text = F.to_json(column, {"timeZone": "UTC", "ignoreNullFields": "false"})
        written = F.regexp_replace(text, _NUL_IN_JSON, "$1" + r"\\ufffd")
    else:
        written = column
    return written.alias(name)
