"""What the PostgreSQL sink decides, without Spark and without a server: statements, types, and rows as COPY reads them.

State      of a query, in the table `moldau_batches` beside its target: the newest batch that is in, and up to where
           that batch has read its topics.
Events     Spark hands over batch N; tasks report what they copied, or fail.
Effects    an empty staging table; each task copies into it, in a transaction of its own, rows that say whose they are;
           then one transaction of the driver: take the query's lock, read the state again, take over the rows of the
           tasks that reported, say that N is in.

Invariants
1. The rows of N and the word that N is in become visible together, or neither does.
2. Of a task that was tried twice the rows of one attempt are taken: the one whose report Spark has.
3. As many rows are taken as were reported. The staging table is not logged, so a server that crashed has emptied it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moldau.spark.pipelines.errors import PipelineError

LEDGER = "moldau_batches"
ATTEMPT = "moldau_attempt"
_NAME_BYTES_MAX = 63  # NAMEDATALEN - 1: PostgreSQL cuts longer names silently
_TYPES = {
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DECIMAL = re.compile(r"decimal(\(\d+,\d+\))")
_NESTED = ("array<", "struct<", "map<")
# COPY's text format.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_NULL = "\\N"
_DAY_US = 86_400_000_000
_YEAR_1_US, _YEAR_10000_US = -719_162 * _DAY_US, 2_932_897 * _DAY_US
# What PostgreSQL's dates can be: from 4714-11-24 BC to 5874897-12-31. Its timestamps end later than Spark's.
_DAYS_MIN, _DAYS_MAX = -2_440_588, 2_145_042_540


def sql_type(spark_type: str) -> str | None:
    """PostgreSQL's type for one of Spark's, None where it has none. What is nested becomes JSON."""
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal:
        return f"numeric{decimal[1]}"
    return "jsonb" if spark_type.startswith(_NESTED) else _TYPES.get(spark_type)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Copied:
    """What one attempt of a task has put into the staging table."""

    attempt: int
    row_count: int


@dataclass(frozen=True, slots=True)
class TargetTable:
    """Where rows go. `columns` are names and PostgreSQL's types.

    With `keys` a row replaces the one that has the same; of several in one batch the last one by `order` stays, which
    names columns of the row or of `order_columns`, bigints that are staged but not kept.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    order_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) > 2 or not all(parts):
            raise PipelineError(f"{self.name!r} is no name of a table: write table, or schema.table")
        names = [name for name, _ in self.columns]
        for name in (*parts, *names):
            if len(name.encode()) > _NAME_BYTES_MAX:
                raise PipelineError(f"PostgreSQL's names have at most {_NAME_BYTES_MAX} bytes: {name!r}")
        if ATTEMPT in names:
            raise PipelineError(f"{ATTEMPT} is the sink's own column: give yours another name")
        lost = [key for key in self.keys if key not in names]
        if lost:
            raise PipelineError(f"there is no column {lost[0]!r}; there is {', '.join(names)}")

    @property
    def quoted(self) -> str:
        return ".".join(quoted(part) for part in self.name.split("."))

    @property
    def staged(self) -> tuple[str, ...]:
        """The columns of a staged row, in the order in which they are copied; the attempt comes last."""
        return (*(name for name, _ in self.columns), *self.order_columns)

    def beside(self, name: str) -> str:
        """A table in the same schema."""
        schema, dot, _ = self.name.rpartition(".")
        return f"{quoted(schema)}.{quoted(name)}" if dot else quoted(name)

    def staging_prefix(self, query: str) -> str:
        return f"moldau_staging_{hashlib.sha256(query.encode()).hexdigest()[:16]}_"

    # -- statements ----------------------------------------------------------------------------------------------------

    def create(self) -> str:
        columns = [f"{quoted(name)} {kind}" for name, kind in self.columns]
        if self.keys:
            # A group of nulls is one row, too.
            columns.append(f"UNIQUE NULLS NOT DISTINCT ({_list(self.keys)})")
        return f"CREATE TABLE {self.quoted} ({', '.join(columns)})"

    def create_ledger(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self.beside(LEDGER)} (query text PRIMARY KEY, query_id text NOT NULL, "
            "batch_id bigint NOT NULL, digest text NOT NULL, offsets jsonb NOT NULL, "
            "committed_at timestamptz NOT NULL DEFAULT now())"
        )

    def read_ledger(self) -> str:
        return f"SELECT query_id, batch_id, digest FROM {self.beside(LEDGER).replace('%', '%%')} WHERE query = %s"

    def write_ledger(self) -> str:
        ledger = self.beside(LEDGER).replace("%", "%%")
        return (
            f"INSERT INTO {ledger} (query, query_id, batch_id, digest, offsets) VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT (query) DO UPDATE SET query_id = EXCLUDED.query_id, batch_id = EXCLUDED.batch_id, "
            "digest = EXCLUDED.digest, offsets = EXCLUDED.offsets, committed_at = now()"
        )

    def create_staging(self, staging: str) -> str:
        columns = [quoted(name) for name, _ in self.columns]
        columns += [f"0::bigint AS {quoted(name)}" for name in (*self.order_columns, ATTEMPT)]
        empty = f"SELECT {', '.join(columns)} FROM {self.quoted} WHERE false"
        return f"CREATE UNLOGGED TABLE {self.beside(staging)} AS {empty}"

    def drop_staging(self, staging: str) -> str:
        return f"DROP TABLE IF EXISTS {self.beside(staging)}"

    def copy(self, staging: str) -> str:
        return f"COPY {self.beside(staging)} ({_list((*self.staged, ATTEMPT))}) FROM STDIN"

    def count_staged(self, staging: str, copied: Sequence[Copied]) -> str:
        return f"SELECT count(*) FROM {self.beside(staging)} WHERE {_attempts(copied)}"

    def take_over(self, staging: str, copied: Sequence[Copied]) -> str:
        names = [name for name, _ in self.columns]
        columns, source = _list(names), f"{self.beside(staging)} WHERE {_attempts(copied)}"
        if not self.keys:
            return f"INSERT INTO {self.quoted} ({columns}) SELECT {columns} FROM {source}"
        order = [quoted(key) for key in self.keys] + [f"{quoted(name)} DESC NULLS LAST" for name in self.order]
        rest = [f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in names if name not in self.keys]
        then = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"
        return (
            f"INSERT INTO {self.quoted} ({columns}) SELECT DISTINCT ON ({_list(self.keys)}) {columns} FROM {source} "
            f"ORDER BY {', '.join(order)} ON CONFLICT ({_list(self.keys)}) DO {then}"
        )


def _list(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _attempts(copied: Sequence[Copied]) -> str:
    return f"{quoted(ATTEMPT)} = ANY (ARRAY[{', '.join(str(one.attempt) for one in copied)}]::bigint[])"


# -- rows --------------------------------------------------------------------------------------------------------------


def copy_text(batch: Any, attempt: int) -> bytes:
    """An Arrow batch in COPY's text format, a line for each row, with the attempt behind its columns."""
    if not batch.num_rows:
        return b""
    texts = [pc.fill_null(_texts(column), _large(_NULL)) for column in batch.columns]
    lines = pc.binary_join_element_wise(*texts, _large(f"{attempt}\n"), _large("\t"))
    size = pc.sum(pc.binary_length(lines)).as_py()
    return bytes(memoryview(lines.buffers()[2])[:size])


def _large(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _texts(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        # Arrow keeps instants: what is left without the zone is UTC.
        zone = "" if column.type.tz is None else "+00"
        naive = column.cast(pa.timestamp("us"))
        texts = pc.binary_join_element_wise(naive.cast(pa.large_string()), _large(zone), _large(""))
        return _with_far_times(texts, naive.cast(pa.int64()), lambda us: _far_time(*divmod(us, _DAY_US), zone))
    if pa.types.is_date32(column.type):
        days = column.cast(pa.int32()).cast(pa.int64())
        texts = column.cast(pa.large_string())
        return _with_far_times(texts, pc.multiply(days, _DAY_US), lambda us: _far_time(us // _DAY_US, None, ""))
    texts = column.cast(pa.large_string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for plain, escaped in _ESCAPES:
            texts = pc.replace_substring(texts, plain, escaped)
    return texts


def _with_far_times(texts: Any, times: Any, text_of: Callable[[int], str]) -> Any:
    """Times before the year 1 and behind 9999 as PostgreSQL reads them: a broken clock must not end the query."""
    is_far = pc.fill_null(pc.or_(pc.less(times, _YEAR_1_US), pc.greater_equal(times, _YEAR_10000_US)), False)
    if not pc.any(is_far).as_py():
        return texts
    return pc.replace_with_mask(
        texts, is_far, pa.array(map(text_of, times.filter(is_far).to_pylist()), pa.large_string())
    )


def _far_time(day: int, day_us: int | None, zone: str) -> str:
    """A day, counted from 1970, and the microseconds in it. The calendar repeats every 400 years."""
    if day < _DAYS_MIN:
        return "-infinity"
    if day > _DAYS_MAX:
        return "infinity"
    cycles, rest = divmod(day - _YEAR_1_US // _DAY_US, 146_097)
    near = dt.date.fromordinal(rest + 1)
    year = near.year + 400 * cycles
    text = f"{year if year > 0 else 1 - year:04d}-{near:%m-%d}"
    if day_us is not None:
        time = dt.datetime.min + dt.timedelta(microseconds=day_us)
        text += f" {time:%H:%M:%S.%f}{zone}"
    return text if year > 0 else text + " BC"
