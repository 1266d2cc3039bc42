"""`moldau pipeline load` and `unload`: topics into tables, and back, through Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from moldau.cli.errors import CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, parse_pairs, parse_time, time_text

CHECKPOINTS = ".moldau/loads"
# What fails is told in one line, which Spark's own log would bury under traces of Java.
QUIET_SPARK = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}

_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="NAME=VALUE", help="What the table needs: dsn=..., s3=..., uri=...; may be repeated."
    ),
]
_Master = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")]


def load(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TABLE",
            help="delta:/data/orders, iceberg:shop.orders, parquet:/data/lake, postgres:orders or redshift:orders.",
            show_default=False,
        ),
    ],
    schema: Annotated[
        str, typer.Option("--schema", metavar="SCHEMA", help="bytes, text, FILE.avsc, or the columns of JSON objects.")
    ] = "bytes",
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="A time such as 2026-11-01T10:00 or 2h.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Up to this time, which is not loaded.")
    ] = None,
    options: _Options = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TOPIC", help="Where records go that do not fit the schema.")
    ] = None,
    checkpoints: Annotated[
        str, typer.Option("--checkpoints", metavar="DIR", help="What is done, so that it goes on there.")
    ] = CHECKPOINTS,
    master: _Master = "local[*]",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Load a topic, or a range of its times, into a table, exactly once. Run it again to load what came since."""
    from moldau.cli.output import say

    now_ms = int(time.time() * 1000)
    start_ms, until_ms = (None if one is None else parse_time(one, now_ms) for one in (start, until))
    for option, given, time_ms in (("--from", start, start_ms), ("--until", until, until_ms)):
        # As long ago as before is another range, and with it another load.
        if given is not None and time_ms is not None and parse_time(given, now_ms + 1) != time_ms:
            say(f"{option} {given} is {option} {time_text(time_ms)}: write that to go on with this load later")
    offline = _offline()
    into = _target(to, options)
    check_master(master)
    with _spark(master) as spark:
        offline.load(
            spark,
            bootstrap,
            topic,
            _format(schema),
            into,
            checkpoints=checkpoints,
            start_ms=start_ms,
            until_ms=until_ms,
            dead_letters=dead_letters,
        )
    print(f"{topic} is in {to}")


def unload(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="As load has it.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic, which must exist.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMN", help="Which column is the record's key.")
    ] = None,
    options: _Options = None,
    master: _Master = "local[*]",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send the rows of a table to a topic, at least once: run again, it sends them again."""
    offline = _offline()
    source = _target(table, options)
    check_master(master)
    with _spark(master) as spark:
        row_count = offline.unload(spark, bootstrap, source, to, key=key)
    print(f"{row_count} rows of {table} are in {to}")


def check_master(master: str) -> None:
    """Before Spark's launcher sees it, which has only a stack to say."""
    from moldau.spark.pipelines.project import MASTERS, is_master

    if not is_master(master):
        raise usage(f"--master {master} is none: {MASTERS}")


def _offline() -> Any:
    try:
        from moldau.spark.pipelines import offline
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: `pip install 'moldau[spark]'` brings it") from error
    return offline


def _target(text: str, options: list[str] | None) -> Any:
    from moldau.spark.pipelines import PipelineError

    try:
        return _offline().target(text, parse_pairs(options, "--with"))
    except PipelineError as error:
        raise usage(str(error)) from error


def _format(text: str) -> Any:
    from moldau.spark.pipelines import Avro, Bytes, Text

    if text.endswith(".avsc"):
        return Avro(text)
    return {"bytes": Bytes(), "text": Text()}.get(text, text)


@contextmanager
def _spark(master: str) -> Iterator[Any]:
    """A session for the work; what goes wrong with it is one line."""
    from moldau.spark import JavaMissing, session
    from moldau.spark.errors import reason
    from moldau.spark.pipelines import PipelineError

    try:
        spark = session("moldau-load", master=master, settings=QUIET_SPARK)
    except JavaMissing as error:
        raise CommandError(str(error)) from error
    except Exception as error:  # a cluster that is not there
        raise CommandError(f"Spark does not start: {reason(error)}") from error
    try:
        yield spark
    except PipelineError as error:
        raise usage(str(error)) from error
    except Exception as error:
        raise CommandError(reason(error)) from error
    finally:
        spark.stop()
