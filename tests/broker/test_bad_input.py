"""Whatever arrives on the port: the protocol's error or a closed connection and one line, never a crash."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.broker.connection import PARTIAL_BYTES_MIN
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.testing import Broker
from tests.differential.wire import Wire

SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS_MAX)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the broker to hang up; False when it answers instead."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def is_alive(broker: Broker) -> bool:
    """A well-behaved client is still served."""
    with connect(broker) as connection:
        connection.sendall(frame(struct.pack(">hhih", 18, 0, 7, -1)))
        return connection.recv(4096)[4:8] == struct.pack(">i", 7)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (struct.pack(">i", -1), "claims -1 bytes"),
        (struct.pack(">i", 2**31 - 1), "claims 2147483647 bytes"),
        (struct.pack(">i", (100 << 20) + 1), "socket.request.max.bytes is 104857600"),
        (frame(b""), "RequestHeader"),
        (frame(b"\x00"), "RequestHeader"),
        (frame(struct.pack(">hhih", 999, 0, 1, -1)), "api key 999 does not exist"),
        (frame(struct.pack(">hhih", 4, 0, 1, -1)), "api key 4 does not exist"),
        (frame(struct.pack(">hhih", 17, 0, 1, -1)), "SaslHandshake is not served"),
        (frame(struct.pack(">hhih", 3, 99, 1, -1) + b"\x00"), "Metadata version 99 is not served"),
        (frame(struct.pack(">hhih", 0, 2, 1, -1) + bytes(20)), "Produce version 2 is not served"),
        (frame(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)), "Metadata version 1 does not parse"),
        (frame(struct.pack(">hhihi", 3, 1, 1, -1, 1)), "Metadata version 1 does not parse"),
        (frame(struct.pack(">hhih", 3, 1, 1, 500)), "RequestHeader"),
    ],
)
def test_bytes_that_are_not_the_protocol_close_the_connection_with_one_line(
    broker: Broker, sent: bytes, reason: str
) -> None:
    before = len(broker.log)
    with connect(broker) as connection:
        connection.sendall(sent)
        assert is_closed(connection)
    said = broker.log[before:]
    assert len(said) == 1
    assert said[0].startswith("connection_refused peer=127.0.0.1:")
    assert reason in said[0]
    assert is_alive(broker)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300), key=st.integers(0, 92), version=st.integers(0, 20))
def test_random_requests_never_crash_the_broker(broker: Broker, body: bytes, key: int, version: int) -> None:
    with connect(broker) as connection:
        connection.sendall(frame(struct.pack(">hhih", key, version, 1, -1) + body))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)
    assert not [line for line in broker.log if line.startswith("handler_failed")]


def test_half_a_frame_then_silence_holds_no_memory_in_proportion_to_its_claim(broker: Broker) -> None:
    assert broker.node is not None
    listener = broker.node.listeners[0]
    held = []
    for _ in range(50):
        connection = connect(broker)
        connection.sendall(struct.pack(">i", 90 << 20) + b"half")
        held.append(connection)
    assert is_alive(broker)  # after this the broker has read them all
    assert listener._bytes_held <= 50 * PARTIAL_BYTES_MIN
    for connection in held:
        connection.close()


def test_a_frame_that_comes_byte_by_byte_is_answered(broker: Broker) -> None:
    with connect(broker) as connection:
        for byte in frame(struct.pack(">hhih", 18, 0, 5, -1)):
            connection.sendall(bytes([byte]))
        assert connection.recv(4096)[4:8] == struct.pack(">i", 5)


def test_silent_connections_are_closed_after_the_idle_timeout() -> None:
    with Broker({"connections.max.idle.ms": "200"}) as broker, connect(broker) as connection:
        assert is_closed(connection)
        assert is_alive(broker)


def test_connections_beyond_the_limits_are_turned_away() -> None:
    for limits in ({"max.connections": "2"}, {"max.connections.per.ip": "2"}):
        with Broker(limits) as broker:
            kept = [connect(broker), connect(broker)]
            for connection in kept:
                connection.sendall(frame(struct.pack(">hhih", 18, 0, 5, -1)))
                assert connection.recv(4096)
            with connect(broker) as third:
                assert is_closed(third)
            assert any(next(iter(limits)) in line for line in broker.log)
            kept.pop().close()
            wait_until_served(broker)
            for connection in kept:
                connection.close()


def test_the_connection_limit_can_be_changed_at_run_time() -> None:
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        change = IncrementalAlterConfigsRequest.AlterableConfig("max.connections", 0, "1")
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(4, "1", [change])
        wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        with connect(broker) as second:
            assert is_closed(second)


def wait_until_served(broker: Broker) -> None:
    """The freed place can be taken; the broker may not have noticed the close at once."""
    for _ in range(1000):
        try:
            if is_alive(broker):
                return
        except OSError:
            continue
    raise AssertionError("the freed place was never given")


def test_unfinished_frames_beyond_the_memory_cap_wait_and_are_served_later() -> None:
    """`queued.max.request.bytes`: connections are not read while too much is held, and go on when it is released."""
    padding = 200_000
    # A Metadata request for a topic with an absurd name: large, and answered.
    name = b"x" * 30_000
    body = struct.pack(">hhih", 3, 1, 9, -1) + struct.pack(">i", 6) + (struct.pack(">h", len(name)) + name) * 6
    assert len(body) < padding
    whole = frame(body)
    with Broker({"queued.max.request.bytes": "100000"}) as broker:
        connections = [connect(broker) for _ in range(8)]
        for connection in connections:
            connection.sendall(whole[:60_000])
        assert is_alive(broker)
        for connection in connections:
            connection.sendall(whole[60_000:])
        for connection in connections:
            assert connection.recv(8)[4:8] == struct.pack(">i", 9)
            connection.close()


def test_a_client_that_does_not_read_its_answers_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back pressure: what it is owed stays bounded however much it asks."""
    monkeypatch.setattr("moldau.broker.connection.UNSENT_BYTES_MAX", 256 << 10)
    with Broker() as broker:
        assert broker.node is not None
        request = frame(struct.pack(">hhih", 18, 0, 1, -1))
        with connect(broker) as connection:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # so that little is in flight
                connection.setsockopt(socket.SOL_SOCKET, buffer, 64 << 10)
            connection.setblocking(False)
            sent = 0
            slow = None
            deadline = time.monotonic() + SECONDS_MAX
            while slow is None or not slow._paused:
                assert time.monotonic() < deadline, "the broker reads on and on"
                try:
                    sent += connection.send((request * 100)[sent % len(request) :])
                except BlockingIOError:
                    assert is_alive(broker)
                    slow = max(list(broker.node.listeners[0].connections), key=lambda each: each._out_bytes)
            assert slow._out_bytes < 8 << 20
            connection.setblocking(True)
            connection.settimeout(SECONDS_MAX)
            expected = sent // len(request) * answer_size(broker)
            while expected > 0:
                chunk = connection.recv(1 << 20)
                assert chunk
                expected -= len(chunk)
            assert expected == 0


def answer_size(broker: Broker) -> int:
    """Bytes of one ApiVersions answer."""
    with connect(broker) as connection:
        connection.sendall(frame(struct.pack(">hhih", 18, 0, 1, -1)))
        (size,) = struct.unpack(">i", connection.recv(4))
        return int(size) + 4
