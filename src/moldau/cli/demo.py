"""`moldau demo`: in-stream analytics to look at: traffic, a pipeline over it, a page, and how well it did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat

if TYPE_CHECKING:
    from moldau.demo.scale import Scale
    from moldau.demo.scoring import Score

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Run in-stream analytics on made-up traffic, to look at.",
)

Day = Annotated[str, typer.Option("--day", metavar="TIME", help="How long a day takes: 5m, or 24h for a real one.")]
Rate = Annotated[float, typer.Option("--rate", min=1, help="Events a second, on average over the day.")]
Sites = Annotated[int, typer.Option("--sites", min=1, max=200, help="How many sites there are.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="What traffic and anomalies follow from.")]


@app.command()
def run(
    port: Annotated[int, typer.Option("--port", help="The broker's port; 0 takes a free one.")] = 9092,
    http_port: Annotated[int, typer.Option("--http-port", help="The page's port; 0 takes a free one.")] = 8080,
    data: Annotated[str, typer.Option("--data", help="Directory for all that is kept.")] = "./.moldau-demo",
    rate: Rate = 1000,
    day: Day = "5m",
    sites: Sites = 8,
    seed: Seed = None,
    postgres: Annotated[
        str, typer.Option("--postgres", metavar="DSN", help="Keep the aggregates in this PostgreSQL database as well.")
    ] = "",
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")] = "local[*]",
) -> None:
    """Start a broker, traffic and a pipeline, and serve a page with live charts, until Ctrl-C."""
    import asyncio

    from moldau.cli.output import say
    from moldau.cli.serve import up

    missing = _missing()
    if missing is not None:
        say(f"no analytics here: {missing}")
        say("the broker runs alone:")
        up(port=port, brokers=1, host="127.0.0.1", data=data, ephemeral=False, override=None)
        return
    from moldau.cli.pipeline_load import check_master
    from moldau.demo.running import Demo, DemoError, DemoSettings, check_data
    from moldau.tables import ViewInUse

    _scale(day)
    check_master(master)
    settings = DemoSettings(Path(data), port, http_port, day, rate, sites, _seed(seed), postgres, master)
    try:
        check_data(settings)
        code = asyncio.run(Demo(settings, say).run())
    except (DemoError, ViewInUse) as error:
        raise CommandError(str(error)) from error
    if code:
        raise typer.Exit(code)


@app.command()
def events(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    rate: Rate = 1000,
    day: Day = "5m",
    sites: Sites = 8,
    seed: Seed = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after so long, such as 10m.")
    ] = None,
) -> None:
    """Send traffic to demo-events: late, twice and broken as well, with anomalies that demo-truth tells."""
    import asyncio
    import signal
    import time

    from moldau.cli.options import parse_duration_ms

    scale = _scale(day)
    try:
        from moldau.demo.generator import Generator
        from moldau.demo.world import World
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: `pip install 'moldau[demo]'` brings it") from error
    now_ms = time.time_ns() // 1_000_000
    until_ms = None if lasting is None else now_ms + parse_duration_ms("--for", lasting)
    chosen = _seed(seed)
    generator = Generator(bootstrap, World(chosen, scale, now_ms, sites), rate)

    async def work() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, generator.stopping.set)
        await generator.run(until_ms)

    print(f"sending {rate:g} events a second to demo-events, seed {chosen}", flush=True)
    asyncio.run(work())
    print(f"sent {generator.sent} records")


@app.command()
def score(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Without a broker and Spark: days of traffic within seconds.")
    ] = False,
    seed: Seed = None,
    days: Annotated[int, typer.Option("--days", min=1, help="So many days of a rehearsal.")] = 4,
    day: Day = "5m",
    output: OutputFormat = Output.TABLE,
) -> None:
    """Compare the anomalies that were found with those that were put in: precision and recall."""
    try:
        found = _rehearsed(_seed(seed), day, days) if rehearse else _scored(bootstrap)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: `pip install 'moldau[demo]'` brings it") from error
    _show(found, output)


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    day: Day = "5m",
) -> None:
    """Write the demo's pipelines into a folder, as a start for one's own."""
    from moldau.demo.folders import PipelineSettings, write_folders

    directory = Path(folder)
    if directory.exists():
        raise CommandError(f"{directory} is there already: choose another folder")
    _scale(day)
    written = write_folders(directory, PipelineSettings(bootstrap, day, str((directory / "lake").resolve())))
    print(f"{' and '.join(map(str, written))} are written; run them with `moldau pipeline run {written[0]}`")


# -- the work ----------------------------------------------------------------------------------------------------------


def _missing() -> str | None:
    """What keeps Spark or the page from running here, with what to do; None when all is there."""
    import importlib.util

    from moldau.spark import JavaMissing, find_java

    for name in ("pyspark", "pandas", "numpy", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed: `pip install 'moldau[demo]'` brings it"
    try:
        find_java()
    except JavaMissing as error:
        return str(error)
    return None


def _seed(given: int | None) -> int:
    import random

    return random.randrange(1_000_000) if given is None else given


def _scale(day: str) -> Scale:
    from moldau.demo.scale import scale_from

    try:
        return scale_from(day)
    except ValueError as error:
        raise usage(f"--day {day}: {error}") from error


def _rehearsed(seed: int, day: str, days: int) -> Score:
    from moldau.demo.rehearsal import rehearse

    print(f"rehearsing {days} days of seed {seed}", file=sys.stderr)
    return rehearse(seed, _scale(day), days)


def _scored(bootstrap: str) -> Score:
    from moldau.cli.remote import on_cluster
    from moldau.demo.comparing import NothingToScore, read_score

    async def work(client: Any) -> Score:
        return await read_score(client)

    try:
        return on_cluster(bootstrap, None, work)
    except NothingToScore as error:
        raise CommandError(str(error), EXIT_ERROR) from error


def _show(found: Score, output: Output) -> None:
    from dataclasses import asdict

    from moldau.cli.options import time_text
    from moldau.cli.output import show_fields, show_object, show_table

    told = asdict(found) | {"precision": round(found.precision, 3), "recall": round(found.recall, 3)}
    if show_object(output, told):
        return
    show_fields(
        "anomalies",
        {
            "precision": f"{found.precision:.3f} ({found.right} of {found.found} that were found)",
            "recall": f"{found.recall:.3f} ({found.met} of {found.put_in} that were put in)",
            "kind told": f"{found.named} of {found.met}",
        },
    )
    rows = [
        {"what": what, "site": one.site, "metric": one.metric, "kind": one.kind, "start": time_text(one.start_ms)}
        for what, ones in (("missed", found.missed), ("wrong", found.wrong))
        for one in ones
    ]
    if rows:
        show_table({name.upper(): name for name in ("what", "site", "metric", "kind", "start")}, rows)
