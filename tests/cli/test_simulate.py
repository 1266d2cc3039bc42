"""`moldau simulate`: seeds are counted, and one that fails tells its story."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import BAR_AT_ONCE, Moldau
from tests.simulation.planted_cluster_bugs import PLANTED_IN_CLUSTERS

NOBODY = Moldau("127.0.0.1:1")


def test_the_bar_counts_seeds_also_where_several_run_side_by_side() -> None:
    command = ("simulate", "--kind", "crashes", "--first", "7", "--seeds", "3", "--jobs", "2")
    code, shown = NOBODY.on_terminal(*command, program=BAR_AT_ONCE)
    assert code == 0
    assert re.search("[123] of 3, 0 failed", shown)
    assert "3 seeds of crashes, 0 failed" in shown


def test_a_seed_that_fails_is_told_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_CLUSTERS["acks_all_is_answered_when_the_leader_has_it"](monkeypatch)
    told = NOBODY("simulate", "--first", "1", "--seeds", "1", code=1)
    assert "seed 1: 1 problem; to replay it: moldau simulate --kind clusters --replay 1" in told.out
    assert "was acknowledged, committed is" in told.out
    assert "nodes: broker" in told.out and "faults: " in told.out
    assert "1 seed of clusters, 1 failed" in told.err
    (failed,) = NOBODY("simulate", "--first", "1", "--seeds", "1", "-o", "json", code=1).json["failed"]
    again = NOBODY("simulate", "--replay", "1", "-o", "json", code=1).json
    assert {key: again[key] for key in failed} == failed
    assert "PROBLEM" in again["story"][-1]
