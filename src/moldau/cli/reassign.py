"""`moldau reassign` and `moldau leader`: who holds partitions, and who leads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.kernel import TopicPartition

reassign_app = typer.Typer(add_completion=False, no_args_is_help=True, help="Move replicas between brokers.")
leader_app = typer.Typer(add_completion=False, no_args_is_help=True, help="Choose who leads partitions.")

Brokers = Annotated[str | None, typer.Option("--brokers", help="Ids that shall hold the replicas; all by default.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be given several times.")]
COLUMNS = {"TOPIC": "topic", "PARTITION": "partition", "NOW": "now", "NEXT": "next"}


@leader_app.callback()
def _group() -> None:
    """Choose who leads partitions."""


@reassign_app.command()
def plan(
    brokers: Brokers = None,
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show which partitions would move, and change nothing."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    show_rows(output, COLUMNS, on_cluster(bootstrap, properties, lambda client: _plan(client, brokers, topics)))


@reassign_app.command()
def execute(
    brokers: Brokers = None,
    topics: Topics = None,
    throttle: Annotated[
        str | None, typer.Option("--throttle", help="Copy at most so many bytes per second and broker, e.g. 10M.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all replicas have moved.")] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Move what `plan` shows. Partitions can be used all the time."""
    from moldau.cli import reassign_throttle
    from moldau.cli.output import say, show_rows
    from moldau.cli.remote import on_cluster

    rate = None if throttle is None else reassign_throttle.parse_rate(throttle)

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        rows = await _plan(client, brokers, topics)
        if rate is not None and rows:
            await reassign_throttle.throttle(client, rows, rate)
            say(f"at most {rate:,} bytes/s; should this command not end by itself: moldau reassign unthrottle")
        await move(client, rows, wait=wait)
        if rate is not None and wait:
            await reassign_throttle.unthrottle(client, sorted({row["topic"] for row in rows}))
        return rows

    rows = on_cluster(bootstrap, properties, work)
    show_rows(output, COLUMNS, rows)
    if not rows:
        say("nothing to move: the replicas are where they should be")


@reassign_app.command()
def status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Output.TABLE, properties: Property = None
) -> None:
    """Show the partitions that are on their way."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import list_reassignments

    found = on_cluster(bootstrap, properties, list_reassignments)
    rows = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "replicas": each.replicas,
            "adding": each.adding,
            "removing": each.removing,
        }
        for each in found
    ]
    columns = {"TOPIC": "topic", "PARTITION": "partition", "REPLICAS": "replicas", "ADDING": "adding"}
    show_rows(output, {**columns, "REMOVING": "removing"}, rows)


@reassign_app.command()
def cancel(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Property = None) -> None:
    """Stop what is under way; partitions go back to the replicas that they had."""
    from moldau.cli.output import say
    from moldau.cli.remote import on_cluster
    from moldau.client import list_reassignments, reassign

    async def work(client: ClusterClient) -> int:
        ongoing = await list_reassignments(client)
        if ongoing:
            await reassign(client, {each.partition: None for each in ongoing})
        return len(ongoing)

    say(f"stopped {on_cluster(bootstrap, properties, work)} moves")


@reassign_app.command()
def unthrottle(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: Property = None) -> None:
    """Let replicas be copied as fast as they can again."""
    from moldau.cli.reassign_throttle import unthrottle as remove
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    async def work(client: ClusterClient) -> None:
        await remove(client, [topic.name for topic in await admin.list_topics(client)])

    on_cluster(bootstrap, properties, work)


@leader_app.command()
def elect(
    topics: Topics = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Where nobody in sync is alive, take anybody: records may be lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Give leadership back to the preferred replicas, the first of each partition."""
    from moldau.cli.output import confirm, show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import elect_leaders
    from moldau.kernel import ErrorCode

    if unclean:
        confirm("Records that were acknowledged may be lost. Elect leaders that are not in sync?", yes=yes)

    async def work(client: ClusterClient) -> dict[TopicPartition, ErrorCode]:
        partitions = None if topics is None else list(await _assignment(client, topics))
        return await elect_leaders(client, partitions, unclean=unclean)

    rows = [
        {"topic": partition.topic, "partition": partition.partition, "result": code.name.lower() if code else "elected"}
        for partition, code in sorted(on_cluster(bootstrap, properties, work).items())
    ]
    show_rows(output, {"TOPIC": "topic", "PARTITION": "partition", "RESULT": "result"}, rows)


# -- the work ----------------------------------------------------------------------------------------------------------


async def _plan(client: ClusterClient, brokers: str | None, topics: list[str] | None) -> list[dict[str, Any]]:
    from moldau.client import admin

    cluster = await admin.describe_cluster(client)
    alive = [node.id for node in cluster.nodes if node.id not in cluster.fenced]
    chosen = alive if brokers is None else _ids(brokers)
    missing = sorted(set(chosen) - set(alive))
    if missing:
        raise CommandError(f"broker {missing[0]} is not running; `moldau node list` shows who is")
    return await plan_rows(client, chosen, topics)


async def plan_rows(client: ClusterClient, brokers: list[int], topics: list[str] | None) -> list[dict[str, Any]]:
    from moldau.cli.reassign_plan import plan_moves
    from moldau.client import admin, list_reassignments

    # What is on its way is, for the plan, where it goes.
    leaving = {each.partition: each.removing for each in await list_reassignments(client)}
    now = {
        partition: tuple(replica for replica in replicas if replica not in leaving.get(partition, ()))
        for partition, replicas in (await _assignment(client, topics)).items()
    }
    racks = {node.id: node.rack for node in (await admin.describe_cluster(client)).nodes}
    try:
        moves = plan_moves(now, brokers, racks)
    except ValueError as error:
        raise CommandError(f"{error}; name more brokers") from None
    return [
        {"topic": each.topic, "partition": each.partition, "now": now[each], "next": moves[each]}
        for each in sorted(moves)
    ]


async def move(client: ClusterClient, rows: list[dict[str, Any]], *, wait: bool) -> None:
    import asyncio

    from moldau.cli.output import say
    from moldau.client import list_reassignments, reassign
    from moldau.kernel import TopicPartition

    if not rows:
        return
    moves = {TopicPartition(row["topic"], row["partition"]): row["next"] for row in rows}
    await reassign(client, moves)
    left = len(rows)
    while wait and left:
        ongoing = sum(each.partition in moves for each in await list_reassignments(client))
        if ongoing != left:
            left = ongoing
            say(f"{len(rows) - left} of {len(rows)} partitions moved")
        if left:
            await asyncio.sleep(0.3)


async def _assignment(client: ClusterClient, topics: list[str] | None) -> dict[TopicPartition, tuple[int, ...]]:
    from moldau.client import admin
    from moldau.kernel import TopicPartition

    names = topics or [topic.name for topic in await admin.list_topics(client)]
    return {
        TopicPartition(topic.name, each.partition): tuple(each.replicas)
        for topic in (await admin.describe_topics(client, names) if names else [])
        for each in topic.partitions
    }


def _ids(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise usage(f"--brokers {text}: give ids with commas between them, e.g. 1,2,3") from None
