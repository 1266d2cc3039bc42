"""`moldau node` and `moldau quorum`: the members of the cluster, and those that agree on its metadata."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient

node_app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show brokers and take them out of service.")
quorum_app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show and change the metadata quorum.")

NodeId = Annotated[int, typer.Argument(help="The node's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@node_app.command("list")
def list_nodes(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Output.TABLE, properties: Property = None
) -> None:
    """Show every broker, what it leads and what it holds."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    columns = {"ID": "id", "HOST": "host", "PORT": "port", "RACK": "rack", "FENCED": "fenced"}
    columns |= {"LEADS": "leads", "HOLDS": "holds", "IN SYNC": "in_sync"}
    show_rows(output, columns, on_cluster(bootstrap, properties, _nodes))


@node_app.command()
def describe(
    node_id: NodeId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show one broker and its directories."""
    from moldau.cli.output import bytes_text, show_fields, show_object, show_table
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    async def work(client: ClusterClient) -> dict[str, Any]:
        row = await _find(client, node_id)
        directories = [] if row["fenced"] else await admin.describe_log_dirs(client, [node_id])
        row["directories"] = [
            {
                "path": each.path,
                "replicas": len(each.replicas),
                "bytes": sum(replica.size_bytes for replica in each.replicas),
                "state": each.error.name.lower() if each.error else "ok",
            }
            for each in directories
        ]
        return row

    found = on_cluster(bootstrap, properties, work)
    if show_object(output, found):
        return
    directories = found.pop("directories")
    show_fields(f"node {node_id}", found)
    print()
    columns = {"DIRECTORY": "path", "REPLICAS": "replicas", "SIZE": "size", "STATE": "state"}
    show_table(columns, [{**each, "size": bytes_text(each["bytes"])} for each in directories])


@node_app.command()
def decommission(
    node_id: NodeId,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Property = None,
) -> None:
    """Move everything away from a broker, so that it can be stopped for good."""
    import asyncio

    from moldau.cli.output import confirm, say
    from moldau.cli.reassign import move, plan_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import list_reassignments

    confirm(f"Move every replica away from node {node_id}?", yes=yes)

    async def work(client: ClusterClient) -> int:
        await _find(client, node_id)
        others = [row["id"] for row in await _nodes(client) if row["id"] != node_id and not row["fenced"]]
        if not others:
            raise CommandError(f"node {node_id} is the only broker that runs: there is nowhere to move its replicas")
        rows = [row for row in await plan_rows(client, others, None) if node_id in row["now"]]
        await move(client, rows, wait=True)
        # Also what somebody else was moving away from it.
        while any(node_id in each.removing for each in await list_reassignments(client)):
            await asyncio.sleep(0.3)
        return len(rows)

    moved = on_cluster(bootstrap, properties, work)
    say(
        f"moved {moved} partitions; node {node_id} holds nothing any more. Stop it, then run"
        f" `moldau node unregister {node_id}`"
    )


@node_app.command()
def unregister(
    node_id: NodeId, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Property = None
) -> None:
    """Forget a broker that has been stopped for good."""
    from moldau.cli.output import confirm, say
    from moldau.cli.remote import on_cluster
    from moldau.client import unregister_broker

    confirm(f"Forget node {node_id}? Replicas that it still holds are lost to the cluster.", yes=yes)

    async def work(client: ClusterClient) -> None:
        row = await _find(client, node_id)
        if not row["fenced"]:
            raise CommandError(f"node {node_id} runs: stop it first, or it comes back")
        await unregister_broker(client, node_id)

    on_cluster(bootstrap, properties, work)
    say(f"node {node_id} is forgotten")


# -- the quorum --------------------------------------------------------------------------------------------------------


@quorum_app.command("describe")
def describe_quorum(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Output.TABLE, properties: Property = None
) -> None:
    """Show who leads the metadata log, who votes, and how far everybody has followed."""
    from moldau.cli.cluster import quorum_of
    from moldau.cli.output import show_fields, show_object, show_table
    from moldau.cli.remote import on_cluster

    found = on_cluster(bootstrap, properties, quorum_of)
    if found is None:
        raise CommandError("the cluster does not show its quorum", EXIT_NOT_FOUND)
    if show_object(output, found):
        return
    shown = {"leader": found["leader"], "epoch": found["epoch"], "agreed offset": found["high_watermark"]}
    show_fields("quorum", shown)
    print()
    columns = {"NODE": "id", "ROLE": "role", "END": "log_end_offset", "LAG": "lag", "DIRECTORY": "directory_id"}
    show_table(columns, found["replicas"])


@quorum_app.command()
def add(
    node_id: NodeId,
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="Where it listens for controllers: CONTROLLER://host:port.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Property = None,
) -> None:
    """Make a controller that follows the log a voter."""
    from moldau.cli.output import say
    from moldau.cli.remote import on_cluster
    from moldau.client import add_voter

    name, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdigit()):
        raise usage(f"--endpoint {endpoint}: write it as CONTROLLER://host:port")

    async def work(client: ClusterClient) -> None:
        replica = await _replica(client, node_id, "observer")
        await add_voter(client, node_id, replica["directory_id"], [(name, host.strip("[]"), int(port))])

    on_cluster(bootstrap, properties, work)
    say(f"node {node_id} votes now")


@quorum_app.command()
def remove(
    node_id: NodeId, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Property = None
) -> None:
    """Take a voter out of the quorum."""
    from moldau.cli.output import confirm, say
    from moldau.cli.remote import on_cluster
    from moldau.client import remove_voter

    confirm(f"Take node {node_id} out of the metadata quorum?", yes=yes)

    async def work(client: ClusterClient) -> None:
        replica = await _replica(client, node_id, "voter")
        await remove_voter(client, node_id, replica["directory_id"])

    on_cluster(bootstrap, properties, work)
    say(f"node {node_id} votes no more")


# -- the work ----------------------------------------------------------------------------------------------------------


async def _nodes(client: ClusterClient) -> list[dict[str, Any]]:
    from moldau.client import admin

    cluster = await admin.describe_cluster(client)
    names = [topic.name for topic in await admin.list_topics(client)]
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for topic in await admin.describe_topics(client, names) if names else []:
        for partition in topic.partitions:
            leads[partition.leader] += 1
            holds.update(partition.replicas)
            in_sync.update(partition.isr)
    return [
        {
            "id": node.id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "fenced": node.id in cluster.fenced,
            "leads": leads[node.id],
            "holds": holds[node.id],
            "in_sync": in_sync[node.id],
        }
        for node in cluster.nodes
    ]


async def _find(client: ClusterClient, node_id: int) -> dict[str, Any]:
    for row in await _nodes(client):
        if row["id"] == node_id:
            return row
    raise CommandError(f"there is no node {node_id}; `moldau node list` shows them", EXIT_NOT_FOUND)


async def _replica(client: ClusterClient, node_id: int, role: str) -> dict[str, Any]:
    """A member of the quorum in this role (the leader is a voter)."""
    from moldau.cli.cluster import quorum_of

    quorum = await quorum_of(client)
    roles = {"voter": ("voter", "leader"), "observer": ("observer",)}[role]
    for replica in quorum["replicas"] if quorum is not None else ():
        if replica["id"] == node_id and replica["role"] in roles:
            return dict(replica)
    raise CommandError(f"node {node_id} is no {role} of the quorum; `moldau quorum describe` shows it", EXIT_NOT_FOUND)
