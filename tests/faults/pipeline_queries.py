"""The pipeline that `pipeline_kills` runs: one topic into every sink there is, as rows and as groups.

All sinks of a query get each batch one after the other, so that whatever breaks in the middle has some of them done and
others not, and the batch comes again to all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from moldau.spark.pipelines import Aggregation, Pipeline, Query, Stream
from moldau.spark.pipelines.queries import Sink, WriteBatch
from tests.redshift import ROLE

GROUPS = 40
PLACES = "MOLDAU_FAULTS_PLACES"  # names a file
SCHEMA = "id BIGINT, padding STRING"


@dataclass(frozen=True)
class Places:
    """Where the sinks write."""

    source: str
    directory: str
    postgres: str
    redshift: str
    s3_options: dict[str, Any]

    @classmethod
    def read(cls) -> Places:
        return cls(**json.loads(Path(os.environ[PLACES]).read_text()))

    def catalog(self) -> dict[str, str]:
        return {"uri": f"sqlite:///{self.directory}/catalog.db", "warehouse": f"file://{self.directory}/iceberg"}


@dataclass(frozen=True)
class AllOf:
    """Several queries' sinks, each with its own of the columns."""

    queries: tuple[Query, ...]
    columns: tuple[str, ...]

    def open(self, bootstrap: str, query: str) -> WriteBatch:
        writes = [(one, one.sink.open(bootstrap, f"{query}.{one.name}")) for one in self.queries]

        def write(rows: DataFrame, batch_id: int) -> None:
            kept = rows.persist()
            try:
                for one, into in writes:
                    into(_shaped(kept, one, self.columns), batch_id)
            finally:
                kept.unpersist()

        return write


def _shaped(rows: DataFrame, query: Query, columns: tuple[str, ...]) -> DataFrame:
    """The query's rows, made of a batch."""
    if query.rows.columns == ["key", "value"]:
        value = F.to_json(F.struct(*columns)).alias("value")
        return rows.select(F.col(columns[0]).cast("string").alias("key"), value)
    return rows.select(*query.rows.columns)


def queries(pipeline: Pipeline) -> Iterator[Query]:
    places = Places.read()
    stream = pipeline.stream(places.source, SCHEMA).through(lambda rows: rows.drop("padding", "_key", "_timestamp"))
    groups = stream.with_column("key", f"id % {GROUPS}").by("key").agg(rows="count(*)", total="sum(id)")
    rows: Sink = AllOf(
        (*_queries(stream, places, "rows"), stream.to_parquet(_at(places, "parquet"), "numbers")), ("id",)
    )
    yield Query("rows", stream.df, rows)
    yield Query("groups", groups.df, AllOf(_queries(groups, places, "groups"), tuple(groups.df.columns)), "update")


def _queries(rows: Stream | Aggregation, places: Places, name: str) -> tuple[Query, ...]:
    into_topic = rows.to_topic(name, "id") if isinstance(rows, Stream) else rows.to_table(name)
    return (
        into_topic,
        rows.to_postgres(places.postgres, name),
        rows.to_delta(_at(places, f"delta/{name}")),
        rows.to_iceberg(f"faults.{name}", catalog=places.catalog()),
        rows.to_redshift(
            places.redshift,
            name,
            s3="s3://lake/faults",
            iam_role=ROLE,
            s3_options=places.s3_options,
        ),
    )


def _at(places: Places, name: str) -> str:
    return f"{places.directory}/{name}"
