"""What the Redshift sink decides, without Spark, S3 and a server: types, names, the manifest, statements.

State      of a query, in the table `moldau_batches` beside its target: the newest batch that is in, and up to where
           that batch has read its topics.
Effects    each task writes Parquet files into the batch's directory in S3, whose name has the batch's offset ranges;
           the driver writes a manifest of the files that were reported; then one transaction: lock the state, read it
           again, COPY by the manifest into a temporary table, delete what is replaced, insert, write the state.

Invariants
1. The rows of a batch and the word that it is in become visible together, or neither does.
2. Of a task that was tried twice only the reported files are in the manifest, and each of them must be there.
3. As many rows are taken as were reported.

The statements are those that Redshift and PostgreSQL both know, COPY alone excepted: no upsert, no RETURNING, keys that
may be null compared as Redshift can join them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.postgres_rules import LEDGER, quoted
from moldau.spark.pipelines.staged_files import StagedFile

TEXT = "VARCHAR(65535)"
_NAME_BYTES_MAX = 127
_RANGES_MAX = 200  # characters of S3's 1024
_TYPES = {
    "tinyint": "SMALLINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE PRECISION",
    "boolean": "BOOLEAN",
    "string": TEXT,
    "date": "DATE",
    # Without a zone, in UTC: COPY takes no zones from Parquet.
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL = re.compile(r"decimal(\(\d+,\d+\))")


def sql_type(spark_type: str) -> str | None:
    """Redshift's type for one of Spark's, None where COPY has none for it."""
    decimal = _DECIMAL.fullmatch(spark_type)
    return f"DECIMAL{decimal[1]}" if decimal else _TYPES.get(spark_type)


def staged_type(kind: Any) -> Any:
    """The type of a column in the files for COPY."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    return pa.int16() if pa.types.is_int8(kind) else kind


def range_name(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> str:
    """What a batch has read, as part of a name: `orders-0.100-250_orders-1.80-90`; `before` knows no partition that is
    read for the first time."""
    ranges = [
        f"{topic}-{partition}.{before.get(topic, {}).get(partition, 'start')}-{end}"
        for topic, partitions in after.items()
        for partition, end in partitions.items()
    ]
    text = "_".join(ranges)
    if len(text) <= _RANGES_MAX:
        return text
    return f"{text[:_RANGES_MAX]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def manifest(root: str, files: Sequence[StagedFile]) -> str:
    entries = [
        {"url": f"{root}/{one.path}", "mandatory": True, "meta": {"content_length": one.byte_count}} for one in files
    ]
    return json.dumps({"entries": entries}, indent=1)


@dataclass(frozen=True, slots=True)
class RedshiftTable:
    """Where rows go. `columns` are names and Redshift's types; with `keys` a row replaces the one that has the same."""

    name: str
    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) > 2 or not all(parts):
            raise PipelineError(f"{self.name!r} is no name of a table: write table, or schema.table")
        names = [name for name, _ in self.columns]
        for name in (*parts, *names):
            if len(name.encode()) > _NAME_BYTES_MAX:
                raise PipelineError(f"Redshift's names have at most {_NAME_BYTES_MAX} bytes: {name!r}")
        lost = [key for key in self.keys if key not in names]
        if lost:
            raise PipelineError(f"there is no column {lost[0]!r}; there is {', '.join(names)}")
        for name, kind in self.columns:
            if name in self.keys and kind == "BOOLEAN":
                raise PipelineError(f"column {name} is a boolean, which Redshift casts to no text: cast it for a key")

    @property
    def quoted(self) -> str:
        return ".".join(quoted(part) for part in self.name.split("."))

    @property
    def ledger(self) -> str:
        schema, dot, _ = self.name.rpartition(".")
        return f"{quoted(schema)}.{quoted(LEDGER)}" if dot else quoted(LEDGER)

    def staging(self, token: str) -> str:
        return quoted(f"moldau_staging_{token}")

    def create(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.quoted} ({self._definitions()})"

    def create_ledger(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self.ledger} (query VARCHAR(512), query_id VARCHAR(64) NOT NULL, "
            f"batch_id BIGINT NOT NULL, digest VARCHAR(64) NOT NULL, offsets {TEXT} NOT NULL, "
            "committed_at TIMESTAMP NOT NULL)"
        )

    def lock_ledger(self) -> str:
        return f"LOCK TABLE {self.ledger}"

    def read_ledger(self) -> str:
        return f"SELECT query_id, batch_id, digest, offsets FROM {self._ledger_with_values} WHERE query = %s"

    def forget(self) -> str:
        return f"DELETE FROM {self._ledger_with_values} WHERE query = %s"

    def write_ledger(self) -> str:
        return (
            f"INSERT INTO {self._ledger_with_values} (query, query_id, batch_id, digest, offsets, committed_at) "
            "VALUES (%s, %s, %s, %s, %s, %s)"
        )

    def create_staging(self, token: str) -> str:
        return f"CREATE TEMPORARY TABLE {self.staging(token)} ({self._definitions()})"

    def copy(self, token: str, manifest_url: str, iam_role: str) -> str:
        role = "default" if iam_role == "default" else _text(iam_role)
        return f"COPY {self.staging(token)} FROM {_text(manifest_url)} IAM_ROLE {role} FORMAT AS PARQUET MANIFEST"

    def count_staged(self, token: str) -> str:
        return f"SELECT COUNT(*) FROM {self.staging(token)}"

    def take_over(self, token: str) -> list[str]:
        staging, names = self.staging(token), ", ".join(quoted(name) for name, _ in self.columns)
        insert = f"INSERT INTO {self.quoted} ({names}) SELECT {names} FROM {staging}"
        if not self.keys:
            return [insert]
        # Redshift joins by hashes only where two expressions are equal, and has no IS NOT DISTINCT FROM.
        same = " AND ".join(
            f"COALESCE(CAST({self.quoted}.{quoted(key)} AS {TEXT}), '') = "
            f"COALESCE(CAST({staging}.{quoted(key)} AS {TEXT}), '') AND "
            f"({self.quoted}.{quoted(key)} IS NULL) = ({staging}.{quoted(key)} IS NULL)"
            for key in self.keys
        )
        return [f"DELETE FROM {self.quoted} USING {staging} WHERE {same}", insert]

    def drop_staging(self, token: str) -> str:
        return f"DROP TABLE {self.staging(token)}"

    def _definitions(self) -> str:
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)

    @property
    def _ledger_with_values(self) -> str:
        return self.ledger.replace("%", "%%")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
