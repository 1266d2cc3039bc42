"""Exactly once through `foreach_batch`, on Moldau and on Apache Kafka: what becomes of each fault."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from moldau.kernel import KafkaError
from moldau.spark import foreach_batch, publish_progress
from moldau.spark.exactly_once_batches import ExactlyOnceBatches
from moldau.spark.exactly_once_driver import Transactor
from moldau.spark.parcels import write_parcels
from moldau.spark.sink_options import SinkOptions, sink_options
from moldau.spark.sink_task import Membership, Written, write_rows
from tests.spark.clusters import Cluster
from tests.spark.pipeline import INPUTS, OUTPUTS, PER_BATCH, Pipeline


class Ended(StreamingQueryListener):
    """Waits until those who listened before have heard of a query's end."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.event.set()


def test_every_number_is_there_once_and_the_group_is_where_the_query_is(pipeline: Pipeline) -> None:
    """Also when the source is told to publish its progress under the name of the sink's own group."""
    publish_progress(pipeline.spark)
    ended = Ended()
    pipeline.spark.streams.addListener(ended)
    try:
        sink = foreach_batch(pipeline.options(transactionalId=pipeline.output))
        pipeline.run(sink, batches=2, rows=pipeline.rows(groupId=pipeline.output))
        assert ended.event.wait(60)
    finally:
        pipeline.spark.streams.removeListener(ended)
    pipeline.check_output()
    without_key = {record.partition for record in pipeline.cluster.read(pipeline.output) if record.key is None}
    assert len(without_key) == OUTPUTS
    assert pipeline.check_group(pipeline.output).batch_id == 1


def test_the_state_of_a_batch_that_is_skipped_is_kept(pipeline: Pipeline) -> None:
    sink = foreach_batch(pipeline.options(transactionalId=pipeline.output))

    def dies_after_commit(rows: DataFrame, batch_id: int) -> None:
        sink(rows, batch_id)
        raise RuntimeError("the driver died")

    def counts() -> DataFrame:
        return pipeline.rows().groupBy(F.lit("all").alias("key")).agg(F.count("*").cast("string").alias("value"))

    with pytest.raises(StreamingQueryException, match="the driver died"):
        pipeline.run(dies_after_commit, batches=1, rows=counts(), mode="update")
    pipeline.run(foreach_batch(pipeline.options(transactionalId=pipeline.output)), 1, rows=counts(), mode="update")
    found = [int(record.value or b"") for record in pipeline.cluster.read(pipeline.output)]
    assert found == [INPUTS * PER_BATCH, 2 * INPUTS * PER_BATCH]
    pipeline.check_group(pipeline.output)


# -- faults ------------------------------------------------------------------------------------------------------------
# One query goes through all of them, one after the other: each leaves the output whole.

TASK_FAULTS = ("failed", "killed", "shuffle lost")


class Flaky:
    """A task's work that goes wrong after it has produced, once for each fault, and a note of each piece of work."""

    def __init__(self, directory: Path, shuffles: Path) -> None:
        self.directory, self.shuffles = directory, shuffles
        for how in TASK_FAULTS:
            (directory / how).touch()

    def __call__(self, options: SinkOptions, batches: Iterator[Any], membership: Membership) -> Written:
        context = TaskContext.get()
        assert context is not None
        with (self.directory / "notes").open("a") as notes:
            notes.write(f"{membership.identity.epoch} {context.attemptNumber()}\n")
        written = write_parcels(options, batches, membership)
        how = self._next_fault(membership)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "failed":
            raise RuntimeError("failed after it had produced")
        if how == "shuffle lost":
            for file in self.shuffles.rglob("shuffle_*"):
                file.unlink(missing_ok=True)
        return written

    def _next_fault(self, membership: Membership) -> str | None:
        """One for each attempt at the batch, and then none."""
        with suppress(FileExistsError):
            (self.directory / f"fault-{membership.identity.epoch}").touch(exist_ok=False)
            for how in TASK_FAULTS:
                with suppress(FileNotFoundError):
                    (self.directory / how).unlink()
                    return how
        return None

    def notes(self) -> list[tuple[int, int]]:
        lines = (self.directory / "notes").read_text().splitlines()
        return [(int(epoch), int(attempt)) for epoch, attempt in map(str.split, lines)]


def test_each_fault_leaves_every_number_there_once(pipeline: Pipeline) -> None:
    options = sink_options(pipeline.options(exactlyOnce="true", transactionalId=pipeline.output))
    flaky = Flaky(pipeline.directory, Path(str(pipeline.spark.conf.get("spark.local.dir"))))

    # A task fails, a worker is killed, a stage is begun anew, each after tasks have produced: Spark tries again with
    # what the first attempt has written in the logs, so the batch is aborted and done again under another epoch.
    # Several tasks compute it, or nothing would be shuffled.
    rows = pipeline.rows(minPartitions=str(INPUTS))
    pipeline.run(ExactlyOnceBatches(replace(options, batch_attempts=4), flaky), batches=1, rows=rows)
    assert not any((pipeline.directory / how).exists() for how in TASK_FAULTS)
    assert {attempt for _, attempt in flaky.notes()} == {0}
    assert len({epoch for epoch, _ in flaky.notes()}) == 1 + len(TASK_FAULTS)
    pipeline.check_output()

    # The last attempt allowed fails: the query ends with the task's own words.
    (pipeline.directory / "failed").touch()
    with pytest.raises(StreamingQueryException, match="TaskFailed: RuntimeError: failed after it had produced"):
        pipeline.run(ExactlyOnceBatches(replace(options, batch_attempts=1), flaky), batches=1, rows=rows)

    # The driver is gone before Spark heard of the commit: the batch comes again and is skipped.
    sink = ExactlyOnceBatches(options)

    def dies_after_commit(rows: DataFrame, batch_id: int) -> None:
        sink(rows, batch_id)
        raise RuntimeError("the driver died")

    with pytest.raises(StreamingQueryException, match="the driver died"):
        pipeline.run(dies_after_commit, batches=0)
    pipeline.check_output()

    # It is gone in the middle of a transaction: the next one aborts it.
    class DiesBeforeCommit(ExactlyOnceBatches):
        def _run_tasks(self, rows: DataFrame, membership: Membership) -> Sequence[Written]:
            super()._run_tasks(rows, membership)
            for transactor in self._transactors.values():
                transactor._owner.forget()  # so that nothing is aborted
            raise RuntimeError("the driver died")

    with pytest.raises(StreamingQueryException, match="the driver died"):
        pipeline.run(DiesBeforeCommit(replace(options, batch_attempts=1)), batches=1)

    # Another driver of the query begins between the tasks and the commit.
    class Robbed(ExactlyOnceBatches):
        def _run_tasks(self, rows: DataFrame, membership: Membership) -> Sequence[Written]:
            written = super()._run_tasks(rows, membership)
            Transactor(options, "any").begin()
            return written

    with pytest.raises(StreamingQueryException, match="was taken by another driver of this query"):
        pipeline.run(Robbed(options), batches=0)

    # Spark would run tasks twice at once.
    configuration = pipeline.spark.sparkContext._conf
    configuration.set("spark.speculation", "true")
    try:
        with pytest.raises(StreamingQueryException, match="set it to false for exactly once"):
            pipeline.run(ExactlyOnceBatches(options), batches=0)
    finally:
        configuration.set("spark.speculation", "false")

    # The coordinator gives the transaction up between the tasks and the commit; and a task of it that nobody waits for
    # any more goes on, while the next attempt has written, and after its end.
    quick = replace(options, batch_attempts=10, producer={**options.producer, "transaction.timeout.ms": "1500"})
    memberships: list[Membership] = []

    def write_as_a_zombie() -> None:
        rows = pipeline.spark.range(100).selectExpr("cast(id as string) as value").toArrow().to_batches()
        for membership in memberships:
            with pytest.raises(KafkaError):
                write_rows(options, rows, membership)

    class Slow(ExactlyOnceBatches):
        def _run_tasks(self, rows: DataFrame, membership: Membership) -> Sequence[Written]:
            written = super()._run_tasks(rows, membership)
            if memberships:
                write_as_a_zombie()
            else:
                pipeline.wait_epoch_after(membership)
            memberships.append(membership)
            return written

    pipeline.run(Slow(quick), batches=0)
    assert len(memberships) > 1
    write_as_a_zombie()
    pipeline.check_output()
    pipeline.check_group(pipeline.output)

    # The checkpoint is lost: refused in a line, and nothing is written.
    with pytest.raises(StreamingQueryException, match="the checkpoint was lost"):
        pipeline.run(ExactlyOnceBatches(options), batches=0, checkpoint="another")
    pipeline.check_output()


def test_a_reader_that_is_killed_in_the_middle_of_a_batch_costs_nothing(
    spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, moldau_cluster, tmp_path)
    trap = pipeline.directory / "trap"
    trap.touch()

    def kills_who_reads(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            with suppress(FileNotFoundError):
                trap.unlink()
                for worker in siblings():
                    os.kill(worker, signal.SIGKILL)
            yield batch

    def siblings() -> list[int]:
        """The other processes that this one's parent has for tasks."""
        children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
        return [int(child) for child in children if int(child) != os.getpid()]

    # More than fits between two processes, so that whoever reads has more to read.
    for partition in range(INPUTS):
        pipeline.cluster.produce(pipeline.source, [b"x" * 20_000] * PER_BATCH, partition)
    pipeline.limit = PER_BATCH
    numbers = pipeline.numbers().select("value", "partition", "offset")
    read = numbers.mapInArrow(kills_who_reads, numbers.schema)
    rows = read.select(F.concat_ws("-", "partition", "offset").alias("value"), F.lit("k").alias("key"))
    sink = foreach_batch(pipeline.options(transactionalId=pipeline.output))
    pipeline.run(sink, batches=0, rows=rows)
    assert not trap.exists()
    found = sorted(record.value or b"" for record in pipeline.cluster.read(pipeline.output))
    assert found == sorted(b"%d-%d" % (at, number) for at in range(INPUTS) for number in range(PER_BATCH))
    pipeline.check_group(pipeline.output)
