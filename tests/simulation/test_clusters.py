"""Whole clusters in a simulated world: three brokers and three controllers that die, pause, lose power, are cut off
from each other and run out of disk, under clients of all kinds; nothing acknowledged is lost, and everything heals by
itself.

A failing seed is printed with the command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation.clusters import simulate_cluster
from tests.simulation import find_bugs

SEEDS_PER_TEST = 20
# `make simulate` runs a thousand.
SEEDS = 300
# Planted bugs that the first seeds find; `make planted-bugs` looks for all.
SEEDS_FOR_A_BUG_MAX = 20
EASY_BUGS = (
    "acks_all_is_answered_when_the_leader_has_it",
    "a_log_is_cut_at_its_high_watermark",
    "a_follower_joins_below_the_high_watermark",
    "only_the_last_batch_is_known_again",
    "who_is_fenced_stays_in_sync",
    "metadata_is_acted_on_before_it_is_agreed",
)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_cluster_keeps_its_promises_whatever_happens(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run = simulate_cluster(seed)
        assert not run.problems, str(run)
        assert run.history.operations


@pytest.mark.parametrize("name", EASY_BUGS)
def test_simulated_clusters_find(name: str) -> None:
    hunt = find_bugs.hunt("clusters", name, range(SEEDS_FOR_A_BUG_MAX))
    assert hunt.seed is not None, hunt.finding


@pytest.mark.parametrize("seed", [3, 17])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = simulate_cluster(seed), simulate_cluster(seed)
    assert first.trace_hash == second.trace_hash
    assert first.story == second.story
    assert list(first.history.lines()) == list(second.history.lines())


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the order of sets is there."""
    program = (
        "from moldau.testing.simulation.clusters import simulate_cluster as run;"
        " print([run(seed).trace_hash for seed in range(5, 8)], end='')"
    )
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
    assert len(traces) == 1
