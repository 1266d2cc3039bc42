"""Transactions under crashes: many seeds, or the story of one."""

from __future__ import annotations

import argparse
import sys
import time

from moldau.testing.simulation import simulate_power_losses, simulate_transactions

KINDS = {"crashes": simulate_transactions, "power-losses": simulate_power_losses}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau.testing.simulation", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="crashes", help="what a death takes with it")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--replay", type=int, help="one seed, with its whole story")
    options = parser.parse_args()
    simulate = KINDS[options.kind]
    if options.replay is not None:
        run = simulate(options.replay)
        print("\n".join([*run.history.lines(), "", *run.story, "", *(run.problems or ["no problems"])]))
        return 1 if run.problems else 0
    began = time.perf_counter()
    failed = 0
    for seed in range(options.first, options.first + options.seeds):
        run = simulate(seed)
        if run.problems:
            failed += 1
            print(run, flush=True)
    seconds = time.perf_counter() - began
    print(f"{options.seeds} seeds, {failed} failed, {options.seeds / seconds:.1f} seeds/s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
