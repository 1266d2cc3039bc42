"""`moldau cluster roll`: restart one node after the other, each only when all replicas are in sync again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient, Connection, Node
    from moldau.client.metadata import ClusterMetadata

COLUMNS = {"NODE": "id", "HOST": "host", "PORT": "port", "AWAY S": "away_s", "IN SYNC S": "in_sync_s"}
LOOK_SECONDS = 0.1
ANSWER_MS_MAX = 1_000
NO_LEADER = -1


def roll(
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="What restarts a node; {id}, {host} and {port} are filled in. Without it you are asked to do it.",
        ),
    ] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", help="Only these ids, e.g. 1,3; all by default.")] = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="The longest that a node may take for each step.")
    ] = 300.0,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Also when partitions cannot be used while their node is away.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Restart the cluster one node after the other, the active controller last.

    A node is restarted when every replica is in sync, and the next one when it is back and every replica is in sync
    again. At the end the first replicas lead again. It stops at the first node that does not come back.
    """
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    only = None if nodes is None else _ids(nodes)
    rolling = Rolling(command, wait_seconds, is_agreed=yes)
    show_rows(output, COLUMNS, on_cluster(bootstrap, properties, lambda client: rolling.run(client, only)))


def roll_order(nodes: Sequence[Node], active_controller: int) -> list[Node]:
    """Who leads the metadata quorum goes last: with it the election of the next one comes only once."""
    return sorted(nodes, key=lambda node: (node.id == active_controller, node.id))


class Rolling:
    def __init__(self, command: str | None, wait_seconds: float, *, is_agreed: bool) -> None:
        self._command = command
        self._wait_seconds = wait_seconds
        self._is_agreed = is_agreed

    async def run(self, client: ClusterClient, only: list[int] | None) -> list[dict[str, Any]]:
        from moldau.cli.cluster import quorum_of
        from moldau.cli.output import say
        from moldau.client import admin, elect_leaders

        cluster = await admin.describe_cluster(client)
        quorum = await quorum_of(client)
        wanted = [each for each in cluster.nodes if only is None or each.id in only]
        order = roll_order(wanted, quorum["leader"] if quorum is not None else cluster.controller_id)
        missing = sorted(set(only or ()) - {each.id for each in order})
        if missing:
            raise CommandError(f"there is no node {missing[0]}; `moldau node list` shows them")
        await self._check(client)
        rows = []
        for done, node in enumerate(order, 1):
            row = await self._restart(client, node)
            told = f"away for {row['away_s']} s, all in sync {row['in_sync_s']} s later"
            say(f"{done} of {len(order)}: node {node.id} is back, {told}")
            rows.append(row)
        await elect_leaders(client, None)
        return rows

    async def _check(self, client: ClusterClient) -> None:
        from moldau.cli.output import confirm

        seen = _seen(await client.metadata())
        if seen.lacking:
            raise CommandError(
                f"{len(seen.lacking)} partitions lack a replica already, e.g. {seen.lacking[0]};"
                " `moldau partition list --under-replicated` shows them"
            )
        if seen.single:
            told = f"{len(seen.single)} partitions have one replica, e.g. {seen.single[0]}"
            confirm(f"{told}: nobody can use them while it is away. Go on?", yes=self._is_agreed)

    async def _restart(self, client: ClusterClient, node: Node) -> dict[str, Any]:
        from moldau.cli.output import say

        connection = await client.connection_to(node.id)
        began = time.monotonic()
        if self._command is None:
            say(f"restart node {node.id} ({node.host}:{node.port}) now")
        else:
            await _execute(_filled_in(self._command, node), node)
        await self._until(lambda: _is_gone(connection), f"node {node.id} was not stopped")
        gone = time.monotonic()
        await self._until(lambda: _is_back(node), f"node {node.id} did not come back")
        back = time.monotonic()
        await self._until(lambda: _is_in_sync(node), f"not all replicas are in sync again after node {node.id}")
        return {
            "id": node.id,
            "host": node.host,
            "port": node.port,
            "away_s": round(back - (gone if self._command is None else began), 1),
            "in_sync_s": round(time.monotonic() - back, 1),
        }

    async def _until(self, condition: Callable[[], Any], otherwise: str) -> None:
        deadline = time.monotonic() + self._wait_seconds
        while not await condition():
            if time.monotonic() > deadline:
                raise CommandError(f"{otherwise} within {self._wait_seconds:g} s; the nodes after it are as they were")
            await asyncio.sleep(LOOK_SECONDS)


def _filled_in(command: str, node: Node) -> str:
    # Other braces are the shell's.
    for name, value in (("{id}", node.id), ("{host}", node.host), ("{port}", node.port)):
        command = command.replace(name, str(value))
    return command


async def _execute(command: str, node: Node) -> None:
    process = await asyncio.create_subprocess_shell(command)
    code = await process.wait()
    if code:
        raise CommandError(f"{command!r} for node {node.id} ended with {code}; the nodes after it are as they were")


async def _is_gone(connection: Connection) -> bool:
    return connection.closed


async def _is_back(node: Node) -> bool:
    seen = await _seen_by(node)
    return seen is not None and node.id in seen.node_ids


async def _is_in_sync(node: Node) -> bool:
    seen = await _seen_by(node)
    return seen is not None and not seen.lacking


@dataclass(frozen=True)
class Seen:
    """What one node says of the cluster."""

    node_ids: frozenset[int]
    # Partitions that lack a replica or a leader, and those that have only one replica.
    lacking: list[str]
    single: list[str]


async def _seen_by(node: Node) -> Seen | None:
    """None while it does not answer. It is asked itself: others may not have heard yet that it was away."""
    from moldau.client import ClusterClient
    from moldau.kernel import KafkaError

    host = f"[{node.host}]" if ":" in node.host else node.host
    try:
        async with ClusterClient(f"{host}:{node.port}") as client:
            return _seen(await client.metadata(timeout_ms=ANSWER_MS_MAX))
    except (OSError, KafkaError):
        return None


def _seen(metadata: ClusterMetadata) -> Seen:
    partitions = [each for topic in metadata.topics.values() for each in topic.partitions]
    lacking = [each for each in partitions if len(each.isr) < len(each.replicas) or each.leader == NO_LEADER]
    single = [each for each in partitions if len(each.replicas) == 1]
    return Seen(
        frozenset(metadata.nodes),
        [f"{each.topic}-{each.partition}" for each in lacking],
        [f"{each.topic}-{each.partition}" for each in single],
    )


def _ids(text: str) -> list[int]:
    from moldau.cli.errors import usage

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise usage(f"--nodes {text}: give ids with commas between them, e.g. 1,3") from None
