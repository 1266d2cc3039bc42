"""Configs are obeyed, not only stored, at once, and a client that has its answer sees its own change."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol import Compression, Record, build_batch, iterate_batches, iterate_records, read_header
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.testing import Broker, BrokerProcess
from tests.broker.test_produce_and_fetch import batch_of, create, fetch, fetched, produce
from tests.differential.wire import Wire

TOPIC, BROKER = 2, 4


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Wire:
    return Wire(broker.bootstrap)


def send(wire: Wire, topic: str, batch: bytes | bytearray, version: int = 9) -> Any:
    answer: Any = wire.ask(produce(topic, batch, acks=-1), version)
    return answer.responses[0].partition_responses[0]


def alter(wire: Wire, kind: int, name: str, **values: str | None) -> Any:
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(
            name=key.replace("_", "."), config_operation=1 if value is None else 0, value=value
        )
        for key, value in values.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(kind, name, configs)
    answer: Any = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer
    return answer


def test_max_message_bytes_is_obeyed_and_its_change_is_in_force_with_the_answer(wire: Wire) -> None:
    create(wire, "sized", **{"max.message.bytes": "200"})
    assert send(wire, "sized", batch_of(b"x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter(wire, TOPIC, "sized", max_message_bytes="1000")
    assert send(wire, "sized", batch_of(b"x" * 300)).error_code == 0
    alter(wire, TOPIC, "sized", max_message_bytes="100")
    assert send(wire, "sized", batch_of(b"x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topics_configs_are_in_force_also_where_its_partitions_change_with_them(wire: Wire) -> None:
    """As they do with `min.insync.replicas`, by which eligible leaders are not eligible any more."""
    create(wire, "with-elr")
    alter(wire, TOPIC, "with-elr", max_message_bytes="100", min_insync_replicas="1")
    assert send(wire, "with-elr", batch_of(b"x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_log_append_time_stamps_the_batch_and_the_answer(wire: Wire) -> None:
    create(wire, "stamped", **{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    answer = send(wire, "stamped", batch_of(b"x", timestamp=5))
    assert before <= answer.log_append_time_ms <= int(time.time() * 1000)
    stored = bytes(fetched(wire.ask(fetch("stamped", 0), 11)).records)
    (record,) = iterate_records(stored)
    assert record.timestamp == answer.log_append_time_ms


def test_timestamps_outside_the_limits_are_refused_by_record(wire: Wire) -> None:
    create(wire, "timed", **{"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "100000"})
    now = int(time.time() * 1000)
    assert send(wire, "timed", batch_of(b"x", timestamp=now)).error_code == 0
    for timestamp in (now + 60_000, now - 1_000_000):
        answer = send(wire, "timed", batch_of(b"x", timestamp=timestamp))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in answer.record_errors] == [0]


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_the_topics_codec_is_enforced(wire: Wire, codec: Compression) -> None:
    topic = f"codec-{codec.name.lower()}"
    create(wire, topic, **{"compression.type": codec.name.lower()})
    send(wire, topic, batch_of(b"a" * 500, b"b"))
    stored = bytes(fetched(wire.ask(fetch(topic, 0), 11)).records)
    assert read_header(stored).compression is codec
    assert [record.value for record in iterate_records(stored)] == [b"a" * 500, b"b"]
    alter(wire, TOPIC, topic, compression_type="uncompressed")
    send(wire, topic, batch_of(b"c" * 500, compression=codec))
    ((header, _),) = list(iterate_batches(bytes(fetched(wire.ask(fetch(topic, 2), 11)).records)))
    assert header.compression is Compression.NONE


def test_keyless_records_on_a_compacted_topic_are_refused_by_record(wire: Wire) -> None:
    create(wire, "compacted", **{"cleanup.policy": "compact"})
    records = [Record(0, 1_700_000_000_000, b"k", b"v"), Record(1, 1_700_000_000_000, None, b"v")]
    answer = send(wire, "compacted", build_batch(records))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert send(wire, "compacted", build_batch(records[:1])).error_code == 0


def test_min_insync_replicas_is_obeyed_for_acks_all_only(wire: Wire) -> None:
    create(wire, "insync", **{"min.insync.replicas": "2"})
    assert send(wire, "insync", batch_of(b"x")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    answer: Any = wire.ask(produce("insync", batch_of(b"x"), acks=1), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_segments_roll_by_size(broker: Broker, wire: Wire) -> None:
    create(wire, "rolled", **{"segment.bytes": "1048576"})
    for _ in range(5):
        send(wire, "rolled", batch_of(b"x" * 500_000))
    assert len(list(Path(broker.data, "rolled-0").glob("*.log"))) >= 3


def test_flush_messages_answers_after_the_sync(broker: Broker, wire: Wire) -> None:
    create(wire, "flushed", **{"flush.messages": "1"})
    assert broker.node is not None
    for count in range(1, 6):
        send(wire, "flushed", batch_of(b"x"))
        assert broker.node.replicas.require("flushed", 0).log.recovery_point == count


def test_a_dynamic_broker_config_takes_effect_at_run_time(wire: Wire) -> None:
    create(wire, "dynamic")
    alter(wire, BROKER, "", message_max_bytes="150")
    try:
        assert send(wire, "dynamic", batch_of(b"x" * 300)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        resource = DescribeConfigsRequest.DescribeConfigsResource(BROKER, "1", ["message.max.bytes"])
        answer: Any = wire.ask(DescribeConfigsRequest(resources=[resource]), 4)
        assert answer.results[0].configs[0].value == "150"
    finally:
        alter(wire, BROKER, "", message_max_bytes=None)
    assert send(wire, "dynamic", batch_of(b"x" * 300)).error_code == 0


def test_a_client_that_has_its_answer_sees_its_own_change(broker: Broker) -> None:
    """Trap 34: no race between CreateTopics, CreatePartitions, DeleteTopics and the next Metadata."""
    wire = Wire(broker.bootstrap)
    for number in range(30):
        name = f"own-{number}"
        create(wire, name)
        assert partition_count(wire, name) == 1
        assert send(wire, name, batch_of(b"x")).error_code == 0
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=3, assignments=None)
        wire.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=1000), 2)
        assert partition_count(wire, name) == 3
        wanted = [ListOffsetsRequest.ListOffsetsPartition(partition_index=2, timestamp=-1)]
        listed: Any = wire.ask(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name, wanted)]), 5
        )
        assert listed.topics[0].partitions[0].offset == 0
        wire.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)
        assert partition_count(wire, name) is None


def partition_count(wire: Wire, topic: str) -> int | None:
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    answer: Any = wire.ask(request, 8)
    found = answer.topics[0]
    return None if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else len(found.partitions)


def test_auto_creation_follows_the_brokers_defaults_and_can_be_turned_off() -> None:
    ask = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="auto")])
    with Broker({"num.partitions": "5"}) as broker:
        answer: Any = Wire(broker.bootstrap).ask(ask, 8)
        assert len(answer.topics[0].partitions) == 5
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        answer = Wire(broker.bootstrap).ask(ask, 8)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_trimmed_offsets_are_never_used_again_not_even_after_sigkill() -> None:
    with BrokerProcess() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "trimmed")
        for _ in range(10):
            send(wire, "trimmed", batch_of(b"x"))
        everything = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
        topic = DeleteRecordsRequest.DeleteRecordsTopic("trimmed", [everything])
        answer: Any = wire.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)
        assert answer.topics[0].partitions[0].low_watermark == 10
        for end in (broker.kill, broker.stop):
            end()
            broker.start()
            wire = Wire(broker.bootstrap)
            partition = fetched(wire.ask(fetch("trimmed", 10), 11))
            assert (partition.error_code, partition.log_start_offset, partition.high_watermark) == (0, 10, 10)
        assert send(wire, "trimmed", batch_of(b"x")).base_offset == 10


def test_a_deleted_topic_leaves_the_disk_and_its_name_can_be_used_again(broker: Broker, wire: Wire) -> None:
    create(wire, "gone")
    send(wire, "gone", batch_of(b"old"))
    wire.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
    create(wire, "gone")
    assert send(wire, "gone", batch_of(b"new")).base_offset == 0
    deadline = time.monotonic() + 10
    while list(Path(broker.data).glob("gone-0.*-delete")):
        assert time.monotonic() < deadline, "the files of the deleted topic are still there"


def test_a_replica_moves_between_directories_with_its_records(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    settings = {"log.dirs": f"{first},{second}"}
    broker = Broker(settings, data=str(tmp_path)).start()
    try:
        wire = Wire(broker.bootstrap)
        create(wire, "moved")
        for number in range(20):
            send(wire, "moved", batch_of(b"%d" % number))
        (here,) = [each for each in (first, second) if (each / "moved-0").exists()]
        there = second if here == first else first
        for path, expected in ((str(there), 0), ("/nowhere", ErrorCode.LOG_DIR_NOT_FOUND), (str(there), 0)):
            topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic("moved", [0])
            request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path, [topic])])
            answer: Any = wire.ask(request, 2)
            assert answer.results[0].partitions[0].error_code == expected
        assert (there / "moved-0").exists() and not (here / "moved-0").exists()
        assert send(wire, "moved", batch_of(b"20")).base_offset == 20
        broker.stop()
        broker.start()
        stored = bytes(fetched(Wire(broker.bootstrap).ask(fetch("moved", 0), 11)).records)
        values = [record.value for _, batch in iterate_batches(stored) for record in iterate_records(batch)]
        assert values == [b"%d" % number for number in range(21)]
    finally:
        broker.close()


def test_a_decompression_bomb_is_refused_where_the_broker_must_open_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic with another codec makes the broker inflate; what inflates past the cap is refused, not allocated."""
    from moldau.protocol.batches import seal_batch
    from moldau.protocol.compression import DECOMPRESSED_BYTES_MAX

    create(wire, "bomb", **{"compression.type": "lz4"})
    payload = _gzip_zeros(DECOMPRESSED_BYTES_MAX + 1)
    batch = seal_batch(
        payload,
        base_offset=0,
        leader_epoch=-1,
        attributes=int(Compression.GZIP),
        last_offset_delta=0,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    assert len(batch) < 1_000_000
    assert send(wire, "bomb", batch).error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert send(wire, "bomb", batch_of(b"fine")).error_code == 0


def _gzip_zeros(size: int) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    out = b"".join(compressor.compress(piece) for _ in range(size // len(piece)))
    return out + compressor.compress(bytes(size % len(piece))) + compressor.flush()
