"""Rows into an Iceberg table, exactly once: tasks write files, the driver adds them in one commit of the catalog.

State      of a query, as a property of the table: the mark of the newest batch and its offsets. The snapshot says them
           too, for whoever looks, but snapshots expire.
Invariant  a commit replaces the very snapshot in which the batch was found missing, or it fails and is looked at again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from moldau.spark.exactly_once import Mark, mark_from
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.batch_rules import is_next, note, offsets_by_topic
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.lake_rules import LakeRows, check_columns, first_line, key_ranges, without_keys_of
from moldau.spark.pipelines.staged_files import Place, StagedFile, read_staged, remove_others

ROOT = "data/moldau"
MERGED_ROOT = "moldau-staged"
_COMMITS_MAX = 100


def pyiceberg(module: str) -> Any:
    try:
        return importlib.import_module(f"pyiceberg.{module}")
    except ImportError:
        raise PipelineError("Iceberg tables need pyiceberg: pip install 'moldau[iceberg]'") from None


@dataclass(frozen=True, slots=True)
class IcebergStorage:
    """A table's location; `properties` are those of the catalog, and may hold secrets."""

    location: str
    properties: dict[str, str] = field(repr=False)

    def open(self) -> Any:
        io = importlib.import_module("pyiceberg.io.pyarrow").PyArrowFileIO(self.properties)
        scheme, host, path = io.parse_location(self.location, self.properties)
        return pafs.SubTreeFileSystem(path, io.fs_by_scheme(scheme, host))


class IcebergWriter:
    """The batches of one query, one after the other. `catalog` is the name of one that pyiceberg is configured with, or
    its properties."""

    def __init__(self, catalog: str | Mapping[str, str], name: str, rows: LakeRows, query: str) -> None:
        self._given = catalog
        self._name = name
        self._rows = rows
        self._query = query
        self._where = f"the Iceberg table {name}"

    def prepare(self) -> None:
        """Make the table if it is not there, and look whether it can take the rows."""
        if "." not in self._name:
            raise PipelineError(f"{self._name!r} is no name of an Iceberg table: write namespace.table")
        catalog = load_catalog(self._given)
        try:
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            table = catalog.create_table_if_not_exists(self._name, schema=self._rows.schema)
        except Exception as error:  # whatever the catalog is made of: SQL, HTTP, files
            raise PipelineError(f"{self._where} cannot be opened: {first_line(error)}") from error
        if not table.spec().is_unpartitioned():
            raise PipelineError(f"{self._where} is partitioned, which pipelines do not write: choose another one")
        check_columns(self._rows.schema, table.schema().as_arrow(), self._where)
        self._catalog = catalog
        self.storage = IcebergStorage(table.location(), dict(table.io.properties))

    def begin(self, batch: NumberedBatch) -> Place | None:
        if not self._is_next(self._table(), batch.mark):
            return None
        return Place.of(MERGED_ROOT if self._rows.keys else ROOT, self._query, batch.batch_id)

    def commit(self, batch: NumberedBatch, place: Place, files: Sequence[StagedFile]) -> bool:
        failed = pyiceberg("exceptions").CommitFailedException
        for _ in range(_COMMITS_MAX):
            table = self._table()
            if not self._is_next(table, batch.mark):
                return False
            try:
                with table.transaction() as transaction:
                    if self._rows.keys and files:
                        self._replace(table, transaction, batch, files)
                    else:
                        self._add(transaction, batch, files)
                    told = note(self._query, batch.mark, batch.sources)
                    transaction.set_properties({_property(self._query): told})
            except failed:
                continue  # somebody else was quicker; whether it was this batch is looked at again
            except Exception:
                # Of the batch's drivers the quicker one removes what the others have staged, also under their hands.
                if self._is_next(self._table(), batch.mark):
                    raise
                return False
            remove_others(self.storage, place, () if self._rows.keys else files)
            return True
        raise RuntimeError(f"batch {batch.batch_id}: {_COMMITS_MAX} commits to {self._where} in a row met others")

    def _add(self, transaction: Any, batch: NumberedBatch, files: Sequence[StagedFile]) -> None:
        paths = [f"{self.storage.location}/{one.path}" for one in files]
        transaction.add_files(paths, snapshot_properties=self._summary(batch), check_duplicate_files=False)

    def _replace(self, table: Any, transaction: Any, batch: NumberedBatch, files: Sequence[StagedFile]) -> None:
        """What there is within the batch's keys, from the least to the greatest, is written anew."""
        rows = read_staged(self.storage, files, self._rows.schema).read_all()
        schema = table.schema().as_arrow()
        new = _as_table(rows, schema)
        condition = _within(key_ranges(self._rows.keys, rows))
        old = table.scan(row_filter=condition).to_arrow().cast(schema)
        if not old.num_rows:
            transaction.append(new, snapshot_properties=self._summary(batch))
            return
        kept = without_keys_of(old, new, self._rows.keys)
        transaction.overwrite(
            pa.concat_tables([kept, new]), overwrite_filter=condition, snapshot_properties=self._summary(batch)
        )

    def _summary(self, batch: NumberedBatch) -> dict[str, str]:
        return {
            "moldau.query": self._query,
            "moldau.batch": str(batch.batch_id),
            "moldau.offsets": json.dumps(offsets_by_topic(batch.sources)),
        }

    def _is_next(self, table: Any, mark: Mark) -> bool:
        told = table.properties.get(_property(self._query))
        stored = None if told is None else mark_from([json.loads(told)["mark"]])
        name = f"{self._query!r} in {self._where}"
        return is_next(stored, mark, name, "name of the pipeline or the query")

    def _table(self) -> Any:
        table = self._catalog.load_table(self._name)
        # For this object alone: pyiceberg tries a commit again by itself, and does not look whether the batch is in
        # meanwhile (test_of_two_drivers_that_commit_at_once_one_does).
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table


def load_catalog(given: str | Mapping[str, str]) -> Any:
    load = pyiceberg("catalog").load_catalog
    try:
        if isinstance(given, str):
            return load(given)
        return load(given.get("name", "default"), **{key: value for key, value in given.items() if key != "name"})
    except Exception as error:  # as above
        raise PipelineError(f"the Iceberg catalog cannot be opened: {first_line(error)}") from error


def _property(query: str) -> str:
    return f"moldau.batch.{query}"


def _as_table(rows: Any, schema: Any) -> Any:
    """Rows with a table's columns, in its order; what they have not is null."""
    names = set(rows.column_names)
    columns = [
        rows[one.name].cast(one.type) if one.name in names else pa.nulls(rows.num_rows, one.type) for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _within(ranges: Sequence[tuple[str, Any, Any, bool]]) -> Any:
    makes = pyiceberg("expressions")
    condition = makes.AlwaysTrue()
    for name, least, greatest, has_null in ranges:
        here = makes.AlwaysFalse()
        if least is not None:
            here = makes.And(makes.GreaterThanOrEqual(name, least), makes.LessThanOrEqual(name, greatest))
        if has_null:
            here = makes.Or(here, makes.IsNull(name))
        condition = makes.And(condition, here)
    return condition
