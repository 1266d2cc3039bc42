"""What can be simulated, by name."""

from __future__ import annotations

from collections.abc import Callable

from moldau.testing.simulation.clusters import simulate_cluster
from moldau.testing.simulation.seed_run import Run
from moldau.testing.simulation.transactions import simulate_power_losses, simulate_transactions

KINDS: dict[str, Callable[[int], Run]] = {
    "clusters": simulate_cluster,
    "crashes": simulate_transactions,
    "power-losses": simulate_power_losses,
}


def simulate(kind: str, seed: int) -> Run:
    """One run. Nothing is shared between runs, so that they may be made side by side."""
    return KINDS[kind](seed)
