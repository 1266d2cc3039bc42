"""Parquet files of batches: whatever breaks, a batch's files are all there or none, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from moldau.cli.errors import CommandError
from moldau.cli.topic_files import find_files
from moldau.client import BlockingProducer
from moldau.kernel import TopicPartition
from moldau.spark.exactly_once import ExactlyOnceRefused, SourceOffsets
from moldau.spark.exactly_once_driver import NumberedBatch
from moldau.spark.pipelines import Pipeline, PipelineError
from moldau.spark.pipelines.parquet import ParquetSink
from moldau.spark.pipelines.parquet_journal import FilesLost, ParquetJournal, WrittenFile, write_files
from tests.spark.clusters import Cluster

ORDERS = TopicPartition("orders", 0)
FIRST = NumberedBatch("6f1c", 0, SourceOffsets("a", {ORDERS: 8}))
SECOND = NumberedBatch("6f1c", 1, SourceOffsets("b", {ORDERS: 9}))


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch(list(map(pa.array, zip(*rows, strict=True))), names=["_partition", "_offset"])


def visible(directory: Path) -> list[tuple[int, int, int]]:
    return [(one.where.partition, one.start, one.end) for one in find_files(str(directory), "orders")]


def begun(journal: ParquetJournal, asked: NumberedBatch, *batches: pa.RecordBatch) -> list[WrittenFile]:
    prefix = journal.begin(asked)
    assert prefix is not None
    return write_files(str(journal.root), prefix, 1, batches)


@pytest.fixture
def journal(tmp_path: Path) -> ParquetJournal:
    return ParquetJournal(str(tmp_path), "orders", "shop.orders")


def test_files_are_visible_with_the_commit_and_a_batch_that_comes_again_is_skipped(
    journal: ParquetJournal, tmp_path: Path
) -> None:
    files = begun(journal, FIRST, batch((0, 5), (0, 7), (1, 0)), batch((1, 1), (2, 9)))
    assert not journal.root.exists() or visible(tmp_path) == []
    assert journal.commit(FIRST, "", files)
    assert visible(tmp_path) == [(0, 5, 8), (1, 0, 2), (2, 9, 10)]
    path = next(journal.root.glob("partition=1/*.parquet"))
    assert pq.ParquetFile(path).read()["_offset"].to_pylist() == [0, 1]
    told = json.loads((tmp_path / ".moldau" / "shop.orders.json").read_text())
    assert told["offsets"] == {"orders": {"0": 8}}
    assert journal.begin(FIRST) is None
    assert journal.begin(SECOND) is not None
    with pytest.raises(ExactlyOnceRefused, match="belongs to query 6f1c"):
        journal.begin(NumberedBatch("other", 1, SECOND.sources))


def test_a_batch_that_was_not_committed_leaves_nothing(journal: ParquetJournal, tmp_path: Path) -> None:
    left = begun(journal, FIRST, batch((0, 1)))
    files = begun(journal, FIRST, batch((0, 1)))
    assert visible(tmp_path) == []
    with pytest.raises(FilesLost, match="another driver"):
        journal.commit(FIRST, "", left)
    assert journal.commit(FIRST, "", files) and not journal.commit(FIRST, "", files)
    assert visible(tmp_path) == [(0, 1, 2)]
    assert list(journal.root.rglob("*.partial")) == []


def test_a_query_leaves_the_files_of_one_whose_name_begins_like_its_own(tmp_path: Path) -> None:
    other = ParquetJournal(str(tmp_path), "orders", "shop.orders-by-day")
    files = begun(other, FIRST, batch((0, 1)))
    (blocker := other.root / files[0].final).mkdir()
    # As if its driver had been killed behind the commit: the journal has the file, which has not its name yet.
    with pytest.raises(OSError):
        other.commit(FIRST, "", files)
    blocker.rmdir()
    assert ParquetJournal(str(tmp_path), "orders", "shop.orders").begin(FIRST) is not None
    assert other.begin(FIRST) is None
    assert visible(tmp_path) == [(0, 1, 2)]


def test_another_query_s_file_of_the_same_offsets_is_not_overwritten(journal: ParquetJournal, tmp_path: Path) -> None:
    assert journal.commit(FIRST, "", begun(journal, FIRST, batch((0, 1), (0, 3))))
    other = ParquetJournal(str(tmp_path), "orders", "shop.bad orders")
    files = begun(other, FIRST, batch((0, 1), (0, 2), (0, 3)))
    with pytest.raises(ExactlyOnceRefused, match=r"is of query shop\.orders, and would be lost"):
        other.commit(FIRST, "", files)
    (path,) = journal.root.rglob("*.parquet")
    assert pq.ParquetFile(path).read()["_offset"].to_pylist() == [1, 3]
    # Begun from nothing, a query writes what it wrote before.
    (tmp_path / ".moldau" / "shop.orders.json").unlink()
    assert journal.commit(FIRST, "", begun(journal, FIRST, batch((0, 1), (0, 3))))


def test_rows_of_offsets_that_an_earlier_batch_has_as_well_are_beside_them(
    journal: ParquetJournal, tmp_path: Path
) -> None:
    # A join of streams gives a record more than one row, and not all of them in one batch.
    assert journal.commit(FIRST, "", begun(journal, FIRST, batch((0, 5))))
    assert journal.commit(SECOND, "", begun(journal, SECOND, batch((0, 5))))
    first = f"offsets-{5:020d}-{5:020d}"
    assert sorted(path.name for path in journal.root.rglob("*.parquet")) == [
        f"{first}-batch-1.parquet",
        f"{first}.parquet",
    ]
    with pytest.raises(CommandError, match=r"batch-1\.parquet has other rows of offsets"):
        visible(tmp_path)
    # Another checkpoint is a query begun anew, which overwrites.
    (tmp_path / ".moldau" / "shop.orders.json").unlink()
    anew = [NumberedBatch("anew", one.batch_id, one.sources) for one in (FIRST, SECOND)]
    for one in anew:
        assert journal.commit(one, "", begun(journal, one, batch((0, 5 + one.batch_id))))
    assert len(list(journal.root.rglob("*.parquet"))) == 3


def test_a_file_that_no_pipeline_wrote_is_not_overwritten(journal: ParquetJournal) -> None:
    files = begun(journal, FIRST, batch((0, 1)))
    exported = pa.table({"value": [b"x"]})
    pq.write_table(exported, journal.root / files[0].final)
    with pytest.raises(ExactlyOnceRefused, match="is of no query, and would be lost"):
        journal.commit(FIRST, "", files)
    assert pq.ParquetFile(journal.root / files[0].final).read().column_names == ["value"]


def test_rows_without_a_value_have_a_directory_as_well(journal: ParquetJournal) -> None:
    columns = [pa.array([None, None, "a"], pa.string()), pa.array([0, 0, 0]), pa.array([1, 3, 2])]
    rows = pa.record_batch(columns, names=["day", "_partition", "_offset"])
    files = write_files(str(journal.root), journal.begin(FIRST) or "", 1, [rows], "day")
    assert [(one.folder, one.first, one.last) for one in files] == [
        ("day=__HIVE_DEFAULT_PARTITION__/partition=0", 1, 3),
        ("day=a/partition=0", 2, 2),
    ]


def test_rows_go_into_a_directory_for_each_value_which_is_not_in_the_file_once_more(
    journal: ParquetJournal, tmp_path: Path
) -> None:
    columns = [["10/11", "10/11", "11/11", "11/11", "11/11"], [0, 1, 0, 0, 1], [1, 4, 2, 3, 5]]
    rows = pa.record_batch(list(map(pa.array, columns)), names=["day", "_partition", "_offset"])
    left = write_files(str(journal.root), journal.begin(FIRST) or "", 1, [rows], "day")
    files = write_files(str(journal.root), journal.begin(FIRST) or "", 1, [rows.slice(0, 3), rows.slice(3)], "day")
    assert len(left) == len(files) == 4 and not any((journal.root / one.hidden).exists() for one in left)
    assert journal.commit(FIRST, "", files)
    found = {
        str(path.relative_to(journal.root)): pq.ParquetFile(path).read() for path in journal.root.rglob("*.parquet")
    }
    assert {name: table["_offset"].to_pylist() for name, table in found.items()} == {
        f"day={day}/partition={partition}/offsets-{first:020d}-{last:020d}.parquet": [*range(first, last + 1)]
        for day, partition, first, last in (
            ("10%2F11", 0, 1, 1),
            ("10%2F11", 1, 4, 4),
            ("11%2F11", 0, 2, 3),
            ("11%2F11", 1, 5, 5),
        )
    }
    assert all(table.column_names == ["_partition", "_offset"] for table in found.values())


def test_a_crash_in_the_middle_of_the_renames_is_finished_by_the_next_driver(
    journal: ParquetJournal, tmp_path: Path
) -> None:
    files = begun(journal, FIRST, batch((0, 1), (1, 4)))
    blocker = journal.root / files[1].final
    blocker.mkdir()
    with pytest.raises(OSError):
        journal.commit(FIRST, "", files)
    blocker.rmdir()
    assert visible(tmp_path) == [(0, 1, 2)]
    assert ParquetJournal(str(tmp_path), "orders", "shop.orders").begin(FIRST) is None
    assert visible(tmp_path) == [(0, 1, 2), (1, 4, 5)]


def test_a_stream_is_in_parquet_files_once_however_often_a_batch_comes(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    topic = moldau_cluster.topic("orders", 2)
    shop = Pipeline(spark, moldau_cluster.bootstrap, name="files", checkpoints=tmp_path / "checkpoints")
    query = shop.stream(topic, "id BIGINT").to_parquet(tmp_path / "out", topic)

    def order(numbers: range) -> None:
        with BlockingProducer(moldau_cluster.bootstrap) as producer:
            for number in numbers:
                producer.send(topic, json.dumps({"id": number}).encode(), partition=number % 2)

    order(range(10))
    shop.run(query)
    # As if the driver had been killed behind the commit, before Spark wrote down that the batch is done.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoints" / query.name / "commits" / name).unlink()
    order(range(10, 12))
    shop.run(query)
    found = [(one.where.partition, one.start, one.end) for one in find_files(str(tmp_path / "out"), topic)]
    assert found == [(0, 0, 5), (0, 5, 6), (1, 0, 5), (1, 5, 6)]
    rows = spark.read.parquet(str(tmp_path / "out" / f"topic={topic}"))
    assert sorted(row.id for row in rows.select("id").collect()) == list(range(12))
    with pytest.raises(PipelineError, match="has no _partition"):
        shop.stream(topic, "id BIGINT").select("id").to_parquet(tmp_path, topic)
    with pytest.raises(PipelineError, match="not to a URL"):
        ParquetSink("s3://bucket", topic)
