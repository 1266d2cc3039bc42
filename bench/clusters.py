"""Clusters of three nodes, all of them brokers and controllers, behind one face; on all cores, with the load beside."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from bench.servers import ANSWER_SECONDS_MAX, cpu_seconds, resident_mb, wait_for_answer
from tests.oracle import ApacheKafka, free_port

NODES = (1, 2, 3)
KAFKA_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
THREE_OF_EACH = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "6",
}


class Node(Protocol):
    port: int

    @property
    def pid(self) -> int: ...

    def start(self) -> object: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class MoldauNode:
    def __init__(self, number: int, port: int, controller_port: int, voters: str, directory: str) -> None:
        self.port = port
        self._log = f"{directory}/broker-{number}.log"
        settings = {
            **THREE_OF_EACH,
            "node.id": str(number),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": f"{directory}/data-{number}",
            "moldau.http.listener": "",
        }
        self._flags = [f"-X{name}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moldau", "broker", *self._flags],
            stdout=subprocess.DEVNULL,
            stderr=open(self._log, "ab"),  # noqa: SIM115 - the process's own
        )
        wait_for_answer(self.port)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(ANSWER_SECONDS_MAX)
            self._process = None


class Cluster:
    """`make_nodes` says whose."""

    name = ""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="cluster-bench-")
        ports = [free_port() for _ in NODES]
        controller_ports = [free_port() for _ in NODES]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controller_ports, strict=True))
        self.nodes: dict[int, Node] = {
            node: self.make_node(node, port, controller_port, voters)
            for node, port, controller_port in zip(NODES, ports, controller_ports, strict=True)
        }
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def make_node(self, number: int, port: int, controller_port: int, voters: str) -> Node:
        raise NotImplementedError("a cluster is somebody's")

    def start(self) -> None:
        with ThreadPoolExecutor(len(NODES)) as threads:
            for started in [threads.submit(node.start) for node in self.nodes.values()]:
                started.result()

    def remove(self) -> None:
        for node in self.nodes.values():
            node.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pids(self) -> Sequence[int]:
        return [node.pid for node in self.nodes.values()]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def resident_mb(self) -> float:
        return sum(map(resident_mb, self.pids))


class MoldauCluster(Cluster):
    name = "Moldau"

    def make_node(self, number: int, port: int, controller_port: int, voters: str) -> Node:
        return MoldauNode(number, port, controller_port, voters, self.directory)


class KafkaCluster(Cluster):
    name = "Apache Kafka"

    def make_node(self, number: int, port: int, controller_port: int, voters: str) -> Node:
        return ApacheKafka(
            Path(self.directory) / f"kafka-{number}",
            node_id=number,
            port=port,
            controller_port=controller_port,
            voters="static",
            jvm_options=KAFKA_JVM,
            properties={
                **THREE_OF_EACH,
                "controller.quorum.voters": voters,
                "group.initial.rebalance.delay.ms": "3000",
            },
        )
