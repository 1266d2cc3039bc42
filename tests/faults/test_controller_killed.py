"""Real processes, killed: the quorum finds another leader, nothing that was agreed is lost, and the dead are missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client import ClusterClient, admin
from moldau.kernel import KafkaError
from moldau.testing import BrokerProcess
from tests.broker.cluster_kit import run_aside, three_processes, wait_for

KILLS = 3
# Whoever waits for the end of a session waits longer than a test does, on however busy a machine.
SESSION_MS = 300_000


@pytest.fixture
def processes() -> Iterator[dict[int, BrokerProcess]]:
    with three_processes({"broker.session.timeout.ms": str(SESSION_MS)}) as nodes:
        yield nodes


def ask(nodes: dict[int, BrokerProcess], work: Any) -> Any:
    servers = ",".join(node.bootstrap for node in nodes.values())

    async def run() -> Any:
        async with ClusterClient(servers) as client:
            return await work(client)

    return run_aside(run())


def leader_of(nodes: dict[int, BrokerProcess]) -> int | None:
    try:
        return int(ask(nodes, admin.describe_quorum).leader_id)
    except (KafkaError, OSError, AssertionError):
        return None


def create(nodes: dict[int, BrokerProcess], name: str) -> bool:
    async def work(client: ClusterClient) -> bool:
        try:
            await admin.create_topics(client, name, partitions=2, replication_factor=2)
        except KafkaError as error:
            return error.code.name == "TOPIC_ALREADY_EXISTS"
        return True

    return bool(ask(nodes, work))


def test_kill_after_kill_the_quorum_goes_on_and_forgets_nothing(processes: dict[int, BrokerProcess]) -> None:
    names = []
    for turn in range(KILLS):
        names.append(f"before-{turn}")
        wait_for(lambda: create(processes, names[-1]))
        victim = wait_for(lambda: leader_of(processes))
        processes[victim].kill()
        rest = {node_id: node for node_id, node in processes.items() if node_id != victim}
        wait_for(lambda rest=rest, victim=victim: leader_of(rest) not in (None, victim))
        names.append(f"without-{turn}")
        wait_for(lambda rest=rest: create(rest, names[-1]))
        fenced = wait_for(lambda rest=rest: ask(rest, admin.describe_cluster).fenced or None)
        assert fenced == {victim}
        processes[victim].start()
        for node_id in processes:
            one = {node_id: processes[node_id]}
            found = wait_for(lambda one=one: {topic.name for topic in ask(one, admin.list_topics)} >= set(names))
            assert found
