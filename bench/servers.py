"""The two brokers under test, each pinned to the broker's core unless told otherwise, behind one face."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol, Self

from tests.oracle import ApacheKafka, free_port

BROKER_CORE, LOAD_CORE = "0", "1"
PINNED = ("taskset", "-c", BROKER_CORE)
# As in production: G1 and a gigabyte, both compilers.
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
ANSWER_SECONDS_MAX = 120.0
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Server(Protocol):
    name: str

    @property
    def bootstrap(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> Self: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def remove(self) -> None: ...


class Moldau:
    """By the command that a user types."""

    name = "Moldau"

    def __init__(self, prefix: tuple[str, ...] = PINNED) -> None:
        self._prefix = prefix
        self.data = tempfile.mkdtemp(prefix="moldau-bench-")
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [
                *self._prefix,
                sys.executable,
                "-m",
                "moldau",
                "broker",
                f"-Xlisteners=PLAINTEXT://127.0.0.1:{self.port}",
                f"-Xlog.dirs={self.data}",
                "-Xmoldau.http.listener=",
            ],
            stdout=subprocess.DEVNULL,
            stderr=open(f"{self.data}.log", "ab"),  # noqa: SIM115 - the process's own
            env=environment,
        )
        wait_for_answer(self.port)
        return self

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(ANSWER_SECONDS_MAX)
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        Path(f"{self.data}.log").unlink(missing_ok=True)


class Kafka:
    """Apache Kafka 4.3.1, one node with both roles."""

    name = "Apache Kafka"

    def __init__(self, prefix: tuple[str, ...] = PINNED) -> None:
        self.data = tempfile.mkdtemp(prefix="kafka-bench-")
        self.port = free_port()
        self._kafka = ApacheKafka(
            Path(self.data),
            port=self.port,
            jvm_options=KAFKA_JVM,
            command_prefix=prefix,
            # A killed broker's id is barred until its session ends; the default of 9 s would hide the recovery itself.
            # The delay of a group's first rebalance is the default of both, which the tests' Kafka does without.
            properties={
                "broker.session.timeout.ms": "2000",
                "broker.heartbeat.interval.ms": "500",
                "group.initial.rebalance.delay.ms": "3000",
            },
        )

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    @property
    def pid(self) -> int:
        return self._kafka.pid

    def start(self) -> Self:
        self._kafka.start()
        return self

    def stop(self) -> None:
        self._kafka.stop()

    def kill(self) -> None:
        self._kafka.kill()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


def wait_for_answer(port: int) -> None:
    """Until an ApiVersions request is answered."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as connection:
                connection.sendall(_API_VERSIONS)
                if connection.recv(8):
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing answers on port {port}")
        time.sleep(0.002)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
