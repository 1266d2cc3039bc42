"""`moldau config`: what is configured, where it comes from, what it does; and how to change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property, parse_pairs

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.admin import ConfigEntry, ResourceType

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show and change configs of topics and brokers.")

Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE", help="topic/NAME, broker/ID, or broker for the default of all brokers.", show_default=False
    ),
]


@app.command("get")
def get_config(
    resource: Resource,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY...]", help="Only these keys.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what is at its default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show configs: value, where it comes from, and what it does."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    kind, name = _parse_resource(resource)

    async def work(client: ClusterClient) -> list[ConfigEntry]:
        return await admin.describe_configs(client, kind, name, include_documentation=True)

    entries = on_cluster(bootstrap, properties, work)
    if keys:
        entries = _only(entries, keys, resource)
    elif not everything:
        entries = [entry for entry in entries if entry.source is not admin.ConfigSource.DEFAULT]
    show_rows(
        output,
        {"KEY": "key", "VALUE": "value", "SOURCE": "source", "DOC": "doc"},
        [_row(entry) for entry in entries],
    )


def _row(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "key": entry.name,
        "value": "(hidden)" if entry.is_sensitive else entry.value,
        "source": entry.source.name.lower(),
        "read_only": entry.is_read_only,
        "doc": entry.documentation,
        "synonyms": [
            {"key": one.name, "value": one.value, "source": one.source.name.lower()} for one in entry.synonyms
        ],
    }


def _only(entries: list[ConfigEntry], keys: list[str], resource: str) -> list[ConfigEntry]:
    import difflib

    known = {entry.name: entry for entry in entries}
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"`moldau config get {resource} --all` lists them"
            raise CommandError(f"{resource} has no config {key!r}; {hint}", EXIT_NOT_FOUND)
    return [known[key] for key in keys]


@app.command("set")
def set_config(
    resource: Resource,
    values: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="Values to set.")] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Take a key back to its default.")
    ] = None,
    append: Annotated[list[str] | None, typer.Option("--append", metavar="KEY=ITEM", help="Add to a list.")] = None,
    subtract: Annotated[
        list[str] | None, typer.Option("--subtract", metavar="KEY=ITEM", help="Take out of a list.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Change configs; all changes of one command are made together or not at all."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    kind, name = _parse_resource(resource)
    operations = admin.AlterOperation
    changes = [admin.Alteration(key, value) for key, value in parse_pairs(values, "").items()]
    changes += [admin.Alteration(key, None, operations.DELETE) for key in unset or ()]
    changes += [admin.Alteration(k, v, operations.APPEND) for k, v in parse_pairs(append, "--append").items()]
    changes += [admin.Alteration(k, v, operations.SUBTRACT) for k, v in parse_pairs(subtract, "--subtract").items()]
    if not changes:
        raise usage("nothing to change: give KEY=VALUE, --unset, --append or --subtract")

    async def work(client: ClusterClient) -> None:
        await admin.incremental_alter_configs(client, kind, name, changes, validate_only=dry_run)

    on_cluster(bootstrap, properties, work)
    words = {operations.SET: "set", operations.DELETE: "unset", operations.APPEND: "append"}
    rows = [
        {"key": change.name, "change": words.get(change.operation, "subtract"), "value": change.value}
        for change in changes
    ]
    show_rows(output, {"KEY": "key", "CHANGE": "change", "VALUE": "value"}, rows)


def _parse_resource(text: str) -> tuple[ResourceType, str]:
    from moldau.client import admin

    kind, _, name = text.partition("/")
    if kind == "topic" and name:
        return admin.ResourceType.TOPIC, name
    if kind == "broker":
        if name and not name.isdigit():
            raise usage(f"{text}: a broker's id is a number, as in broker/1")
        return admin.ResourceType.BROKER, name
    raise usage(f"{text!r} is no resource: write topic/NAME, broker/ID, or broker for the default of all brokers")
