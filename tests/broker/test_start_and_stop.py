"""Starting and stopping: what stands in the way is said in one line; what was in flight is finished."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from moldau.testing import Broker, BrokerProcess
from tests.differential.wire import Wire

SECONDS_MAX = 30


def run_broker(*flags: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A broker that is expected not to start."""
    return subprocess.run(
        [sys.executable, "-m", "moldau", "broker", "-Xmoldau.http.listener=", *flags],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**os.environ, **(environment or {})},
    )


def problem_of(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that says what is wrong."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)):
        result = run_broker(f"-Xlog.dirs={tmp_path}", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    assert result.returncode == 1
    assert f"in use by another broker (its .lock is held by process {os.getpid()})" in problem_of(result)


def test_a_port_that_is_taken_is_named_with_the_remedy(tmp_path: Path) -> None:
    with Broker() as other:
        port = other.bootstrap.rpartition(":")[2]
        result = run_broker(f"-Xlog.dirs={tmp_path}", f"-Xlisteners=PLAINTEXT://127.0.0.1:{port}")
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in problem_of(result)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        Broker(data=str(directory)).start().stop()
    result = run_broker(f"-Xlog.dirs={first},{second}", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    assert result.returncode == 1
    assert "belongs to cluster" in problem_of(result)


def test_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    Broker(data=str(tmp_path)).start().stop()
    result = run_broker(f"-Xlog.dirs={tmp_path}", "-Xnode.id=2", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    assert result.returncode == 1
    assert "belongs to node 1, this broker is node 2" in problem_of(result)


@pytest.mark.parametrize("place", ["/proc/moldau", "/dev/null/moldau"])
def test_a_directory_that_cannot_be_made_is_named(place: str) -> None:
    result = run_broker(f"-Xlog.dirs={place}", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    assert result.returncode == 1
    assert place in problem_of(result)


def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    mount = tmp_path / "read-only"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mount)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        result = run_broker(f"-Xlog.dirs={mount}/data", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    finally:
        subprocess.run(["umount", str(mount)], check=True)
    assert result.returncode == 1
    assert "Read-only file system" in problem_of(result)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-Xnum.partitions=many"], "Invalid value many for configuration num.partitions"),
        (["-Xlisteners=what"], "is not of the form NAME://host:port"),
        (["-Xnothing"], "write it as -X key=value"),
        (["--config", "/nowhere/server.properties"], "cannot read /nowhere/server.properties"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line_and_exit_code_2(flags: list[str], problem: str) -> None:
    result = run_broker(*flags)
    assert result.returncode == 2
    assert problem in problem_of(result)


def test_an_unknown_key_is_a_warning_and_the_broker_starts(tmp_path: Path) -> None:
    with BrokerProcess({"num.partitons": "3"}, data=str(tmp_path)) as broker:
        assert "warning: unknown key num.partitons; did you mean num.partitions?" in broker.log


def test_more_brokers_than_a_machine_can_run_are_refused() -> None:
    command = [sys.executable, "-m", "moldau", "up", "--brokers", "1000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert result.returncode == 2
    assert "1 to 100 brokers" in result.stderr


def test_up_prints_one_ready_line_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "moldau",
        "up",
        "--port",
        "0",
        "--data",
        str(tmp_path / "d"),
        "-Xmoldau.http.listener=",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready bootstrap=127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    assert "stop_requested signal=SIGINT" in errors
    assert "node_stopped" in errors
    assert (tmp_path / "d" / ".kafka_cleanshutdown").exists()


def test_an_ephemeral_broker_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau", "up", "--port", "0", "--ephemeral", "-Xmoldau.http.listener="]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    assert list(tmp_path.iterdir())
    process.send_signal(signal.SIGTERM)
    process.wait(SECONDS_MAX)
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_a_request_in_flight_is_answered_before_the_broker_stops() -> None:
    """SIGTERM while a fetch waits for data: it is answered, not cut off."""
    from moldau.protocol.messages.create_topics import CreateTopicsRequest
    from moldau.protocol.messages.fetch import FetchRequest

    broker = Broker().start()
    try:
        wire = Wire(broker.bootstrap)
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1000,
            topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
        )
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(wire.ask(fetch, 4)))
        asking.start()
        assert broker.node is not None
        while not any(connection._answers for connection in list(broker.node.listeners[0].connections)):
            pass
        broker.stop()
        asking.join(SECONDS_MAX)
        (answer,) = answers
        assert not isinstance(answer, str)
    finally:
        broker.close()


def test_wildcard_binds_advertise_the_address_that_the_client_used() -> None:
    """Trap 39, the most asked question of all."""
    from moldau.protocol.messages.metadata import MetadataRequest

    with Broker({"listeners": "PLAINTEXT://:0"}) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.2", "localhost"):
            answer = Wire(f"{host}:{port}").ask(MetadataRequest(topics=[]), 1)
            assert not isinstance(answer, str)
            (told,) = answer.brokers  # type: ignore[attr-defined]
            assert told.port == int(port)
            assert told.host == ("127.0.0.1" if host == "localhost" else host)


def test_ipv6_is_served() -> None:
    with Broker({"listeners": "PLAINTEXT://[::1]:0"}) as broker:
        assert broker.bootstrap.startswith("[::1]:")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("six", b"x")
        assert producer.flush(SECONDS_MAX) == 0


def test_an_advertised_listener_is_told_as_it_is(tmp_path: Path) -> None:
    from moldau.protocol.messages.metadata import MetadataRequest

    overrides = {"advertised.listeners": "PLAINTEXT://broker.example:1234"}
    with Broker(overrides) as broker:
        assert broker.node is not None
        answer = Wire(broker.bootstrap).ask(MetadataRequest(topics=[]), 1)
        assert not isinstance(answer, str)
        (told,) = answer.brokers  # type: ignore[attr-defined]
        assert (told.host, told.port) == ("broker.example", 1234)


def test_a_full_disk_at_start_is_one_line(tmp_path: Path) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=16", "tmpfs", str(mount)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        result = run_broker(f"-Xlog.dirs={mount}/data", "-Xlisteners=PLAINTEXT://127.0.0.1:0")
    finally:
        subprocess.run(["umount", str(mount)], check=True)
    assert result.returncode == 1
    assert "No space left" in problem_of(result)


def test_a_disk_that_fills_up_refuses_produce_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], capture_output=True).returncode
        != 0
    ):
        pytest.skip("mounting needs root")
    broker = Broker(data=str(mount / "data"))
    try:
        broker.start()
        errors: list[str] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 3000, "retries": 0})

        def note(error: object, _message: object) -> None:
            if error is not None:
                errors.append(str(error))

        producer.produce("t", b"first", on_delivery=note)
        assert producer.flush(SECONDS_MAX) == 0 and errors == []
        ballast = mount / "ballast"
        with open(ballast, "wb") as file:
            file.write(bytes(shutil.disk_usage(mount).free - 100_000))
        for _ in range(20):
            producer.produce("t", bytes(50_000), on_delivery=note)
            producer.flush(SECONDS_MAX)
        assert errors
        ballast.unlink()
        errors.clear()
        producer.produce("t", b"last", on_delivery=note)
        assert producer.flush(SECONDS_MAX) == 0 and errors == []
    finally:
        broker.stop()
        subprocess.run(["umount", str(mount)], check=True)


def test_the_first_answer_comes_on_the_port_that_was_said(tmp_path: Path) -> None:
    with BrokerProcess(data=str(tmp_path)) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            assert connection.recv(8)[4:] == struct.pack(">i", 1)
        assert broker.stop() == 0
