"""Whole nodes in one process: real brokers and the real wire codec on the seeded loop, with a simulated network and
disk, under faults of every kind, judged by invariants and by the checker of histories.

`simulate_transactions(seed)` is a run; `python -m moldau.testing.simulation --seeds 1000` makes many.
"""

from moldau.testing.simulation.network import SimulatedNetwork
from moldau.testing.simulation.node import SimulatedNode
from moldau.testing.simulation.seed_run import Run
from moldau.testing.simulation.transactions import simulate_one_end, simulate_power_losses, simulate_transactions

__all__ = [
    "Run",
    "SimulatedNetwork",
    "SimulatedNode",
    "simulate_one_end",
    "simulate_power_losses",
    "simulate_transactions",
]
