"""The oracle: a real Apache Kafka 4.3.1 on loopback, and its command-line tools.

Any doubt about behaviour is settled by asking it. `tools/install-test-tools` fetches the jars into `.cache/`; without
them (or without Java) `require_oracle` skips the test, or fails it under `MOLDAU_TEST_STRICT=1`.

    with ApacheKafka(tmp_path, properties={"num.partitions": "3"}) as kafka:   # an instance of one's own
        kafka.tool("topics", "--create", "--topic", "orders")

    def test_x(apache_kafka):        # the instance that all tests and xdist workers share: own topic names, no restarts
        apache_kafka.bootstrap

Its tools on files, or on Moldau, are in `tests/java.py`. The tests use both through `tests/conftest.py`;
`bench/` imports them too, so they do not need pytest at import time.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.java import (
    CDS_QUIET,
    CLASSES_ARCHIVE,
    KAFKA_DIR,
    KAFKA_VERSION,
    QUICK_JVM,
    ROOT,
    TOOL_SECONDS_MAX,
    java,
    java_command,
    run_tool,
)

NEVER_MS = "86400000"
CLUSTER_ID = "b3JhY2xlLW9mLW1vbGRhdQ"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
# Its own controller registers with it, which is an error in its log when that comes in before it leads (it asks again).
# And on a busy machine its controller has no time for heartbeats within a short session.
SAYS_ANYWAY = ("CONTROLLER_REGISTRATION", "controller event queue overloaded. Timed out heartbeat")


def missing() -> str | None:
    """Say what keeps the oracle from running here, or None."""
    if java() is None:
        return "no java in JAVA_HOME or PATH"
    if not (KAFKA_DIR / ".complete").exists():
        return f"no jars of Apache Kafka {KAFKA_VERSION}: run tools/install-test-tools"
    return None


def require_oracle() -> None:
    """Skip the running test when the oracle is missing; fail it when the run is strict."""
    import pytest

    if reason := missing():
        if os.environ.get("MOLDAU_TEST_STRICT") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@dataclass(frozen=True)
class RunningKafka:
    """A Kafka that someone else starts and stops."""

    bootstrap: str
    controller_bootstrap: str
    log_dir: str
    pid: int
    cluster_id: str
    node_id: int

    def tool(
        self,
        tool: str,
        *args: str | os.PathLike[str],
        stdin: str | None = None,
        check: bool = True,
        timeout: float = TOOL_SECONDS_MAX,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's tools on this node (see `run_tool`)."""
        return run_tool(tool, *args, bootstrap=self.bootstrap, stdin=stdin, check=check, timeout=timeout)


class ApacheKafka:
    """One Apache Kafka node, broker and controller in one, in a directory of its own.

    An unformatted `directory/data` is formatted first. A formatted one is opened as it is, whoever wrote it: to reopen,
    build a second ApacheKafka on the same `log_dir`. `voters` chooses how the quorum is known: "standalone" writes the
    voter set into the log (kraft.version 1), "static" names it in `controller.quorum.voters` (kraft.version 0).
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_dir: Path | None = None,
        properties: Mapping[str, str] | None = None,
        voters: Literal["standalone", "static"] = "standalone",
        format_options: Sequence[str] = (),
        cluster_id: str = CLUSTER_ID,
        node_id: int = 1,
        port: int | None = None,
        controller_port: int | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
        command_prefix: Sequence[str] = (),
        own_session: bool = False,
    ) -> None:
        self.directory = directory
        self.log_dir = log_dir or directory / "data"
        self.voters = voters
        self.format_options = tuple(format_options)
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.port = port or free_port()
        self.controller_port = controller_port or free_port()
        self.jvm_options = tuple(jvm_options)
        self.command_prefix = tuple(command_prefix)  # such as ("taskset", "-c", "0")
        self.own_session = own_session
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.controller_bootstrap = f"127.0.0.1:{self.controller_port}"
        self.properties = self._base_properties() | dict(properties or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def output(self) -> str:
        """What the node printed: warnings and errors."""
        path = self.directory / "kafka.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def complaints(self) -> list[str]:
        """The errors that it printed, without those that it prints whatever directory it has."""
        errors = [line for line in self.output.splitlines() if " ERROR " in line]
        return [line for line in errors if not any(each in line for each in SAYS_ANYWAY)]

    def start(self) -> None:
        """Format the directory if nobody did, start the node and wait until clients can use it."""
        assert self._process is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        if not (self.log_dir / "meta.properties").exists():
            self.format()
        command = [*self.command_prefix, *java_command("kafka.Kafka", str(config), jvm_options=self.jvm_options)]
        with (self.directory / "kafka.out").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=self.own_session,
            )
        try:
            self._wait_until_serving()
        except BaseException:
            self.kill()
            raise

    def format(self) -> None:
        """Write meta.properties and the bootstrap records with Kafka's own storage tool."""
        config = self.directory / "server.properties"
        mode = ("--standalone",) if self.voters == "standalone" else ()
        run_tool("storage", "format", "-t", self.cluster_id, "-c", config, *mode, *self.format_options)

    def stop(self) -> None:
        """Shut down cleanly: SIGTERM, then wait."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None

    def kill(self) -> None:
        """Die at once, as in a crash: SIGKILL."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def tool(
        self,
        tool: str,
        *args: str | os.PathLike[str],
        stdin: str | None = None,
        check: bool = True,
        timeout: float = TOOL_SECONDS_MAX,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's tools on this node (see `run_tool`)."""
        return run_tool(tool, *args, bootstrap=self.bootstrap, stdin=stdin, check=check, timeout=timeout)

    def _base_properties(self) -> dict[str, str]:
        quorum = (
            {"controller.quorum.bootstrap.servers": self.controller_bootstrap}
            if self.voters == "standalone"
            else {"controller.quorum.voters": f"{self.node_id}@{self.controller_bootstrap}"}
        )
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.controller_bootstrap}",
            "controller.listener.names": "CONTROLLER",
            **quorum,
            "log.dirs": str(self.log_dir),
            # One node holds every replica of the internal topics.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # Records of tests are years old: retention would delete them under a test that runs longer than this.
            "log.initial.task.delay.ms": NEVER_MS,
            "log.retention.check.interval.ms": NEVER_MS,
        }

    def _wait_until_serving(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not serves_metadata("127.0.0.1", self.port):
            if self._process.poll() is not None:
                raise AssertionError(f"Apache Kafka exited with {self._process.returncode}:\n{self.output[-4000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"Apache Kafka was not up in {START_SECONDS_MAX} s:\n{self.output[-4000:]}")
            time.sleep(0.05)


def free_port() -> int:
    """Choose a loopback port below the range that the kernel hands out by itself, so that nobody takes it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def serves_metadata(host: str, port: int) -> bool:
    """Ask for Metadata v1 without topics: a broker that lists itself is registered, unfenced and ready for clients."""
    # api key 3, version 1, correlation id 1, client id "up", zero topics
    request = struct.pack(">hhih2si", 3, 1, 1, 2, b"up", 0)
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answers:
                frame = answers.read(12)
    except OSError:
        return False
    if len(frame) < 12:
        return False
    brokers: int = struct.unpack(">iii", frame)[2]
    return brokers > 0


def ask(bootstrap: str, request: Any) -> Any:
    """Send one request, built from kio's classes, to any cluster and return kio's reading of the answer."""
    from kio.index import load_response_schema
    from kio.serial import entity_reader, entity_writer

    kind = type(request)
    header = kind.__header_schema__(
        request_api_key=kind.__api_key__,
        request_api_version=kind.__version__,
        correlation_id=1,
        client_id="oracle",
    )
    frame = io.BytesIO()
    entity_writer(type(header))(frame, header)
    entity_writer(kind)(frame, request)
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", frame.tell()) + frame.getvalue())
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    response = load_response_schema(kind.__api_key__, kind.__version__)
    _, header_size = entity_reader(response.__header_schema__)(answer, 0)
    body, _ = entity_reader(response)(answer, header_size)
    return body


@contextlib.contextmanager
def shared_kafka(directory: Path) -> Iterator[RunningKafka]:
    """Use the one Kafka of `directory`: whoever comes first starts it, and it stops when the last user is gone.

    Every user holds a shared file lock. A guardian process waits for the exclusive one, which the kernel grants it when
    all users have let go, by leaving here or by dying; then it stops Kafka.
    """
    directory.mkdir(parents=True, exist_ok=True)
    state = directory / "running.json"
    with (directory / "starting.lock").open("w") as starting, (directory / "users.lock").open("w") as users:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not state.exists():
            node = ApacheKafka(directory / f"node-{time.monotonic_ns()}", own_session=True)
            node.start()
            running = RunningKafka(
                bootstrap=node.bootstrap,
                controller_bootstrap=node.controller_bootstrap,
                log_dir=str(node.log_dir),
                pid=node.pid,
                cluster_id=node.cluster_id,
                node_id=node.node_id,
            )
            state.write_text(json.dumps(asdict(running)))
            subprocess.Popen(
                [sys.executable, "-m", "tests.oracle", "guard", str(directory), str(running.pid)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield RunningKafka(**json.loads(state.read_text()))


def _guard(directory: Path, pid: int) -> None:
    ended = select.poll()
    process = os.pidfd_open(pid)
    ended.register(process, select.POLLIN)
    with (directory / "users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (directory / "running.json").unlink(missing_ok=True)
        for farewell in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, farewell)
            if ended.poll(STOP_SECONDS_MAX * 1000):
                break


def _make_classes_archive() -> None:
    """Record the classes that a node loads, so that later JVMs map them instead of parsing them again."""
    partial = CLASSES_ARCHIVE.with_suffix(".partial")
    recording = ("-Xmx512m", "-XX:+UseSerialGC", f"-XX:ArchiveClassesAtExit={partial}", *CDS_QUIET)
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory), jvm_options=recording) as node:
        node.tool("topics", "--create", "--topic", "any")
    partial.replace(CLASSES_ARCHIVE)


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        _guard(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "archive":
        _make_classes_archive()
