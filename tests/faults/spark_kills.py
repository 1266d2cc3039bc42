"""Kills a Spark driver at random moments under load, and looks whether each input is in the output exactly once.

    python -m tests.faults.spark_kills --kills 20 [--seed 7]

Stateless and stateful queries run side by side, on Moldau and on Apache Kafka. The driver and its JVM are killed with
SIGKILL; Python workers notice in their own time, as those of a lost driver do. The seed says when to kill; when a kill
meets a query is chance.
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from moldau.client import group_admin
from moldau.kernel import KafkaError, TopicPartition
from moldau.spark.exactly_once import Mark, mark_from, parse_offset_log
from moldau.testing import BrokerProcess
from tests.faults.spark_driver import GROUPS, PER_BATCH, SOURCES, QuerySpec
from tests.oracle import ApacheKafka
from tests.spark.clusters import Cluster

OUTPUTS = 6
KINDS = ("stateless", "stateful")
AHEAD = 3  # full batches that wait in every source
SECONDS_MAX = 240.0
NO_PYTHON = "Timed out while waiting for the Python worker to connect back"
KILL_AFTER_SECONDS_MAX = 5.0


class Drivers:
    """One driver after the other with the same queries, and the records that they read."""

    def __init__(self, directory: Path, queries: list[tuple[Cluster, str]]) -> None:
        self.directory = directory
        self.specs: dict[QuerySpec, Cluster] = {}
        for cluster, kind in queries:
            source, output = cluster.create_topic(SOURCES, "source"), cluster.create_topic(OUTPUTS, kind)
            self.specs[QuerySpec(cluster.bootstrap, source, output, kind)] = cluster
        self.limit = 0  # numbers in each partition of each source
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "queries.json").write_text(json.dumps([spec.to_json() for spec in self.specs]))

    def feed(self) -> None:
        """Keep every query a few full batches behind."""
        committed = [sum(offsets.values()) for offsets, _ in self.committed().values()]
        limit = max(committed) // SOURCES // PER_BATCH * PER_BATCH + AHEAD * PER_BATCH
        if limit > self.limit:
            for spec, cluster in self.specs.items():
                for partition in range(SOURCES):
                    cluster.produce(spec.source, [b""] * (limit - self.limit), partition)
            self.limit = limit

    def start(self, master: str = "local[2]") -> None:
        self._master, self._said_before = master, len(self.said())
        with (self.directory / "driver.out").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.spark_driver", str(self.directory), master],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver and its JVM, at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself, which is told elsewhere
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def said(self) -> str:
        try:
            return (self.directory / "driver.out").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def committed(self) -> dict[QuerySpec, tuple[dict[int, int], Mark | None]]:
        """How far each query has come, by what it committed in its transactions."""
        found = {}
        for spec, cluster in self.specs.items():
            group = spec.output
            # Also while a transaction of a driver that was killed is open, which only the next one ends.
            stored = cluster.do(lambda client, group=group: group_admin.group_offsets(client, [group]))[group]
            assert not isinstance(stored, KafkaError), stored
            offsets = {where.partition: one.offset for where, one in stored.items()}
            found[spec] = offsets, mark_from(one.metadata for one in stored.values())
        return found

    def batches(self) -> list[int]:
        """How many batches each query has committed."""
        return [0 if mark is None else mark.batch_id + 1 for _, mark in self.committed().values()]

    def is_all_read(self) -> bool:
        return all(sum(offsets.values()) >= SOURCES * self.limit for offsets, _ in self.committed().values())

    def wait(self, is_enough: Callable[[], bool]) -> None:
        """Until then, and see to it that the driver lives."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_enough():
            assert self._process is not None
            if self._process.poll() is not None:
                # Spark waits ten seconds for a Python that it starts, which a busy machine may need: one end more.
                assert NO_PYTHON in self.said()[self._said_before :], f"the driver ended:\n{self.said()[-4000:]}"
                print("the driver ended by itself: Spark had no Python in time", flush=True)
                self.kill()
                self.start(self._master)
            assert time.monotonic() < deadline, f"no progress: {self.committed()}\n{self.said()[-4000:]}"
            time.sleep(0.1)

    def wait_under_load(self, is_enough: Callable[[], bool]) -> None:
        def fed() -> bool:
            self.feed()
            return is_enough()

        self.wait(fed)

    def kill_under_load(self, dice: random.Random) -> None:
        """Each driver gets somewhere, or kills would only meet starts; and then other batches are under way."""
        before = self.batches()
        self.wait_under_load(lambda: self.batches() != before)
        kill_at = time.monotonic() + dice.uniform(0, KILL_AFTER_SECONDS_MAX)
        self.wait_under_load(lambda: time.monotonic() > kill_at)
        self.kill()
        self.feed()


def check(drivers: Drivers) -> None:
    """The output is what a batch computation makes of the input, and the group is where the query is."""
    limit = drivers.limit
    for spec, (offsets, mark) in drivers.committed().items():
        assert mark is not None
        logged = parse_offset_log((drivers.directory / spec.output / "offsets" / str(mark.batch_id)).read_text())
        assert offsets == {where.partition: offset for where, offset in logged.by_partition.items()}
        assert offsets == dict.fromkeys(range(SOURCES), limit), spec
        found = drivers.specs[spec].read(spec.output)
        if spec.kind == "stateless":
            expected = Counter(f"{source}-{number}" for source in range(SOURCES) for number in range(limit))
            assert Counter((record.value or b"").decode() for record in found) == expected, spec
        else:
            rows = [json.loads(record.value or b"") for record in found]
            seen = Counter((row["group"], row["count"], row["sum"]) for row in rows)
            assert seen == Counter(_updates(drivers.directory / spec.output / "offsets", mark.batch_id)), spec


def _updates(offset_log: Path, last_batch: int) -> Iterator[tuple[int, int, int]]:
    """What the stateful query has to say after each of its batches: the groups that it changed."""
    counts, sums = Counter[int](), Counter[int]()
    starts: dict[TopicPartition, int] = {}
    for batch in range(last_batch + 1):
        ends = parse_offset_log((offset_log / str(batch)).read_text()).by_partition
        changed = set()
        for where, end in ends.items():
            for number in range(starts.get(where, 0), end):
                counts[number % GROUPS] += 1
                sums[number % GROUPS] += number
                changed.add(number % GROUPS)
        starts = ends
        yield from ((group, counts[group], sums[group]) for group in changed)


def run(directory: Path, queries: list[tuple[Cluster, str]], kills: int, seed: int) -> None:
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    drivers = Drivers(directory, queries)
    drivers.feed()
    try:
        for number in range(kills):
            drivers.start()
            drivers.kill_under_load(dice)
            print(f"kill {number + 1}: {drivers.batches()} batches, {drivers.limit} numbers", flush=True)
        drivers.start()
        drivers.wait(drivers.is_all_read)
    finally:
        drivers.kill()
    check(drivers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moldau-spark-kills-")))
        moldau = BrokerProcess()
        moldau.start()
        stack.callback(moldau.kill)
        kafka = stack.enter_context(ApacheKafka(directory / "kafka"))
        clusters = [
            Cluster("moldau", moldau.bootstrap, moldau.data),
            Cluster("kafka", kafka.bootstrap, str(kafka.log_dir)),
        ]
        run(directory, [(cluster, kind) for cluster in clusters for kind in KINDS], arguments.kills, arguments.seed)
    print(f"{arguments.kills} kills: each input is in the output exactly once")


if __name__ == "__main__":
    main()
