"""`moldau up`, `moldau broker`, `moldau storage`: the commands that run or prepare a node on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_USAGE
from moldau.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from moldau.broker import Settings

# What a laptop wants otherwise than a server: no waiting when a group starts.
UP_SETTINGS = {"group.initial.rebalance.delay.ms": "100"}
BROKERS_MAX = 100
# More controllers than these would agree more slowly and be no safer on one machine.
CONTROLLERS_MAX = 3
# Controllers listen so far above the brokers' ports.
CONTROLLER_PORT_STEP = 10_000

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
    """Start a broker on this machine, or a cluster of several, with good defaults, in the foreground."""
    if not 1 <= brokers <= BROKERS_MAX:
        _fail(f"--brokers {brokers}: 1 to {BROKERS_MAX} brokers can be run on one machine", code=EXIT_USAGE)
    directory = tempfile.mkdtemp(prefix="moldau-") if ephemeral else os.path.abspath(data)
    address = f"[{host}]" if ":" in host else host
    if brokers > 1:
        _serve_several(brokers, address, port, directory, _overrides(override), remove=directory if ephemeral else None)
    if os.path.exists(f"{directory}/broker-1"):
        _fail(f"{directory} holds several brokers' data: start them with --brokers, or choose another --data")
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


def _serve_several(
    brokers: int, address: str, port: int, directory: str, overrides: dict[str, str], *, remove: str | None
) -> NoReturn:
    """A cluster on this machine: the first three nodes are its controllers as well."""
    import json

    if os.path.exists(f"{directory}/meta.properties"):
        _fail(f"{directory} holds a single broker's data: choose another --data for a cluster")
    controllers = min(brokers, CONTROLLERS_MAX)
    ports = _ports(address, port, brokers)
    controller_ports = _ports(address, port and port + CONTROLLER_PORT_STEP, controllers, taken=ports)
    voters = ",".join(f"{index + 1}@{address}:{each}" for index, each in enumerate(controller_ports))
    copies = str(min(brokers, 3))
    common = {
        **UP_SETTINGS,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": str(min(brokers, 2)),
        "moldau.http.listener": "",
    }
    orders = []
    for index, own_port in enumerate(ports):
        listeners = f"PLAINTEXT://{address}:{own_port}"
        is_controller = index < controllers
        if is_controller:
            listeners += f",CONTROLLER://{address}:{controller_ports[index]}"
        flags = {
            "node.id": str(index + 1),
            "process.roles": "broker,controller" if is_controller else "broker",
            "listeners": listeners,
            "log.dirs": f"{directory}/broker-{index + 1}",
            **common,
            **overrides,
        }
        orders.append({"file": None, "flags": flags, "remove": None, "greet": False})
    sys.stdout.flush()
    order = json.dumps({"brokers": orders, "remove": remove})
    os.execv(sys.executable, [sys.executable, "-m", "moldau.cli.several", order])


def _ports(address: str, first: int, count: int, *, taken: Sequence[int] = ()) -> list[int]:
    """`count` ports from `first` on, or free ones where that is 0."""
    import socket

    if first:
        return list(range(first, first + count))
    sockets: list[socket.socket] = []
    host = address.strip("[]")
    try:
        while len(sockets) < count:
            each = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            if each.getsockname()[1] not in taken:
                sockets.append(each)
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


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
