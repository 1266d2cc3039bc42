"""Parquet files of a batch that nobody sees before the driver's commit, on whatever stores them. No Spark here.

    shop.orders-5d0a3b4c/batch-00000000000000000012/6f1c0a93e4b5d672-31-0.parquet

Each begin of a batch has a token, so that nothing is ever written twice under one name. Files of a batch that was not
finished are removed by whoever commits it: before that, they may be those of a driver that is about to.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

ROWS_AT_ONCE = 100_000  # of a row group, and so in memory
FILE_BYTES_MAX = 256 << 20
_NAME_MAX = 80


class Storage(Protocol):
    """Where files are; goes to tasks, each of which opens it."""

    def open(self) -> Any:
        """Arrow's filesystem, with paths below one root."""
        ...


@dataclass(frozen=True, slots=True)
class LocalStorage:
    directory: str

    def open(self) -> Any:
        return pafs.SubTreeFileSystem(self.directory, pafs.LocalFileSystem())


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that is complete."""

    path: str
    byte_count: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of one begin of a batch are."""

    directory: str
    token: str

    @classmethod
    def fresh(cls, directory: str) -> Place:
        return cls(directory, secrets.token_hex(8))

    @classmethod
    def of(cls, root: str, query: str, batch_id: int) -> Place:
        return cls.fresh(f"{root}/{directory_of(query)}/batch-{batch_id:020d}".lstrip("/"))


def directory_of(query: str) -> str:
    # No character that URLs write otherwise: some tables keep paths as they are, some as parts of URLs.
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", query)[:_NAME_MAX]
    return f"{readable}-{hashlib.sha256(query.encode()).hexdigest()[:8]}"


def write_staged(storage: Storage, place: Place, schema: Any, attempt: int, batches: Iterable[Any]) -> list[StagedFile]:
    """One task's rows as columns of that schema; none of them has no file."""
    filesystem = storage.open()
    written: list[StagedFile] = []
    writer: _Writer | None = None
    for table in _tables(batches, schema):
        if writer is None:
            writer = _Writer(filesystem, f"{place.directory}/{place.token}-{attempt}-{len(written)}.parquet", schema)
        writer.write(table)
        if writer.byte_count > FILE_BYTES_MAX:
            written.append(writer.close())
            writer = None
    if writer is not None:
        written.append(writer.close())
    return written


def read_staged(storage: Storage, files: Sequence[StagedFile], schema: Any) -> Any:
    """The rows of files, a piece at a time; FileNotFoundError when one is gone."""
    # Not Arrow's datasets, which hang for ever when a filesystem in Python has lost a file (pyarrow 26).
    filesystem = storage.open()
    opened = [pq.ParquetFile(filesystem.open_input_file(one.path)) for one in files]
    pieces = (batch for one in opened for batch in one.iter_batches(ROWS_AT_ONCE))
    return pa.RecordBatchReader.from_batches(schema, pieces)


def remove_others(storage: Storage, place: Place, keep: Sequence[StagedFile]) -> None:
    """What other begins of the batch have left. Only whoever has committed the batch may do so."""
    filesystem, kept = storage.open(), {one.path for one in keep}
    for info in filesystem.get_file_info(pafs.FileSelector(place.directory, allow_not_found=True)):
        if info.type is pafs.FileType.File and info.path not in kept:
            filesystem.delete_file(info.path)


class _Writer:
    def __init__(self, filesystem: Any, path: str, schema: Any) -> None:
        self._path = path
        if isinstance(getattr(filesystem, "base_fs", filesystem), pafs.LocalFileSystem):
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        self._out = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._out, schema, compression="zstd")
        self._row_count = 0

    @property
    def byte_count(self) -> int:
        return int(self._out.tell())

    def write(self, table: Any) -> None:
        self._writer.write_table(table)
        self._row_count += table.num_rows

    def close(self) -> StagedFile:
        self._writer.close()
        byte_count = self.byte_count
        self._out.close()
        return StagedFile(self._path, byte_count, self._row_count)


def _tables(batches: Iterable[Any], schema: Any) -> Iterable[Any]:
    """Spark's small batches, put together."""
    gathered: list[Any] = []
    row_count = 0
    for batch in batches:
        gathered.append(batch)
        row_count += batch.num_rows
        if row_count >= ROWS_AT_ONCE:
            yield _cast(gathered, schema)
            gathered, row_count = [], 0
    if row_count:
        yield _cast(gathered, schema)


def _cast(batches: Sequence[Any], schema: Any) -> Any:
    return pa.Table.from_batches(batches).cast(schema)
