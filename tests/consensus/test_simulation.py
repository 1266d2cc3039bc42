"""Quorums of three and five live through crashes, cuts and pauses by the hundred; planted bugs prove the judge."""

from __future__ import annotations

import pytest

from tests.consensus.planted_bugs import PLANTED
from tests.consensus.simulation import Simulation, simulate

SEEDS = 240
SEEDS_PER_BUG_MAX = 400


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_quorums_keep_every_promise_whatever_happens(first: int) -> None:
    agreed = 0
    for seed in range(first, first + 40):
        try:
            agreed += len(simulate(seed).committed)
        except AssertionError as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
    assert agreed > 40 * 10, "hardly anything happened"


def test_the_same_seed_gives_the_same_history() -> None:
    first, second, other = simulate(7), simulate(7), simulate(11)
    assert first.trace == second.trace
    assert first.trace != other.trace


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    for seed in range(SEEDS_PER_BUG_MAX):
        try:
            simulate(seed)
        except AssertionError:
            return
    raise AssertionError(f"{name} lived through {SEEDS_PER_BUG_MAX} seeds")


def test_a_leader_that_dies_is_replaced_before_its_followers_would_time_out() -> None:
    """A broken connection is a hint: the others ask each other at once instead of waiting for the fetch timeout."""
    simulation = Simulation(5)
    for member in simulation.members.values():
        member.start()
    simulation.run(3000)
    leader = next(each for each in simulation.members.values() if each.quorum is not None and each.quorum.is_leader)
    leader.crash()
    died_ms = simulation.now_ms
    while not any(each.quorum is not None and each.quorum.is_leader for each in simulation.members.values()):
        simulation.run(simulation.now_ms + 10)
        assert simulation.now_ms < died_ms + 400, "the fetch timeout"
