"""One directory, two brokers: what Apache Kafka 4.3.1 wrote Moldau serves, and the other way round.

The same things are written through either, the broker ends (cleanly or by SIGKILL), the other starts on its directory
and must show the same topics, ids, configs, offsets and bytes, and go on where the first one stopped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol.compression import Compression
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.testing import Broker, BrokerProcess
from tests.differential.batches import BASE_MS, batch
from tests.differential.wire import Wire
from tests.java import run_tool
from tests.oracle import ApacheKafka, free_port, require_oracle

pytestmark = pytest.mark.oracle

SETTLE_SECONDS_MAX = 15.0
# A killed broker's registration bars its successor until the session is over.
QUICK_SESSION = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
TOPICS = {
    # The records are old: nothing but a trim shall take any.
    "orders": (2, {"cleanup.policy": "compact,delete", "retention.ms": "-1", "segment.bytes": "1048576"}),
    "trimmed": (1, {"retention.ms": "-1"}),
    "empty.topic": (3, {"max.message.bytes": "5000"}),
}
PRODUCER_ID, PRODUCER_EPOCH = 7_000_000, 2


def ask_until(wire: Any, request: Any, version: int, good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        answer = wire.ask(request, version)
        if good(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)


def produce(wire: Any, topic: str, data: bytes, index: int = 0) -> Any:
    partition = ProduceRequest.PartitionProduceData(index=index, records=data)
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])]
    )
    return wire.ask(request, 12).responses[0].partition_responses[0]


def numbered(sequence: int) -> bytes:
    """A producer that is remembered: its records are of now."""
    now = [int(time.time() * 1000)] * 2
    return batch(
        b"n",
        b"n",
        timestamps=now,
        producer_id=PRODUCER_ID,
        producer_epoch=PRODUCER_EPOCH,
        base_sequence=2 * sequence,
    )


def new_producer_id(wire: Any) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    producer_id: int = ask_until(wire, request, 4, lambda answer: answer.error_code == 0).producer_id
    return producer_id


def write_everything(bootstrap: str) -> dict[str, Any]:
    """Topics, configs, records of every kind, a trimmed partition, a deleted topic, producer ids."""
    wire: Any = Wire(bootstrap)
    names = [*TOPICS, "gone"]
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name,
            TOPICS.get(name, (1, {}))[0],
            1,
            [],
            [CreateTopicsRequest.CreatableTopicConfig(*each) for each in TOPICS.get(name, (1, {}))[1].items()],
        )
        for name in names
    ]
    created = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert all(each.error_code == 0 for each in created.topics)
    everywhere = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    ask_until(wire, everywhere, 12, lambda answer: all(t.error_code == 0 and t.partitions for t in answer.topics))
    for name in names:
        for index in range(TOPICS.get(name, (1, {}))[0]):
            ask_until(wire, offsets_request(name, index, -1), 7, lambda a: a.topics[0].partitions[0].error_code == 0)
    for number, codec in enumerate(Compression):
        data = batch(
            b"a" * 300, b"b" * 300, timestamps=[BASE_MS + 10 * number, BASE_MS + 10 * number + 5], compression=codec
        )
        assert produce(wire, "orders", data, index=0).error_code == 0
        assert produce(wire, "trimmed", data).error_code == 0
    for sequence in range(3):
        assert produce(wire, "orders", numbered(sequence), index=1).error_code == 0
    assert produce(wire, "gone", batch()).error_code == 0
    trim = DeleteRecordsRequest.DeleteRecordsTopic("trimmed", [DeleteRecordsRequest.DeleteRecordsPartition(0, 5)])
    trimmed = wire.ask(DeleteRecordsRequest(topics=[trim], timeout_ms=10_000), 2)
    assert trimmed.topics[0].partitions[0].low_watermark == 5
    deletion = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="gone")], timeout_ms=10_000)
    assert wire.ask(deletion, 6).responses[0].error_code == 0
    everything = MetadataRequest(topics=None)
    ask_until(wire, everything, 12, lambda answer: "gone" not in {topic.name for topic in answer.topics})
    config = IncrementalAlterConfigsRequest.AlterableConfig("log.retention.ms", 0, "987654321")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(4, "", [config])
    assert wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
    described = DescribeConfigsRequest(resources=[DescribeConfigsRequest.DescribeConfigsResource(4, "", None)])
    ask_until(wire, described, 4, lambda answer: "log.retention.ms" in {c.name for c in answer.results[0].configs})
    seen = see_everything(wire)
    seen["producer id"] = new_producer_id(wire)
    wire.close()
    return seen


def offsets_request(topic: str, index: int, timestamp: int) -> ListOffsetsRequest:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(topic, [partition])])


def see_everything(wire: Any) -> dict[str, Any]:
    """What a client can see of the data, without what a restart may change (leader epochs, addresses)."""
    seen: dict[str, Any] = {}
    topics = [t for t in wire.ask(MetadataRequest(topics=None), 12).topics if not str(t.name).startswith("__")]
    for topic in sorted(topics, key=lambda topic: str(topic.name)):
        seen[topic.name] = topic.topic_id, len(topic.partitions)
        resource = DescribeConfigsRequest.DescribeConfigsResource(2, topic.name, None)
        configs = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results[0].configs
        seen[f"configs of {topic.name}"] = {each.name: each.value for each in configs if each.config_source == 1}
        seen[f"retention of {topic.name}"] = {each.name: each.value for each in configs}["retention.ms"]
        for index in range(len(topic.partitions)):
            for timestamp in (-2, -1, -3, BASE_MS, BASE_MS + 21):
                found = wire.ask(offsets_request(topic.name, index, timestamp), 7).topics[0].partitions[0]
                seen[f"{topic.name}-{index} at {timestamp}"] = found.error_code, found.offset, found.timestamp
            start = seen[f"{topic.name}-{index} at -2"][1]
            seen[f"{topic.name}-{index} records"] = fetch_all(wire, topic.name, index, start)
    return seen


def fetch_all(wire: Any, topic: str, index: int, offset: int) -> bytes:
    partition = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_bytes=1 << 20, session_epoch=-1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    )
    answer = wire.ask(request, 12).responses[0].partitions[0]
    return bytes(answer.records or b"") if answer.error_code == 0 else ErrorCode(answer.error_code).name.encode()


def check_everything(bootstrap: str, written: dict[str, Any]) -> None:
    """The same is there, and goes on where it stopped."""
    wire: Any = Wire(bootstrap)

    def all_led(answer: Any) -> bool:
        errors = [partition.error_code for topic in answer.topics for partition in topic.partitions]
        return len(answer.topics) >= len(TOPICS) and not any(errors)

    ask_until(wire, MetadataRequest(topics=None), 12, all_led)
    expected = dict(written)
    last_producer_id = expected.pop("producer id")
    # Kafka opens its logs and learns its configs a little after it is ready.
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while (seen := see_everything(wire)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen == expected
    again = produce(wire, "orders", numbered(2), index=1)
    assert (again.error_code, again.base_offset) == (0, 4)
    gap = produce(wire, "orders", numbered(7), index=1)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, "orders", numbered(3), index=1).base_offset == 6
    assert produce(wire, "trimmed", batch(b"more")).base_offset == 2 * len(Compression)
    assert new_producer_id(wire) > last_producer_id
    wire.close()


@pytest.mark.parametrize(("voters", "end"), [("standalone", "stop"), ("static", "kill")])
def test_moldau_serves_what_apache_kafka_wrote(
    tmp_path: Path, voters: Literal["standalone", "static"], end: str
) -> None:
    require_oracle()
    with ApacheKafka(tmp_path, voters=voters) as kafka:
        written = write_everything(kafka.bootstrap)
        getattr(kafka, end)()
    with Broker(kafka.properties, data=str(kafka.log_dir)) as moldau:
        check_everything(moldau.bootstrap, written)
        warnings = [line for line in moldau.log if line.startswith("feature_levels_kept_not_served")]
        assert len(warnings) == 1
        assert "share.version=1" in warnings[0]
        moldau.stop()
        moldau.start()  # on a log that both have written
        wire: Any = Wire(moldau.bootstrap)
        assert see_everything(wire)["orders"] == written["orders"]
        wire.close()


@pytest.mark.parametrize(("voters", "end"), [("standalone", "kill"), ("static", "stop")])
def test_apache_kafka_serves_what_moldau_wrote(
    tmp_path: Path, voters: Literal["standalone", "static"], end: str
) -> None:
    require_oracle()
    data = tmp_path / "data"
    data.mkdir()
    kafka = ApacheKafka(tmp_path / "kafka", log_dir=data, voters=voters, properties=QUICK_SESSION)
    settings = {"controller.quorum.voters": f"1@127.0.0.1:{free_port()}"} if voters == "static" else {}
    with BrokerProcess({"node.id": "1", **settings}, data=str(data)) as moldau:
        written = write_everything(moldau.bootstrap)
        getattr(moldau, end)()
    # As `kafka-storage format` does: only a quorum that is not configured has its first voters in a snapshot.
    log = data / "__cluster_metadata-0"
    assert (log / "00000000000000000000-0000000000.checkpoint").exists() == (voters == "standalone")
    assert json.loads((log / "quorum-state").read_text())["data_version"] == (1 if voters == "standalone" else 0)
    with kafka:
        check_everything(kafka.bootstrap, written)
        # The gap that `check_everything` sends is an error in its log.
        assert not [line for line in kafka.complaints if "append" not in line]
    # And back: what Kafka appended to our metadata log is ours again.
    with Broker(kafka.properties, data=str(data)) as again:
        wire: Any = Wire(again.bootstrap)
        seen = see_everything(wire)
        assert {name: seen[name] for name in TOPICS} == {name: written[name] for name in TOPICS}
        assert seen["orders-1 at -1"][1] == 8
        wire.close()


def test_kafkas_dump_log_reads_every_file_that_a_broker_wrote(tmp_path: Path) -> None:
    require_oracle()
    with Broker({"log.segment.bytes": "1048576", "log.index.interval.bytes": "200"}, data=str(tmp_path)) as moldau:
        write_everything(moldau.bootstrap)
        wire: Any = Wire(moldau.bootstrap)
        for number in range(30):  # more than one segment
            produce(wire, "trimmed", batch(b"x" * 100_000, timestamps=[BASE_MS + 1000 + number]))
        wire.close()
        moldau.stop()
        directories = [path for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith("__")]
        files = sorted(path for each in directories for path in each.iterdir())
        kinds = (".log", ".index", ".timeindex", ".snapshot")
        dumped = [path for path in files if path.suffix in kinds]
        assert {path.suffix for path in dumped} == set(kinds)
        assert len([path for path in dumped if path.parent.name == "trimmed-0" and path.suffix == ".log"]) > 1
        names = ",".join(map(str, dumped))
        for flags in (("--deep-iteration", "--print-data-log"), ("--index-sanity-check",), ("--verify-index-only",)):
            done = run_tool("dump-log", *flags, "--files", names)
            # The tool takes -1 for the offset before a file's first record, and complains of every later segment.
            said = re.sub(r"Non-consecutive offsets in \S+\n\s+-1 is followed by \d+\n", "", done.stdout + done.stderr)
            for complaint in ("Mismatches", "mismatch", "Index offset", "out of order", "Non-consecutive", "rror"):
                assert complaint not in said, (flags, said[-3000:])
            if flags[0] == "--index-sanity-check":
                passed = len(re.findall(r"passed sanity check\.|index is empty\.", said))
                assert passed == len([path for path in dumped if "index" in path.suffix])


def test_kafkas_dump_log_decodes_the_metadata_log_and_its_snapshots(tmp_path: Path) -> None:
    require_oracle()
    with Broker({"metadata.log.max.record.bytes.between.snapshots": "1500"}, data=str(tmp_path)) as moldau:
        write_everything(moldau.bootstrap)
        wire: Any = Wire(moldau.bootstrap)
        new_producer_id(wire)
        wire.close()
        moldau.stop()
        log = tmp_path / "__cluster_metadata-0"
        files = [*sorted(log.glob("*.log")), *sorted(log.glob("*.checkpoint")), tmp_path / "bootstrap.checkpoint"]
        assert len(files) > 3, "no snapshot was written"
        names = ",".join(map(str, files))
        done = run_tool("dump-log", "--cluster-metadata-decoder", "--files", names)
    for kind in (
        "REGISTER_BROKER_RECORD",
        "REGISTER_CONTROLLER_RECORD",
        "FEATURE_LEVEL_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "REMOVE_TOPIC_RECORD",
        "BROKER_REGISTRATION_CHANGE_RECORD",
        "PRODUCER_IDS_RECORD",
        "LeaderChange",
        "SnapshotHeader",
        "SnapshotFooter",
        "KRaftVersion",
        "KRaftVoters",
    ):
        assert kind in done.stdout, kind
    for complaint in ("Error", "ERROR", "Exception", "isvalid: false", "Could not"):
        assert complaint not in done.stdout + done.stderr, (done.stdout[-3000:], done.stderr[-2000:])
