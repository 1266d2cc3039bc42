"""`moldau up`, `moldau broker`, `moldau storage`: the commands that run or prepare a node on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_USAGE
from moldau.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from moldau.broker import Settings

# What a laptop wants otherwise than a server: no waiting when a group starts.
UP_SETTINGS = {"group.initial.rebalance.delay.ms": "100"}

Override = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="Set a configuration key; may be given several times."),
]

up_app = typer.Typer(add_completion=False)
broker_app = typer.Typer(add_completion=False)
storage_app = typer.Typer(add_completion=False, no_args_is_help=True, help="Format and inspect data directories.")


@up_app.command()
def up(
    brokers: Annotated[int, typer.Option(help="How many brokers to run.")] = 1,
    port: Annotated[int, typer.Option(help="Port for clients; 0 takes a free one.")] = 9092,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Annotated[str, typer.Option(help="Directory for the data.")] = "./.moldau",
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep nothing: data goes when the broker stops.")
    ] = False,
    override: Override = None,
) -> None:
    """Start a broker on this machine, with good defaults, in the foreground."""
    if brokers != 1:
        _fail(f"--brokers {brokers}: one broker is what this version runs; clusters are not built yet", code=EXIT_USAGE)
    directory = tempfile.mkdtemp(prefix="moldau-") if ephemeral else os.path.abspath(data)
    address = f"[{host}]" if ":" in host else host
    flags = {
        **UP_SETTINGS,
        "listeners": f"PLAINTEXT://{address}:{port}",
        "log.dirs": directory,
        **_overrides(override),
    }
    _serve(None, flags, remove=directory if ephemeral else None, greet=True)


@broker_app.command()
def broker(
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="A server.properties file, as Kafka has it.")
    ] = None,
    override: Override = None,
) -> None:
    """Run one node from a server.properties written for Kafka. An empty directory is formatted."""
    text = _read(config) if config is not None else None
    _serve(text, _overrides(override))


@storage_app.command("format")
def format_storage(
    config: Annotated[str | None, typer.Option("--config", "-c", help="A server.properties file.")] = None,
    cluster_id: Annotated[str | None, typer.Option(help="The cluster's id; a new one by default.")] = None,
    override: Override = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="Leave formatted directories alone.")
    ] = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Give empty data directories their identity. `moldau broker` does this by itself."""
    from moldau.broker.storage_tool import AlreadyFormattedError, format_storage
    from moldau.cli.output import show_rows

    settings = _load(_read(config) if config is not None else None, _overrides(override))
    try:
        formatted = format_storage(settings, cluster_id, ignore_formatted=ignore_formatted)
    except (AlreadyFormattedError, ValueError) as error:
        _fail(str(error))
    rows = [{"directory": directory, "cluster_id": identity} for directory, identity in formatted]
    show_rows(output, {"DIRECTORY": "directory", "CLUSTER_ID": "cluster_id"}, rows)


@storage_app.command("info")
def storage_info(
    config: Annotated[str | None, typer.Option("--config", "-c", help="A server.properties file.")] = None,
    override: Override = None,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Show whose the data directories are and what is in them."""
    from moldau.broker.storage_tool import describe_storage
    from moldau.cli.output import show_rows

    settings = _load(_read(config) if config is not None else None, _overrides(override))
    columns = ("directory", "state", "cluster_id", "node_id", "partitions")
    show_rows(output, {name.upper(): name for name in columns}, describe_storage(settings))


# -- the work ----------------------------------------------------------------------------------------------------------


def _serve(file_text: str | None, flags: dict[str, str], *, remove: str | None = None, greet: bool = False) -> NoReturn:
    """Become the broker: the same process id, without the memory and the imports of the command line."""
    import json

    order = json.dumps({"file": file_text, "flags": flags, "remove": remove, "greet": greet})
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "moldau.broker", order])


def _load(file_text: str | None, flags: dict[str, str]) -> Settings:
    from moldau.broker import ConfigError, load_settings

    try:
        settings, warnings = load_settings(file_text, flags.items(), os.environ)
    except ConfigError as error:
        _fail(str(error), code=EXIT_USAGE)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return settings


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        _fail(f"cannot read {path}: {error.strerror}", code=EXIT_USAGE)
    except UnicodeDecodeError:
        _fail(f"cannot read {path}: it is not a text file", code=EXIT_USAGE)


def _overrides(given: list[str] | None) -> dict[str, str]:
    values = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            _fail(f"-X {text}: write it as -X key=value", code=EXIT_USAGE)
        values[key.strip()] = value.strip()
    return values


def _fail(message: str, *, code: int = EXIT_ERROR) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)
