"""One metadata quorum of Apache Kafka's nodes and ours: each side takes the other's votes, records, registrations."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.broker import load_settings
from moldau.broker.storage_tool import format_storage
from moldau.testing import Broker
from tests.broker.cluster_kit import wait_for
from tests.oracle import CLUSTER_ID, ApacheKafka, free_port

pytestmark = pytest.mark.oracle

# What we do not serve, Kafka must not have agreed on.
NO_MORE_THAN_OURS = tuple(
    part for feature in ("share.version", "streams.version") for part in ("--feature", f"{feature}=0")
)


def ours(directory: Path, node_id: int, roles: str, voters: str, controller_port: int | None = None) -> Broker:
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()}"
    if controller_port is not None:
        listeners += f",CONTROLLER://127.0.0.1:{controller_port}"
    data = str(directory / f"ours-{node_id}")
    settings = {
        "node.id": str(node_id),
        "process.roles": roles,
        "listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": data,
    }
    format_storage(load_settings(None, settings.items(), {})[0], CLUSTER_ID, ignore_formatted=True)
    return Broker(settings, data=data)


@pytest.fixture
def port() -> Iterator[int]:
    yield free_port()


def test_kafkas_broker_lives_under_our_controller(tmp_path: Path, port: int) -> None:
    voters, kafka_port = f"1@127.0.0.1:{port}", free_port()
    with ours(tmp_path, 1, "broker,controller", voters, port) as controller:
        assert controller.node is not None
        properties = {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://127.0.0.1:{kafka_port}",
            "controller.quorum.voters": voters,
        }
        with ApacheKafka(tmp_path, voters="static", node_id=2, port=kafka_port, properties=properties) as kafka:
            replicas = kafka.tool("metadata-quorum", "describe", "--replication").stdout
            assert [line.split()[-1] for line in replicas.splitlines()[1:] if line] == ["Leader", "Observer"]
            kafka.tool("topics", "--create", "--topic", "x", "--partitions", "2", "--replication-factor", "2")
            assert {partition.leader for partition in controller.node.image.topics["x"].partitions} == {1, 2}
        # Stopped in good order: it asked for that, and was told when to go.
        assert controller.node.image.brokers[2].fenced
        assert {partition.leader for partition in controller.node.image.topics["x"].partitions} == {1}


def test_our_broker_lives_under_kafkas_controller(tmp_path: Path, port: int) -> None:
    options = NO_MORE_THAN_OURS
    with ApacheKafka(tmp_path, voters="static", node_id=1, controller_port=port, format_options=options) as kafka:
        with ours(tmp_path, 2, "broker", f"1@127.0.0.1:{port}") as broker:
            assert broker.node is not None
            kafka.tool("topics", "--create", "--topic", "x", "--partitions", "2", "--replication-factor", "2")
            node = broker.node
            wait_for(lambda: "x" in node.image.topics)
            assert {partition.leader for partition in node.image.topics["x"].partitions} == {1, 2}
            replicas = kafka.tool("metadata-quorum", "describe", "--replication").stdout
            assert [line.split()[-1] for line in replicas.splitlines()[1:] if line] == ["Leader", "Observer"]
        leaders = [line for line in kafka.tool("topics", "--describe", "--topic", "x").stdout.splitlines()[1:] if line]
        assert all("Leader: 1" in line for line in leaders)


def test_the_lead_goes_back_and_forth_between_kafkas_controller_and_ours(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    voters = ",".join(f"{index + 1}@127.0.0.1:{port}" for index, port in enumerate(ports))
    properties = {"controller.quorum.voters": voters}
    kafka = ApacheKafka(
        tmp_path,
        voters="static",
        node_id=1,
        controller_port=ports[0],
        properties=properties,
        format_options=NO_MORE_THAN_OURS,
    )
    second, third = (ours(tmp_path, each, "broker,controller", voters, ports[each - 1]) for each in (2, 3))
    nodes: dict[int, ApacheKafka | Broker] = {1: kafka, 2: second, 3: third}

    def leader() -> int:
        def known() -> int | None:
            running = [each.node for each in (second, third) if each.node is not None and not each.node.is_stopping]
            found = {node.controller.quorum.leader_id for node in running}
            return found.pop() if len(found) == 1 and found != {-1} else None

        found: int = wait_for(known)
        return found

    try:
        with ThreadPoolExecutor(3) as threads:
            for started in [threads.submit(node.start) for node in nodes.values()]:
                started.result()
        led = set()
        for _ in range(6):
            now = leader()
            led.add("kafka" if now == 1 else "ours")
            if len(led) == 2:
                break
            nodes[now].stop()
            wait_for(lambda now=now: leader() != now)
            nodes[now].start()
        assert led == {"kafka", "ours"}
    finally:
        kafka.kill()
        with ThreadPoolExecutor(2) as threads:
            for closed in [threads.submit(each.close) for each in (second, third)]:
                closed.result()
