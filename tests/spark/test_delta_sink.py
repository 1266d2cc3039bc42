"""The Delta sink: whatever breaks while a batch is committed, its rows are in the table once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from moldau.spark.exactly_once import ExactlyOnceRefused
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import PipelineError
from moldau.spark.pipelines.delta import DeltaStorage, DeltaWriter
from moldau.spark.pipelines.lake_rules import LakeRows
from moldau.spark.pipelines.staged_files import FilesLost, Place, StagedFile, remove_others, write_staged
from tests.spark.clusters import Cluster
from tests.spark.sinks import QUERY_ID, Shop, numbered

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
RACES = 20
Row = tuple[int | None, str | None]


class Target:
    """A table of its own, and batches of (id, name) into it without Spark."""

    def __init__(self, directory: Path, keys: tuple[str, ...] = ()) -> None:
        self.path = str(directory / "table")
        self.rows_kept = LakeRows(SCHEMA, keys)
        self.writer = self.another()
        self.writer.prepare()

    def another(self) -> DeltaWriter:
        return DeltaWriter(DeltaStorage(self.path, {}), self.rows_kept, "shop.orders")

    def stage(self, place: Place, attempt: int, *rows: Row) -> list[StagedFile]:
        columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())]
        return write_staged(self.writer.storage, place, SCHEMA, attempt, [pa.record_batch(columns, schema=SCHEMA)])

    def write(self, batch_id: int, *rows: Row) -> bool:
        batch = numbered(batch_id)
        place = self.writer.begin(batch)
        return place is not None and self.writer.commit(batch, place, self.stage(place, 1, *rows))

    def rows(self) -> list[Row]:
        found = DeltaTable(self.path).to_pyarrow_dataset().to_table().to_pylist()
        return sorted(((row["id"], row["name"]) for row in found), key=str)

    def files(self) -> list[str]:
        return sorted(path.name for path in Path(self.path).rglob("*.parquet"))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


@pytest.fixture
def keyed(tmp_path: Path) -> Target:
    return Target(tmp_path, ("id",))


def test_a_batch_that_comes_again_is_skipped(target: Target) -> None:
    assert target.write(0, (1, "ann"), (2, None))
    assert not target.write(0, (1, "ann"), (2, None))
    assert target.write(1, (3, ""))
    assert target.rows() == [(1, "ann"), (2, None), (3, "")]
    told = DeltaTable(target.path).history(1)[0]["moldau"]
    assert '"offsets":{"orders":{"0":10,"1":7}}' in told


def test_a_batch_without_rows_is_in_as_well(target: Target) -> None:
    assert target.write(0) and not target.write(0)
    assert target.write(1, (1, "ann")) and target.rows() == [(1, "ann")]


def test_two_drivers_with_one_batch_write_it_once(target: Target) -> None:
    other, batch = target.another(), numbered(0)
    place = other.begin(batch)
    assert place is not None
    left = target.stage(place, 1, (1, "other"))
    assert target.write(0, (1, "ann"))
    assert not other.commit(batch, place, left)
    assert target.rows() == [(1, "ann")]


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_of_two_drivers_that_commit_at_once_one_does(tmp_path: Path, keys: tuple[str, ...]) -> None:
    target = Target(tmp_path, keys)
    drivers = [target.another(), target.another()]
    with ThreadPoolExecutor(len(drivers)) as threads:
        for number in range(RACES):
            batch, start = numbered(number), Barrier(len(drivers))

            def commit(driver: DeltaWriter, batch: NumberedBatch = batch, start: Barrier = start) -> bool:
                place = driver.begin(batch)
                assert place is not None
                files = target.stage(place, 1, (batch.batch_id, "ann"))
                start.wait(10)
                return driver.commit(batch, place, files)

            assert sorted(threads.map(commit, drivers)) == [False, True]
    assert target.rows() == sorted(((number, "ann") for number in range(RACES)), key=str)


def test_a_driver_whose_files_another_one_removed_writes_nothing(keyed: Target) -> None:
    batch = numbered(0)
    place = keyed.writer.begin(batch)
    assert place is not None
    files = keyed.stage(place, 1, (1, "ann"))
    remove_others(keyed.writer.storage, place, ())
    with pytest.raises(FilesLost, match="batch 0"):
        keyed.writer.commit(batch, place, files)
    assert keyed.rows() == [] and keyed.write(0, (1, "ann"))


def test_a_batch_that_was_not_committed_leaves_nothing(target: Target) -> None:
    place = target.writer.begin(numbered(0))
    assert place is not None
    target.stage(place, 1, (1, "lost"))
    assert target.rows() == []
    assert target.write(0, (1, "ann"))
    assert target.rows() == [(1, "ann")]
    assert len(target.files()) == 1


def test_rows_of_an_attempt_that_did_not_report_are_left_out(target: Target) -> None:
    batch = numbered(0)
    place = target.writer.begin(batch)
    assert place is not None
    target.stage(place, 1, (1, "lost report"))
    assert target.writer.commit(batch, place, target.stage(place, 2, (1, "second attempt")))
    assert target.rows() == [(1, "second attempt")] and len(target.files()) == 1


def test_rows_with_a_key_replace_those_that_have_it(keyed: Target) -> None:
    assert keyed.write(0, (1, "old"), (2, "bob"), (None, "nobody"))
    assert keyed.write(1, (1, "new"), (3, "eva"), (None, "none"))
    assert not keyed.write(1, (1, "again"))
    assert keyed.rows() == [(1, "new"), (2, "bob"), (3, "eva"), (None, "none")]
    assert not list(Path(keyed.path).glob("_moldau/**/*.parquet"))


def test_another_query_and_an_older_checkpoint_are_refused(target: Target) -> None:
    assert target.write(3, (1, "ann"))
    for batch, why in (
        (numbered(4, "other"), f"belongs to query {QUERY_ID}"),
        (numbered(2), "and now gets batch 2"),
        (numbered(3, digest="other"), "another batch 3"),
    ):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.writer.begin(batch)


def test_a_batch_is_known_when_its_commit_was_cleaned_out_of_the_log(target: Target) -> None:
    assert target.write(3, (1, "ann"))
    DeltaTable(target.path).create_checkpoint()
    for path in (Path(target.path) / "_delta_log").glob("*.json"):
        path.unlink()
    assert target.writer.begin(numbered(3)) is None
    assert target.writer.begin(numbered(4)) is not None
    for batch, why in ((numbered(4, "other"), "belongs to query"), (numbered(2), "and now gets batch 2")):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.writer.begin(batch)


def test_what_does_not_fit_the_table_is_told_before_anything_runs(target: Target, tmp_path: Path) -> None:
    def prepare(schema: pa.Schema) -> None:
        DeltaWriter(DeltaStorage(target.path, {}), LakeRows(schema), "q").prepare()

    with pytest.raises(PipelineError, match=r"has no column amount \(double\); it has id, name: add the column"):
        prepare(SCHEMA.append(pa.field("amount", pa.float64())))
    with pytest.raises(PipelineError, match="column id as int64, and the rows have it as string: cast it"):
        prepare(pa.schema([("id", pa.string())]))
    DeltaTable(target.path).alter.add_columns([Field("amount", PrimitiveType("double"))])
    prepare(SCHEMA.append(pa.field("amount", pa.float64())))
    assert target.write(0, (1, "ann"))
    DeltaTable.create(tmp_path / "parts", SCHEMA, partition_by=["name"])
    with pytest.raises(PipelineError, match="is partitioned"):
        DeltaWriter(DeltaStorage(str(tmp_path / "parts"), {}), LakeRows(SCHEMA), "q").prepare()
    with pytest.raises(PipelineError, match="there is no column 'who'; there is id, name"):
        LakeRows(SCHEMA, ("who",))


def test_rows_and_totals_are_in_delta_tables_once_however_often_a_batch_comes(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    shop = Shop(spark, moldau_cluster, tmp_path / "checkpoints")
    orders = shop.orders()
    queries = (
        orders.to_delta(tmp_path / "orders"),
        orders.to_delta(tmp_path / "last", key="user"),
        orders.by("user").agg(total=F.sum("amount")).to_delta(tmp_path / "totals"),
    )
    shop.order(*range(30))
    shop.run(*queries)
    shop.forget_commit(*queries)
    shop.order(30, 31)
    shop.run(*queries)

    def read(name: str, *columns: str) -> list[tuple[object, ...]]:
        rows = DeltaTable(tmp_path / name).to_pyarrow_dataset().to_table().to_pylist()
        return sorted(tuple(row[column] for column in columns) for row in rows)

    assert read("orders", "id") == [(number,) for number in range(32)]
    assert read("last", "id", "user") == [(29, "user-2"), (30, "user-0"), (31, "user-1")]
    sums = [(f"user-{user}", sum(number for number in range(32) if number % 3 == user)) for user in range(3)]
    assert read("totals", "user", "total") == sums
