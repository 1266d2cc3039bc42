"""Clusters of real nodes in threads of the test's process, or as processes: real sockets and files, on ports that were
just free."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from moldau.broker import Node
from moldau.broker.http import _render
from moldau.client import Connection
from moldau.testing import Broker, BrokerProcess
from tests.oracle import free_port

WAIT_SECONDS_MAX = 60.0
# As patient as a busy machine needs, and no slower than a test wants.
SETTINGS = {"initial.broker.registration.timeout.ms": "60000"}


class Cluster:
    """Nodes 1 to n; the first three of them are controllers unless `controllers` says otherwise."""

    def __init__(self, count: int = 3, *, controllers: int = 3, settings: dict[str, str] | None = None) -> None:
        ports = [free_port() for _ in range(count)]
        self.voters = ",".join(f"{index + 1}@127.0.0.1:{port}" for index, port in enumerate(ports[:controllers]))
        self.nodes: dict[int, Broker] = {}
        for index in range(count):
            node_id = index + 1
            listeners = f"PLAINTEXT://127.0.0.1:{free_port()}"
            roles = "broker"
            if index < controllers:
                listeners, roles = f"{listeners},CONTROLLER://127.0.0.1:{ports[index]}", "broker,controller"
            own = {
                "node.id": str(node_id),
                "process.roles": roles,
                "listeners": listeners,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": self.voters,
                **SETTINGS,
                **(settings or {}),
            }
            self.nodes[node_id] = Broker(own)

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            started = [threads.submit(node.start) for node in self.nodes.values()]
        try:
            for each in started:
                each.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            for closed in [threads.submit(node.close) for node in self.nodes.values()]:
                closed.result()

    def node(self, node_id: int) -> Node:
        node = self.nodes[node_id].node
        assert node is not None
        return node

    @property
    def running(self) -> dict[int, Node]:
        found = {node_id: broker.node for node_id, broker in self.nodes.items()}
        return {node_id: node for node_id, node in found.items() if node is not None and not node.is_stopping}

    def active(self) -> int:
        """The active controller's id, once there is one that the others agree on."""
        return wait_for(self._agreed_leader)

    def _agreed_leader(self) -> int | None:
        leaders = {node.controller.quorum.leader_id for node in self.running.values()}
        epochs = {node.controller.quorum.epoch for node in self.running.values()}
        return leaders.pop() if len(leaders) == len(epochs) == 1 and leaders != {-1} else None

    def ask(self, node_id: int, message: Any, *, controller: bool = False, version: int | None = None) -> Any:
        """One request to a node's broker listener, or to its controller's."""
        listener = self.node(node_id).listeners[1 if controller else 0]

        async def exchange() -> Any:
            connection = await Connection.connect("127.0.0.1", listener.port)
            try:
                return await connection.request(message, version=version)
            finally:
                connection.close()

        return run_aside(exchange())

    def run_on(self, node_id: int, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop = self.nodes[node_id]._loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT_SECONDS_MAX)


@contextmanager
def three_processes(settings: Mapping[str, str]) -> Iterator[dict[int, BrokerProcess]]:
    """Nodes 1 to 3, each a broker and a controller, as processes that can be killed."""
    ports = {node_id: free_port() for node_id in (1, 2, 3)}
    voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())
    nodes = {
        node_id: BrokerProcess(
            {
                "node.id": str(node_id),
                "process.roles": "broker,controller",
                "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://127.0.0.1:{port}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                **settings,
            }
        )
        for node_id, port in ports.items()
    }
    try:
        with ThreadPoolExecutor(3) as threads:
            for started in [threads.submit(node.start) for node in nodes.values()]:
                started.result()
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def metrics_of(node: Node) -> dict[str, float]:
    """What the node shows to whoever watches it."""
    _, body = _render(node)
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def run_aside(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On a loop of its own, whatever the test runs on."""
    result: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            result.append(asyncio.run(coroutine))
        except Exception as error:  # for whoever waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS_MAX)
    if errors:
        raise errors[0]
    assert result, "no answer came"
    return result[0]


def wait_for(condition: Callable[[], Any]) -> Any:
    """Its first true value."""
    until = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < until:
        value = condition()
        if value is not None and value is not False:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {WAIT_SECONDS_MAX} s: {condition}")
