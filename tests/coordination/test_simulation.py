"""Seeds. A failing one is replayed with `pytest "tests/coordination/test_simulation.py" --seed N`."""

from __future__ import annotations

import pytest

from tests.coordination.simulation import Simulation

SEEDS, SEEDS_PER_TEST = 500, 25


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_members_crash_pause_and_lose_answers(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", [1, 77, 401])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(seed)
        simulation.run()
        traces.append(simulation.trace)
    assert traces[0] == traces[1]
