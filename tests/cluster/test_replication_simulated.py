"""Replication by the hundred: seeds, and bugs planted into the machines that the seeds must find."""

from __future__ import annotations

import pytest

from tests.cluster.planted_bugs import PLANTED
from tests.cluster.replication_world import Broken, run

SEEDS = 300
SEEDS_FOR_A_BUG_MAX = 600


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_three_replicas_lose_nothing_that_was_committed(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + 50):
        try:
            acknowledged += len(run(seed).acknowledged)
        except Broken as broken:
            pytest.fail(f"seed {seed}: {broken}")
    assert acknowledged > 50 * 8, "the runs are too faulty to say anything"


def test_the_same_seed_is_the_same_run() -> None:
    assert run(7).trace == run(7).trace != run(8).trace


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_seeds_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    for seed in range(SEEDS_FOR_A_BUG_MAX):
        try:
            run(seed)
        except (Broken, AssertionError):
            return
    pytest.fail(f"{name} was not found by {SEEDS_FOR_A_BUG_MAX} seeds")
