"""A topic, or a range of its times, into a table; and a table's rows into a topic.

    load(spark, "127.0.0.1:9092", "orders", "id BIGINT, user STRING", target("delta:/data/orders"), start_ms=...)
    unload(spark, "127.0.0.1:9092", target("delta:/data/orders"), "orders-again", key="user")

Loading is a pipeline that reads what is there and ends: exactly once, in batches of bounded size; when it was
interrupted, or the topic has grown, it goes on. Unloading is a batch query: at least once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from moldau.client import ClusterClient
from moldau.spark import clients
from moldau.spark.pipelines.delta import deltalake
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.formats import Format
from moldau.spark.pipelines.iceberg import load_catalog
from moldau.spark.pipelines.lake_rules import first_line
from moldau.spark.pipelines.pipeline import Pipeline
from moldau.spark.pipelines.postgres import psycopg
from moldau.spark.pipelines.postgres_rules import quoted
from moldau.spark.pipelines.queries import Query
from moldau.spark.pipelines.streams import KEY, METADATA, TIMESTAMP, Stream

ROWS_AT_ONCE = 200_000
_KINDS = ("delta", "iceberg", "parquet", "postgres", "redshift")
_DATABASES = ("postgres", "redshift")
_S3 = "s3."
_LOAD = "load.json"
# Partitions that have nothing so late begin at their end.
_LATE = {"startingOffsetsByTimestampStrategy": "latest"}
# What is wanted beside the place: name -> what it is.
_WANTED: Mapping[str, Mapping[str, str]] = {
    "postgres": {"dsn": "host=... dbname=..."},
    "redshift": {"dsn": "host=... port=5439 dbname=...", "s3": "s3://bucket/prefix"},
    "iceberg": {"uri": "sqlite:////data/catalog.db"},
}


@dataclass(frozen=True, slots=True)
class Target:
    """A table. `options` are the kind's own, and may hold secrets."""

    kind: str
    place: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"


def target(text: str, options: Mapping[str, str] | None = None) -> Target:
    """`delta:/data/orders`, `iceberg:shop.orders`, `parquet:/data/lake`, `postgres:orders`, `redshift:shop.orders`."""
    kind, colon, place = text.partition(":")
    if not colon or not place or kind not in _KINDS:
        raise PipelineError(f"{text!r} is no table: write one of {', '.join(f'{one}:...' for one in _KINDS)}")
    given = dict(options or {})
    for name, example in _WANTED.get(kind, {}).items():
        if name not in given:
            raise PipelineError(f"{text} needs {name}: give --with '{name}={example}'")
    return Target(kind, place, given)


# -- into a table ------------------------------------------------------------------------------------------------------


def load(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    schema: str | StructType | Format,
    into: Target,
    *,
    checkpoints: str | Path,
    start_ms: int | None = None,
    until_ms: int | None = None,
    dead_letters: str | None = None,
    options: Mapping[str, str] | None = None,
) -> str:
    """Load the records with times from `start_ms` on and before `until_ms`. The name under which it is known."""
    asked = f"{topic}|{into}|{start_ms}|{until_ms}"
    name = f"load-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    directory = Path(checkpoints) / name
    check_same_load(directory, clients.run(bootstrap, _cluster_id), into)
    pipeline = Pipeline(spark, bootstrap, name=name, checkpoints=directory, options=options)
    first = {} if start_ms is None else {"startingTimestamp": str(start_ms), **_LATE}
    rows = pipeline.stream(topic, schema, dead_letters=dead_letters, options=first)
    # The first offset that is late enough may be followed by records that are earlier.
    if start_ms is not None:
        rows = rows.where(F.col(TIMESTAMP) >= F.timestamp_millis(F.lit(start_ms)))
    if until_ms is not None:
        rows = rows.where(F.col(TIMESTAMP) < F.timestamp_millis(F.lit(until_ms)))
    pipeline.run(_into(rows, into, topic))
    return name


def check_same_load(directory: Path, cluster_id: str | None, into: Target) -> None:
    """PipelineError when what is done there was of another cluster, or went elsewhere: it would be taken for done."""
    path, mine = directory / _LOAD, {"cluster": cluster_id, "into": _whereabouts(into)}
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine), encoding="utf-8")
        return
    if there != mine:
        key = next(key for key in mine if there.get(key) != mine[key])
        raise PipelineError(
            f"{directory} has a load {'of cluster' if key == 'cluster' else 'into'} {there.get(key)}, and now it is "
            f"{mine[key]}: give another --checkpoints to load all of it anew"
        )


async def _cluster_id(client: ClusterClient) -> str | None:
    return (await client.metadata(())).cluster_id


def _whereabouts(into: Target) -> str:
    """Where a table is, without users and secrets, which may change."""
    if into.kind in _DATABASES:
        pg = psycopg()
        try:
            told = pg.conninfo.conninfo_to_dict(into.options["dsn"])
        except pg.Error as error:
            raise PipelineError(f"{into}: dsn: {first_line(error)}") from None
        return " ".join(
            f"{name}={told[name]}" for name in ("service", "host", "hostaddr", "port", "dbname") if name in told
        )
    if into.kind == "iceberg":
        return " ".join(into.options[name] for name in ("name", "uri", "warehouse") if name in into.options)
    return into.place if "://" in into.place else os.path.abspath(into.place)


def _into(rows: Stream, into: Target, topic: str) -> Query:
    options = dict(into.options)
    if into.kind == "parquet":
        return rows.to_parquet(into.place, topic)
    if into.kind == "delta":
        return rows.to_delta(into.place, options=options)
    if into.kind == "iceberg":
        return rows.to_iceberg(into.place, catalog=options)
    # Databases keep no columns that begin with an underscore of their own.
    for name in METADATA:
        if name.removeprefix("_") not in rows.df.columns:
            rows = rows.with_column(name.removeprefix("_"), _kept(name, into.kind))
    if into.kind == "postgres":
        return rows.to_postgres(options["dsn"], into.place)
    s3_options = {name.removeprefix(_S3): value for name, value in options.items() if name.startswith(_S3)}
    return rows.to_redshift(
        options["dsn"],
        into.place,
        s3=options["s3"],
        iam_role=options.get("iam_role", "default"),
        s3_options=s3_options,
    )


def _kept(name: str, kind: str) -> Column:
    column = F.col(name)
    return column.cast("string") if name == KEY and kind == "redshift" else column


# -- into a topic ------------------------------------------------------------------------------------------------------


def unload(
    spark: SparkSession,
    bootstrap: str,
    source: Target,
    topic: str,
    *,
    key: str | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Send a table's rows to a topic, a piece at a time. How many there were.

    Rows of whole records (a key, and a column `value`) are sent as they were; of others `value` is a JSON object of the
    columns, and `key` names the column that is the record's key.
    """
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **(options or {})}
    row_count = 0
    for piece in _pieces(source):
        rows = spark.createDataFrame(piece)
        if key is not None and key not in rows.columns:
            raise PipelineError(f"{source} has no column {key!r}; it has {', '.join(rows.columns)}")
        rows.select(*_record(rows.columns, key)).write.format("moldau").options(**given).mode("append").save()
        row_count += piece.num_rows
    return row_count


def _record(columns: list[str], key: str | None) -> list[Column]:
    own_key = next((name for name in (KEY, "key") if name in columns), None)
    if "value" in columns and own_key is not None:
        return [F.col(key or own_key).cast("binary").alias("key"), F.col("value").cast("binary").alias("value")]
    kept = [f"`{name}`" for name in columns if name not in METADATA]
    value = F.to_json(F.struct(*kept), {"timeZone": "UTC"}).alias("value")
    return [value] if key is None else [F.col(f"`{key}`").cast("string").alias("key"), value]


def _pieces(source: Target) -> Iterator[Any]:
    """The rows as Arrow tables of bounded size."""
    if source.kind in _DATABASES:
        yield from _rows_of_database(source)
        return
    gathered: list[Any] = []
    row_count = 0
    for batch in _batches(source):
        gathered.append(batch)
        row_count += batch.num_rows
        if row_count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(gathered)
            gathered, row_count = [], 0
    if row_count:
        yield pa.Table.from_batches(gathered)


def _batches(source: Target) -> Iterator[Any]:
    if source.kind == "delta":
        table = deltalake().DeltaTable(source.place, storage_options=dict(source.options))
        yield from table.to_pyarrow_dataset().to_batches()
    elif source.kind == "iceberg":
        table = load_catalog(dict(source.options)).load_table(source.place)
        yield from table.scan().to_arrow_batch_reader()
    else:
        yield from pads.dataset(_files_of_topic(source), format="parquet").to_batches()


def _files_of_topic(source: Target) -> list[str]:
    """The files below a directory of one topic, or that topic's own directory."""
    root = Path(os.path.abspath(source.place))
    folders = [root] if root.name.startswith("topic=") else sorted(root.glob("topic=*"))
    found = {
        folder: files
        for folder in folders
        if (files := sorted(str(path) for path in folder.glob("partition=*/offsets-*.parquet")))
    }
    if not found:
        raise PipelineError(f"{source} has no files as to_parquet and `moldau topic export` name them")
    if len(found) > 1:
        raise PipelineError(f"{source} has files of {len(found)} topics: name one, such as parquet:{next(iter(found))}")
    return next(iter(found.values()))


def _rows_of_database(source: Target) -> Iterator[Any]:
    """By a cursor of plain statements, which PostgreSQL and Redshift both have."""
    pg = psycopg()
    name = ".".join(quoted(part) for part in source.place.split("."))
    with pg.connect(source.options["dsn"], cursor_factory=pg.ClientCursor) as connection:
        connection.execute(f"DECLARE moldau_rows CURSOR FOR SELECT * FROM {name}")
        while True:
            cursor = connection.execute(f"FETCH FORWARD {ROWS_AT_ONCE} FROM moldau_rows")
            found = cursor.fetchall()
            if not found:
                return
            names = [one.name for one in cursor.description]
            yield pa.table({name: list(values) for name, values in zip(names, zip(*found, strict=True), strict=True)})
