"""`TableView`: the newest row of each key, on disk, with the offsets that it reflects.

One SQLite file. Rows and positions change in one transaction, so that whatever ends the process, what is found again is
the tables as they were at exactly the positions beside them. One process writes; readers see one state while they read.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from moldau.client import ConsumedRecord
from moldau.tables.conditions import Condition
from moldau.tables.rules import Stored

PAGE_ROWS_DEFAULT = 100
PAGE_ROWS_MAX = 10_000
PAGE_BYTES_MAX = 16 << 20  # of keys and values; a page has one row at least
SCAN_SECONDS_MAX = 10.0
_FORMAT = 1
_STEPS_BETWEEN_LOOKS = 100_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    topic TEXT PRIMARY KEY, topic_id TEXT NOT NULL, current_at_ms INTEGER NOT NULL, is_complete INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    topic TEXT NOT NULL, key BLOB NOT NULL, value, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    timestamp INTEGER NOT NULL, PRIMARY KEY (topic, key)
) WITHOUT ROWID;
"""
_UPSERT = "INSERT OR REPLACE INTO rows (topic, key, value, partition, offset, timestamp) VALUES (?, ?, ?, ?, ?, ?)"


class ViewInUse(RuntimeError):
    """Another process keeps this view current."""


class ScanTooLong(RuntimeError):
    """A scan was given up; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    key: bytes
    value: str | bytes  # text when it is UTF-8
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A row, or that there is none; true of the log before the offsets in `reflects`."""

    row: Row | None
    reflects: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys; `after` goes into the next question, None when there are no more."""

    rows: Sequence[Row]
    after: bytes | None
    reflects: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TableState:
    topic: str
    is_complete: bool  # it has been at the end of its topic since it was begun
    reflects: Mapping[int, int]


class TableView:
    """The file. Belongs to one thread for writing; `reader` opens what other threads read with."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path.with_name(self.path.name + ".lock"))
        self._database = self._connect()
        self._database.execute("PRAGMA journal_mode=WAL")
        # A power cut may cost the last transactions, rows and positions alike: they are read again.
        self._database.execute("PRAGMA synchronous=NORMAL")
        if self._database.execute("PRAGMA user_version").fetchone()[0] not in (0, _FORMAT):
            raise ViewInUse(f"{self.path} was written by another version of Moldau: delete it, and it is made anew")
        self._database.executescript(_SCHEMA)
        self._database.execute(f"PRAGMA user_version={_FORMAT}")

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    def reader(self) -> ViewReader:
        return ViewReader(self._connect())

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=32)

    # -- what is remembered --------------------------------------------------------------------------------------------

    def stored(self, topic: str) -> Stored | None:
        found = self._database.execute(
            "SELECT topic_id, current_at_ms FROM topics WHERE topic = ?", (topic,)
        ).fetchone()
        return None if found is None else Stored(found[0], _positions(self._database, topic), found[1])

    def begin(self, topic: str, topic_id: str, now_ms: int) -> None:
        """Forget what is there of a topic. From now on no tombstone is missed for as long as they are kept."""
        with self._transaction():
            for table in ("rows", "positions", "topics"):
                self._database.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))
            self._database.execute("INSERT INTO topics VALUES (?, ?, ?, 0)", (topic, topic_id, now_ms))

    def apply(self, topic: str, records: Sequence[ConsumedRecord], positions: Mapping[int, int]) -> None:
        """Records in the order of their offsets, and where their partitions are read up to."""
        newest = {record.key: record for record in records if record.key is not None}
        kept = [record for record in newest.values() if record.value is not None]
        gone = [(topic, record.key) for record in newest.values() if record.value is None]
        with self._transaction():
            self._database.executemany(
                _UPSERT, [(topic, one.key, _text(one.value), one.partition, one.offset, one.timestamp) for one in kept]
            )
            self._database.executemany("DELETE FROM rows WHERE topic = ? AND key = ?", gone)
            self._database.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
                [(topic, partition, position) for partition, position in positions.items()],
            )

    def note_current(self, topic: str, now_ms: int) -> None:
        """The view has been at the end of the topic."""
        self._database.execute("UPDATE topics SET current_at_ms = ?, is_complete = 1 WHERE topic = ?", (now_ms, topic))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # SQLite has ended it by itself when the disk is full
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


class ViewReader:
    """Answers. Belongs to one thread at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def close(self) -> None:
        self._database.close()

    def get(self, topic: str, key: bytes) -> Answer:
        with self._one_state():
            found = self._database.execute(
                "SELECT key, value, partition, offset, timestamp FROM rows WHERE topic = ? AND key = ?", (topic, key)
            ).fetchone()
            positions = _positions(self._database, topic)
        if found is None:
            return Answer(None, positions)
        row = Row(*found)
        return Answer(row, {row.partition: positions[row.partition]})

    def scan(
        self,
        topic: str,
        condition: Condition | None = None,
        *,
        after: bytes = b"",
        prefix: bytes = b"",
        limit: int = PAGE_ROWS_DEFAULT,
        seconds_max: float = SCAN_SECONDS_MAX,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> Page:
        """A page of rows whose keys are behind `after` and begin with `prefix`: `limit` of them, fewer large ones."""
        assert 0 < limit <= PAGE_ROWS_MAX
        wanted = "key > ? AND key >= ?" if after else "key >= ? AND key >= ?"
        parameters: list[object] = [topic, after, prefix]
        if prefix and prefix.strip(b"\xff"):
            wanted += " AND key < ?"
            parameters.append(_behind_prefix(prefix))
        if condition is not None:
            wanted += f" AND {condition.sql}"
            parameters += condition.parameters
        sql = (
            "SELECT key, value, partition, offset, timestamp FROM (SELECT *, CAST(key AS TEXT) AS key_text FROM rows"
            f" WHERE topic = ?) WHERE {wanted} ORDER BY key LIMIT ?"
        )
        deadline = time.monotonic() + seconds_max
        self._database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        try:
            with self._one_state():
                positions = _positions(self._database, topic)
                with closing(self._database.execute(sql, [*parameters, limit + 1])) as found:
                    rows, has_more = _page(found, limit, bytes_max)
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            raise ScanTooLong(
                f"the scan of {topic} took more than {seconds_max:g} s: ask for a prefix, or for fewer rows"
            ) from error
        finally:
            self._database.set_progress_handler(None, 0)
        return Page(rows, rows[-1].key if has_more else None, positions)

    def state(self, topic: str) -> TableState | None:
        found = self._database.execute("SELECT is_complete FROM topics WHERE topic = ?", (topic,)).fetchone()
        return None if found is None else TableState(topic, bool(found[0]), _positions(self._database, topic))

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")


def _page(found: Iterable[tuple[Any, ...]], limit: int, bytes_max: int) -> tuple[list[Row], bool]:
    """The rows, and whether there are more."""
    rows: list[Row] = []
    size = 0
    for columns in found:
        row = Row(*columns)
        # A text's characters, for they are quickly told; what matters is that there is an end.
        size += len(row.key) + len(row.value)
        if rows and (len(rows) == limit or size > bytes_max):
            return rows, True
        rows.append(row)
    return rows, False


def _positions(database: sqlite3.Connection, topic: str) -> dict[int, int]:
    with closing(database.execute("SELECT partition, position FROM positions WHERE topic = ?", (topic,))) as found:
        return dict(found)


def _text(value: bytes | None) -> str | bytes | None:
    """Text where it is UTF-8, which is what SQLite looks into."""
    assert value is not None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _behind_prefix(prefix: bytes) -> bytes:
    """The smallest key that is behind all with this prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def _locked(path: Path) -> IO[bytes]:
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        where = path.with_suffix("")
        raise ViewInUse(f"another process keeps {where} current: ask that one, or give another directory") from None
    return file
