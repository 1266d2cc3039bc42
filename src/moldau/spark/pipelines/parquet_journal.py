"""Parquet files of batches, all or none: a journal says which files a batch has, and that makes it so.

    DIR/topic=orders/partition=0/offsets-00000000000000000000-00000000000000000999.parquet
    DIR/.moldau/shop.orders.json

Tasks write files under hidden names and sync them. The driver then replaces the query's journal, which is the moment of
the commit: whoever comes after a crash gives the journal's files their names before anything else. No Spark here.
Names are those of `moldau topic export`; a file is named by the first and the last offset that it has rows of, and says
within of which query and checkpoint it is. Where an earlier batch has rows of the same offsets (a join gives a record
more than one row, a topic was made again), the batch's number is in the name as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.spark.exactly_once import ExactlyOnceRefused, Mark, mark_from
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines.batch_rules import is_next, offsets_by_topic

PARTITION, OFFSET = "_partition", "_offset"
_HIDDEN = ".moldau"
_CHECKPOINT_CHARACTERS = 8
_TOKEN_BYTES = 8
_QUERY, _CHECKPOINT = b"moldau.query", b"moldau.checkpoint"
# What Hive, Spark and their kind take for a null in a directory's name.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is complete, still under its hidden name."""

    hidden: str
    folder: str  # partition=0, or day=2026-11-18/partition=0
    first: int
    last: int

    @property
    def final(self) -> str:
        return f"{self.folder}/offsets-{self.first:020d}-{self.last:020d}.parquet"


class FilesLost(RuntimeError):
    """Files of the tasks are gone: the batch must be done again."""


class ParquetJournal:
    """One query's place in a directory."""

    def __init__(self, directory: str, topic: str, query: str) -> None:
        self.root = Path(directory) / f"topic={topic}"
        self._query = quote(query, safe="")
        checkpoint, token = (rf"[0-9a-f]{{{count}}}" for count in (_CHECKPOINT_CHARACTERS, 2 * _TOKEN_BYTES))
        self._own = re.compile(rf"\.{re.escape(self._query)}-{checkpoint}-{token}-\d+\.partial")
        self._path = Path(directory) / _HIDDEN / f"{self._query}.json"

    def begin(self, batch: NumberedBatch) -> str | None:
        """Finish what a crash has left; then the prefix of hidden names for the batch, None when it is in already."""
        with self._locked():
            is_wanted = self._is_next(batch.mark)
            for left in self.root.glob(f"**/.{self._query}-*.partial"):
                # Not those of a query whose name only begins like this one's: its journal may name them already.
                if self._own.fullmatch(left.name):
                    left.unlink(missing_ok=True)
        if not is_wanted:
            return None
        return f".{self._query}-{_checkpoint(batch)}-{secrets.token_hex(_TOKEN_BYTES)}"

    def commit(self, batch: NumberedBatch, prefix: str, files: Sequence[WrittenFile]) -> bool:
        """Make the files visible, with the batch's mark. False when another driver has written the batch."""
        with self._locked():
            if not self._is_next(batch.mark):
                return False
            lost = [one.hidden for one in files if not (self.root / one.hidden).exists()]
            if lost:
                raise FilesLost(f"batch {batch.batch_id}: {lost[0]} is gone, for another driver runs the query")
            journal = {
                "mark": batch.mark.to_metadata(),
                "offsets": offsets_by_topic(batch.sources),
                "files": [[one.hidden, self._name_of(one, batch)] for one in files],
            }
            _replace_durably(self._path, json.dumps(journal))
            self._finish(journal)
            return True

    def _name_of(self, file: WrittenFile, batch: NumberedBatch) -> str:
        """A query begun anew overwrites what it wrote before, and nothing else: another batch's rows stay."""
        path = self.root / file.final
        if not path.is_file():
            return file.final
        told = pq.read_schema(path).metadata or {}
        owner = told.get(_QUERY, b"").decode()
        if owner != self._query:
            named = f"query {unquote(owner)}" if owner else "no query"
            raise ExactlyOnceRefused(
                f"{path} is of {named}, and would be lost: give each query a directory that nobody else writes into"
            )
        if told.get(_CHECKPOINT, b"").decode() != _checkpoint(batch):
            return file.final
        return file.final.removesuffix(".parquet") + f"-batch-{batch.batch_id}.parquet"

    def _is_next(self, mark: Mark) -> bool:
        try:
            journal = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return True
        self._finish(journal)
        name = f"{self._query!r} in {self._path}"
        return is_next(mark_from([journal["mark"]]), mark, name, "directory")

    def _finish(self, journal: Any) -> None:
        for hidden, final in journal["files"]:
            try:
                os.replace(self.root / hidden, self.root / final)
            except FileNotFoundError:
                continue  # it has its name already
            _sync((self.root / final).parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def write_files(
    root: str, prefix: str, attempt: int, batches: Iterable[Any], by: str | None = None
) -> list[WrittenFile]:
    """Rows that come in order of `by`, partition and offset, a file for each value of `by` and partition.

    The text in the column `by` names a directory, and is not written into the file once more; a null has one, too.
    """
    written: list[WrittenFile] = []
    owner, checkpoint, _ = prefix[1:].rsplit("-", 2)
    writer: Any = None
    try:
        for batch in _by_partition(batches, by):
            folder, offsets = _folder(batch, by), batch[OFFSET]
            if by is not None:
                batch = batch.drop_columns([by])
            if not written or written[-1].folder != folder:
                _close(root, writer, written)
                hidden = f"{folder}/{prefix}-{attempt}.partial"
                (Path(root) / hidden).parent.mkdir(parents=True, exist_ok=True)
                told = {**(batch.schema.metadata or {}), _QUERY: owner, _CHECKPOINT: checkpoint}
                schema = batch.schema.with_metadata(told)
                writer = pq.ParquetWriter(Path(root) / hidden, schema)
                written.append(WrittenFile(hidden, folder, offsets[0].as_py(), offsets[-1].as_py()))
            writer.write_batch(batch)
            now = written[-1]
            written[-1] = WrittenFile(now.hidden, now.folder, now.first, offsets[-1].as_py())
    finally:
        _close(root, writer, written)
    return written


def _checkpoint(batch: NumberedBatch) -> str:
    return hashlib.sha256(batch.query_id.encode()).hexdigest()[:_CHECKPOINT_CHARACTERS]


def _folder(batch: Any, by: str | None) -> str:
    partition = f"partition={batch[PARTITION][0].as_py()}"
    if by is None:
        return partition
    value = batch[by][0].as_py()
    return f"{by}={_NULL_FOLDER if value is None else quote(str(value), safe='')}/{partition}"


def _by_partition(batches: Iterable[Any], by: str | None) -> Iterator[Any]:
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            # In order, so those of one file are side by side.
            rest = batch.slice(start)
            same = pc.equal(rest[PARTITION], rest[PARTITION][0])
            if by is not None:
                same = pc.and_(same, _equal(rest[by], rest[by][0]))
            count = pc.sum(same).as_py()
            yield rest.slice(0, count)
            start += count


def _equal(values: Any, value: Any) -> Any:
    """Where they are the same, as a null is to a null."""
    return pc.fill_null(pc.equal(values, value), False) if value.is_valid else pc.is_null(values)


def _close(root: str, writer: Any, written: Sequence[WrittenFile]) -> None:
    if writer is not None:
        writer.close()
        _sync(Path(root) / written[-1].hidden)
        _sync((Path(root) / written[-1].hidden).parent)


def _replace_durably(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
