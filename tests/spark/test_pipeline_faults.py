"""What may happen to a pipeline in its life: other columns, a full disk under the checkpoint, a second driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import SparkSession

from moldau.spark.pipelines import PipelineError
from tests.spark.clusters import Cluster
from tests.spark.lakes import Lake
from tests.spark.sinks import Shop

DISK_BYTES = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "moldau-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield path
    # Lazily: what Spark has open there keeps it no longer than it needs it.
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> Path:
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def test_a_full_disk_under_the_checkpoint_stops_a_query_which_goes_on_when_there_is_room(
    spark: SparkSession, moldau_cluster: Cluster, small_disk: Path, tmp_path: Path
) -> None:
    shop, lake = Shop(spark, moldau_cluster, small_disk / "checkpoints"), Lake("delta", tmp_path / "lake")
    query = lake.query(shop.orders(), "orders")
    shop.order(*range(10))
    shop.run(query)
    filler = fill(small_disk)
    shop.order(10, 11)
    with pytest.raises(StreamingQueryException, match="No space left on device"):
        shop.run(query)
    filler.unlink()
    shop.order(12)
    shop.run(query)
    assert lake.read("orders", "id") == [(number,) for number in range(13)]


def test_columns_may_be_added_and_a_second_driver_is_refused(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    shop, lake = Shop(spark, moldau_cluster, tmp_path / "checkpoints"), Lake("delta", tmp_path / "lake")
    shop.order(0)
    shop.run(lake.query(shop.orders(), "orders"))
    wider = lake.query(shop.orders().with_column("double", "id * 2"), "orders")
    with pytest.raises(PipelineError, match=r"has no column double \(int64\)"):
        shop.run(wider)
    DeltaTable(tmp_path / "lake" / "orders").alter.add_columns([Field("double", PrimitiveType("long"))])
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "other")
    shop.order(1)
    shop.run(wider)
    assert lake.read("orders", "id", "double") == [(0, None), (1, 2)]
    # A second driver, which was at the same place, has planned the next batch by itself.
    shop.order(2)
    with pytest.raises(StreamingQueryException, match="now gets another batch 1"):
        shop.elsewhere(tmp_path / "other").run(wider)
    shop.run(wider)
    assert lake.read("orders", "id") == [(0,), (1,), (2,)]
