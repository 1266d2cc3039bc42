"""`moldau cluster`: who is in the cluster, and how it is restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from moldau.cli import cluster_roll
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show the cluster, and restart it node by node.")


@app.callback()
def _group() -> None:
    """Show the cluster, and restart it node by node."""


@app.command()
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show the cluster's id, controller, brokers, metadata quorum and features."""
    from moldau.cli.feature import FEATURE_COLUMNS
    from moldau.cli.output import show_fields, show_object, show_table
    from moldau.cli.remote import on_cluster

    found = on_cluster(bootstrap, properties, _describe)
    if show_object(output, found):
        return
    brokers, quorum = found["brokers"], found["quorum"]
    shown = {"id": found["cluster_id"], "controller": found["controller"], "brokers": len(brokers)}
    if quorum is not None:
        shown |= {"quorum leader": quorum["leader"], "quorum epoch": quorum["epoch"]}
        shown |= {"metadata offset": quorum["high_watermark"]}
    show_fields("cluster", shown)
    print()
    show_table({"BROKER": "id", "HOST": "host", "PORT": "port", "RACK": "rack", "FENCED": "fenced"}, brokers)
    if quorum is not None:
        print()
        columns = {"NODE": "id", "ROLE": "role", "END": "log_end_offset", "LAG": "lag", "DIRECTORY": "directory_id"}
        show_table(columns, quorum["replicas"])
    print()
    show_table(FEATURE_COLUMNS, found["features"])


app.command("roll")(cluster_roll.roll)


async def _describe(client: ClusterClient) -> dict[str, Any]:
    from moldau.cli.feature import feature_rows
    from moldau.client import admin

    cluster = await admin.describe_cluster(client)
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": [
            {
                "id": node.id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "fenced": node.id in cluster.fenced,
            }
            for node in cluster.nodes
        ],
        "quorum": await quorum_of(client),
        "features": feature_rows(await admin.describe_features(client)),
    }


async def quorum_of(client: ClusterClient) -> dict[str, Any] | None:
    """None where the cluster does not show its quorum (ZooKeeper, or a service that hides it)."""
    from moldau.client import admin
    from moldau.kernel import KafkaError

    try:
        quorum = await admin.describe_quorum(client)
    except KafkaError:
        return None
    ends = [replica.log_end_offset for replica in quorum.voters if replica.id == quorum.leader_id]
    end = max(ends, default=quorum.high_watermark)
    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "replicas": [
            {
                "id": replica.id,
                "role": "leader" if replica.id == quorum.leader_id else role,
                "log_end_offset": replica.log_end_offset,
                "lag": max(0, end - replica.log_end_offset),
                "directory_id": replica.directory_id,
            }
            for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers))
            for replica in replicas
        ],
    }
