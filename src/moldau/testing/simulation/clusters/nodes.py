"""The nodes of a simulated cluster: who is broker, controller or both, and what becomes of each.

A node that fails dies, as its process would; the world starts it again. Power that goes takes what was not synced, and
the host is silent until it comes back: nobody is told that its connections are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from moldau.broker import Node
from moldau.consensus import AgreedRecordsLostError
from moldau.testing.dice import SeededDice
from moldau.testing.disk import UNLIMITED_BYTES
from moldau.testing.simulation.network import HOST, SimulatedNetwork
from moldau.testing.simulation.node import SimulatedNode

BROKER_PORT, CONTROLLER_PORT = 9000, 9100
# Roles of nodes 1, 2, 3 and so on; three brokers and three controllers each.
BOTH, BROKER, CONTROLLER = ("broker,controller", "broker", "controller")
TOPOLOGIES = (
    (BOTH, BOTH, BOTH),
    (BROKER, BROKER, BROKER, CONTROLLER, CONTROLLER, CONTROLLER),
    (BOTH, BOTH, BROKER, CONTROLLER),
)


class ClusterNode(SimulatedNode):
    def __init__(
        self,
        network: SimulatedNetwork,
        dice: SeededDice,
        node_id: int,
        roles: str,
        voters: str,
        settings: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        listeners = []
        if "broker" in roles:
            listeners.append(f"PLAINTEXT://{HOST}:{BROKER_PORT + node_id}")
        if "controller" in roles:
            listeners.append(f"CONTROLLER://{HOST}:{CONTROLLER_PORT + node_id}")
        own = {
            "node.id": str(node_id),
            "process.roles": roles,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            **settings,
        }
        super().__init__(
            network,
            dice,
            port=BROKER_PORT + node_id,
            settings=own,
            say=lambda line: say(f"node {node_id}: {line}"),
            host=f"host-{node_id}",
        )
        self.node_id = node_id
        self.roles = roles
        self.is_stopping = False
        # What the last power loss took of a broker may be missed until the in-sync replicas are complete again. Of a
        # controller nothing may: what it said it has is on its disk.
        self.is_lossy = False
        # A sync failed once: what the disk says is safe may not be, and power that goes would show it.
        self.has_doubts = False
        self._others: list[str] = []

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles

    @property
    def is_running(self) -> bool:
        """Up, and not on its way out."""
        return self.is_alive and not self.is_stopping and self.node is not None

    @property
    def is_ready(self) -> bool:
        return self.is_running and self.node is not None and self.node.ready.done()

    def start(self) -> bool:
        self._network.unblock(*self._ways())
        self.is_stopping = False
        is_up = super().start()
        self.loses_power = False
        node = self.node
        if node is not None:
            node.failed.add_done_callback(lambda failed: self._on_failed(node, failed.result()))
            node.ready.add_done_callback(lambda ready: self._on_ready(node, ready))
        return is_up

    def _on_ready(self, node: Node, ready: asyncio.Future[None]) -> None:
        error = None if ready.cancelled() else ready.exception()
        if error is not None:
            self._on_failed(node, error)

    def _on_failed(self, node: Node, reason: BaseException) -> None:
        assert not isinstance(reason, AgreedRecordsLostError), reason
        if self.node is node and self.is_alive:
            self._say(f"node_failed reason={str(reason)!r}")
            self.kill()

    def know_hosts(self, hosts: list[str]) -> None:
        self._others = [host for host in hosts if host != self.host]

    def _ways(self) -> list[tuple[str, str]]:
        return [way for other in self._others for way in ((self.host, other), (other, self.host))]

    def lose_power(self) -> None:
        self.loses_power = True
        self.is_lossy |= self.is_broker
        self.kill()

    def lose_power_after(self, disk_steps: int) -> None:
        """In the middle of that change of the disk, from now."""
        self.loses_power = True
        self.is_lossy |= self.is_broker
        self.kill_after(disk_steps)

    def _on_death(self) -> None:
        if self.loses_power:
            self._network.block(*self._ways())
        super()._on_death()

    @property
    def is_dark(self) -> bool:
        """Without power: nobody hears of it, not even that it is gone."""
        return not self.is_alive and self.loses_power

    def fill_disk(self, room_bytes: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + room_bytes

    def make_room(self) -> None:
        self.disk.capacity_bytes = UNLIMITED_BYTES

    def fail_sync(self) -> None:
        self.has_doubts = True
        self.disk.fail_sync()

    async def stop(self) -> None:
        """As after SIGTERM. It may die on the way; what its end raises is the caller's."""
        node, process = self.node, self.process
        assert node is not None
        self.is_stopping = True
        gone: asyncio.Future[None] = self._loop.create_future()
        process.on_death.append(lambda: gone.set_result(None))
        stopping = process.run(lambda: self._loop.create_task(node.stop()))
        await asyncio.wait([stopping, gone], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            process.die()
            stopping.result()

    def pause(self) -> None:
        self._loop.pause(self.process)

    def go_on(self) -> None:
        self._loop.go_on(self.process)


def make_nodes(
    network: SimulatedNetwork,
    seed: Any,
    topology: tuple[str, ...],
    settings: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[int, ClusterNode]:
    ids = range(1, len(topology) + 1)
    controllers = [node_id for node_id in ids if "controller" in topology[node_id - 1]]
    voters = ",".join(f"{node_id}@{HOST}:{CONTROLLER_PORT + node_id}" for node_id in controllers)
    nodes = {
        node_id: ClusterNode(
            network, SeededDice(f"node {node_id} {seed}"), node_id, topology[node_id - 1], voters, settings, say
        )
        for node_id in ids
    }
    hosts = ["", *(node.host for node in nodes.values())]
    for node in nodes.values():
        node.know_hosts(hosts)
    return nodes
