"""The sinks for tables of files: whatever breaks while a batch is committed, its rows are in the table once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from moldau.spark.exactly_once import ExactlyOnceRefused
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import PipelineError
from moldau.spark.pipelines.delta import DeltaStorage, DeltaWriter
from moldau.spark.pipelines.iceberg import IcebergWriter
from moldau.spark.pipelines.lake_rules import LakeRows
from moldau.spark.pipelines.staged_files import remove_others
from tests.spark.clusters import Cluster
from tests.spark.lakes import KINDS, SCHEMA, DeltaTarget, IcebergTarget, Lake, Target
from tests.spark.sinks import QUERY_ID, Shop, numbered

RACES = 20


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(kind: str, tmp_path: Path) -> Target:
    return KINDS[kind](tmp_path)


@pytest.fixture
def keyed(kind: str, tmp_path: Path) -> Target:
    return KINDS[kind](tmp_path, ("id",))


def test_a_batch_that_comes_again_is_skipped(target: Target) -> None:
    assert target.write(0, (1, "ann"), (2, None))
    assert not target.write(0, (1, "ann"), (2, None))
    assert target.write(1, (3, ""))
    assert target.rows() == [(1, "ann"), (2, None), (3, "")]
    assert '{"orders":{"0":10,"1":7}}' in target.offsets().replace(" ", "")


def test_a_batch_without_rows_is_in_as_well(target: Target) -> None:
    assert target.write(0) and not target.write(0)
    assert target.write(1, (1, "ann")) and target.rows() == [(1, "ann")]


def test_two_drivers_with_one_batch_write_it_once(target: Target) -> None:
    other, batch = target.driver(), numbered(0)
    place = other.begin(batch)
    assert place is not None
    left = target.stage(place, 1, (1, "other"))
    assert target.write(0, (1, "ann"))
    assert not other.commit(batch, place, left)
    assert target.rows() == [(1, "ann")]


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_of_two_drivers_that_commit_at_once_one_does(kind: str, tmp_path: Path, keys: tuple[str, ...]) -> None:
    target = KINDS[kind](tmp_path, keys)
    drivers = [target.driver(), target.driver()]
    with ThreadPoolExecutor(len(drivers)) as threads:
        for number in range(RACES):
            batch, start = numbered(number), Barrier(len(drivers))

            def commit(driver: Any, batch: NumberedBatch = batch, start: Barrier = start) -> bool:
                place = driver.begin(batch)
                assert place is not None
                files = target.stage(place, 1, (batch.batch_id, "ann"))
                start.wait(10)
                return bool(driver.commit(batch, place, files))

            assert sorted(threads.map(commit, drivers)) == [False, True]
    assert target.rows() == sorted(((number, "ann") for number in range(RACES)), key=str)


def test_a_driver_whose_files_another_one_removed_writes_nothing(keyed: Target) -> None:
    batch = numbered(0)
    place = keyed.writer.begin(batch)
    assert place is not None
    files = keyed.stage(place, 1, (1, "ann"))
    remove_others(keyed.writer.storage, place, ())
    with pytest.raises(FileNotFoundError, match=place.token):
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
    assert not [path for path in keyed.files() if "batch-" in str(path)]


def test_another_query_and_an_older_checkpoint_are_refused(target: Target) -> None:
    assert target.write(3, (1, "ann"))
    for batch, why in (
        (numbered(4, "other"), f"belongs to query {QUERY_ID}"),
        (numbered(2), "and now gets batch 2"),
        (numbered(3, digest="other"), "another batch 3"),
    ):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.writer.begin(batch)


def test_a_batch_is_known_when_its_commit_was_cleaned_out_of_deltas_log(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    assert target.write(3, (1, "ann"))
    DeltaTable(target.path).create_checkpoint()
    for path in (Path(target.path) / "_delta_log").glob("*.json"):
        path.unlink()
    assert target.writer.begin(numbered(3)) is None
    assert target.writer.begin(numbered(4)) is not None
    for batch, why in ((numbered(4, "other"), "belongs to query"), (numbered(2), "and now gets batch 2")):
        with pytest.raises(ExactlyOnceRefused, match=why):
            target.writer.begin(batch)


def test_a_batch_is_known_when_icebergs_snapshot_of_it_has_expired(tmp_path: Path) -> None:
    target = IcebergTarget(tmp_path)
    assert target.write(3, (1, "ann"))
    expired = target.loaded().current_snapshot().snapshot_id
    rows = target.table()
    target.loaded().overwrite(rows)  # as a compaction by another program
    target.loaded().maintenance.expire_snapshots().by_id(expired).commit()
    assert target.writer.begin(numbered(3)) is None
    with pytest.raises(ExactlyOnceRefused, match="belongs to query"):
        target.writer.begin(numbered(0, "other"))


def test_columns_that_do_not_fit_are_told_before_anything_runs(target: Target) -> None:
    more = SCHEMA.append(pa.field("amount", pa.float64()))
    with pytest.raises(PipelineError, match=r"has no column amount \(double\); it has id, name: add the column"):
        target.driver(more)
    with pytest.raises(PipelineError, match=r"column id as int64, and the rows have it as string: cast it"):
        target.driver(pa.schema([("id", pa.string())]))
    target.add_column("amount")
    target.driver(more)
    assert target.write(0, (1, "ann")) and target.table()["amount"].to_pylist() == [None]


def test_a_keyed_table_may_have_more_columns_than_the_rows(keyed: Target) -> None:
    keyed.add_column("amount")
    assert keyed.write(0, (1, "ann"), (2, "bob")) and keyed.write(1, (1, "eva"))
    assert keyed.rows() == [(1, "eva"), (2, "bob")]


def test_a_table_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "parts", SCHEMA, partition_by=["name"])
    with pytest.raises(PipelineError, match="is partitioned"):
        DeltaWriter(DeltaStorage(str(tmp_path / "parts"), {}), LakeRows(SCHEMA), "q").prepare()
    with pytest.raises(PipelineError, match=r"is no name of an Iceberg table: write namespace\.table"):
        IcebergWriter({}, "orders", LakeRows(SCHEMA), "q").prepare()
    with pytest.raises(PipelineError, match="the Iceberg catalog cannot be opened"):
        IcebergWriter({"uri": "nonsense://"}, "shop.orders", LakeRows(SCHEMA), "q").prepare()
    with pytest.raises(PipelineError, match="there is no column 'who'; there is id, name"):
        LakeRows(SCHEMA, ("who",))


def test_rows_and_totals_are_in_tables_once_however_often_a_batch_comes(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    shop = Shop(spark, moldau_cluster, tmp_path / "checkpoints")
    orders = shop.orders()
    delta, iceberg = (Lake(kind, tmp_path / kind) for kind in KINDS)
    queries = (
        delta.query(orders, "orders"),
        delta.query(orders.by("user").agg(total=F.sum("amount")), "totals"),
        iceberg.query(orders, "last", key="user"),
    )
    shop.order(*range(30))
    shop.run(*queries)
    shop.forget_commit(*queries)
    shop.order(30, 31)
    shop.run(*queries)
    assert delta.read("orders", "id") == [(number,) for number in range(32)]
    assert iceberg.read("last", "id", "user") == [(29, "user-2"), (30, "user-0"), (31, "user-1")]
    sums = [(f"user-{user}", sum(number for number in range(32) if number % 3 == user)) for user in range(3)]
    assert delta.read("totals", "user", "total") == sums
