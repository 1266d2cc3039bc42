"""The traps of `reference/kafka.md` 6.4 that exist in Kafka 4.3 on one node, each held over a real socket.

Numbers are the checklist's. What a log does by itself is held in `tests/storage` too; the comparison with Apache Kafka,
version by version, in `tests/differential`.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.api_table import SERVED
from moldau.kernel import ErrorCode
from moldau.protocol.batches import iterate_batches, read_header
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import Compression
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.registry import API_MESSAGES
from moldau.testing import Broker, BrokerProcess
from tests.differential.batches import BASE_MS, batch, corrupt, old_message, with_header
from tests.differential.wire import CLOSED, SILENCE, Wire


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"max.request.partition.size.limit": "5", "socket.request.max.bytes": "5000000"}) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[Any]:
    connection = Wire(broker.bootstrap)
    yield connection
    connection.close()


# -- requests, as short as the tests want them -------------------------------------------------------------------------


def create(wire: Any, name: str, partitions: int = 1, **configs: str) -> bytes:
    """A topic; its id."""
    entries = [CreateTopicsRequest.CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topic = CreateTopicsRequest.CreatableTopic(name, partitions, 1, [], entries)
    result = wire.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert result.error_code == 0, result
    topic_id: bytes = result.topic_id
    return topic_id


def produce(name: str, data: bytes, *, acks: int = -1, topic_id: bytes = bytes(16), index: int = 0) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=index, records=data)
    topic = ProduceRequest.TopicProduceData(name=name, topic_id=topic_id, partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def send(wire: Any, name: str, data: bytes, version: int = 12) -> Any:
    return wire.ask(produce(name, data), version).responses[0].partition_responses[0]


def fetch(name: str, offset: int = 0, *, topic_id: bytes = bytes(16), **more: Any) -> FetchRequest:
    partition_fields = {
        field: more.pop(field)
        for field in ("current_leader_epoch", "last_fetched_epoch", "partition_max_bytes")
        if field in more
    }
    partition_fields.setdefault("partition_max_bytes", 1 << 20)
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, **partition_fields)
    topic = FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=[partition])
    fields: dict[str, Any] = {"max_bytes": 1 << 24, "session_epoch": -1, **more}
    return FetchRequest(topics=[topic], **fields)


def read(wire: Any, name: str, offset: int = 0, version: int = 12, **more: Any) -> Any:
    return wire.ask(fetch(name, offset, **more), version).responses[0].partitions[0]


def metadata(*names: str, version: int = 12, create: bool = False) -> MetadataRequest:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    if version >= 4:
        request.allow_auto_topic_creation = create
    return request


def list_offset(wire: Any, name: str, timestamp: int, epoch: int = -1) -> Any:
    partition = ListOffsetsRequest.ListOffsetsPartition(0, epoch, timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name, [partition])
    return wire.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7).topics[0].partitions[0]


def epoch_end(wire: Any, name: str, asked: int, current: int = -1, version: int = 4) -> Any:
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(0, current, asked)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(name, [partition])
    request = OffsetForLeaderEpochRequest(topics=[topic])
    if version >= 3:
        request.replica_id = -1
    return wire.ask(request, version).topics[0].partitions[0]


def header(key: int, version: int, correlation_id: int = 1, client_id: bytes = b"t") -> bytes:
    return struct.pack(f">hhih{len(client_id)}s", key, version, correlation_id, len(client_id), client_id)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# -- protocol ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", (5, 77, 32767))
def test_trap_01_an_unknown_version_of_api_versions_is_answered_with_version_0_and_our_range(
    wire: Any, version: int
) -> None:
    answer = wire.exchange(framed(header(18, version) + b"\x00\xff\xff no body of any version"))
    message = wire.decode(18, answer, 0)
    assert message.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.min_version, each.max_version) for each in message.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize("version", (3, 4))
def test_trap_02_the_header_of_an_api_versions_answer_is_version_0_though_its_body_is_flexible(
    wire: Any, version: int
) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = wire.exchange(wire.frame(request, version, correlation_id=42))
    correlation_id, error, count = struct.unpack_from(">ihB", answer)
    on_brokers = [key for key in SERVED if "broker" in API_MESSAGES[key].listeners]
    assert (correlation_id, error, count - 1) == (42, 0, len(on_brokers))


def test_trap_03_the_client_id_of_a_flexible_request_has_an_int16_length(broker: Broker) -> None:
    named = Wire(broker.bootstrap, client_id="n" * 300)
    assert named.ask(metadata(), 12) != CLOSED
    nameless = Wire(broker.bootstrap, client_id=None)
    assert nameless.ask(metadata(), 12) != CLOSED
    named.close()
    nameless.close()


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("-a", "1"), ("a", "1."), ("a b", "1"), ("a", "é")])
def test_trap_04_software_that_does_not_look_like_a_name_is_refused(wire: Any, name: str, version: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    assert wire.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST
    good = ApiVersionsRequest(client_software_name="a-b.c", client_software_version="1.0-x")
    assert wire.ask(good, 3).error_code == 0


def test_trap_05_produce_is_advertised_from_0_but_served_from_3(wire: Any) -> None:
    ranges = {each.api_key: (each.min_version, each.max_version) for each in wire.ask(ApiVersionsRequest(), 0).api_keys}
    assert ranges[0] == (0, 13)
    assert ranges[3] == (0, 13)
    for version in (0, 1, 2):
        assert wire.exchange(framed(header(0, version) + bytes(20))) == CLOSED


def test_trap_05_features_that_begin_at_0_are_hidden_from_version_3(wire: Any) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    old, new = (wire.ask(request, version).supported_features for version in (3, 4))
    assert all(feature.min_version > 0 for feature in old)
    assert any(feature.min_version == 0 for feature in new)


@pytest.mark.parametrize(("key", "version"), [(93, 0), (-1, 0), (4, 0), (3, 14), (1, 3), (19, 8), (8, 9), (71, 0)])
def test_trap_06_an_unknown_or_refused_key_or_version_ends_the_connection(wire: Any, key: int, version: int) -> None:
    assert wire.exchange(framed(header(key, version) + bytes(30))) == CLOSED


def test_trap_07_answers_leave_in_the_order_of_the_requests_even_behind_a_parked_fetch(
    broker: Broker, wire: Any
) -> None:
    create(wire, "trap7")
    parked = fetch("trap7", 0, max_wait_ms=10_000, min_bytes=1)
    wire.send(wire.frame(parked, 12, 1) + wire.frame(metadata(), 12, 2) + wire.frame(ApiVersionsRequest(), 0, 3))
    other = Wire(broker.bootstrap)
    assert send(other, "trap7", batch(b"wakes")).error_code == 0
    other.close()
    assert [struct.unpack_from(">i", wire.receive())[0] for _ in range(3)] == [1, 2, 3]


def test_trap_07_acks_0_is_never_answered_and_a_failure_closes_the_connection(wire: Any) -> None:
    create(wire, "trap7-quiet")
    assert wire.tell(produce("trap7-quiet", batch(b"quiet"), acks=0), 12) == SILENCE
    assert wire.tell(produce("trap7-quiet", corrupt(batch()), acks=0), 12) == CLOSED
    assert wire.tell(produce("trap7-none", batch(), acks=0), 12) == CLOSED
    assert list_offset(wire, "trap7-quiet", -1).offset == 1


def test_trap_08_no_list_of_topics_means_all_and_an_empty_one_means_none(wire: Any) -> None:
    create(wire, "trap8")
    assert "trap8" in [topic.name for topic in wire.ask(MetadataRequest(topics=None), 12).topics]
    assert wire.ask(MetadataRequest(topics=[]), 12).topics == []
    assert wire.ask(MetadataRequest(topics=[]), 1).topics == []
    assert "trap8" in [topic.name for topic in wire.ask(MetadataRequest(topics=[]), 0).topics]


def test_trap_08_tagged_fields_that_nobody_knows_are_skipped(wire: Any) -> None:
    create(wire, "trap8-tags")
    request = metadata("trap8-tags")
    request.unknown_tags = ((10_000, b"news"),)
    assert request.topics is not None
    request.topics[0].unknown_tags = ((9, b""), (10_001, b"more"))
    assert wire.ask(request, 12).topics[0].error_code == 0


def test_trap_09_a_frame_larger_than_the_limit_ends_the_connection_before_it_is_sent(wire: Any) -> None:
    assert wire.exchange(struct.pack(">i", 5_000_001) + header(3, 12)) == CLOSED
    assert wire.exchange(struct.pack(">i", 2**31 - 1) + header(3, 12)) == CLOSED
    assert wire.exchange(struct.pack(">i", -1)) == CLOSED


def test_trap_09_a_count_larger_than_the_bytes_that_follow_ends_the_connection(wire: Any) -> None:
    assert wire.exchange(framed(header(3, 1) + struct.pack(">i", 2**31 - 1))) == CLOSED
    assert wire.exchange(framed(header(3, 12) + b"\x00" + b"\xff\xff\xff\xff\x0f")) == CLOSED


def test_trap_10_ids_and_names_that_are_unknown_have_errors_of_their_own(wire: Any) -> None:
    topic_id = create(wire, "trap10")
    unknown = bytes(range(16))
    assert wire.ask(produce("", batch(), topic_id=unknown), 13).responses[0].partition_responses[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_ID
    )
    assert send(wire, "trap10-none", batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_id = wire.ask(produce("", batch(), topic_id=topic_id, index=7), 13).responses[0].partition_responses[0]
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert read(wire, "", version=13, topic_id=unknown).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert read(wire, "trap10-none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deletion = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=unknown)])
    assert wire.ask(deletion, 6).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_trap_10_a_topic_that_was_created_again_has_another_id(wire: Any) -> None:
    first = create(wire, "trap10-again")
    assert send(wire, "trap10-again", batch()).error_code == 0
    deletion = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=first)])
    assert wire.ask(deletion, 6).responses[0].error_code == 0
    second = create(wire, "trap10-again")
    assert second != first
    assert read(wire, "", version=13, topic_id=first).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    again = read(wire, "", version=13, topic_id=second)
    assert (again.error_code, again.high_watermark) == (0, 0)


def test_trap_12_the_unstable_version_of_init_producer_id_is_not_advertised(wire: Any) -> None:
    ranges = {each.api_key: (each.min_version, each.max_version) for each in wire.ask(ApiVersionsRequest(), 0).api_keys}
    assert ranges[22] == (0, 5)
    assert wire.exchange(framed(header(22, 6) + bytes(30))) == CLOSED


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", (0, 1))
def test_trap_13_messages_before_magic_2_are_refused_clearly(wire: Any, magic: int) -> None:
    create(wire, f"trap13-{magic}")
    answer = send(wire, f"trap13-{magic}", old_message(magic))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "magic" in answer.error_message


def test_trap_14_a_stored_batch_is_the_producers_but_for_base_offset_and_leader_epoch(wire: Any) -> None:
    create(wire, "trap14")
    sent = batch(b"a", b"b", compression=Compression.ZSTD)
    send(wire, "trap14", sent)
    send(wire, "trap14", sent)
    (_, first), (second_header, second) = iterate_batches(read(wire, "trap14").records)
    assert second_header.base_offset == 2
    assert bytes(first[16:]) == bytes(second[16:]) == sent[16:]
    assert bytes(first[8:12]) == sent[8:12]


def test_trap_14_append_time_changes_attributes_and_time_so_the_checksum_is_made_anew(wire: Any) -> None:
    create(wire, "trap14-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    answer = send(wire, "trap14-time", batch(b"a"))
    assert answer.log_append_time_ms >= before
    ((stored, data),) = iterate_batches(read(wire, "trap14-time").records)
    assert stored.is_log_append_time
    assert stored.max_timestamp == answer.log_append_time_ms
    assert stored.crc == crc32c(bytes(data[21:]))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (with_header(batch(b"a", b"b"), last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (batch(producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (batch(control=True), ErrorCode.INVALID_RECORD),
        (corrupt(batch()), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (b"", ErrorCode.INVALID_RECORD),
    ],
    ids=["two batches", "count", "no sequence", "control", "checksum", "too large", "nothing"],
)
def test_trap_15_a_batch_that_breaks_the_rules_is_refused(wire: Any, data: bytes, error: ErrorCode) -> None:
    wire.ask(metadata("trap15", create=True), 12)
    assert send(wire, "trap15", data).error_code == error
    assert list_offset(wire, "trap15", -1).offset == 0


def test_trap_15_zstd_needs_produce_7(wire: Any) -> None:
    create(wire, "trap15-zstd")
    data = batch(b"a", compression=Compression.ZSTD)
    assert send(wire, "trap15-zstd", data, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert send(wire, "trap15-zstd", data, version=7).error_code == 0


def test_trap_15_timestamps_out_of_bounds_and_missing_keys_are_named_record_by_record(wire: Any) -> None:
    create(wire, "trap15-time", message_timestamp_after_max_ms="1000")
    now = int(time.time() * 1000)
    late = send(wire, "trap15-time", batch(b"a", b"b", timestamps=[now, now + 3_600_000]))
    assert late.error_code == ErrorCode.INVALID_TIMESTAMP
    create(wire, "trap15-keys", cleanup_policy="compact")
    keyless = send(wire, "trap15-keys", batch(b"a", b"b", key=None))
    assert keyless.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in keyless.record_errors] == [0, 1]
    assert send(wire, "trap15-keys", batch(b"a", b"b")).error_code == 0


def test_trap_16_a_fetch_returns_whole_batches_and_at_least_one(wire: Any) -> None:
    create(wire, "trap16")
    for _ in range(3):
        send(wire, "trap16", batch(b"a" * 100, b"b" * 100))
    middle = read(wire, "trap16", offset=3, partition_max_bytes=1)
    ((first, data),) = iterate_batches(middle.records)
    assert (first.base_offset, len(data)) == (2, len(middle.records))
    two = read(wire, "trap16", partition_max_bytes=2 * len(data) + 50)
    assert [each.base_offset for each, _ in iterate_batches(two.records)] == [0, 2]


def test_trap_17_five_batches_are_remembered_and_gaps_and_old_epochs_are_refused(wire: Any) -> None:
    create(wire, "trap17")

    def numbered(sequence: int, epoch: int = 3) -> Any:
        return send(wire, "trap17", batch(producer_id=77, producer_epoch=epoch, base_sequence=sequence))

    assert [numbered(sequence).base_offset for sequence in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [numbered(sequence).base_offset for sequence in range(1, 6)] == [1, 2, 3, 4, 5]
    assert numbered(0).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert numbered(8).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert numbered(6, epoch=2).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert numbered(0, epoch=4).base_offset == 6
    unknown = batch(producer_id=78, producer_epoch=0, base_sequence=9)
    assert send(wire, "trap17", unknown).base_offset == 7
    assert list_offset(wire, "trap17", -1).offset == 8


@pytest.mark.parametrize("end", ("stop", "kill"))
def test_trap_17_producers_are_remembered_after_the_broker_came_back(end: str) -> None:
    with BrokerProcess() as process:
        wire: Any = Wire(process.bootstrap)
        create(wire, "kept")
        now = [int(time.time() * 1000)]  # a producer is forgotten when its newest record is a day old
        numbered = [
            batch(timestamps=now, producer_id=7, producer_epoch=1, base_sequence=sequence) for sequence in range(3)
        ]
        for data in numbered:
            send(wire, "kept", data)
        getattr(process, end)()
        process.start()
        wire.close()
        wire = Wire(process.bootstrap)
        assert send(wire, "kept", numbered[2]).base_offset == 2
        gap = batch(producer_id=7, producer_epoch=1, base_sequence=5)
        assert send(wire, "kept", gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert list_offset(wire, "kept", -1).offset == 3
        wire.close()


# -- fetch -------------------------------------------------------------------------------------------------------------


def test_trap_18_fetch_sessions_count_their_epochs_and_leave_out_what_is_not_new(broker: Broker, wire: Any) -> None:
    create(wire, "trap18")
    send(wire, "trap18", batch(b"a"))
    opened = wire.ask(fetch("trap18", 1, session_id=0, session_epoch=0), 12)
    assert opened.session_id != 0 and len(opened.responses) == 1

    def go_on(epoch: int, session_id: int = opened.session_id) -> Any:
        return wire.ask(FetchRequest(max_bytes=1 << 20, session_id=session_id, session_epoch=epoch), 12)

    assert go_on(1).responses == []
    assert go_on(1).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert go_on(2, session_id=opened.session_id + 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    send(wire, "trap18", batch(b"b"))
    assert len(go_on(2).responses) == 1
    by_id = FetchRequest(max_bytes=1 << 20, session_id=opened.session_id, session_epoch=3)
    assert wire.ask(by_id, 13).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert broker.node is not None
    session = broker.node.fetch_sessions.resume(opened.session_id, 3, uses_topic_ids=False)
    session.epoch = 2**31 - 1  # nobody fetches two billion times in a test
    assert go_on(2**31 - 1).error_code == 0
    assert go_on(1).error_code == 0
    assert go_on(-1).session_id == 0
    assert go_on(2).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_trap_19_a_fetch_waits_for_min_bytes_until_the_high_watermark_moves(broker: Broker, wire: Any) -> None:
    create(wire, "trap19")
    other = Wire(broker.bootstrap)
    threading.Timer(0.15, lambda: send(other, "trap19", batch(b"later"))).start()
    began = time.monotonic()
    found = read(wire, "trap19", max_wait_ms=5000, min_bytes=1)
    assert 0.1 < time.monotonic() - began < 3
    assert found.high_watermark == 1
    began = time.monotonic()
    read(wire, "trap19", offset=1, max_wait_ms=200, min_bytes=1)
    assert 0.15 < time.monotonic() - began < 3
    began = time.monotonic()
    assert read(wire, "trap19", offset=9, max_wait_ms=5000, min_bytes=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - began < 3
    other.close()


def test_trap_19_max_bytes_is_spent_in_the_order_of_the_request(wire: Any) -> None:
    for name in ("trap19-a", "trap19-b"):
        create(wire, name)
        send(wire, name, batch(b"x" * 500))
    for order in (["trap19-a", "trap19-b"], ["trap19-b", "trap19-a"]):
        request = fetch(order[0], max_bytes=600)
        request.topics += fetch(order[1]).topics
        sizes = {each.topic: len(each.partitions[0].records) for each in wire.ask(request, 12).responses}
        assert sizes[order[0]] > 500
        assert sizes[order[1]] == 0


@pytest.fixture(scope="module")
def second_epoch() -> Iterator[Any]:
    """A broker that was killed: partition `epochs` wrote offsets 0 and 1 in epoch 0, and 2 in epoch 1."""
    with BrokerProcess() as process:
        wire: Any = Wire(process.bootstrap)
        create(wire, "epochs")
        send(wire, "epochs", batch(b"a", b"b"))
        process.kill()
        process.start()
        wire.close()
        wire = Wire(process.bootstrap)
        send(wire, "epochs", batch(b"c"))
        yield wire
        wire.close()


def test_trap_11_a_fenced_fetch_names_the_leader_and_its_address(second_epoch: Any) -> None:
    topic_id = second_epoch.ask(metadata("epochs"), 12).topics[0].topic_id
    port = second_epoch.ask(metadata("epochs"), 12).brokers[0].port
    answer = second_epoch.ask(fetch("", topic_id=topic_id, current_leader_epoch=0), 16)
    partition = answer.responses[0].partitions[0]
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
    assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [(1, "127.0.0.1", port)]


def test_trap_20_older_leader_epochs_are_fenced_and_newer_ones_unknown_everywhere(second_epoch: Any) -> None:
    for epoch, error in ((0, ErrorCode.FENCED_LEADER_EPOCH), (1, 0), (2, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)):
        assert read(second_epoch, "epochs", current_leader_epoch=epoch).error_code == error
        assert list_offset(second_epoch, "epochs", -1, epoch).error_code == error
        assert epoch_end(second_epoch, "epochs", 0, current=epoch).error_code == error


@pytest.mark.parametrize("version", (2, 3, 4))
def test_trap_21_an_epoch_ends_where_the_next_begins_and_the_last_at_the_end(second_epoch: Any, version: int) -> None:
    ends = {asked: epoch_end(second_epoch, "epochs", asked, version=version) for asked in (0, 1, 2, -1)}
    assert (ends[0].leader_epoch, ends[0].end_offset) == (0, 2)
    assert (ends[1].leader_epoch, ends[1].end_offset) == (1, 3)
    assert (ends[2].leader_epoch, ends[2].end_offset) == (-1, -1)
    assert (ends[-1].leader_epoch, ends[-1].end_offset) == (-1, -1)


def test_trap_22_offsets_outside_of_the_log_are_out_of_range_and_trimming_stops_at_the_high_watermark(
    wire: Any,
) -> None:
    create(wire, "trap22")
    send(wire, "trap22", batch(b"a", b"b", b"c"))

    def trim(offset: int) -> Any:
        partition = DeleteRecordsRequest.DeleteRecordsPartition(0, offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsRequest.DeleteRecordsTopic("trap22", [partition])])
        return wire.ask(request, 2).topics[0].partitions[0]

    assert trim(4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert trim(2).low_watermark == 2
    assert read(wire, "trap22", offset=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(wire, "trap22", offset=4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    kept = read(wire, "trap22", offset=2)
    assert (kept.error_code, kept.log_start_offset, kept.high_watermark) == (0, 2, 3)
    assert trim(-1).low_watermark == 3
    assert send(wire, "trap22", batch(b"d")).base_offset == 3


# -- topics, configs, listeners ----------------------------------------------------------------------------------------


def test_trap_25_a_topic_is_created_by_asking_unless_the_request_or_the_broker_forbids_it() -> None:
    with Broker({"num.partitions": "3"}) as open_house:
        wire: Any = Wire(open_house.bootstrap)
        forbidden = wire.ask(metadata("born", create=False), 12).topics[0]
        assert forbidden.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        born = wire.ask(metadata("born", create=True), 12).topics[0]
        assert (born.error_code, len(born.partitions)) == (0, 3)
        assert send(wire, "born", batch()).error_code == 0
        old = wire.ask(metadata("old", version=1), 1).topics[0]
        assert (old.error_code, len(old.partitions)) == (0, 3)
        wire.close()
    with Broker({"auto.create.topics.enable": "false"}) as closed_house:
        wire = Wire(closed_house.bootstrap)
        for version in (1, 12):
            refused = wire.ask(metadata("born", version=version, create=True), version).topics[0]
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert wire.ask(MetadataRequest(topics=None), 12).topics == []
        wire.close()


def test_trap_34_who_has_an_answer_sees_the_change_on_every_connection(broker: Broker, wire: Any) -> None:
    other: Any = Wire(broker.bootstrap)
    for number in range(20):
        name = f"trap34-{number}"
        create(wire, name, 2)
        topic = other.ask(metadata(name), 12).topics[0]
        assert (topic.error_code, [each.error_code for each in topic.partitions]) == (0, [0, 0])
        assert send(other, name, batch()).error_code == 0
        deletion = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)])
        assert wire.ask(deletion, 6).responses[0].error_code == 0
        assert other.ask(metadata(name), 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    other.close()


def describe(wire: Any, topic: str) -> dict[str, Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(2, topic, None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    return {each.name: each for each in wire.ask(request, 4).results[0].configs}


def test_trap_36_every_default_is_described_with_source_synonyms_type_and_documentation(wire: Any) -> None:
    create(wire, "trap36", cleanup_policy="compact")
    configs = describe(wire, "trap36")
    assert len(configs) == 33
    assert all(each.documentation and each.config_type for each in configs.values())
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("604800000", 5)
    policy = configs["cleanup.policy"]
    assert [(each.name, each.value, each.source) for each in policy.synonyms] == [
        ("cleanup.policy", "compact", 1),
        ("log.cleanup.policy", "delete", 5),
    ]


def test_trap_36_lists_are_appended_to_and_subtracted_from(wire: Any) -> None:
    create(wire, "trap36-list")
    for operation, operand, value in ((2, "compact", "delete,compact"), (3, "delete", "compact")):
        config = IncrementalAlterConfigsRequest.AlterableConfig("cleanup.policy", operation, operand)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(2, "trap36-list", [config])
        answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0
        assert describe(wire, "trap36-list")["cleanup.policy"].value == value


def test_trap_37_topics_are_described_page_by_page_within_the_brokers_limit(wire: Any) -> None:
    names = ["trap37-a", "trap37-b"]
    for name in names:
        create(wire, name, 4)
    seen = []
    cursor = None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name) for name in reversed(names)],
            response_partition_limit=2000,
            cursor=cursor,
        )
        page = wire.ask(request, 0)
        partitions = [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
        assert len(partitions) <= 5  # max.request.partition.size.limit
        seen += partitions
        if page.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert seen == [(name, index) for name in names for index in range(4)]


def test_trap_37_the_type_of_endpoint_is_checked(wire: Any) -> None:
    assert wire.ask(DescribeClusterRequest(endpoint_type=1), 1).error_code == 0
    assert wire.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert wire.ask(DescribeClusterRequest(endpoint_type=9), 1).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def test_trap_39_each_listener_names_its_own_address_and_port_0_the_real_port() -> None:
    listeners = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "OUTSIDE://broker.example:19092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with Broker(listeners) as running:
        assert running.node is not None
        inside, outside = (listener.port for listener in running.node.listeners)
        for port, address in ((inside, ("127.0.0.1", inside)), (outside, ("broker.example", 19092))):
            wire: Any = Wire(f"127.0.0.1:{port}")
            told = wire.ask(metadata(), 12).brokers[0]
            assert (told.host, told.port) == address
            wire.close()


def test_trap_39_a_wildcard_names_the_address_that_the_client_reached() -> None:
    with Broker({"listeners": "PLAINTEXT://0.0.0.0:0"}) as running:
        port = int(running.bootstrap.rpartition(":")[2])
        for host in ("127.0.0.1", "127.0.0.2"):
            with socket.create_connection((host, port)):
                wire: Any = Wire(f"{host}:{port}")
                told = wire.ask(metadata(), 12).brokers[0]
                assert (told.host, told.port) == (host, port)
                wire.close()


def test_trap_14_the_batch_helper_makes_what_a_producer_sends() -> None:
    """The tests above stand on it."""
    header_of = read_header(batch(b"a", b"b"))
    assert (header_of.base_timestamp, header_of.record_count, header_of.producer_id) == (BASE_MS, 2, -1)
