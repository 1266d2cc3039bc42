"""The two hot ways: order, bytes kept as they came, long polls, sendfile, and the fast path against the handler."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker import single_batch
from moldau.protocol import Compression, Record, build_batch
from moldau.protocol.headers import encode_request_header
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.testing import Broker, BrokerProcess
from tests.differential.wire import Wire

SECONDS_MAX = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def create(wire: Wire, topic: str, **configs: str) -> None:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in configs.items()],
    )
    answer: Any = wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 5)
    assert answer.topics[0].error_code == 0, answer


def batch_of(
    *values: bytes, compression: Compression = Compression.NONE, timestamp: int = 1_700_000_000_000
) -> bytearray:
    records = [Record(index, timestamp + index, None, value) for index, value in enumerate(values)]
    return build_batch(records, compression=compression)


def produce(topic: str, batch: bytes | bytearray, acks: int = 1) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch(
    topic: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20
) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )


def fetched(answer: Any) -> Any:
    assert isinstance(answer, FetchResponse)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("codec", list(Compression))
def test_fetched_bytes_equal_the_produced_ones_but_for_offset_and_epoch(broker: Broker, codec: Compression) -> None:
    wire = Wire(broker.bootstrap)
    topic = f"bytes-{codec.name.lower()}"
    create(wire, topic)
    batches = [batch_of(b"a" * 50, b"b", compression=codec), batch_of(b"c", compression=codec)]
    for batch in batches:
        wire.ask(produce(topic, batch), 8)
    stored = bytes(fetched(wire.ask(fetch(topic, 0), 11)).records)
    position = 0
    for expected_offset, batch in zip((0, 2), batches, strict=True):
        assert struct.unpack_from(">q", stored, position) == (expected_offset,)
        assert stored[position + 8 : position + 12] == bytes(batch[8:12])
        assert struct.unpack_from(">i", stored, position + 12) == (0,)
        assert stored[position + 16 : position + len(batch)] == bytes(batch[16:])
        position += len(batch)
    assert position == len(stored)


def test_answers_leave_in_request_order_even_when_an_older_fetch_waits(broker: Broker) -> None:
    """Trap 7: a parked fetch holds back the answers behind it, and the requests behind it are handled meanwhile."""
    wire = Wire(broker.bootstrap)
    create(wire, "ordered")
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        for number, (request, version) in enumerate(
            [
                (fetch("ordered", 0, max_wait_ms=20_000), 4),
                (produce("ordered", batch_of(b"x")), 9),
                (MetadataRequest(topics=[]), 1),
            ]
        ):
            connection.sendall(framed(request, version, number))
        answers = []
        while len(answers) < 3:
            (size,) = struct.unpack(">i", read_exactly(connection, 4))
            answers.append(struct.unpack_from(">i", read_exactly(connection, size))[0])
        assert answers == [0, 1, 2]


def framed(request: Any, version: int, correlation_id: int) -> bytes:
    out = bytearray(4)
    encode_request_header(out, request.API_KEY, version, correlation_id, "test")
    request.encode_into(out, version)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece
        data += piece
    return data


def test_a_fetch_waits_for_min_bytes_or_its_time(broker: Broker) -> None:
    """Trap 19."""
    wire, other = Wire(broker.bootstrap), Wire(broker.bootstrap)
    create(wire, "waits")
    assert fetched(wire.ask(fetch("waits", 0, max_wait_ms=50), 4)).records in (b"", None)
    other.ask(produce("waits", batch_of(b"x" * 100)), 9)
    answer = fetched(wire.ask(fetch("waits", 0, max_wait_ms=20_000, min_bytes=100), 4))
    assert len(answer.records) > 100


def test_a_batch_larger_than_every_limit_is_returned_whole(broker: Broker) -> None:
    """Trap 16."""
    wire = Wire(broker.bootstrap)
    create(wire, "large")
    for _ in range(2):
        wire.ask(produce("large", batch_of(b"x" * 5000)), 9)
    answer = fetched(wire.ask(fetch("large", 0, max_bytes=10), 4))
    assert len(answer.records) == len(batch_of(b"x" * 5000))


def test_acks_0_has_no_answer_and_an_error_closes_the_connection(broker: Broker) -> None:
    wire = Wire(broker.bootstrap)
    create(wire, "silent")
    assert wire.tell(produce("silent", batch_of(b"x"), acks=0), 9) == "no answer"
    assert wire.tell(produce("nowhere", batch_of(b"x"), acks=0), 9) == "the connection was closed"


requests = st.builds(
    lambda values, index, acks, timestamp, codec: (
        [
            ProduceRequest.PartitionProduceData(
                index=index, records=bytes(batch_of(*values, compression=codec, timestamp=timestamp))
            )
        ],
        acks,
    ),
    st.lists(st.binary(max_size=200), min_size=1, max_size=5),
    st.sampled_from([0, 0, 0, 1, -1]),
    st.sampled_from([1, -1, 5]),
    st.sampled_from([1_700_000_000_000, 9_000_000_000_000]),
    st.sampled_from(list(Compression)),
)


@settings(max_examples=100, deadline=None)
@given(data=requests, version=st.integers(9, 13), damage=st.booleans(), tags=st.booleans())
def test_single_batch_answers_what_the_handler_answers(data: Any, version: int, damage: bool, tags: bool) -> None:
    """The fast path and `k00_produce` give the same bytes for the same request on equal topics."""
    partitions, acks = data
    broker = shared_broker()
    wire = Wire(broker.bootstrap)
    request = ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(partition_data=partitions)]
    )
    if damage:
        records = bytearray(partitions[0].records)
        records[-1] ^= 0xFF
        partitions[0].records = bytes(records)
    if tags:
        request.unknown_tags = ((77, b"x"),)
    answers = []
    for fast in (True, False):
        name = f"same-{next(numbers)}"
        create(wire, name)
        request.topic_data[0].name = name if version < 13 else ""
        if version >= 13:
            metadata: Any = wire.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)]), 12)
            request.topic_data[0].topic_id = metadata.topics[0].topic_id
        with pytest.MonkeyPatch.context() as patch:
            if not fast:
                patch.setattr("moldau.broker.dispatch.FAST_PRODUCE_VERSION_MIN", 99)
            answer: Any = wire.ask(request, version)
        assert not isinstance(answer, str)
        answer.responses[0].name, answer.responses[0].topic_id = "", bytes(16)
        for error in answer.responses[0].partition_responses[0].record_errors:
            error.batch_index_error_message = re.sub(r"\d{10,}", "TIME", error.batch_index_error_message)
        answers.append(answer)
    assert answers[0] == answers[1]


numbers = iter(range(10**9))
_shared: list[Broker] = []


def shared_broker() -> Broker:
    if not _shared:
        _shared.append(Broker().start())
    return _shared[0]


def teardown_module() -> None:
    for running in _shared:
        running.close()


def test_the_fast_path_is_taken_for_a_plain_request(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(broker.bootstrap)
    create(wire, "plain")
    assert broker.node is not None
    before = broker.node.listeners.dispatchers[0].fast_produce_count
    wire.ask(produce("plain", batch_of(b"x" * 300)), single_batch.FAST_PRODUCE_VERSION_MIN)
    assert broker.node.listeners.dispatchers[0].fast_produce_count == before + 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_plaintext_fetch_leaves_by_sendfile(tmp_path: Path) -> None:
    """The log's bytes never pass through our memory: the system calls are watched."""
    trace = tmp_path / "trace"
    with BrokerProcess() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "sent")
        size = 0
        for _ in range(3):
            batch = batch_of(b"x" * 100_000)
            size += len(batch)
            wire.ask(produce("sent", batch), 9)
        command = ["strace", "-f", "-p", str(broker.pid), "-e", "trace=sendfile,pread64,preadv", "-o", str(trace)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            answer = fetched(wire.ask(fetch("sent", 0), 11))
            tracer.terminate()
    assert len(answer.records) == size
    calls = trace.read_text(errors="replace").splitlines()
    assert any("sendfile" in line for line in calls), calls
    read = sum(int(line.rpartition("= ")[2].split()[0]) for line in calls if "pread" in line and "= " in line)
    assert read < 10_000, "a fetch reads headers at most"
