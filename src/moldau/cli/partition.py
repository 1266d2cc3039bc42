"""`moldau partition`: who leads which partition, which of them miss a replica, which of them miss a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show partitions, those in trouble for instance.")

COLUMNS = {"TOPIC": "topic", "PARTITION": "partition", "LEADER": "leader", "REPLICAS": "replicas", "IN SYNC": "isr"}
NO_LEADER = -1


@app.callback()
def _group() -> None:
    """Show partitions, those in trouble for instance."""


@app.command("list")
def list_partitions(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="All topics by default.")] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only those of which a replica is not in sync.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only those that have no leader.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show partitions with their leaders, replicas and in-sync replicas. With two filters, those that meet either."""
    from moldau.cli.output import say, show_rows
    from moldau.cli.remote import on_cluster

    rows = on_cluster(bootstrap, properties, lambda client: _rows(client, topics))
    if under_replicated or offline:
        rows = [
            row
            for row in rows
            if (under_replicated and len(row["isr"]) < len(row["replicas"])) or (offline and row["leader"] == NO_LEADER)
        ]
    show_rows(output, COLUMNS, rows)
    if not rows:
        say("no such partitions")


async def _rows(client: ClusterClient, topics: list[str] | None) -> list[dict[str, Any]]:
    from moldau.client import admin

    names = topics or [topic.name for topic in await admin.list_topics(client)]
    return [
        {
            "topic": topic.name,
            "partition": each.partition,
            "leader": each.leader,
            "replicas": list(each.replicas),
            "isr": list(each.isr),
        }
        for topic in (await admin.describe_topics(client, names) if names else [])
        for each in topic.partitions
    ]
