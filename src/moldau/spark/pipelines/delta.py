"""Rows into a Delta table, exactly once: tasks write files, the driver adds them in one commit of the table's log.

State      of a query, in the table's log: the newest batch, as the version of the application transaction that is named
           like the query; the batch's mark and offsets in the commit's information.
Invariant  a commit is one file of the log with the next number, which only one writer can make: who read version V and
           found the batch missing commits it as V + 1, or reads again.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs

from moldau.spark.exactly_once import Mark, mark_from
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.batch_rules import is_next, note
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.lake_rules import LakeRows, check_columns, first_line
from moldau.spark.pipelines.staged_files import Place, StagedFile, read_staged, remove_others

ROOT = "moldau"
# Readers and VACUUM leave names with an underscore alone.
MERGED_ROOT = "_moldau"
_NOTE = "moldau"
_COMMITS_MAX = 100
# The log of a table that only one query writes has its mark in the newest commit.
_LOOKS = (1, 100, None)


def deltalake() -> Any:
    try:
        return importlib.import_module("deltalake")
    except ImportError:
        raise PipelineError("Delta tables need deltalake: pip install 'moldau[delta]'") from None


@dataclass(frozen=True, slots=True)
class DeltaStorage:
    """A table's directory; `options` are deltalake's, and may hold secrets."""

    uri: str
    options: dict[str, str] = field(repr=False)

    def open(self) -> Any:
        handler = importlib.import_module("deltalake.fs").DeltaStorageHandler(self.uri, options=self.options)
        return pafs.PyFileSystem(handler)


class DeltaWriter:
    """The batches of one query, one after the other."""

    def __init__(self, storage: DeltaStorage, rows: LakeRows, query: str) -> None:
        self.storage = storage
        self._rows = rows
        self._query = query

    def prepare(self) -> None:
        """Make the table if it is not there, and look whether it can take the rows."""
        delta, where = deltalake(), f"the Delta table {self.storage.uri}"
        try:
            table = delta.DeltaTable.create(
                self.storage.uri, self._rows.schema, mode="ignore", storage_options=self.storage.options
            )
        except delta.exceptions.DeltaError as error:
            raise PipelineError(f"{where} cannot be opened: {first_line(error)}") from error
        if table.metadata().partition_columns:
            raise PipelineError(f"{where} is partitioned, which pipelines do not write: choose another one")
        check_columns(self._rows.schema, _arrow_schema(table), where)

    def begin(self, batch: NumberedBatch) -> Place | None:
        if not self._is_next(self._table(), batch.mark):
            return None
        return Place.of(MERGED_ROOT if self._rows.keys else ROOT, self._query, batch.batch_id)

    def commit(self, batch: NumberedBatch, place: Place, files: Sequence[StagedFile]) -> bool:
        failed = deltalake().exceptions.CommitFailedError
        for _ in range(_COMMITS_MAX):
            table = self._table()
            if not self._is_next(table, batch.mark):
                return False
            try:
                (self._merge if self._rows.keys else self._add)(table, batch, files)
            except failed:
                continue  # somebody else was quicker; whether it was this batch is looked at again
            except Exception:
                # Of the batch's drivers the quicker one removes what the others have staged, also under their hands.
                if self._is_next(self._table(), batch.mark):
                    raise
                return False
            remove_others(self.storage, place, () if self._rows.keys else files)
            return True
        raise RuntimeError(
            f"batch {batch.batch_id}: {_COMMITS_MAX} commits to {self.storage.uri} in a row met those of others"
        )

    def _add(self, table: Any, batch: NumberedBatch, files: Sequence[StagedFile]) -> None:
        actions = importlib.import_module("deltalake.transaction")
        now_ms = int(time.time() * 1000)
        added = [
            actions.AddAction(one.path, one.byte_count, {}, now_ms, True, json.dumps({"numRecords": one.row_count}))
            for one in files
        ]
        table.create_write_transaction(added, "append", table.schema(), commit_properties=self._properties(batch))

    def _merge(self, table: Any, batch: NumberedBatch, files: Sequence[StagedFile]) -> None:
        if not files:
            self._add(table, batch, ())
            return
        staged = read_staged(self.storage, files, self._rows.schema)
        same = " AND ".join(f"t.{_quoted(key)} IS NOT DISTINCT FROM s.{_quoted(key)}" for key in self._rows.keys)
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in self._rows.schema.names}
        table.merge(staged, same, "s", "t", commit_properties=self._properties(batch)).when_matched_update(
            columns
        ).when_not_matched_insert(columns).execute()

    def _properties(self, batch: NumberedBatch) -> Any:
        delta = deltalake()
        named = (self._query, _owner(self._query, batch.query_id))
        return delta.CommitProperties(
            custom_metadata={_NOTE: note(self._query, batch.mark, batch.sources)},
            # What deltalake would try again by itself has not looked whether the batch is in meanwhile.
            max_commit_retries=0,
            app_transactions=[delta.Transaction(one, batch.batch_id) for one in named],
        )

    def _is_next(self, table: Any, mark: Mark) -> bool:
        name = f"{self._query!r} in the Delta table {self.storage.uri}"
        return is_next(_stored(table, self._query, mark), mark, name, "name of the pipeline or the query")

    def _table(self) -> Any:
        return deltalake().DeltaTable(self.storage.uri, storage_options=self.storage.options)


def _stored(table: Any, query: str, asked: Mark) -> Mark | None:
    """The newest batch of a query. Transactions stay in the log for ever, commits for a month: after that the batch and
    its query are still known, and its offsets are taken for those that are asked for."""
    batch_id = table.transaction_version(query)
    if batch_id is None:
        return None
    for limit in _LOOKS:
        for commit in table.history(limit):
            told = _parsed(commit.get(_NOTE))
            if told.get("name") == query and (found := mark_from([told["mark"]])) is not None:
                return found
    is_own = table.transaction_version(_owner(query, asked.query_id)) == batch_id
    return Mark(asked.query_id if is_own else "of another checkpoint", batch_id, asked.digest)


def _parsed(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner(query: str, query_id: str) -> str:
    return f"{query}/{query_id}"


def _arrow_schema(table: Any) -> Any:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
