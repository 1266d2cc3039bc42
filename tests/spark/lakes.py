"""Tables of files for tests, Delta and Iceberg: each of its own, with batches of (id, name) into it without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.types import DoubleType

from moldau.spark.pipelines import Aggregation, Query, Stream
from moldau.spark.pipelines.delta import DeltaStorage, DeltaWriter
from moldau.spark.pipelines.iceberg import IcebergWriter, load_catalog
from moldau.spark.pipelines.lake_rules import LakeRows
from moldau.spark.pipelines.staged_files import Place, StagedFile, write_staged
from tests.spark.sinks import numbered

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
QUERY = "shop.last of orders"
Row = tuple[int | None, str | None]


class Target:
    """A table and a driver that has prepared it."""

    def __init__(self, directory: Path, keys: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.keys = keys
        self.writer = self.driver()

    def driver(self, schema: pa.Schema = SCHEMA) -> Any:
        """Another driver of the same query."""
        raise NotImplementedError

    def stage(self, place: Place, attempt: int, *rows: Row) -> list[StagedFile]:
        columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())]
        return write_staged(self.writer.storage, place, SCHEMA, attempt, [pa.record_batch(columns, schema=SCHEMA)])

    def write(self, batch_id: int, *rows: Row) -> bool:
        batch = numbered(batch_id)
        place = self.writer.begin(batch)
        return place is not None and self.writer.commit(batch, place, self.stage(place, 1, *rows))

    def rows(self) -> list[Row]:
        return sorted(((row["id"], row["name"]) for row in self.table().to_pylist()), key=str)

    def table(self) -> pa.Table:
        raise NotImplementedError

    def offsets(self) -> str:
        """What the newest commit says of them."""
        raise NotImplementedError

    def add_column(self, name: str) -> None:
        """One more, of doubles."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        return sorted(self.directory.rglob("*.parquet"))


class DeltaTarget(Target):
    @property
    def path(self) -> str:
        return str(self.directory / "table")

    def driver(self, schema: pa.Schema = SCHEMA) -> DeltaWriter:
        writer = DeltaWriter(DeltaStorage(self.path, {}), LakeRows(schema, self.keys), QUERY)
        writer.prepare()
        return writer

    def table(self) -> pa.Table:
        return DeltaTable(self.path).to_pyarrow_dataset().to_table()

    def offsets(self) -> str:
        return str(DeltaTable(self.path).history(1)[0]["moldau"])

    def add_column(self, name: str) -> None:
        DeltaTable(self.path).alter.add_columns([Field(name, PrimitiveType("double"))])


class IcebergTarget(Target):
    @property
    def catalog(self) -> dict[str, str]:
        return catalog_in(self.directory)

    def driver(self, schema: pa.Schema = SCHEMA) -> IcebergWriter:
        writer = IcebergWriter(self.catalog, "shop.orders", LakeRows(schema, self.keys), QUERY)
        writer.prepare()
        return writer

    def loaded(self) -> Any:
        return load_catalog(self.catalog).load_table("shop.orders")

    def table(self) -> pa.Table:
        return self.loaded().scan().to_arrow()

    def offsets(self) -> str:
        return str(self.loaded().current_snapshot().summary["moldau.offsets"])

    def add_column(self, name: str) -> None:
        with self.loaded().update_schema() as update:
            update.add_column(name, DoubleType())


KINDS = {"delta": DeltaTarget, "iceberg": IcebergTarget}


def catalog_in(directory: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}


class Lake:
    """Where a pipeline's queries may write, under short names."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.directory = kind, directory
        directory.mkdir()

    def query(self, rows: Stream | Aggregation, name: str, **more: Any) -> Query:
        if self.kind == "delta":
            return rows.to_delta(self.directory / name, **more)
        return rows.to_iceberg(f"shop.{name}", catalog=self.catalog, **more)

    @property
    def catalog(self) -> Mapping[str, str]:
        return catalog_in(self.directory)

    def read(self, name: str, *columns: str) -> list[tuple[object, ...]]:
        if self.kind == "delta":
            table = DeltaTable(self.directory / name).to_pyarrow_dataset().to_table()
        else:
            table = load_catalog(self.catalog).load_table(f"shop.{name}").scan().to_arrow()
        return sorted(tuple(row[column] for column in columns) for row in table.to_pylist())
