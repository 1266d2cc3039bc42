"""`writeStream.format("moldau").option("exactlyOnce", "true")`: whole batches, or a refusal before any is wrong."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from moldau.spark.exactly_once_driver import Transactor
from moldau.spark.sink_options import sink_options
from moldau.spark.sink_task import Written, write_or_refuse
from tests.spark.clusters import Cluster
from tests.spark.pipeline import INPUTS, Pipeline


def run(pipeline: Pipeline, rows: DataFrame, topic: str, **options: str) -> None:
    given = {"kafka.bootstrap.servers": pipeline.cluster.bootstrap, "topic": topic, "exactlyOnce": "true"}
    query = rows.writeStream.format("moldau").options(**given | options).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_each_batch_is_there_once_and_the_group_is_where_the_query_is(pipeline: Pipeline) -> None:
    """Four partitions into six, keyed, by the one task that reads a small batch."""
    pipeline.feed(2)
    checkpoint = str(pipeline.directory / "checkpoint")
    run(pipeline, pipeline.rows(), pipeline.output, checkpointLocation=checkpoint, transactionalId=pipeline.output)
    pipeline.check_output()
    assert pipeline.check_group(pipeline.output).batch_id == 1

    # Where the checkpoint is unknown nothing begins.
    pipeline.spark.conf.set("spark.sql.streaming.checkpointLocation", str(pipeline.directory / "default"))
    try:
        with pytest.raises(StreamingQueryException, match="set option checkpointLocation on the query itself"):
            run(pipeline, pipeline.rows(), pipeline.output)
    finally:
        pipeline.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_stateful_query_is_there_once_and_wrong_plans_are_refused(pipeline: Pipeline) -> None:
    topic = pipeline.cluster.create_topic(1)
    checkpoint = pipeline.directory / "checkpoint"
    options = {"checkpointLocation": str(checkpoint), "transactionalId": topic}
    distinct = pipeline.rows().select("value").dropDuplicates()

    def check() -> None:
        found = Counter((record.value or b"").decode() for record in pipeline.cluster.read(topic))
        assert found == Counter(f"{at}-{number}" for at in range(INPUTS) for number in range(pipeline.limit))
        pipeline.check_group(topic)

    pipeline.feed(1)
    run(pipeline, distinct.coalesce(1), topic, **options)
    check()

    # Spark did not hear of the last commit: the batch is written again and then dropped.
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run(pipeline, distinct.coalesce(1), topic, **options)
    check()

    # Two tasks, one partition: whichever way brokers take it, nothing of it is seen.
    pipeline.feed(1)
    with pytest.raises(StreamingQueryException, match=r"several tasks wrote to one partition .*foreach_batch"):
        run(pipeline, distinct, topic, **options)
    run(pipeline, distinct.coalesce(1), topic, **options)
    check()


def test_an_attempt_at_what_another_one_has_begun_is_refused(cluster: Cluster) -> None:
    """As in a stage that Spark begins anew: a task of it is a first attempt, and the rows may come in another order."""
    topic = cluster.create_topic(1)
    options = sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, "exactlyOnce": "true"})
    transactor = Transactor(options, topic)
    membership = transactor.begin()

    def attempt(*values: bytes) -> Written:
        rows = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
        return write_or_refuse(options, iter([rows]), membership)

    assert attempt(b"a", b"b").refusal is None
    assert "several tasks wrote to one partition" in str(attempt(b"b", b"a").refusal)
    transactor.abandon()
