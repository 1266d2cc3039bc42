"""Sinks for tables of files: what Spark does. `delta` and `iceberg` commit, `staged_files` is what tasks do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from moldau.spark.pipelines.arrow_types import arrow_type
from moldau.spark.pipelines.batch_writing import column_of, in_tasks, newest_of_each_key, write_batches
from moldau.spark.pipelines.delta import DeltaStorage, DeltaWriter
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.iceberg import IcebergWriter
from moldau.spark.pipelines.lake_rules import LakeRows
from moldau.spark.pipelines.queries import WriteBatch
from moldau.spark.pipelines.staged_files import Place, StagedFile, Storage, write_staged


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table, which is made when it is not there. `options` are those of deltalake's storage."""

    uri: str
    rows: LakeRows
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        uri = self.uri if "://" in self.uri else os.path.abspath(self.uri)
        writer = DeltaWriter(DeltaStorage(uri, dict(self.options)), self.rows, query)
        writer.prepare()
        return write_batches(writer, lambda rows, place: stage_rows(rows, writer.storage, place, self.rows))


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An Iceberg table, which is made when it is not there."""

    catalog: str | Mapping[str, str] = field(repr=False)
    table: str
    rows: LakeRows

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        writer = IcebergWriter(self.catalog, self.table, self.rows, query)
        writer.prepare()
        return write_batches(writer, lambda rows, place: stage_rows(rows, writer.storage, place, self.rows))


def stage_rows(rows: DataFrame, storage: Storage, place: Place, kept: LakeRows) -> list[StagedFile]:
    """Have tasks write the rows that are kept."""
    if kept.keys and kept.order:
        rows = newest_of_each_key(rows, kept.keys, kept.order)
    columns, schema = rows.select(*map(column_of, kept.schema.names)), kept.schema
    reports = in_tasks(columns, lambda attempt, batches: write_staged(storage, place, schema, attempt, batches))
    return [one for report in reports for one in report]


def lake_rows(
    schema: StructType, columns: Sequence[str], keys: Sequence[str] = (), order: Sequence[str] = ()
) -> LakeRows:
    """`columns` of rows with that schema."""
    fields = []
    for column in columns:
        kind = schema[column].dataType
        try:
            fields.append(pa.field(column, arrow_type(kind)))
        except KeyError:
            told = kind.simpleString()
            raise PipelineError(f"column {column} is {told}, which files have not: cast it, or leave it out") from None
    return LakeRows(pa.schema(fields), tuple(keys), tuple(order))
