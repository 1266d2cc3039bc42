"""Single nodes of a simulated cluster."""

from __future__ import annotations

import asyncio

from moldau.testing.dice import SeededDice
from moldau.testing.loop import SeededLoop, run
from moldau.testing.simulation import SimulatedNetwork
from moldau.testing.simulation.clusters.nodes import TOPOLOGIES, make_nodes
from moldau.testing.simulation.wires import Wires


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
