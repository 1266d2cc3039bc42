"""`moldau table`: tables kept current beside their topics, and asked without a Spark job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_PORT = 8090
DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"
LOOK_SECONDS = 0.05
HTTP_WRONG_QUESTION, HTTP_NOT_FOUND, HTTP_NOT_YET = 400, 404, 503

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Serve tables from their topics, and ask them.")

Server = Annotated[
    str, typer.Option("--server", envvar="MOLDAU_TABLES", metavar="URL", help="The table server to ask.")
]
Wait = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for a table that is read for the first time.")
]
Topic = Annotated[str, typer.Argument(metavar="TABLE", help="The table's topic.", show_default=False)]


@app.command()
def serve(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics of tables, one or several.", show_default=False)
    ],
    port: Annotated[int, typer.Option(help="Port to answer on; 0 takes a free one.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Address to answer on.")] = "127.0.0.1",
    data: Annotated[
        str, typer.Option(help="Directory for the view; it is found again after a restart.")
    ] = "./.moldau-tables",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Keep a view of the tables current, and answer over HTTP, in the foreground."""
    import logging
    from pathlib import Path

    from moldau.cli.remote import find_topic, on_cluster
    from moldau.tables import TableView, ViewInUse

    try:
        from moldau.tables.service import serve as serve_tables
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed: `pip install 'moldau[http]'` brings it", EXIT_ERROR
        ) from error
    names = list(dict.fromkeys(topics))

    async def check(client: Any) -> None:
        for name in names:
            await find_topic(client, name)

    on_cluster(bootstrap, None, check)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        view = TableView(Path(data) / "view.sqlite")
    except ViewInUse as error:
        raise CommandError(str(error)) from error

    def ready(where: str, bound: int) -> None:
        print(f"{len(names)} table{'s' if len(names) != 1 else ''} at http://{where}:{bound}/tables", flush=True)

    try:
        serve_tables(bootstrap, names, view, host, port, ready)
    finally:
        view.close()


@app.command()
def get(
    topic: Topic,
    key: Annotated[
        list[str], typer.Option("--key", "-k", help="The row's key; for a key of several columns, once for each.")
    ],
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="TIME", help="The window's start, such as 2026-11-18T10:00Z."),
    ] = None,
    wait: Wait = "10s",
    server: Server = DEFAULT_SERVER,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Show one row, and the offsets that the answer reflects."""
    from moldau.cli.output import show_fields, show_object

    found = _ask(server, "tables", topic, "rows", _key_text(key, window), wait=wait)
    if show_object(output, found):
        return
    place = {"offset": found["offset"], "reflects": _reflects_text(found["reflects"])}
    show_fields(_key_of(found), _columns(found["value"]) | place)


@app.command()
def scan(
    topic: Topic,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="CONDITION", help="Such as: count > 10 and city = 'Praha'."),
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only keys that begin so.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many rows.")] = 100,
    after: Annotated[str | None, typer.Option("--after", metavar="KEY", help="Go on behind this key.")] = None,
    after_base64: Annotated[
        str | None, typer.Option("--after-base64", metavar="KEY", help="The same for a key that is no text.")
    ] = None,
    wait: Wait = "10s",
    server: Server = DEFAULT_SERVER,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Show rows in the order of their keys, all of one moment."""
    from moldau.cli.output import say, show_object, show_table

    asked = {"where": where, "prefix": prefix, "after": after, "after_base64": after_base64, "limit": str(limit)}
    given = {name: value for name, value in asked.items() if value is not None}
    found = _ask(server, "tables", topic, "rows", parameters=given, wait=wait)
    if show_object(output, found):
        return
    rows = [_flat(row) for row in found["rows"]]
    names = list(dict.fromkeys(name for row in rows for name in row))
    show_table({name.upper(): name for name in names}, rows)
    more = ""
    if "after_base64" in found:
        more = f"; more with --after-base64 {found['after_base64']}"
    elif found["after"] is not None:
        more = f"; more with --after '{found['after']}'"
    say(f"reflects {_reflects_text(found['reflects'])}{more}")


@app.command("list")
def list_tables(server: Server = DEFAULT_SERVER, output: OutputFormat = Output.TABLE) -> None:
    """Show what a table server has, and how far it is."""
    from moldau.cli.output import show_rows

    found = _ask(server, "tables")
    if output is Output.TABLE:
        found = [one | {"reflects": _reflects_text(one["reflects"])} for one in found]
    columns = {"TABLE": "table", "COMPLETE": "is_complete", "REFLECTS": "reflects", "READ": "records_read"}
    show_rows(output, {**columns, "ERROR": "error"}, found)


def _key_text(parts: Sequence[str], window: str | None) -> str:
    from moldau.spark.pipelines import row_key

    return row_key(parts, None if window is None else _window_text(window)).decode()


def _window_text(text: str) -> str:
    """A time as keys have it: UTC, milliseconds."""
    import time

    from moldau.cli.options import parse_time, time_text

    return time_text(parse_time(text, time.time_ns() // 1_000_000))


def _ask(server: str, *path: str, parameters: Mapping[str, str] | None = None, wait: str = "0s") -> Any:
    import time

    from moldau.cli.options import parse_duration_ms
    from moldau.tables import TableServerError, ask

    deadline = time.monotonic() + parse_duration_ms("--wait", wait) / 1000
    while True:
        try:
            return ask(server, *path, parameters=parameters)
        except TableServerError as error:
            if error.status == HTTP_NOT_YET and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
                continue
            if error.status == HTTP_WRONG_QUESTION:
                raise usage(str(error)) from error
            raise CommandError(str(error), EXIT_NOT_FOUND if error.status == HTTP_NOT_FOUND else EXIT_ERROR) from error


def _key_of(row: Mapping[str, Any]) -> str:
    return str(row["key"] if "key" in row else row["key_base64"])


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": _key_of(row), **_columns(row["value"])}


def _columns(value: Any) -> dict[str, Any]:
    """A row's fields as cells; what is inside of them as JSON."""
    from moldau.cli.output import json_line

    fields = value if isinstance(value, dict) else {"value": value}
    return {name: json_line(one) if isinstance(one, dict | list) else one for name, one in fields.items()}


def _reflects_text(reflects: Mapping[str, int]) -> str:
    return " ".join(f"{partition}:{position}" for partition, position in reflects.items())
