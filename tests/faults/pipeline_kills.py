"""Breaks what a pipeline stands on, at random moments under load; then each input is in every sink exactly once.

    python -m tests.faults.pipeline_kills --kills 20 [--seed 7]

A round is one fault of `FAULTS`, from which the pipeline must go on by itself, and then SIGKILL for the driver and its
JVM. The sinks are a topic, a table topic, PostgreSQL, Parquet, Delta, Iceberg and the stand-in for Redshift, with rows
and with groups; the pipeline runs as users run it, by `moldau pipeline run`. The seed says what breaks and when; what a
fault meets is chance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from moldau.spark.pipelines.iceberg import load_catalog
from moldau.testing import BrokerProcess
from tests.faults.pipeline_queries import GROUPS, PLACES, Places
from tests.postgres import Postgres
from tests.redshift import S3, Redshift
from tests.spark.clusters import Cluster

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
PER_BATCH = 1000  # records
AHEAD = 3  # full batches that wait
FAULT_AFTER_SECONDS_MAX = 3.0
DOWN_SECONDS_MAX = 2.0
SECONDS_MAX = 240.0
QUERIES = ("rows", "groups")
FAULTS = ("worker", "broker", "postgres", "s3")


class World:
    """Servers, the pipeline's folder, and one run of it after the other."""

    def __init__(self, directory: Path, postgres: Postgres) -> None:
        self.directory, self.postgres = directory, postgres
        self.s3 = S3()
        self.redshift = Redshift(postgres, self.s3)
        self.broker = BrokerProcess().start()
        self.cluster = Cluster("moldau", self.broker.bootstrap, self.broker.data)
        self.source = self.cluster.create_topic(PARTITIONS, "source")
        self.fed = 0
        self._run: subprocess.Popen[bytes] | None = None
        (directory / "iceberg").mkdir()
        self._write_folder()

    def _write_folder(self) -> None:
        self.places = Places(self.source, str(self.directory), self.postgres.dsn, self.redshift.dsn, self.s3.options)
        (self.directory / "places.json").write_text(json.dumps(asdict(self.places)))
        folder = self.directory / "faults"
        folder.mkdir()
        (folder / "everything.py").write_text("from tests.faults.pipeline_queries import queries\n")
        settings = {
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={self.directory}",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.local.dir": str(self.directory / "local"),
        }
        lines = [
            'files = ["everything.py"]',
            f'bootstrap = "{self.broker.bootstrap}"',
            'master = "local[2]"',
            "[spark]",
            *(f'"{name}" = "{value}"' for name, value in settings.items()),
            "[options]",
            f"maxOffsetsPerTrigger = {PER_BATCH}",
        ]
        (folder / "pipeline.toml").write_text("\n".join(lines) + "\n")

    def close(self) -> None:
        self.kill()
        self.broker.kill()
        self.redshift.stop()
        self.s3.stop()

    # -- load ----------------------------------------------------------------------------------------------------------

    def batches(self) -> list[int]:
        """How many batches each query has behind it, by Spark's own account."""
        return [_newest(self._checkpoint(query) / "commits") + 1 for query in QUERIES]

    def feed(self) -> None:
        """Keep every query a few full batches behind."""
        wanted = (max(self.batches()) + AHEAD) * PER_BATCH
        while self.fed < wanted:
            for partition in range(PARTITIONS):
                ids = range(self.fed + partition, self.fed + PER_BATCH, PARTITIONS)
                self.cluster.produce(
                    self.source, [b'{"id": %d, "padding": "%064d"}' % (id, id) for id in ids], partition
                )
            self.fed += PER_BATCH

    def is_all_read(self) -> bool:
        return all(self._read(query) == self.fed for query in QUERIES)

    def _read(self, query: str) -> int:
        """Up to where the newest batch that is done has read the topic, partitions added up."""
        newest = _newest(self._checkpoint(query) / "commits")
        if newest < 0:
            return 0
        told = (self._checkpoint(query) / "offsets" / str(newest)).read_text().splitlines()[-1]
        return sum(json.loads(told)[self.source].values())

    def _checkpoint(self, query: str) -> Path:
        return self.directory / "faults" / ".moldau" / "checkpoints" / query

    def wait(self, is_enough: Callable[[], bool], feed: bool = True) -> None:
        """Until then, and see to it that the pipeline lives."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_enough():
            assert self._run is not None and self._run.poll() is None, f"the pipeline ended:\n{self.said()[-4000:]}"
            assert time.monotonic() < deadline, f"no progress: {self.batches()}\n{self.said()[-4000:]}"
            if feed:
                self.feed()
            time.sleep(0.1)

    def wait_progress(self) -> None:
        """Each query has done a batch more."""
        before = self.batches()
        self.wait(lambda: all(now > then for now, then in zip(self.batches(), before, strict=True)))

    # -- the pipeline --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with (self.directory / "run.out").open("ab") as output:
            self._run = subprocess.Popen(
                [sys.executable, "-m", "moldau", "pipeline", "run", str(self.directory / "faults")],
                env={**os.environ, PLACES: str(self.directory / "places.json"), "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver and its JVM, at once; Python workers notice in their own time."""
        if self._run is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._run.pid, signal.SIGKILL)
            self._run.wait()
            self._run = None

    def stop(self) -> None:
        assert self._run is not None
        self._run.send_signal(signal.SIGTERM)
        assert self._run.wait(SECONDS_MAX) == 0, self.said()[-4000:]
        self._run = None

    def said(self) -> str:
        return (self.directory / "run.out").read_text(errors="replace")

    # -- faults --------------------------------------------------------------------------------------------------------

    def break_(self, what: str, dice: random.Random) -> None:
        """One fault, over by itself or after a while; the pipeline has to go on."""
        down_seconds = dice.uniform(0, DOWN_SECONDS_MAX)
        if what == "worker":
            workers = self._workers()
            if workers:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(dice.choice(workers), signal.SIGKILL)
            return
        ends: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "broker": (self.broker.kill, self.broker.start),
            "postgres": (self.postgres.kill, self.postgres.start),
            "s3": (self.s3.stop, self.s3.start),
        }
        end, begin = ends[what]
        end()
        time.sleep(down_seconds)  # nothing to wait for: so long it is away
        begin()

    def _workers(self) -> list[int]:
        """The Python processes that run tasks."""
        assert self._run is not None
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError, ValueError):
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                command = (path / "cmdline").read_bytes()
                if session == self._run.pid and b"-m\0moldau.spark.daemon" in command:
                    found.append(int(path.name))
        return sorted(found)

    def fault_under_load(self, what: str, dice: random.Random) -> None:
        """Each run gets somewhere, or faults would only meet starts; and then other batches are under way."""
        self.wait_progress()
        fault_at = time.monotonic() + dice.uniform(0, FAULT_AFTER_SECONDS_MAX)
        self.wait(lambda: time.monotonic() > fault_at)
        if what == "driver":
            self.kill()
        else:
            self.break_(what, dice)


# -- in the end --------------------------------------------------------------------------------------------------------


def check(world: World) -> None:
    """Every sink has what a batch computation makes of the input."""
    numbers = list(range(world.fed))
    expected = [(key, len(numbers[key::GROUPS]), sum(numbers[key::GROUPS])) for key in range(GROUPS)]
    for name, found in _ids(world).items():
        assert len(found) == world.fed, f"{name} has {len(found)} rows of {world.fed}, {len(set(found))} different ones"
        assert sorted(found) == numbers, name
    for name, groups in _groups(world).items():
        assert sorted(groups) == expected, name
    assert world.redshift.refused == []


def _ids(world: World) -> dict[str, list[int]]:
    parquet = (world.directory / "parquet" / "topic=numbers").glob("partition=*/offsets-*.parquet")
    return {
        "topic": [json.loads(record.value or b"")["id"] for record in world.cluster.read("rows")],
        "PostgreSQL": [id for (id,) in world.postgres.ask("SELECT id FROM rows")],
        "Redshift": [id for (id,) in world.redshift.ask("SELECT id FROM rows")],
        "Parquet": [id for path in parquet for id in pq.ParquetFile(path).read()["id"].to_pylist()],
        "Delta": _delta(world, "rows")["id"].to_pylist(),
        "Iceberg": _iceberg(world, "rows")["id"].to_pylist(),
    }


def _groups(world: World) -> dict[str, list[tuple[int, int, int]]]:
    newest = {record.key: json.loads(record.value or b"") for record in world.cluster.read("groups")}
    return {
        "table topic": [(row["key"], row["rows"], row["total"]) for row in newest.values()],
        "PostgreSQL": [(row[0], row[1], row[2]) for row in world.postgres.ask("SELECT key, rows, total FROM groups")],
        "Redshift": [(row[0], row[1], row[2]) for row in world.redshift.ask("SELECT key, rows, total FROM groups")],
        "Delta": _triples(_delta(world, "groups")),
        "Iceberg": _triples(_iceberg(world, "groups")),
    }


def _delta(world: World, name: str) -> Any:
    return DeltaTable(world.directory / "delta" / name).to_pyarrow_dataset().to_table()


def _iceberg(world: World, name: str) -> Any:
    return load_catalog(world.places.catalog()).load_table(f"faults.{name}").scan().to_arrow()


def _triples(table: Any) -> list[tuple[int, int, int]]:
    return [(row["key"], row["rows"], row["total"]) for row in table.to_pylist()]


def _newest(directory: Path) -> int:
    """The newest entry of a log of Spark's."""
    return max((int(path.name) for path in directory.glob("[0-9]*")), default=-1)


# -- the whole ---------------------------------------------------------------------------------------------------------


def run(directory: Path, postgres: Postgres, rounds: list[tuple[str, ...]], dice: random.Random) -> None:
    """Each round is a run of the pipeline with these faults; after the last one everything is read."""
    world = World(directory, postgres)
    try:
        world.feed()
        for number, faults in enumerate(rounds, 1):
            world.start()
            for what in faults:
                world.fault_under_load(what, dice)
                print(f"round {number}: {what}, {world.batches()} batches, {world.fed} numbers", flush=True)
        if rounds[-1][-1] == "driver":
            world.start()
        world.wait(world.is_all_read, feed=False)
        world.stop()
        check(world)
    finally:
        world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    dice = random.Random(arguments.seed)
    rounds: list[tuple[str, ...]] = [(dice.choice(FAULTS), "driver") for _ in range(arguments.kills)]
    with tempfile.TemporaryDirectory(prefix="moldau-pipeline-kills-") as directory, Postgres() as postgres:
        run(Path(directory), postgres, rounds, dice)
    print(f"{arguments.kills} kills and {arguments.kills} other faults: each input is in every sink exactly once")


if __name__ == "__main__":
    main()
