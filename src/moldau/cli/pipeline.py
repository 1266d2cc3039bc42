"""`moldau pipeline`: folders of streaming queries, run on Spark and looked at while they run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli import pipeline_load
from moldau.cli.errors import EXIT_ERROR, EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.options import Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.spark.pipelines.project import Project
    from moldau.spark.pipelines.runner import ProjectRun

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run pipelines on Spark, and see how they are.")

app.command()(pipeline_load.load)
app.command()(pipeline_load.unload)

STOP_SECONDS_MAX = 120.0
_COLUMNS = {
    "QUERY": "name",
    "STATE": "state",
    "BATCH": "batch",
    "IN/S": "input_rows_per_second",
    "OUT/S": "processed_rows_per_second",
    "BATCH_MS": "batch_ms",
    "LAG": "lag",
    "WATERMARK": "watermark",
    "STATE_ROWS": "state_rows",
    "ERROR": "error",
}

Folder = Annotated[str, typer.Argument(metavar="[FOLDER]", help="The folder of a pipeline.", show_default=False)]


@app.command()
def init(folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)]) -> None:
    """Make a pipeline to begin with."""
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.project import write_project

    try:
        written = write_project(Path(folder))
    except PipelineError as error:
        raise CommandError(str(error)) from error
    print(f"{written[0]} and {written[1]} are written; run them with `moldau pipeline run {folder}`")


@app.command()
def run(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER...", help="One or several.", show_default=False)],
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Where Spark runs: local[*], spark://..., k8s://...")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look whether the folders are right.")] = False,
) -> None:
    """Run pipelines in one Spark session until Ctrl-C, which lets the batch at hand finish."""
    if master is not None:
        pipeline_load.check_master(master)
    projects = [_read(folder) for folder in folders]
    names = [project.name for project in projects]
    for name in names:
        if names.count(name) > 1:
            raise usage(f"two folders have the name {name}: give one of them another in pipeline.toml")
    _check_files(projects)
    if check:
        print(f"{', '.join(names)}: nothing is wrong so far")
        return
    for project in projects:
        told = _running(project)
        if told is not None:
            raise CommandError(f"pipeline {project.name} runs already, as process {told['pid']}")
    if not _run(projects, master):
        raise CommandError("a query was refused: see above; the others were stopped in order", EXIT_ERROR)


@app.command("list")
def list_pipelines(
    folder: Folder = ".",
    output: OutputFormat = Output.TABLE,
) -> None:
    """List the pipelines in a folder and below it, and which of them run."""
    from moldau.cli.output import say, show_rows
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.project import read_project

    rows: list[dict[str, Any]] = []
    for path in sorted(Path(folder).glob("**/pipeline.toml")):
        try:
            project = read_project(path.parent)
        except PipelineError as error:
            say(str(error))
            name = path.parent.resolve().name
            rows.append({"pipeline": name, "state": "broken", "queries": None, "pid": None, "folder": str(path.parent)})
            continue
        told = _running(project)
        queries = [] if told is None else told["queries"]
        failing = sum(query["state"] != "running" for query in queries)
        state = "stopped" if told is None else "failing" if failing else "running"
        count = len(queries) if told is not None else None
        pid = None if told is None else told["pid"]
        rows.append(
            {"pipeline": project.name, "state": state, "queries": count, "pid": pid, "folder": str(project.directory)}
        )
    show_rows(output, {name.upper(): name for name in ("pipeline", "state", "queries", "pid", "folder")}, rows)


@app.command()
def describe(folder: Folder = ".", output: OutputFormat = Output.TABLE) -> None:
    """Show the queries of a pipeline that runs: rates, batch time, lag, watermark, state."""
    from moldau.cli.output import show_object, show_table

    told = _must_run(_read(folder))
    if not show_object(output, told):
        show_table(_COLUMNS, told["queries"])


@app.command()
def stop(folder: Folder = ".") -> None:
    """Let a pipeline that runs finish the batch at hand, and stop it. Others of its session go with it."""
    import signal
    import time

    project = _read(folder)
    told = _must_run(project)
    try:
        os.kill(told["pid"], signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError as error:
        raise CommandError(f"process {told['pid']} is another user's: stop it as that one") from error
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while _running(project) is not None:
        if time.monotonic() > deadline:
            raise CommandError(f"process {told['pid']} still runs after {STOP_SECONDS_MAX:g} s")
        time.sleep(0.1)
    print(f"{project.name} has stopped")


@app.command()
def lag(
    folder: Folder = ".",
    bootstrap: Bootstrap = "",
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show what each query has still to read, by partition, also while the pipeline does not run."""
    from moldau.cli.group_lag import LAG_COLUMNS, group_lags, lag_rows
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    project = _read(folder)

    async def work(client: Any) -> list[dict[str, Any]]:
        from moldau.client import group_admin

        prefix = f"{project.name}."
        groups = [one.group_id for one in await group_admin.list_groups(client) if one.group_id.startswith(prefix)]
        return [
            {"query": found.group.group_id.removeprefix(prefix), **row}
            for found in (await group_lags(client, groups) if groups else [])
            for row in lag_rows(found)
        ]

    rows = on_cluster(bootstrap or project.bootstrap, properties, work)
    show_rows(
        output, {"QUERY": "query", **{title: name for title, name in LAG_COLUMNS.items() if name != "group"}}, rows
    )


# -- the work ----------------------------------------------------------------------------------------------------------


def _read(folder: str) -> Project:
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.project import read_project

    try:
        return read_project(folder)
    except PipelineError as error:
        raise usage(str(error)) from error


def _check_files(projects: Sequence[Project]) -> None:
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.loading import check_files

    try:
        for project in projects:
            check_files(project)
    except PipelineError as error:
        raise usage(str(error)) from error


def _run(projects: Sequence[Project], master: str | None) -> bool:
    import logging
    import signal

    try:
        from py4j.protocol import Py4JNetworkError

        from moldau.spark import JavaMissing, session
        from moldau.spark.errors import reason
        from moldau.spark.pipelines import PipelineError
        from moldau.spark.pipelines.runner import ProjectRun, run_all
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: `pip install 'moldau[spark]'` brings it") from error
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # What becomes of the JVM is told in one line, below.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = dict(pipeline_load.QUIET_SPARK)
    for project in projects:
        settings |= project.spark
    where = master or next((project.master for project in projects if project.master), None)
    asked_to_stop: list[int] = []
    try:
        spark = session("+".join(project.name for project in projects), master=where, settings=settings)
    except JavaMissing as error:
        raise CommandError(str(error)) from error
    except Exception as error:  # a setting that it refuses, a cluster that is not there
        raise CommandError(f"Spark does not start: {reason(error)}") from error
    # After Spark, which takes SIGINT for itself.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, frame: asked_to_stop.append(signum))
    try:
        runs = [ProjectRun(spark, project) for project in projects]
        with _Shown() as shown:
            return run_all(runs, lambda: bool(asked_to_stop), shown)
    except PipelineError as error:
        raise usage(str(error)) from error
    except (ConnectionError, Py4JNetworkError) as error:
        raise CommandError(
            "Spark's JVM has ended, by the same signal or short of memory: what was written is whole, and the next run "
            "does the batch at hand again"
        ) from error
    finally:
        with suppress(ConnectionError, Py4JNetworkError):
            spark.stop()


class _Shown:
    """A table that is drawn again and again on a terminal, else a line whenever the state of a query changes."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._live: Any = None

    def __enter__(self) -> _Shown:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, runs: Sequence[ProjectRun]) -> None:
        rows = [(one.project.name, status) for one in runs for status in one.statuses()]
        if self._live is not None:
            from rich.table import Table

            table = Table(*_COLUMNS, box=None)
            for name, status in rows:
                cells = [getattr(status, column) for column in _COLUMNS.values()]
                table.add_row(f"{name}.{cells[0]}", *("-" if cell is None else str(cell) for cell in cells[1:]))
            self._live.update(table, refresh=True)
            return
        for name, status in rows:
            query = f"{name}.{status.name}"
            if self._states.get(query) != status.state:
                self._states[query] = status.state
                print(f"{query} {status.state}{f': {status.error}' if status.error else ''}", flush=True)


def _running(project: Project) -> dict[str, Any] | None:
    from moldau.spark.pipelines.running import read_running

    return read_running(project.directory)


def _must_run(project: Project) -> dict[str, Any]:
    told = _running(project)
    if told is None:
        raise CommandError(
            f"pipeline {project.name} does not run: `moldau pipeline run {project.directory}` runs it", EXIT_NOT_FOUND
        )
    return told
