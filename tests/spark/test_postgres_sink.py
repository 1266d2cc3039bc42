"""The PostgreSQL sink on a real server: whatever breaks while a batch is committed, its rows are there once."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from itertools import count

import psycopg
import pyarrow as pa
import pytest

from moldau.kernel import TopicPartition
from moldau.spark.exactly_once import ExactlyOnceRefused, SourceOffsets
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import PipelineError
from moldau.spark.pipelines.postgres import BatchLost, BatchWriter, copy_rows
from moldau.spark.pipelines.postgres_rules import Copied, TargetTable, copy_text, sql_type
from tests.postgres import Postgres

_numbers = count()
QUERY_ID = "6f1c"


def numbered(batch_id: int, query_id: str = QUERY_ID, digest: str | None = None) -> NumberedBatch:
    offsets = {TopicPartition("orders", 0): 10 * batch_id, TopicPartition("orders", 1): 7}
    return NumberedBatch(query_id, batch_id, SourceOffsets(digest or f"digest-{batch_id}", offsets))


class Target:
    """A table of its own, and batches of (id, name) into it without Spark."""

    def __init__(self, server: Postgres, keys: tuple[str, ...] = ()) -> None:
        self.server = server
        self.name = f"target_{next(_numbers)}"
        order = ("_offset",) if keys else ()
        columns = (("id", "bigint"), ("name", "text"))
        self.table = TargetTable(self.name, columns, keys, order=order, order_columns=order)
        self.writer = BatchWriter(server.dsn, self.table, self.name)

    def copy(self, staging: str, attempt: int, *rows: tuple[int, str | None]) -> Copied:
        columns = [pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows], pa.string())]
        names = ["id", "name"]
        if self.table.order_columns:
            columns.append(pa.array(range(len(rows))))
            names.append("_offset")
        batches = [pa.record_batch(columns, names=names)]
        return copy_rows(self.server.dsn, self.table, staging, attempt, batches)

    def write(self, batch: NumberedBatch, *rows: tuple[int, str | None]) -> bool:
        staging = self.writer.begin(batch)
        return staging is not None and self.writer.commit(batch, staging, [self.copy(staging, 1, *rows)])

    def rows(self) -> list[tuple[int, str | None]]:
        return [(row[0], row[1]) for row in self.server.ask(f"SELECT id, name FROM {self.name} ORDER BY id, name")]

    def batch_id(self) -> int | None:
        found = self.server.ask(f"SELECT batch_id FROM moldau_batches WHERE query = '{self.name}'")
        return found[0][0] if found else None

    def staging_tables(self) -> list[str]:
        prefix = self.table.staging_prefix(self.name)
        return [row[0] for row in self.server.ask(f"SELECT relname FROM pg_class WHERE relname LIKE '{prefix}%'")]


@pytest.fixture
def target(postgres: Postgres) -> Target:
    made = Target(postgres)
    made.writer.prepare()
    return made


@pytest.fixture
def keyed(postgres: Postgres) -> Target:
    made = Target(postgres, ("id",))
    made.writer.prepare()
    return made


def test_a_batch_that_comes_again_is_skipped(target: Target) -> None:
    assert target.write(numbered(0), (1, "ann"), (2, None))
    assert not target.write(numbered(0), (1, "ann"), (2, None))
    assert target.write(numbered(1), (3, ""))
    assert target.rows() == [(1, "ann"), (2, None), (3, "")]
    offsets = target.server.ask(f"SELECT query_id, offsets FROM moldau_batches WHERE query = '{target.name}'")
    assert offsets == [(QUERY_ID, {"orders": {"0": 10, "1": 7}})]
    assert target.staging_tables() == []


def test_two_drivers_with_one_batch_write_it_once(target: Target) -> None:
    other = BatchWriter(target.server.dsn, target.table, target.name)
    first = other.begin(numbered(0))
    assert first is not None
    copied = target.copy(first, 1, (1, "ann"))
    assert target.write(numbered(0), (1, "ann"))
    # It had found the batch missing before, and its staging table is gone now.
    assert not other.commit(numbered(0), first, [copied])
    assert target.rows() == [(1, "ann")]


def test_a_driver_whose_staging_table_another_one_dropped_says_so(target: Target) -> None:
    staging = target.writer.begin(numbered(0))
    assert staging is not None
    copied = target.copy(staging, 1, (1, "ann"))
    BatchWriter(target.server.dsn, target.table, target.name).begin(numbered(0))
    with pytest.raises(BatchLost, match="holds 0 of the 1 rows"):
        target.writer.commit(numbered(0), staging, [copied])
    assert target.rows() == [] and target.batch_id() is None


def test_rows_of_an_attempt_that_did_not_report_are_left_out(target: Target) -> None:
    staging = target.writer.begin(numbered(0))
    assert staging is not None
    target.copy(staging, 1, (1, "lost report"))
    assert target.writer.commit(numbered(0), staging, [target.copy(staging, 2, (1, "second attempt"))])
    assert target.rows() == [(1, "second attempt")]


def test_an_attempt_that_fails_in_the_middle_leaves_nothing(target: Target) -> None:
    staging = target.writer.begin(numbered(0))
    assert staging is not None

    def breaks() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1]), pa.array(["ann"])], names=["id", "name"])
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        copy_rows(target.server.dsn, target.table, staging, 1, breaks())
    assert target.server.ask(f"SELECT * FROM {staging}") == []


# Each breaks the commit at one step: in the server, as an error of the statement, or as the end of the connection.
MARKED = "AFTER INSERT OR UPDATE ON moldau_batches"
OWN_MARK = "WHEN (NEW.query = '{target}')"
STEPS = {
    "the rows": ("AFTER INSERT ON {target}", ""),
    "the mark": (MARKED, OWN_MARK),
    "the commit": (f"{MARKED} DEFERRABLE INITIALLY DEFERRED", OWN_MARK),
}
ENDS = {"an error": "RAISE 'broken'", "no connection": "PERFORM pg_terminate_backend(pg_backend_pid())"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", STEPS)
def test_a_commit_that_breaks_leaves_nothing_and_the_batch_is_done_again(target: Target, step: str, end: str) -> None:
    assert target.write(numbered(0), (1, "ann"))
    moment, condition = (part.format(target=target.name) for part in STEPS[step])
    body = f"BEGIN {ENDS[end]}; RETURN NULL; END"
    target.server.ask(f"CREATE FUNCTION break_{target.name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    target.server.ask(
        f"CREATE CONSTRAINT TRIGGER break_{target.name} {moment} FOR EACH ROW {condition} "
        f"EXECUTE FUNCTION break_{target.name}()"
    )
    try:
        with pytest.raises(psycopg.Error):
            target.write(numbered(1), (2, "bob"))
        assert target.rows() == [(1, "ann")] and target.batch_id() == 0
    finally:
        target.server.ask(f"DROP FUNCTION break_{target.name} CASCADE")
    assert target.write(numbered(1), (2, "bob"))
    assert target.rows() == [(1, "ann"), (2, "bob")] and target.batch_id() == 1
    assert target.staging_tables() == []


def test_a_server_that_crashes_before_the_commit_loses_no_row() -> None:
    with Postgres() as server:
        target = Target(server)
        target.writer.prepare()
        staging = target.writer.begin(numbered(0))
        assert staging is not None
        copied = target.copy(staging, 1, (1, "ann"))
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            target.writer.commit(numbered(0), staging, [copied])
        server.start()
        with pytest.raises(BatchLost, match="holds 0 of the 1 rows"):
            target.writer.commit(numbered(0), staging, [copied])
        assert target.rows() == []
        assert target.write(numbered(0), (1, "ann"))
        assert target.rows() == [(1, "ann")] and target.staging_tables() == []


def test_of_rows_with_one_key_the_last_stays(keyed: Target) -> None:
    assert keyed.write(numbered(0), (1, "old"), (2, "bob"), (1, "new"))
    assert keyed.rows() == [(1, "new"), (2, "bob")]
    assert keyed.write(numbered(1), (2, "eva"), (3, "ann"))
    assert keyed.rows() == [(1, "new"), (2, "eva"), (3, "ann")]


def test_another_query_and_an_older_checkpoint_are_refused(target: Target) -> None:
    assert target.write(numbered(3), (1, "ann"))
    for batch, why in (
        (numbered(4, "other"), "belongs to query 6f1c"),
        (numbered(2), "and now gets batch 2"),
        (numbered(3, digest="other"), "another batch 3"),
    ):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.write(batch, (2, "bob"))
    assert target.rows() == [(1, "ann")]


def test_every_text_and_number_comes_back_as_it_was(postgres: Postgres) -> None:
    values = {
        "text": ("text", pa.array(["", None, 'a"b,c', "a\tb\n\\.\nc\r\\N", "ř €"])),
        "truth": ("boolean", pa.array([True, False, None, True, False])),
        "number": ("double precision", pa.array([1e300, -0.1, float("inf"), None, 3.0])),
        "moment": ("timestamptz", pa.array([0, 1, None, 1_763_000_000_123_456, -1], pa.timestamp("us", "Asia/Tokyo"))),
        "day": ("date", pa.array([dt.date(2026, 11, 18), None, dt.date(1, 1, 1), dt.date(1970, 1, 1), None])),
        "sum": ("numeric(10,2)", pa.array([decimal.Decimal("1.50"), None, None, None, decimal.Decimal("-2.25")])),
    }  # fmt: skip
    name = f"values_{next(_numbers)}"
    table = TargetTable(name, (("n", "bigint"), *((key, kind) for key, (kind, _) in values.items())))
    writer = BatchWriter(postgres.dsn, table, name)
    writer.prepare()
    staging = writer.begin(numbered(0))
    assert staging is not None
    arrays = [pa.array(range(5)), *(array for _, array in values.values())]
    batch = pa.record_batch(arrays, names=["n", *values])
    # A slice, too: its buffers hold more than its rows.
    copied = copy_rows(postgres.dsn, table, staging, 7, [batch.slice(0, 2), batch.slice(2, 0), batch.slice(2)])
    assert copied == Copied(7, 5)
    assert writer.commit(numbered(0), staging, [copied])
    found = postgres.ask(f"SELECT * FROM {name} ORDER BY n")
    assert found == list(zip(*(array.to_pylist() for array in arrays), strict=True))


def test_times_of_any_year_are_read_or_are_infinite(postgres: Postgres) -> None:
    name = f"target_{next(_numbers)}"
    table = TargetTable(name, (("at", "timestamptz"), ("day", "date")))
    writer = BatchWriter(postgres.dsn, table, name)
    writer.prepare()
    day_us = 86_400_000_000
    days = [-719_163, -719_162, 2_932_896, 2_932_897, 40_000_000, -2_440_588, -2_440_589, None]
    times = [None if day is None else day * day_us + 1 for day in days]
    rows = pa.record_batch([pa.array(times, pa.timestamp("us", "UTC")), pa.array(days, pa.date32())], ["at", "day"])
    staging = writer.begin(numbered(0))
    assert staging is not None
    assert writer.commit(numbered(0), staging, [copy_rows(postgres.dsn, table, staging, 1, [rows])])
    asked = "extract(epoch from at) * 1000000, day::text, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD BC')"
    found = postgres.ask(f"SELECT {asked} FROM {name} ORDER BY at NULLS LAST")
    exact = sorted(time for time in times if time is not None and time >= -2_440_588 * day_us)
    assert [int(row[0]) for row in found[1:-1]] == exact
    assert [row[1] for row in found] == [
        "-infinity", "4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "9999-12-31", "10000-01-01", "111486-04-13", None,
    ]  # fmt: skip
    assert found[2][2] == "0001-12-31 BC" and str(found[0][0]) == "-Infinity"


def test_what_does_not_fit_the_table_is_told_before_anything_runs(postgres: Postgres) -> None:
    name = f"strict_{next(_numbers)}"
    postgres.ask(f"CREATE TABLE {name} (id bigint, name text)")
    with pytest.raises(PipelineError, match=rf"{name} has no unique constraint on \(id\)"):
        BatchWriter(postgres.dsn, TargetTable(name, (("id", "bigint"),), ("id",)), name).prepare()
    with pytest.raises(PipelineError, match='column "amount" does not exist'):
        BatchWriter(postgres.dsn, TargetTable(name, (("amount", "bigint"),)), name).prepare()
    with pytest.raises(PipelineError, match="cannot take rows for table"):
        BatchWriter("host=127.0.0.1 port=1 dbname=x", TargetTable(name, (("id", "bigint"),)), name).prepare()
    with pytest.raises(PipelineError, match="there is no column 'who'; there is id"):
        TargetTable(name, (("id", "bigint"),), ("who",))
    with pytest.raises(PipelineError, match="is no name of a table"):
        TargetTable("a.b.c", ())


def test_names_are_quoted_and_the_schema_is_kept(postgres: Postgres) -> None:
    postgres.ask('CREATE SCHEMA IF NOT EXISTS "Shop %s"')
    table = TargetTable('Shop %s.or"ders', (("a b", "bigint"), ("100%", "text")), ("a b",))
    writer = BatchWriter(postgres.dsn, table, "quoted")
    writer.prepare()
    staging = writer.begin(numbered(0))
    assert staging is not None
    batch = pa.record_batch([pa.array([1]), pa.array(["x"])], names=["a b", "100%"])
    assert writer.commit(numbered(0), staging, [copy_rows(postgres.dsn, table, staging, 1, [batch])])
    assert postgres.ask('SELECT * FROM "Shop %s"."or""ders"') == [(1, "x")]
    assert writer.begin(numbered(0)) is None


def test_sparks_types_have_their_own_in_postgresql() -> None:
    assert sql_type("decimal(10,2)") == "numeric(10,2)"
    assert sql_type("struct<city:string>") == sql_type("array<int>") == "jsonb"
    assert sql_type("interval day to second") is None
    assert copy_text(pa.record_batch([pa.array(["a\\b", None])], names=["x"]), 3) == b"a\\\\b\t3\n\\N\t3\n"
