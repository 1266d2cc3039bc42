"""Transactions in a simulated world: whole nodes that die at any operation of their disk, clients of both generations,
lost and late requests; nothing is lost, torn, doubled, read too early or left open.

A failing seed is printed with the command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation import simulate_one_end, simulate_transactions
from tests.simulation.planted_bugs import PLANTED

SEEDS_PER_TEST = 20
# `make simulate` runs a thousand.
SEEDS = 200
# How many seeds a planted bug may take to be found.
SEEDS_FOR_A_BUG_MAX = 80
# One that shows in four of eight hundred seeds: the search begins near one of them.
FIRST_SEED = {"nothing_is_verified": 440}
# A transaction of two partitions and a group's offsets takes fewer.
DISK_STEPS_OF_AN_END = 16


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_transactions_are_whole_or_absent_whatever_happens(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run = simulate_transactions(seed)
        assert not run.problems, str(run)
        assert run.history.operations


def test_a_node_may_die_while_it_stops() -> None:
    """A client of this seed orders its death at that moment."""
    assert not simulate_transactions(252).problems


@pytest.mark.parametrize("generation", [1, 2])
def test_a_node_may_die_between_any_two_effects_of_an_end(generation: int) -> None:
    """At each operation of its disk from before the decision is logged to after the end is."""
    deaths = 0
    for disk_step in range(DISK_STEPS_OF_AN_END):
        for seed in range(4):
            run = simulate_one_end(seed, generation, disk_step)
            assert not run.problems, str(run)
            deaths += run.lives - 1
    assert deaths >= DISK_STEPS_OF_AN_END


@pytest.mark.parametrize("seed", [3, 17, 2_026])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = simulate_transactions(seed), simulate_transactions(seed)
    assert first.trace_hash == second.trace_hash
    assert list(first.history.lines()) == list(second.history.lines())
    assert first.trace_hash != simulate_transactions(seed + 1).trace_hash


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the order of sets is there."""
    program = "from moldau.testing.simulation import simulate_transactions as run; print(run(5).trace_hash, end='')"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert traces == {simulate_transactions(5).trace_hash}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    first = FIRST_SEED.get(name, 0)
    seeds = range(first, first + SEEDS_FOR_A_BUG_MAX)
    assert any(simulate_transactions(seed).problems for seed in seeds), f"{name} was not found"
