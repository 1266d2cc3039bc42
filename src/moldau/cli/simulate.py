"""`moldau simulate`: whole nodes and clusters in a simulated world, by seeds; the story of one that goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR
from moldau.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from moldau.testing.simulation import Run

app = typer.Typer(add_completion=False)


class SimulationKind(StrEnum):
    CLUSTERS = "clusters"
    CRASHES = "crashes"
    POWER_LOSSES = "power-losses"


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many runs.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="The seed of the first.")] = 0,
    kind: Annotated[
        SimulationKind,
        typer.Option(help="Clusters of three, or transactions on one node that dies or loses its power."),
    ] = SimulationKind.CLUSTERS,
    replay: Annotated[
        int | None, typer.Option(metavar="SEED", help="One run only, with its whole story.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs that are made side by side, each in its process.")] = 1,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Prove the broker by simulation: real nodes on simulated disks, clocks and networks, with faults of every kind.

    A seed decides everything, so that the same seed is the same run on every machine. Exit 1 when a promise broke.
    """
    from moldau.cli.output import say, show_object

    if replay is not None:
        raise typer.Exit(_replay(kind, replay, output))
    began = time.monotonic()
    failed = [run for run in _runs(kind, range(first, first + seeds), jobs) if run.problems]
    seconds = time.monotonic() - began
    summary = {
        "kind": kind.value,
        "first": first,
        "seeds": seeds,
        "seconds": round(seconds, 1),
        "failed": [_told(run) for run in failed],
    }
    if not show_object(output, summary):
        for run in failed:
            print(run, end="\n\n")
    say(f"{seeds} seeds of {kind.value}, {len(failed)} failed, {seeds / seconds:.1f} seeds/s")
    if failed:
        raise typer.Exit(EXIT_ERROR)


def _replay(kind: SimulationKind, seed: int, output: Output) -> int:
    from moldau.cli.output import show_object
    from moldau.testing.simulation.kinds import simulate as run_seed

    run = run_seed(kind.value, seed)
    if not show_object(output, {**_told(run), "story": run.story, "trace": run.trace_hash, "steps": run.steps}):
        print("\n".join([*run.story, "", *(run.problems or [f"seed {seed}: no problems"])]))
    return EXIT_ERROR if run.problems else 0


def _told(run: Run) -> dict[str, Any]:
    return {"seed": run.seed, "problems": run.problems, "replay": run.command, "story": run.story}


def _runs(kind: SimulationKind, seeds: range, jobs: int) -> Iterator[Run]:
    """In the order of the seeds; the bar says how many are done."""
    from moldau.cli.output import Progress

    with Progress("simulating", len(seeds)) as progress:
        failed = 0
        for done, run in enumerate(_made(kind, seeds, jobs), start=1):
            failed += bool(run.problems)
            progress.update(done, f"{done} seeds, {failed} failed")
            yield run


def _made(kind: SimulationKind, seeds: range, jobs: int) -> Iterator[Run]:
    from moldau.testing.simulation.kinds import simulate as run_seed

    if jobs == 1:
        yield from (run_seed(kind.value, seed) for seed in seeds)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(jobs) as processes:
        yield from processes.map(run_seed, [kind.value] * len(seeds), seeds, chunksize=4)
