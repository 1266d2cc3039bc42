"""Single nodes of a simulated cluster."""

from __future__ import annotations

import asyncio

import pytest

from moldau.testing.dice import SeededDice
from moldau.testing.loop import SeededLoop, run
from moldau.testing.simulation import SimulatedNetwork
from moldau.testing.simulation.clusters.nodes import TOPOLOGIES, make_nodes
from moldau.testing.simulation.wires import Wires


@pytest.mark.parametrize("seed", [0, 13, 22])
def test_a_controller_that_hands_over_and_follows_still_ends_in_good_order(seed: int) -> None:
    """What it wrote since is being synced, slowly, when it closes its log."""

    async def main() -> None:
        loop = SeededLoop.running()
        loop.thread_ms_max = 100
        network = SimulatedNetwork(loop, SeededDice(f"network {seed}"))
        loop.dial = Wires(network)
        settings = {
            "controlled.shutdown.enable": "false",
            "controller.quorum.election.timeout.ms": "300",
            "controller.quorum.fetch.timeout.ms": "800",
            "controller.quorum.request.timeout.ms": "800",
        }
        nodes = make_nodes(network, seed, TOPOLOGIES[0], settings, lambda line: None)
        for node in nodes.values():
            node.start()
        while not all(node.is_ready for node in nodes.values()):
            await asyncio.sleep(0.1)
        active = next(each for each in nodes.values() if each.node is not None and each.node.controller.is_active)
        # It waits for the one that does not hear that it resigns; meanwhile there is another leader.
        away, *_ = (each.host for each in nodes.values() if each is not active)
        network.block((active.host, away), (away, active.host))
        await active.stop()
        assert "/node/.kafka_cleanshutdown" in active.disk.tree()

    run(main(), SeededDice(seed))


def test_a_node_that_never_joined_does_not_say_that_its_logs_were_closed() -> None:
    """Power goes, and the next life ends in good order before it has found a controller: it has not looked at its logs,
    which may be torn, and must leave the mark, and the checkpoints, as they were."""

    async def main() -> None:
        loop = SeededLoop.running()
        network = SimulatedNetwork(loop, SeededDice("network"))
        loop.dial = Wires(network)
        nodes = make_nodes(network, "nodes", TOPOLOGIES[0], {}, lambda line: None)
        alone = nodes[1]
        alone.start()
        await asyncio.sleep(1)
        assert not alone.is_ready
        before = {path for path in alone.disk.tree() if "checkpoint" in path}
        await alone.stop()
        assert "/node/.kafka_cleanshutdown" not in alone.disk.tree()
        assert {path for path in alone.disk.tree() if "checkpoint" in path} == before

    run(main(), SeededDice("loop"))
