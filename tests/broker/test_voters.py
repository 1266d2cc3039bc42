"""Dynamic voters (kraft.version 1): a quorum of one takes in others, and lets its first member go."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.broker import Node, StartError, load_settings
from moldau.broker.storage_tool import format_storage
from moldau.client import Connection
from moldau.kernel import ErrorCode
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.testing import Broker
from tests.broker.cluster_kit import run_aside, wait_for
from tests.cli.conftest import Moldau
from tests.oracle import CLUSTER_ID, free_port

LISTENER = "CONTROLLER"


def node_of(broker: Broker) -> Node:
    assert broker.node is not None
    return broker.node


def ask(broker: Broker, message: object) -> object:
    """One request to a node's controllers' listener."""
    node = node_of(broker)
    port = next(each.port for each in node.listeners if each.config.name == LISTENER)

    async def exchange() -> object:
        connection = await Connection.connect("127.0.0.1", port)
        try:
            return await connection.request(message)  # type: ignore[arg-type]
        finally:
            connection.close()

    return run_aside(exchange())


class Three:
    """Node 1 is a broker and the first controller; 2 and 3 are controllers that follow."""

    def __init__(self, directory: Path) -> None:
        self.ports = {node_id: free_port() for node_id in (1, 2, 3)}
        self.nodes = {node_id: self._node(directory, node_id) for node_id in (1, 2, 3)}

    def _node(self, directory: Path, node_id: int, extra: dict[str, str] | None = None) -> Broker:
        listeners = f"{LISTENER}://127.0.0.1:{self.ports[node_id]}"
        settings = {
            "node.id": str(node_id),
            "process.roles": "controller",
            "controller.listener.names": LISTENER,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.ports[1]}",
            "log.dirs": str(directory / str(node_id)),
            **(extra or {}),
        }
        if node_id == 1:
            listeners = f"PLAINTEXT://127.0.0.1:{free_port()},{listeners}"
            settings["process.roles"] = "broker,controller"
        settings["listeners"] = listeners
        format_storage(load_settings(None, settings.items(), {})[0], CLUSTER_ID, ignore_formatted=True)
        return Broker(settings, data=str(directory / str(node_id)))

    def start_anew(self, node_id: int, directory: Path, extra: dict[str, str] | None = None) -> Broker:
        """The node in other circumstances: in another directory, on another port, with other settings."""
        self.nodes[node_id].close()
        self.nodes[node_id] = self._node(directory, node_id, extra)
        self.nodes[node_id].start()
        return self.nodes[node_id]

    def add(self, node_id: int) -> object:
        listeners = [AddRaftVoterRequest.Listener(LISTENER, "127.0.0.1", self.ports[node_id])]
        directory_id = node_of(self.nodes[node_id]).controller.quorum.directory_id
        return ask(self.nodes[1], AddRaftVoterRequest(CLUSTER_ID, 5000, node_id, directory_id, listeners))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    found = Three(tmp_path)
    try:
        for node in found.nodes.values():
            node.start()
        yield found
    finally:
        with ThreadPoolExecutor(3) as threads:
            for closed in [threads.submit(node.close) for node in found.nodes.values()]:
                closed.result()


def test_a_quorum_grows_and_lets_its_first_member_go(three: Three) -> None:
    first, second, third = three.nodes.values()
    wait_for(lambda: len(node_of(first).image.controllers) == 3)
    wait_for(lambda: three.add(2).error_code == 0)  # type: ignore[attr-defined]
    moldau = Moldau(first.bootstrap)
    wait_for(lambda: {row["id"]: row["role"] for row in _quorum(moldau)} == {1: "leader", 2: "voter", 3: "observer"})
    moldau("quorum", "add", "3", "--endpoint", f"{LISTENER}://127.0.0.1:{three.ports[3]}")
    assert "node 3 is no observer" in moldau("quorum", "add", "3", "--endpoint", "CONTROLLER://h:1", code=3).err
    assert three.add(3).error_code == ErrorCode.DUPLICATE_VOTER  # type: ignore[attr-defined]
    for node in three.nodes.values():
        wait_for(lambda node=node: node_of(node).controller.quorum.voters.ids == (1, 2, 3))
    another = RemoveRaftVoterRequest(CLUSTER_ID, 1, bytes(range(16)))
    assert ask(first, another).error_code == ErrorCode.VOTER_NOT_FOUND  # type: ignore[attr-defined]
    assert "node 1 votes no more" in moldau("quorum", "remove", "1", "--yes").err
    wait_for(lambda: node_of(second).controller.is_active or node_of(third).controller.is_active)
    assert not node_of(first).controller.is_active
    assert node_of(second).controller.quorum.voters.ids == (2, 3)
    topic = CreateTopicsRequest.CreatableTopic("after", num_partitions=1, replication_factor=1)
    active = second if node_of(second).controller.is_active else third
    created = wait_for(lambda: _created(ask(active, CreateTopicsRequest(topics=[topic]))))
    assert created
    wait_for(lambda: "after" in node_of(first).image.topics)


def _quorum(moldau: Moldau) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = moldau("quorum", "describe", "-o", "json").json["replicas"]
    return rows


def _created(answer: object) -> bool:
    return answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)  # type: ignore[attr-defined]


def test_a_voter_that_moved_says_where_it_is_now(three: Three, tmp_path: Path) -> None:
    wait_for(lambda: three.add(2).error_code == 0)  # type: ignore[attr-defined]
    first = node_of(three.nodes[1])
    three.ports[2] = free_port()
    three.start_anew(2, tmp_path)

    def address() -> int:
        voter = first.controller.quorum.voters.find(2)
        assert voter is not None
        return voter.endpoints[0].port

    wait_for(lambda: address() == three.ports[2])
    # And again when it comes back with nothing new to say.
    offset = first.controller.log.voters.record
    three.start_anew(2, tmp_path)
    wait_for(lambda: node_of(three.nodes[2]).controller.quorum.leader_id == 1)
    assert first.controller.log.voters.record == offset


def test_controllers_join_by_themselves_also_after_the_loss_of_a_disk(three: Three, tmp_path: Path) -> None:
    first = node_of(three.nodes[1])
    joins = {"controller.quorum.auto.join.enable": "true"}
    for node_id in (2, 3):
        three.start_anew(node_id, tmp_path, joins)
    wait_for(lambda: first.controller.quorum.voters.ids == (1, 2, 3))
    lost = first.controller.quorum.voters.find(3)
    third = node_of(three.start_anew(3, tmp_path / "new", joins))
    assert lost is not None
    assert third.controller.quorum.directory_id != lost.key.directory_id

    def has_new_voter() -> bool:
        voter = node_of(three.nodes[2]).controller.quorum.voters.find(3)
        return voter is not None and voter.key.directory_id == third.controller.quorum.directory_id

    wait_for(has_new_voter)


def test_a_newcomer_that_does_not_know_its_cluster_is_told_what_to_do(tmp_path: Path) -> None:
    settings = {
        "node.id": "2",
        "process.roles": "broker",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.listener.names": LISTENER,
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
    }
    with pytest.raises(StartError, match="moldau storage format --cluster-id"):
        Broker(settings, data=str(tmp_path)).start()
