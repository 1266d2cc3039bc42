"""The Redshift sink against a stand-in (`tests.redshift`): whatever breaks, a batch's rows are in the table once."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from moldau.spark.exactly_once import ExactlyOnceRefused
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import PipelineError
from moldau.spark.pipelines.redshift import RedshiftWriter, RowsLost, S3Storage
from moldau.spark.pipelines.redshift_rules import TEXT, RedshiftTable, range_name, sql_type
from moldau.spark.pipelines.staged_files import Place, StagedFile, write_staged
from tests.postgres import Postgres
from tests.redshift import ROLE, Redshift, running_redshift
from tests.spark.clusters import Cluster
from tests.spark.sinks import QUERY_ID, Shop, numbered

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
RACES = 5
_numbers = count()
Row = tuple[int | None, str | None]


@pytest.fixture(scope="module")
def redshift(postgres: Postgres) -> Iterator[Redshift]:
    with running_redshift(postgres) as running:
        yield running
        assert running.refused == []


class Target:
    """A table of its own, and batches of (id, name) into it without Spark."""

    def __init__(self, redshift: Redshift, keys: tuple[str, ...] = ()) -> None:
        self.redshift = redshift
        self.name = f"redshift_{next(_numbers)}"
        self.table = RedshiftTable(self.name, (("id", "BIGINT"), ("name", TEXT)), keys)
        self.storage = S3Storage(f"s3://lake/{self.name}", redshift.s3.options)
        self.writer = self.driver()
        self.writer.prepare()

    def driver(self) -> RedshiftWriter:
        return RedshiftWriter(self.redshift.dsn, self.table, self.storage, ROLE, self.name)

    def stage(self, place: Place, attempt: int, *rows: Row) -> list[StagedFile]:
        columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())]
        return write_staged(self.storage, place, SCHEMA, attempt, [pa.record_batch(columns, schema=SCHEMA)])

    def write(self, batch_id: int, *rows: Row) -> bool:
        batch = numbered(batch_id)
        place = self.writer.begin(batch)
        return place is not None and self.writer.commit(batch, place, self.stage(place, 1, *rows))

    def rows(self) -> list[Row]:
        return [(row[0], row[1]) for row in self.redshift.ask(f"SELECT id, name FROM {self.name} ORDER BY id, name")]

    def files(self) -> list[str]:
        return self.redshift.s3.files(f"lake/{self.name}")


@pytest.fixture
def target(redshift: Redshift) -> Target:
    return Target(redshift)


def test_a_batch_that_comes_again_is_skipped(target: Target) -> None:
    assert target.write(0, (1, "ann"), (2, None))
    assert not target.write(0, (1, "ann"), (2, None))
    assert target.write(1) and not target.write(1)
    assert target.write(2, (3, ""))
    assert target.rows() == [(1, "ann"), (2, None), (3, "")]
    told = target.redshift.ask(f"SELECT query_id, batch_id, offsets FROM moldau_batches WHERE query = '{target.name}'")
    assert [(one, number, json.loads(offsets)) for one, number, offsets in told] == [
        (QUERY_ID, 2, {"orders": {"0": 20, "1": 7}})
    ]
    assert target.files() == []


def test_files_and_manifest_are_named_by_what_the_batch_has_read(target: Target) -> None:
    assert target.write(0, (1, "ann")) and target.write(1, (2, "bob"))
    first, second = target.redshift.copies[-2:]
    directory = f"s3://lake/{target.name}/{target.name}-"
    assert first.startswith(directory) and "/batch-00000000000000000000_orders-0.start-0_orders-1.start-7/" in first
    assert second.startswith(directory) and "/batch-00000000000000000001_orders-0.0-10_orders-1.7-7/" in second
    many = {f"topic-{number}": {"0": number} for number in range(100)}
    assert len(range_name({}, many)) < 220 and range_name({}, many) != range_name(many, many)


def test_of_two_drivers_that_commit_at_once_one_does(redshift: Redshift) -> None:
    target = Target(redshift)
    drivers = [target.driver(), target.driver()]
    with ThreadPoolExecutor(len(drivers)) as threads:
        for number in range(RACES):
            batch, start = numbered(number), Barrier(len(drivers))

            def commit(driver: RedshiftWriter, batch: NumberedBatch = batch, start: Barrier = start) -> bool:
                place = driver.begin(batch)
                assert place is not None
                files = target.stage(place, 1, (batch.batch_id, "ann"))
                start.wait(10)
                return driver.commit(batch, place, files)

            assert sorted(threads.map(commit, drivers)) == [False, True]
    assert target.rows() == [(number, "ann") for number in range(RACES)]


def test_a_batch_that_was_not_committed_leaves_nothing(target: Target) -> None:
    batch = numbered(0)
    place = target.writer.begin(batch)
    assert place is not None
    files = target.stage(place, 1, (1, "lost report"))
    target.redshift.s3.filesystem.delete_file(f"lake/{target.name}/{files[0].path}")
    with pytest.raises(psycopg.Error, match="S3ServiceException"):
        target.writer.commit(batch, place, files)
    with pytest.raises(RowsLost, match="copied 1 of the 2 rows"):
        (file,) = target.stage(place, 2, (1, "ann"))
        target.writer.commit(batch, place, [StagedFile(file.path, file.byte_count, 2)])
    assert target.rows() == [] and target.files() != []
    assert target.writer.commit(batch, place, target.stage(place, 3, (1, "second attempt")))
    assert target.rows() == [(1, "second attempt")] and target.files() == []


def test_what_a_driver_left_that_was_killed_behind_its_commit_is_removed(target: Target) -> None:
    batch = numbered(0)
    place = target.writer.begin(batch)
    assert place is not None
    assert target.writer.commit(batch, place, target.stage(place, 1, (1, "ann")))
    other = target.writer.begin(numbered(1))
    assert other is not None
    target.stage(other, 1, (2, "bob"))
    target.stage(place, 1, (1, "ann"))
    assert len(target.files()) == 2
    assert target.writer.begin(batch) is None
    assert len(target.files()) == 1 and "batch-00000000000000000001" in target.files()[0]


def test_rows_with_a_key_replace_those_that_have_it(redshift: Redshift) -> None:
    keyed = Target(redshift, ("id", "name"))
    assert keyed.write(0, (1, "a"), (1, None), (None, "x"), (None, None), (2, ""))
    assert keyed.write(1, (1, None), (None, None), (None, "y"), (2, None))
    assert sorted(keyed.rows(), key=str) == sorted(
        [(1, "a"), (1, None), (2, ""), (2, None), (None, "x"), (None, "y"), (None, None)], key=str
    )


def test_another_query_and_an_older_checkpoint_are_refused(target: Target) -> None:
    assert target.write(3, (1, "ann"))
    for batch, why in (
        (numbered(4, "other"), f"belongs to query {QUERY_ID}"),
        (numbered(2), "and now gets batch 2"),
        (numbered(3, digest="other"), "another batch 3"),
    ):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.writer.begin(batch)


def test_what_does_not_fit_is_told_before_anything_runs(redshift: Redshift) -> None:
    target = Target(redshift)
    wider = RedshiftTable(target.name, (*target.table.columns, ("amount", "BIGINT")))

    def prepare(table: RedshiftTable, dsn: str = redshift.dsn, **more: str) -> None:
        RedshiftWriter(dsn, table, S3Storage("s3://lake/x", {**redshift.s3.options, **more}), ROLE, "q").prepare()

    with pytest.raises(PipelineError, match=r'cannot take rows for table .*column "amount" .* does not exist'):
        prepare(wider)
    redshift.ask(f"ALTER TABLE {target.name} ADD COLUMN amount BIGINT")
    prepare(wider)
    with pytest.raises(PipelineError, match="cannot take rows for table"):
        prepare(target.table, "host=127.0.0.1 port=1 dbname=x")
    with pytest.raises(PipelineError, match="s3://lake/x cannot be reached"):
        prepare(target.table, endpoint_override="127.0.0.1:1")
    with pytest.raises(PipelineError, match="is no place in S3: write s3://bucket/prefix"):
        S3Storage("/tmp/files", {})
    with pytest.raises(PipelineError, match="column yes is a boolean"):
        RedshiftTable("orders", (("yes", "BOOLEAN"),), ("yes",))
    assert sql_type("decimal(10,2)") == "DECIMAL(10,2)" and sql_type("binary") is None


def test_rows_are_in_redshift_once_however_often_a_batch_comes(
    spark: SparkSession, moldau_cluster: Cluster, redshift: Redshift, tmp_path: Path
) -> None:
    shop = Shop(spark, moldau_cluster, tmp_path)
    orders = shop.orders()
    last = f"last of {shop.topic}"
    place = {"s3": "s3://lake/shop", "s3_options": redshift.s3.options, "iam_role": ROLE}
    query = orders.to_redshift(redshift.dsn, last, key="user", **place)
    shop.order(*range(30))
    shop.run(query)
    shop.forget_commit(query)
    shop.order(30, 31)
    shop.run(query)
    noon = dt.datetime(2026, 11, 18, 10)
    assert redshift.ask(f'SELECT id, "user", amount, at, tags FROM "{last}" ORDER BY id') == [
        (number, f"user-{number % 3}", number, noon, '["a","ř"]') for number in (29, 30, 31)
    ]
    with pytest.raises(PipelineError, match="column raw is binary, which cannot be copied into Redshift"):
        orders.with_column("raw", F.encode("user", "UTF-8")).to_redshift("", "x", **place)
    assert "secret" not in repr(orders.to_redshift("password=secret", "orders", **place).sink)
