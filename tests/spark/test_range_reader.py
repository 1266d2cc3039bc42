"""What a task reads, without Spark around it: every kind of batch, what is gone, leaders that leave, memory."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from moldau.client import IsolationLevel
from moldau.kernel import TopicPartition
from moldau.spark import DataLossError, SourceError
from moldau.spark.clients import ClientTimes
from moldau.spark.offsets import EARLIEST, LATEST, OffsetRange
from moldau.spark.options import FETCH_BYTES_MAX
from moldau.spark.range_reader import ReadSettings, read_ranges
from moldau.testing import BrokerProcess
from tests.spark.clusters import TIMESTAMP_MS, Cluster


def settings(bootstrap: str, **changes: Any) -> ReadSettings:
    plain = ReadSettings(
        bootstrap=bootstrap,
        times=ClientTimes(),
        isolation=IsolationLevel.READ_UNCOMMITTED,
        fetch_bytes_max=FETCH_BYTES_MAX,
        fetch_wait_ms_max=100,
        fetch_bytes_min=1,
        poll_timeout_ms=20_000,
        fail_on_data_loss=True,
        with_headers=False,
        topic_ids={},
    )
    return dataclasses.replace(plain, **changes)


def whole(topic: str, partition: int = 0, start: int = EARLIEST, end: int = LATEST) -> OffsetRange:
    return OffsetRange(TopicPartition(topic, partition), start, end)


def rows(*ranges: OffsetRange, **how: Any) -> list[dict[str, Any]]:
    bootstrap = how.pop("bootstrap")
    return [row for batch in read_ranges(ranges, settings(bootstrap, **how)) for row in batch.to_pylist()]


def values(*ranges: OffsetRange, **how: Any) -> list[bytes]:
    return [row["value"] for row in rows(*ranges, **how)]


def test_records_come_with_all_their_columns(cluster: Cluster) -> None:
    topic = cluster.topic("columns", 2)
    cluster.produce(topic, [b"a", b"b"], partition=1)
    first, second = rows(whole(topic, 0), whole(topic, 1), bootstrap=cluster.bootstrap, with_headers=True)
    assert first["timestamp"].timestamp() * 1000 == TIMESTAMP_MS
    assert first | {"timestamp": None} == {
        "key": None,
        "value": b"a",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": None,
        "timestampType": 0,
        "headers": None,
    }
    assert (second["key"], second["offset"]) == (b"1", 1)
    assert second["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read_and_cut_at_the_range(cluster: Cluster, codec: str) -> None:
    topic = cluster.topic("codec")
    cluster.produce(topic, [b"%d" % index for index in range(50)], compression_type=codec, linger_ms=100)
    found = values(whole(topic, start=7, end=31), bootstrap=cluster.bootstrap)
    assert found == [b"%d" % index for index in range(7, 31)]


def test_aborted_records_are_left_out_when_only_committed_ones_are_read(cluster: Cluster) -> None:
    topic = cluster.topic("txn")
    cluster.produce_transactions(topic, [(b"a", True), (b"b", False), (b"c", True), (b"d", False)])
    committed = IsolationLevel.READ_COMMITTED
    assert values(whole(topic), bootstrap=cluster.bootstrap, isolation=committed) == [b"a", b"c"]
    assert values(whole(topic), bootstrap=cluster.bootstrap) == [b"a", b"b", b"c", b"d"]
    # Ranges that hold nothing but markers and aborted records end, too.
    assert values(whole(topic, start=6, end=8), bootstrap=cluster.bootstrap, isolation=committed) == []


def test_many_partitions_are_read_by_one_task_in_small_fetches(cluster: Cluster) -> None:
    topic = cluster.topic("many", 8)
    for partition in range(8):
        cluster.produce(topic, [b"%d-%d" % (partition, index) for index in range(30)], partition, batch_size=100)
    ranges = [whole(topic, partition, start=5, end=25) for partition in range(8)]
    found = rows(*ranges, bootstrap=cluster.bootstrap, fetch_bytes_max=500)
    for partition in range(8):
        offsets = [row["offset"] for row in found if row["partition"] == partition]
        assert offsets == list(range(5, 25))


def test_batches_larger_than_a_fetch_are_read_whole(cluster: Cluster) -> None:
    topic = cluster.topic("large", 2)
    for partition in range(2):
        cluster.produce(topic, [b"x" * 50_000] * 12, partition, batch_size=300_000, linger_ms=1000)
    assert cluster.segment(topic).stat().st_size > 600_000
    found = rows(whole(topic, 0), whole(topic, 1, start=3), bootstrap=cluster.bootstrap, fetch_bytes_max=1000)
    assert [(row["partition"], row["offset"]) for row in found if row["partition"]] == [(1, at) for at in range(3, 12)]
    assert [row["offset"] for row in found if not row["partition"]] == list(range(12))


def test_a_topic_deleted_while_it_is_read_is_an_error_or_left_out(cluster: Cluster) -> None:
    topic, other = cluster.topic("deleted"), cluster.topic("kept")
    for name in (topic, other):
        cluster.produce(name, [b"%d" % index for index in range(50)], batch_size=100)
    reading = {
        fails: read_ranges(
            [whole(topic, start=0, end=50), whole(other, start=0, end=50)],
            settings(cluster.bootstrap, fetch_bytes_max=200, fail_on_data_loss=fails),
        )
        for fails in (True, False)
    }
    found = {fails: next(batches).to_pylist() for fails, batches in reading.items()}
    cluster.delete(topic)
    with pytest.raises(DataLossError, match=f"{topic}-0: offset .* is gone, the topic was deleted; set failOnData"):
        list(reading[True])
    found[False] += [row for batch in reading[False] for row in batch.to_pylist()]
    assert [row["offset"] for row in found[False] if row["topic"] == other] == list(range(50))
    assert len(found[False]) < 100


def test_deleted_records_are_an_error_or_left_out(cluster: Cluster) -> None:
    topic = cluster.topic("deleted")
    cluster.produce(topic, [b"%d" % index for index in range(10)])
    cluster.delete_records(topic, {0: 4})
    with pytest.raises(
        DataLossError, match=f"{topic}-0: offset 2 is gone, the log holds offsets 4 to 10; set fail"
    ) as lost:
        values(whole(topic, start=2, end=9), bootstrap=cluster.bootstrap)
    assert "\n" not in str(lost.value)
    going_on = {"bootstrap": cluster.bootstrap, "fail_on_data_loss": False}
    assert values(whole(topic, start=2, end=9), **going_on) == [b"4", b"5", b"6", b"7", b"8"]
    assert values(whole(topic, start=0, end=3), **going_on) == []
    assert values(whole(topic, start=20, end=30), **going_on) == []


def test_a_topic_that_was_made_again_is_noticed_by_its_id(cluster: Cluster) -> None:
    topic = cluster.topic("remade")
    cluster.produce(topic, [b"old"] * 3)
    planned = cluster.do(lambda client: client.metadata([topic])).topics[topic].topic_id
    cluster.delete(topic)
    cluster.create(topic)
    cluster.produce(topic, [b"new"] * 2)
    how = {"bootstrap": cluster.bootstrap, "topic_ids": {topic: planned}}
    with pytest.raises(DataLossError, match="was deleted and made again"):
        values(whole(topic, end=2), **how)
    assert values(whole(topic, end=2), **how, fail_on_data_loss=False) == [b"new", b"new"]


def test_a_corrupt_batch_is_named_with_its_place(cluster: Cluster) -> None:
    topic = cluster.topic("corrupt")
    cluster.produce(topic, [b"x" * 100])
    segment = cluster.segment(topic)
    with segment.open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(SourceError, match=f"^{topic}-0: batch at offset 0 has a wrong checksum$"):
        values(whole(topic, start=0, end=1), bootstrap=cluster.bootstrap)


def test_a_topic_that_is_gone_is_said_in_one_line(cluster: Cluster) -> None:
    with pytest.raises(SourceError, match="nothing-here") as said:
        values(whole("nothing-here", start=0, end=1), bootstrap=cluster.bootstrap, poll_timeout_ms=1500)
    assert "\n" not in str(said.value)


def test_a_range_that_never_comes_is_given_up_after_the_poll_timeout(moldau_cluster: Cluster) -> None:
    topic = moldau_cluster.topic("short")
    moldau_cluster.produce(topic, [b"x"])
    with pytest.raises(SourceError, match=r"from offset 1: nothing came within kafkaConsumer\.pollTimeoutMs=300"):
        values(whole(topic, start=0, end=5), bootstrap=moldau_cluster.bootstrap, poll_timeout_ms=300)


def test_a_broker_that_is_killed_and_comes_back_is_waited_for(tmp_path: Path) -> None:
    broker = BrokerProcess(data=str(tmp_path)).start()
    try:
        here = Cluster("moldau", broker.bootstrap, str(tmp_path))
        topic = here.topic("restart")
        here.produce(topic, [b"%d" % index for index in range(200)], batch_size=100)
        reading = read_ranges([whole(topic)], settings(broker.bootstrap, fetch_bytes_max=200))
        found = [next(reading)]
        broker.kill()
        back = threading.Timer(0.5, broker.start)
        back.start()
        found += reading
        back.join()
        assert [row["offset"] for batch in found for row in batch.to_pylist()] == list(range(200))
    finally:
        broker.close()


_BIG_READ = """
import resource, sys
from tests.spark.test_range_reader import settings, whole
from moldau.spark.range_reader import read_ranges
batches = read_ranges([whole(sys.argv[2])], settings(sys.argv[1]))
count, size = 0, 0
first = next(batches)
count += first.num_rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for batch in batches:
    count += batch.num_rows
    size += batch.nbytes
print(count, size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_does_not_grow_with_the_range(moldau_cluster: Cluster) -> None:
    topic = moldau_cluster.topic("big")
    value = os.urandom(100_000)
    moldau_cluster.produce(topic, [value] * 2000, batch_size=500_000, linger_ms=5, max_request_size=2_000_000)
    command = [sys.executable, "-c", _BIG_READ, moldau_cluster.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    count, size, growth = map(int, done.stdout.split())
    assert count == 2000 and size > 180_000_000
    # Two answers, one of them decoded; a fifth of what was read.
    assert growth < 6 * FETCH_BYTES_MAX, f"grew by {growth} bytes"
