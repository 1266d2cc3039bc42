"""Who judges the judges: break the broker on purpose, bug by bug, and see which seed finds it, and how.

    python -m tests.simulation.find_bugs --seeds 2000 [--in clusters] [--only NAME ...]

Exit 1 when a bug lives through all seeds. `make planted-bugs` looks for all of them.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import pytest

from moldau.testing.simulation import Run, simulate_cluster, simulate_power_losses, simulate_transactions
from tests.cluster import planted_bugs as replication_bugs
from tests.cluster import replication_world
from tests.consensus import planted_bugs as quorum_bugs
from tests.consensus import simulation as quorums
from tests.simulation.planted_bugs import PLANTED, PLANTED_FOR_POWER_LOSSES
from tests.simulation.planted_cluster_bugs import PLANTED_IN_CLUSTERS

Plant = Callable[[pytest.MonkeyPatch], None]
# Of what was found, in the table.
FINDING_CHARACTERS_MAX = 110


class Simulation(NamedTuple):
    planted: dict[str, Plant]
    # What is wrong with a seed's run, None when all is well.
    judge: Callable[[int], str | None]


class Hunt(NamedTuple):
    simulation: str
    bug: str
    seed: int | None
    finding: str
    seconds: float


def _of_nodes(simulate: Callable[[int], Run]) -> Callable[[int], str | None]:
    return lambda seed: next(iter(simulate(seed).problems), None)


def _of_machines(simulate: Callable[[int], object]) -> Callable[[int], str | None]:
    def judge(seed: int) -> str | None:
        try:
            simulate(seed)
        except (AssertionError, replication_world.Broken) as violation:
            return str(violation) or repr(violation)
        return None

    return judge


SIMULATIONS = {
    "quorums": Simulation(quorum_bugs.PLANTED, _of_machines(quorums.simulate)),
    "replicas": Simulation(replication_bugs.PLANTED, _of_machines(replication_world.run)),
    "crashes": Simulation(PLANTED, _of_nodes(simulate_transactions)),
    "power-losses": Simulation(PLANTED_FOR_POWER_LOSSES, _of_nodes(simulate_power_losses)),
    "clusters": Simulation(PLANTED_IN_CLUSTERS, _of_nodes(simulate_cluster)),
}


def hunt(simulation: str, bug: str, seeds: range) -> Hunt:
    """The first seed that finds it."""
    planted, judge = SIMULATIONS[simulation]
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        planted[bug](patch)
        for seed in seeds:
            finding = judge(seed)
            if finding is not None:
                return Hunt(simulation, bug, seed, finding, time.monotonic() - began)
    return Hunt(simulation, bug, None, f"lived through {len(seeds)} seeds", time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000, help="how many a bug may take to be found")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--jobs", type=int, default=2, help="bugs that are looked for side by side")
    parser.add_argument("--in", dest="simulation", choices=SIMULATIONS, help="one simulation only")
    parser.add_argument("--only", nargs="+", default=[""], help="bugs whose names contain one of these")
    asked = parser.parse_args()
    wanted = [
        (name, bug)
        for name, simulation in SIMULATIONS.items()
        if asked.simulation in (None, name)
        for bug in simulation.planted
        if any(part in bug for part in asked.only)
    ]
    seeds = range(asked.first, asked.first + asked.seeds)
    alive = 0
    with ProcessPoolExecutor(asked.jobs) as processes:
        for done in as_completed([processes.submit(hunt, name, bug, seeds) for name, bug in wanted]):
            result = done.result()
            alive += result.seed is None
            seed = "NOT FOUND" if result.seed is None else f"seed {result.seed}"
            finding = re.sub(r"\s+", " ", result.finding)[:FINDING_CHARACTERS_MAX]
            print(f"{result.simulation:12} {result.bug:60} {seed:>10} {result.seconds:6.1f} s  {finding}", flush=True)
    print(f"{len(wanted) - alive} of {len(wanted)} bugs were found within {asked.seeds} seeds")
    return 1 if alive or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
