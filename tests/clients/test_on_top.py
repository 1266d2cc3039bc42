"""What runs on top of Kafka runs on Moldau unchanged: a pair of Connect workers, an application of Kafka Streams."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.groups import SECONDS_MAX, GroupMember, await_that, java_program
from tests.clients.needs import require_java
from tests.clients.peers import create_topic
from tests.java import java_command
from tests.oracle import free_port

pytestmark = pytest.mark.clients
CONNECT_MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"


# -- Kafka Streams -----------------------------------------------------------------------------------------------------


def counts(bootstrap: str, topic: str, words: int) -> dict[str, str]:
    """The newest count of each word, once there are so many words."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    found: dict[str, str] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and (len(found) < words or set(found.values()) != {"30"}):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found[(message.key() or b"").decode()] = (message.value() or b"").decode()
    consumer.close()
    return found


def test_a_streams_application_shares_its_tasks(bootstrap: str, new_topic: Callable[[], str], tmp_path: Path) -> None:
    from confluent_kafka import Producer

    source, target = f"{new_topic()}-lines", f"{new_topic()}-counts"
    for topic in (source, target):
        create_topic(bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    lines = [f"wort{number % 5} slovo{number % 5}" for number in range(150)]
    for number, line in enumerate(lines[:75]):
        producer.produce(source, line.encode(), partition=number % 2)
    assert producer.flush(30) == 0

    def instance(name: str) -> GroupMember:
        return GroupMember(java_program("WordCount", bootstrap, source, source, target, str(tmp_path / name)))

    members = [instance("one")]
    try:
        await_that(lambda: members[0].assigned == [4], members, "all four tasks")
        members.append(instance("two"))
        await_that(lambda: [each.assigned for each in members] == [[2], [2]], members, "two tasks each")
        for number, line in enumerate(lines[75:]):
            producer.produce(source, line.encode(), partition=number % 2)
        assert producer.flush(30) == 0
        found = counts(bootstrap, target, 10)
        assert found == {f"{word}{number}": "30" for word in ("wort", "slovo") for number in range(5)}
        members[0].close()
        await_that(lambda: members[1].assigned == [4], members, "what the other had")
    finally:
        for member in members:
            if member.is_running:
                member.kill()


# -- Kafka Connect -----------------------------------------------------------------------------------------------------


class ConnectWorker:
    def __init__(self, directory: Path, bootstrap: str, name: str) -> None:
        require_java()
        self.port = free_port()
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "config.storage.topic": f"{name}-configs",
            "offset.storage.topic": f"{name}-offsets",
            "status.storage.topic": f"{name}-status",
            "config.storage.replication.factor": 1,
            "offset.storage.replication.factor": 1,
            "status.storage.replication.factor": 1,
            "offset.storage.partitions": 2,
            "status.storage.partitions": 2,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.flush.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 1000,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "plugin.discovery": "only_scan",
        }
        config = directory / f"worker-{self.port}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._log = open(directory / f"worker-{self.port}.log", "wb")  # noqa: SIM115
        command = java_command(CONNECT_MAIN, str(config))
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def ask(self, path: str, body: Any = None) -> Any:
        """None while the worker is not ready, or is busy with a rebalance."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 500, 503):
                return None
            raise AssertionError(error.read()) from error
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()


def await_answer(worker: ConnectWorker, path: str, body: Any = None) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        answer = worker.ask(path, body)
        if answer is not None:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{path} was not answered")


@pytest.fixture
def workers(bootstrap: str, new_topic: Callable[[], str], tmp_path: Path) -> Iterator[list[ConnectWorker]]:
    name = f"{new_topic()}-connect"
    started = [ConnectWorker(tmp_path, bootstrap, name) for _ in range(2)]
    yield started
    for worker in started:
        worker.kill()


def test_a_pair_of_connect_workers_shares_connectors(workers: list[ConnectWorker], tmp_path: Path) -> None:
    source, target, topic = tmp_path / "in.txt", tmp_path / "out.txt", f"lines-{workers[0].port}"
    lines = [f"line {number}" for number in range(50)]
    source.write_text("".join(f"{line}\n" for line in lines))
    for worker in workers:
        await_answer(worker, "/connectors")
    connectors = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic, "tasks.max": "1"},
        "sink": {"connector.class": "FileStreamSink", "file": str(target), "topics": topic, "tasks.max": "1"},
    }
    for name, config in connectors.items():
        await_answer(workers[0], "/connectors", {"name": name, "config": config})

    def arrived() -> list[str]:
        return target.read_text().splitlines() if target.exists() else []

    await_that(lambda: arrived() == lines, [], "every line")
    places = set()
    for name in connectors:
        status = await_answer(workers[0], f"/connectors/{name}/status")
        assert status["connector"]["state"] == "RUNNING" and [each["state"] for each in status["tasks"]] == ["RUNNING"]
        places |= {status["connector"]["worker_id"], *(each["worker_id"] for each in status["tasks"])}
    assert len(places) == 2, "one worker does everything"
    workers[0].kill()
    with source.open("a") as more:
        more.write("one more\n")
    await_that(lambda: arrived()[-1:] == ["one more"], [], "the line after a worker was killed")
