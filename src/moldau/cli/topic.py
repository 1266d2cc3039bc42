"""`moldau topic`: topics and what is in them, over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli import topic_export, topic_import
from moldau.cli.errors import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property, Yes, parse_pairs

if TYPE_CHECKING:
    from moldau.client import ClusterClient, TopicInfo
    from moldau.kernel import TopicPartition

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, create, describe, alter, delete, trim, export topics."
)
app.command()(topic_export.export)
app.command("import")(topic_import.import_)

# How many partitions one DeleteRecords request names: small enough for a bar that moves.
TRIMMED_AT_ONCE = 32

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="One or several topics.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", show_default=False)]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """List the topics of the cluster."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.kernel import uuid_text

    metadata = on_cluster(bootstrap, properties, lambda client: client.metadata(None))
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(one.replicas) for one in topic.partitions), default=0),
            "internal": topic.is_internal,
            "topic_id": uuid_text(topic.topic_id),
        }
        for _, topic in sorted(metadata.topics.items())
        if internal or not topic.is_internal
    ]
    columns = {"NAME": "name", "PARTITIONS": "partitions", "REPLICATION": "replication_factor", "ID": "topic_id"}
    show_rows(output, columns, rows)


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", help="How many partitions; -1 is the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("-r", "--replication-factor", help="How many replicas; -1 is the broker's default.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", metavar="KEY=VALUE", help="A topic config; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is no error.")
    ] = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check, and create nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Create topics."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin
    from moldau.kernel import ErrorCode, KafkaError

    configs = parse_pairs(config, "--config")

    async def create_one(client: ClusterClient, name: str) -> dict[str, Any]:
        try:
            (made,) = await admin.create_topics(
                client,
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
            )
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not if_not_exists:
                raise
            return {"name": name, "result": "exists"}
        return {
            "name": name,
            "result": "valid" if validate_only else "created",
            "partitions": made.partition_count,
            "replication_factor": made.replication_factor,
            "topic_id": made.topic_id,
        }

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        return [await create_one(client, name) for name in names]

    rows = on_cluster(bootstrap, properties, work)
    columns = {
        "NAME": "name",
        "RESULT": "result",
        "PARTITIONS": "partitions",
        "REPLICATION": "replication_factor",
    }
    show_rows(output, columns, rows)


@app.command()
def describe(
    names: Names,
    sizes: Annotated[bool, typer.Option("--sizes", help="Show bytes on disk, and in which directories.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show partitions, leaders, replicas, offsets, and the configs that are not at their default."""
    import json

    from moldau.cli.output import json_line, show_fields, show_table
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        described = [await _describe(client, topic) for topic in await admin.describe_topics(client, names)]
        if sizes:
            await _add_sizes(client, described)
        return described

    topics = on_cluster(bootstrap, properties, work)
    if output is Output.JSON:
        print(json.dumps(topics, indent=2))
        return
    if output is Output.JSONL:
        for topic in topics:
            print(json_line(topic))
        return
    for index, topic in enumerate(topics):
        if index:
            print()
        partitions, configs = topic["partitions"], topic["configs"]
        shown = {"id": topic["topic_id"], "partitions": len(partitions), "internal": topic["internal"]}
        show_fields(topic["name"], shown)
        print()
        columns = ["partition", "leader", "epoch", "replicas", "isr", "offline", "start", "end", "records"]
        if sizes:
            columns += ["bytes", "directories"]
        show_table({title.upper(): title for title in columns}, partitions)
        if configs:
            print()
            show_table({"CONFIG": "name", "VALUE": "value", "SOURCE": "source"}, configs)


async def _add_sizes(client: ClusterClient, topics: list[dict[str, Any]]) -> None:
    """Bytes of the largest replica, which is the leader's when all are in sync, and where the replicas are."""
    from moldau.client import admin
    from moldau.kernel import TopicPartition

    held: dict[TopicPartition, list[tuple[int, str]]] = {}
    for log_dir in await admin.describe_log_dirs(client, topics=[topic["name"] for topic in topics]):
        for replica in log_dir.replicas:
            held.setdefault(replica.partition, []).append((replica.size_bytes, f"{log_dir.broker}:{log_dir.path}"))
    for topic in topics:
        for partition in topic["partitions"]:
            found = held.get(TopicPartition(topic["name"], partition["partition"]), [])
            partition["bytes"] = max((size for size, _ in found), default=None)
            partition["directories"] = [place for _, place in found]


async def _describe(client: ClusterClient, topic: TopicInfo) -> dict[str, Any]:
    from moldau.client import admin
    from moldau.kernel import NO_LEADER, TopicPartition, uuid_text

    # A partition without a leader has offsets that nobody can tell.
    led = [TopicPartition(topic.name, one.partition) for one in topic.partitions if one.leader != NO_LEADER]
    starts = await admin.list_offsets(client, dict.fromkeys(led, admin.EARLIEST)) if led else {}
    ends = await admin.list_offsets(client, dict.fromkeys(led, admin.LATEST)) if led else {}
    configs = await admin.describe_configs(client, admin.ResourceType.TOPIC, topic.name)
    partitions = []
    for one in topic.partitions:
        where = TopicPartition(topic.name, one.partition)
        start = starts[where].offset if where in starts else None
        end = ends[where].offset if where in ends else None
        partitions.append(
            {
                "partition": one.partition,
                "leader": one.leader if one.leader != NO_LEADER else None,
                "epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "offline": list(one.offline),
                "start": start,
                "end": end,
                "records": end - start if start is not None and end is not None else None,
            }
        )
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": partitions,
        "configs": [
            {"name": entry.name, "value": entry.value, "source": entry.source.name.lower()}
            for entry in configs
            if entry.source is not admin.ConfigSource.DEFAULT
        ],
    }


@app.command()
def alter(
    name: Name,
    partitions: Annotated[int | None, typer.Option("-p", "--partitions", help="Grow to this many partitions.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Take a config back to its default.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Add partitions, or change configs."""
    from moldau.cli.output import confirm, say, show_rows
    from moldau.cli.remote import find_topic, on_cluster
    from moldau.client import admin

    changes = [admin.Alteration(key, value) for key, value in parse_pairs(set_, "--set").items()]
    changes += [admin.Alteration(key, None, admin.AlterOperation.DELETE) for key in unset or ()]
    if partitions is None and not changes:
        raise usage("nothing to alter: give --partitions, --set or --unset")

    async def count(client: ClusterClient) -> int:
        return len((await find_topic(client, name)).partitions)

    async def work(client: ClusterClient) -> None:
        if partitions is not None and partitions != now:
            await admin.create_partitions(client, name, partitions)
        if changes:
            await admin.incremental_alter_configs(client, admin.ResourceType.TOPIC, name, changes)

    now = on_cluster(bootstrap, properties, count)
    if partitions is not None and partitions > now:
        say(
            f"warning: {name} grows from {now} to {partitions} partitions and keys move: from now on most keys hash to "
            "another partition than before, so the order of a key's old and new records is lost"
        )
        confirm(f"Add {partitions - now} partitions?", yes=yes)
    on_cluster(bootstrap, properties, work)
    rows: list[dict[str, Any]] = []
    if partitions is not None:
        rows.append({"name": name, "changed": "partitions", "from": now, "to": partitions})
    rows += [{"name": name, "changed": change.name, "from": None, "to": change.value} for change in changes]
    show_rows(output, {"NAME": "name", "CHANGED": "changed", "TO": "to"}, rows)


@app.command()
def delete(
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is no error.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Delete topics with everything in them."""
    from moldau.cli.errors import explain
    from moldau.cli.output import confirm, say, show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin
    from moldau.kernel import ErrorCode, KafkaError

    worst = EXIT_OK
    confirm(f"Delete {', '.join(names)} with all records?", yes=yes)

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        nonlocal worst
        rows = []
        for name in names:
            try:
                await admin.delete_topics(client, name)
            except KafkaError as error:
                missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                rows.append({"name": name, "result": "not found" if missing else "refused"})
                if missing and if_exists:
                    continue
                # One that cannot be deleted does not keep the others.
                line, code = explain(KafkaError(error.code, f"topic {name!r} does not exist") if missing else error)
                say(f"error: {line}")
                worst = code if worst in (EXIT_OK, EXIT_NOT_FOUND) else worst
                continue
            rows.append({"name": name, "result": "deleted"})
        return rows

    rows = on_cluster(bootstrap, properties, work)
    show_rows(output, {"NAME": "name", "RESULT": "result"}, rows)
    if worst != EXIT_OK:
        raise typer.Exit(worst)


@app.command()
def trim(
    name: Name,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="Delete what comes before this offset.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="DATETIME", help="Delete what comes before the first record of then."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete every record.")] = False,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Only this partition; may be repeated.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Delete the oldest records of a topic's partitions; offsets are never used again."""
    import time

    from moldau.cli.options import parse_time
    from moldau.cli.output import confirm, show_rows
    from moldau.cli.remote import on_cluster

    if [to_offset is not None, before is not None, everything].count(True) != 1:
        raise usage("choose one of --to-offset N, --before DATETIME and --all")
    before_ms = parse_time(before, int(time.time() * 1000)) if before is not None else None

    async def plan(client: ClusterClient) -> list[dict[str, Any]]:
        return await _plan_trim(client, name, partition, to_offset, before_ms)

    planned = on_cluster(bootstrap, properties, plan)
    count = sum(row["to"] - row["start"] for row in planned)
    if count:
        confirm(f"Delete {count} records of {name}?", yes=yes)
    rows = on_cluster(bootstrap, properties, lambda client: _trim(client, name, planned))
    show_rows(output, {"PARTITION": "partition", "START": "start", "END": "end", "TRIMMED": "trimmed"}, rows)


async def _plan_trim(
    client: ClusterClient, name: str, chosen: list[int] | None, to_offset: int | None, before_ms: int | None
) -> list[dict[str, Any]]:
    from moldau.client import admin

    where = await choose_partitions(client, name, chosen)
    starts = await admin.list_offsets(client, dict.fromkeys(where, admin.EARLIEST))
    ends = await admin.list_offsets(client, dict.fromkeys(where, admin.LATEST))
    later = await admin.list_offsets(client, dict.fromkeys(where, before_ms)) if before_ms is not None else {}
    rows = []
    for one in where:
        start, end = starts[one].offset, ends[one].offset
        if to_offset is not None:
            target = to_offset
            if target > end:
                raise CommandError(
                    f"{one} ends at offset {end}, it cannot be trimmed to {target}: nothing was done; "
                    "choose partitions with --partition, or use --all",
                    EXIT_ERROR,
                )
        else:
            # No record of that time or later means that all are older.
            target = later[one].offset if one in later and later[one].offset >= 0 else end
        rows.append({"partition": one.partition, "start": start, "end": end, "to": max(target, start)})
    return rows


async def _trim(client: ClusterClient, name: str, planned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from moldau.cli.output import Progress
    from moldau.client import admin
    from moldau.kernel import TopicPartition

    rows = []
    with Progress(f"trimming {name}", len(planned)) as progress:
        for index in range(0, len(planned), TRIMMED_AT_ONCE):
            group = planned[index : index + TRIMMED_AT_ONCE]
            targets = {TopicPartition(name, row["partition"]): row["to"] for row in group if row["to"] > row["start"]}
            reached = await admin.delete_records(client, targets) if targets else {}
            for row in group:
                start = reached.get(TopicPartition(name, row["partition"]), row["start"])
                rows.append(
                    {
                        "partition": row["partition"],
                        "start": start,
                        "end": row["end"],
                        "trimmed": start - row["start"],
                    }
                )
            progress.update(len(rows), f"{len(rows)} of {len(planned)} partitions")
    return rows


async def choose_partitions(client: ClusterClient, name: str, chosen: list[int] | None) -> list[TopicPartition]:
    """A topic's partitions, all or the given ones; exit 3 for one that does not exist."""
    from moldau.cli.remote import find_topic
    from moldau.kernel import TopicPartition

    count = len((await find_topic(client, name)).partitions)
    for partition in chosen or ():
        if not 0 <= partition < count:
            raise CommandError(
                f"topic {name!r} has no partition {partition}: it has {count}, numbered from 0", EXIT_NOT_FOUND
            )
    return [TopicPartition(name, partition) for partition in (dict.fromkeys(chosen) if chosen else range(count))]
