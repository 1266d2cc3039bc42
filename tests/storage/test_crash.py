"""A thousand seeded lives with crashes. A failure prints its seed: `Workload(seed, rounds=3).run()` shows it again."""

from __future__ import annotations

import pytest

from tests.storage.workload import Workload

# Many short lives find more than few long ones.
CHUNK = 50
SEEDS = 1000
ROUNDS = 3


@pytest.mark.parametrize("first_seed", range(0, SEEDS, CHUNK))
def test_what_was_synced_survives_power_loss_and_what_was_written_survives_a_kill(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + CHUNK):
        try:
            Workload(seed, rounds=ROUNDS).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_the_same_seed_gives_the_same_trace_and_another_a_different_one(seed: int) -> None:
    traces = [Workload(seed).run(), Workload(seed).run(), Workload(seed + 5000).run()]
    assert traces[0] == traces[1] != traces[2]
