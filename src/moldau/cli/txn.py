"""`moldau txn`: transactions as coordinators and as partitions know them, and the end of those that hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.group_plan import DryRun, Execute, refuse_both_modes
from moldau.cli.group_text import by_topic, parse_scope, partitions_text
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Output,
    OutputFormat,
    Property,
    parse_duration_ms,
    time_text,
)

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.transaction_admin import OpenTransaction, ProducerState, TransactionDescription
    from moldau.kernel import TopicPartition

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List and describe transactions; find and abort those that hang.",
)

PRODUCER_ID_MAX, PRODUCER_EPOCH_MAX, COORDINATOR_EPOCH_MAX = 2**63 - 1, 2**15 - 1, 2**31 - 1
Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="One or several transactional ids.", show_default=False)
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="DURATION", help="Only those that run for longer, such as 15m.")
]
_HANGING_COLUMNS = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "PRODUCER_ID": "producer_id",
    "EPOCH": "producer_epoch",
    "COORDINATOR_EPOCH": "coordinator_epoch",
    "START_OFFSET": "start_offset",
    "LAST_WRITE": "when",
    "TRANSACTIONAL_ID": "transactional_id",
}


# -- what coordinators know --------------------------------------------------------------------------------------------


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state, such as ongoing; may be repeated.")
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", max=PRODUCER_ID_MAX, help="Only of this producer; may be repeated."),
    ] = None,
    older_than: OlderThan = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="Only ids that are all matched by this expression of RE2, as in till-.*"
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """List the transactional ids of the cluster, with the state of their last transaction."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import transaction_admin

    states = [_known_state(one, transaction_admin.TRANSACTION_STATES) for one in state or ()]
    older_than_ms = -1
    if older_than is not None:
        older_than_ms = parse_duration_ms("--older-than", older_than)
        # Brokers count from when an id's last transaction began, or from 1970, also when none runs.
        states = states or list(transaction_admin.OPEN_STATES)
    found = on_cluster(
        bootstrap,
        properties,
        lambda client: transaction_admin.list_transactions(
            client, states=states, producer_ids=producer_id or (), older_than_ms=older_than_ms, pattern=pattern
        ),
    )
    rows = [
        {
            "transactional_id": one.transactional_id,
            "producer_id": one.producer_id,
            "state": one.state,
            "coordinator": one.coordinator,
        }
        for one in found
    ]
    columns = ("transactional_id", "producer_id", "state", "coordinator")
    show_rows(output, {title.upper(): title for title in columns}, rows)


def _known_state(text: str, names: tuple[str, ...]) -> str:
    """One of the names, however it is written: `prepare-commit` is PrepareCommit."""
    plain = "".join(character for character in text.lower() if character.isalpha())
    for name in names:
        if name.lower() == plain:
            return name
    raise usage(f"--state {text}: there are {', '.join(names)}")


@app.command()
def describe(
    transactional_ids: Ids,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show what the coordinator knows: state, producer, time-out, and the partitions that wait for the end."""
    import time

    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import transaction_admin
    from moldau.kernel import ErrorCode, KafkaError

    async def work(client: ClusterClient) -> list[TransactionDescription]:
        found = await transaction_admin.describe_transactions(client, transactional_ids)
        for answer in found.values():
            if isinstance(answer, KafkaError):
                if answer.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise CommandError(f"{answer}; `moldau txn list` shows all", EXIT_NOT_FOUND)
                raise answer
        return [answer for answer in found.values() if not isinstance(answer, KafkaError)]

    described = [_description(one, int(time.time() * 1000)) for one in on_cluster(bootstrap, properties, work)]
    if output is not Output.TABLE:
        show_rows(output, {}, described)
        return
    for index, one in enumerate(described):
        if index:
            print()
        _show_description(one)


def _description(one: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "coordinator": one.coordinator,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "start_ms": one.start_ms,
        "duration_ms": None if one.start_ms is None else max(0, now_ms - one.start_ms),
        "partitions": by_topic(one.partitions),
    }


def _show_description(one: dict[str, Any]) -> None:
    from moldau.cli.output import show_fields

    shown = {name.replace("_", " "): one[name] for name in ("state", "coordinator")}
    shown["producer"] = f"{one['producer_id']} (epoch {one['producer_epoch']})"
    shown["timeout"] = f"{one['timeout_ms']} ms"
    if one["start_ms"] is not None:
        shown["started"] = f"{time_text(one['start_ms'])} ({one['duration_ms']} ms ago)"
    shown["partitions"] = (
        " ".join(f"{topic}:{partitions_text(numbers)}" for topic, numbers in one["partitions"].items()) or "-"
    )
    show_fields(one["transactional_id"], shown)


# -- what partitions know ----------------------------------------------------------------------------------------------


@app.command()
def producers(
    scope: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:PARTITIONS]", help="A topic, or partitions as in orders:0,2-4."),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show the producers that partitions remember, and where their open transactions start."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import transaction_admin

    async def work(client: ClusterClient) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        return await transaction_admin.describe_producers(client, await _chosen(client, [scope], None))

    found = on_cluster(bootstrap, properties, work)
    rows: list[dict[str, Any]] = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
            "last_sequence": state.last_sequence,
            "last_timestamp_ms": state.last_timestamp_ms,
            "coordinator_epoch": state.coordinator_epoch,
            "start_offset": state.transaction_start_offset,
        }
        for where, states in found.items()
        for state in states
    ]
    titles = {
        "TOPIC": "topic",
        "PARTITION": "partition",
        "PRODUCER_ID": "producer_id",
        "EPOCH": "producer_epoch",
        "LAST_SEQUENCE": "last_sequence",
        "LAST_WRITE": "when",
        "COORDINATOR_EPOCH": "coordinator_epoch",
        "START_OFFSET": "start_offset",
    }
    if output is Output.TABLE:
        rows = [row | {"when": time_text(row["last_timestamp_ms"])} for row in rows]
    show_rows(output, titles, rows)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:PARTITIONS]", help="Look only here, as in orders:0,2-4; may be repeated."
        ),
    ] = None,
    broker: Annotated[int | None, typer.Option("--broker", help="Look only where this broker leads.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Only if nothing was written for so long; else the brokers' transaction.max.timeout.ms, "
            "15m at the least.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Find transactions that partitions have open and no coordinator will end: readers of committed records wait there.

    Says how to abort them.
    """
    import sys
    import time

    from moldau.cli.output import say, show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import transaction_admin

    limit_ms = None if older_than is None else parse_duration_ms("--older-than", older_than)

    async def work(client: ClusterClient) -> list[OpenTransaction]:
        older_than_ms = limit_ms if limit_ms is not None else await transaction_admin.max_timeout_ms(client)
        partitions = await _chosen(client, topic, broker)
        return await transaction_admin.find_hanging(
            client, partitions, now_ms=int(time.time() * 1000), older_than_ms=older_than_ms
        )

    found = on_cluster(bootstrap, properties, work)
    rows = [_open_row(one) for one in found]
    if output is Output.TABLE:
        rows = [row | {"when": time_text(row["last_timestamp_ms"])} for row in rows]
    show_rows(output, _HANGING_COLUMNS, rows)
    sys.stdout.flush()  # the remark comes after it, also where both go into one file
    for row in rows:
        say(f"`moldau txn abort {row['topic']} {row['partition']} --start-offset {row['start_offset']}` ends it")
    if not rows:
        say("no transaction hangs there")


def _open_row(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "coordinator_epoch": one.producer.coordinator_epoch,
        "start_offset": one.producer.transaction_start_offset,
        "last_timestamp_ms": one.producer.last_timestamp_ms,
        "transactional_id": one.transactional_id,
    }


async def _chosen(client: ClusterClient, topics: list[str] | None, broker: int | None) -> list[TopicPartition]:
    from moldau.cli.topic import choose_partitions
    from moldau.client import transaction_admin

    if broker is not None and broker not in (await client.metadata([])).nodes:
        raise CommandError(
            f"the cluster has no broker {broker} now; `moldau cluster describe` shows them", EXIT_NOT_FOUND
        )
    if not topics:
        return await transaction_admin.partitions_with_leader(client, broker=broker)
    scopes = [parse_scope(text) for text in topics]
    wanted = {where for name, some in scopes for where in await choose_partitions(client, name, some)}
    led = await transaction_admin.partitions_with_leader(client, {name for name, _ in scopes}, broker=broker)
    return [where for where in led if where in wanted]


# -- abort -------------------------------------------------------------------------------------------------------------


@app.command()
def abort(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the transaction hangs.", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Its partition.", show_default=False)],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", help="Where the transaction starts, as find-hanging shows it.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", max=PRODUCER_ID_MAX, help="Instead of --start-offset.")
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", min=0, max=PRODUCER_EPOCH_MAX, help="With --producer-id.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None,
        typer.Option(
            "--coordinator-epoch", min=0, max=COORDINATOR_EPOCH_MAX, help="With --producer-id; 0 if it is not known."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if its coordinator would end it: it may be committed elsewhere.")
    ] = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Abort a hanging transaction in one partition. Shows the plan; --execute does it."""
    import sys

    from moldau.cli.output import say, show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import transaction_admin
    from moldau.kernel import TopicPartition

    refuse_both_modes(execute, dry_run)
    numbers = _given_producer(start_offset, producer_id, producer_epoch, coordinator_epoch)
    where = TopicPartition(topic, partition)

    async def work(client: ClusterClient) -> dict[str, Any]:
        target = await _target(client, where, start_offset, numbers)
        if not force and not await transaction_admin.hanging_among(client, [target]):
            raise CommandError(
                f"the transaction is not hanging: the coordinator of transactional id {target.transactional_id!r} will "
                "end it, at its time-out at the latest; nothing was done; --force aborts it here all the same",
                EXIT_ERROR,
            )
        if execute:
            await transaction_admin.abort_transaction(
                client,
                where,
                target.producer.producer_id,
                target.producer.producer_epoch,
                target.producer.coordinator_epoch or 0,
            )
        return _open_row(target)

    row = on_cluster(bootstrap, properties, work)
    shown = row | {"when": time_text(row["last_timestamp_ms"])} if output is Output.TABLE else row
    show_rows(output, _HANGING_COLUMNS, [shown])
    sys.stdout.flush()
    if execute:
        say(f"the transaction of producer {row['producer_id']} is aborted in {where}")
    else:
        say("nothing is changed: this is the plan; --execute does it")


def _given_producer(
    start_offset: int | None, producer_id: int | None, producer_epoch: int | None, coordinator_epoch: int | None
) -> tuple[int, int, int] | None:
    """The producer by its numbers; None when it is to be found by the offset."""
    if (start_offset is None) == (producer_id is None):
        raise usage("name the transaction with --start-offset, or with --producer-id and --producer-epoch")
    if producer_id is None:
        if producer_epoch is not None or coordinator_epoch is not None:
            raise usage("--producer-epoch and --coordinator-epoch belong to --producer-id")
        return None
    if producer_epoch is None:
        raise usage("--producer-id needs --producer-epoch")
    return producer_id, producer_epoch, coordinator_epoch or 0


async def _target(
    client: ClusterClient, where: TopicPartition, start_offset: int | None, numbers: tuple[int, int, int] | None
) -> OpenTransaction:
    from moldau.cli.topic import choose_partitions
    from moldau.client import transaction_admin
    from moldau.client.transaction_admin import OpenTransaction, ProducerState

    await choose_partitions(client, where.topic, [where.partition])  # which tells what does not exist
    opened = await transaction_admin.open_transactions(client, [where])
    if numbers is None:
        for one in opened:
            if one.producer.transaction_start_offset == start_offset:
                return one
        starts = ", ".join(str(one.producer.transaction_start_offset) for one in opened)
        raise CommandError(
            f"{where} has no open transaction that starts at offset {start_offset}: "
            + (f"there are such at {starts}" if starts else "none is open there"),
            EXIT_NOT_FOUND,
        )
    producer_id, producer_epoch, coordinator_epoch = numbers
    for one in opened:
        if one.producer.producer_id == producer_id:
            state = one.producer
            given = ProducerState(
                producer_id,
                producer_epoch,
                state.last_sequence,
                state.last_timestamp_ms,
                coordinator_epoch,
                state.transaction_start_offset,
            )
            return OpenTransaction(where, given, one.transactional_id)
    raise CommandError(
        f"producer {producer_id} has no open transaction in {where}; `moldau txn producers {where.topic}` shows all",
        EXIT_NOT_FOUND,
    )
