"""`moldau consume` and `moldau tail`: records streamed to stdout with bounded memory, from anywhere in the log."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import EXIT_ERROR, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, Property

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Sequence

    from moldau.cli.render import Renderer
    from moldau.client import ClusterClient, ConsumedRecord
    from moldau.kernel import TopicPartition

consume_app = typer.Typer(add_completion=False)
tail_app = typer.Typer(add_completion=False)

# Below this the import of numpy and pyarrow takes longer than they save.
COLUMNS_RECORDS_MIN = 500_000
_READER_PROPERTIES = {
    "fetch.max.wait.ms": "max_wait_ms",
    "fetch.min.bytes": "min_bytes",
    "fetch.max.bytes": "max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
}


class Isolation(StrEnum):
    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


class StartKind(Enum):
    BEGINNING = 0
    END = 1
    OFFSET = 2
    LAST = 3
    TIME = 4


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin; `number` is an offset, a count of records or milliseconds, as the kind says."""

    kind: StartKind
    number: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants to see."""

    topics: list[str]
    start: Start
    count: int | None
    stops_at_end: bool
    partitions: list[int] | None
    isolation: Isolation


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="What to read.", show_default=False)]
Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help="What to print for a record, as in kcat: %t topic, %p partition, %o offset, %k key, %v or %s value, "
        "%h headers, %T time in ms, %K and %S sizes of key and value, %% a percent sign; \\n, \\t, \\xNN.",
    ),
]
Count = Annotated[int | None, typer.Option("-n", "--count", min=0, help="Stop after this many records.")]
Partitions = Annotated[
    list[int] | None, typer.Option("-p", "--partition", help="Only this partition; may be repeated.")
]
IsolationOption = Annotated[
    Isolation, typer.Option("--isolation", help="Whether to see records of transactions that are not committed.")
]
StreamOutput = Annotated[
    Output | None,
    typer.Option("-o", "--output", help="Columns, one JSON array, or a JSON object a line.", show_default=False),
]
Null = Annotated[bool, typer.Option("-Z", "--null", help="Print NULL for null keys and values.")]
Group = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--group",
        metavar="GROUP",
        help="Read as a member of this group: from where it left off, and it remembers how far you got.",
    ),
]


@consume_app.command()
def consume(
    topics: Topics,
    start: Annotated[
        str,
        typer.Option(
            "-s",
            "--start",
            "--offset",
            metavar="WHERE",
            help="start, end, an offset, -20 for the last 20 of each partition, @2026-11-01T10:00, "
            "@ and milliseconds since 1970, or @10m for ten minutes ago.",
        ),
    ] = "start",
    count: Count = None,
    exit_: Annotated[bool, typer.Option("-e", "--exit", help="Stop at the end as it is now.")] = False,
    format_: Format = None,
    partition: Partitions = None,
    isolation: IsolationOption = Isolation.COMMITTED,
    null: Null = False,
    group: Group = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: StreamOutput = None,
    properties: Property = None,
) -> None:
    """Print records, by default each value on a line; waits for more unless told to stop."""
    from moldau.cli.render import renderer_for

    wish = Wish(topics, parse_start(start), count, exit_, partition, isolation)
    # Who stays on is seen among the groups, as with Kafka's own command; who reads a part just reads it.
    is_console = wish.start.kind is StartKind.BEGINNING and count is None and not exit_ and not partition
    renderer = renderer_for(output, format_, null)
    _run(wish, group, renderer, bootstrap, properties, is_console=is_console)


@tail_app.command()
def tail(
    topics: Topics,
    start: Annotated[
        str, typer.Option("-s", "--start", "--offset", metavar="WHERE", help="Where to begin, as for consume.")
    ] = "end",
    count: Count = None,
    format_: Format = None,
    partition: Partitions = None,
    isolation: IsolationOption = Isolation.COMMITTED,
    null: Null = False,
    group: Group = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: StreamOutput = None,
    properties: Property = None,
) -> None:
    """Follow topics live: time, place, key, value and headers of each record, coloured on a terminal."""
    from moldau.cli.output import colour_allowed
    from moldau.cli.render import LiveRenderer, renderer_for

    wish = Wish(topics, parse_start(start), count, False, partition, isolation)
    live = output is None and format_ is None
    renderer = LiveRenderer(coloured=colour_allowed()) if live else renderer_for(output, format_, null)
    _run(wish, group, renderer, bootstrap, properties)


def parse_start(text: str) -> Start:
    import time

    from moldau.cli.options import parse_time

    word = text.strip().lower()
    if word in ("start", "beginning", "earliest"):
        return Start(StartKind.BEGINNING)
    if word in ("end", "latest"):
        return Start(StartKind.END)
    if word.startswith("@"):
        return Start(StartKind.TIME, parse_time(text.strip(), int(time.time() * 1000)))
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise usage(f"-s {text}: write start, end, an offset, -20 for the last 20, @2026-11-01T10:00 or @10m")
    return Start(StartKind.LAST if word.startswith("-") else StartKind.OFFSET, int(digits))


def _run(
    wish: Wish,
    group: str | None,
    renderer: Renderer,
    bootstrap: str,
    properties: list[str] | None,
    *,
    is_console: bool = False,
) -> None:
    from moldau.cli.options import parse_pairs
    from moldau.cli.output import write

    given = parse_pairs(properties, "-X")
    try:
        if group is None and is_console:
            from moldau.cli.consume_group import read_with_group_of_ones_own

            read_with_group_of_ones_own(wish, renderer, bootstrap, given)
        elif group is None:
            _read_alone(wish, renderer, bootstrap, given)
        else:
            from moldau.cli.consume_group import read_with_group

            read_with_group(group, wish, renderer, bootstrap, given)
    except KeyboardInterrupt:
        pass  # the usual end of a stream
    write(renderer.end())


def _read_alone(wish: Wish, renderer: Renderer, bootstrap: str, given: dict[str, str]) -> None:
    from moldau.cli.remote import CLIENT_PROPERTIES, on_cluster_with, unknown_property, whole_number

    limits = {
        _READER_PROPERTIES[name]: whole_number(f"-X {name}", value)
        for name, value in given.items()
        if name in _READER_PROPERTIES
    }
    shared = {name: value for name, value in given.items() if name not in _READER_PROPERTIES}
    for name in shared:
        if name not in CLIENT_PROPERTIES:
            raise usage(unknown_property(name, CLIENT_PROPERTIES | _READER_PROPERTIES.keys()))

    async def work(client: ClusterClient) -> None:
        # By columns a read makes a client of its own, with the settings that everybody has.
        columns_from = None if given else bootstrap
        await _stream(client, wish, renderer, limits, columns_from)

    on_cluster_with(bootstrap, shared, work)


# -- on the cluster ----------------------------------------------------------------------------------------------------


async def _stream(
    client: ClusterClient, wish: Wish, renderer: Renderer, limits: dict[str, int], columns_from: str | None
) -> None:
    from moldau.client import IsolationLevel, PartitionReader, admin

    partitions = await _partitions(client, wish)
    level = IsolationLevel.READ_COMMITTED
    if wish.isolation is Isolation.UNCOMMITTED:
        level = IsolationLevel.READ_UNCOMMITTED
    ends = await admin.list_offsets(client, dict.fromkeys(partitions, admin.LATEST), isolation_level=level)
    stops = {where: found.offset for where, found in ends.items()}
    starts = await _resolve(client, wish.start, stops)
    if wish.count == 0:
        return
    if wish.stops_at_end:
        # Nothing to wait for where the start is the end already.
        starts = {where: offset for where, offset in starts.items() if offset < stops[where]}
        if not starts:
            return
    total = sum(stops[where] - offset for where, offset in starts.items()) if wish.stops_at_end else None
    copy_values = _columns_copier(wish, renderer, total or 0)
    if copy_values is not None and columns_from is not None:
        await copy_values(columns_from, {where: (offset, stops[where]) for where, offset in starts.items()}, level)
        return
    reader = PartitionReader(
        client,
        starts,
        stop={where: stops[where] for where in starts} if wish.stops_at_end else None,
        isolation_level=level,
        # Records that retention takes away while we read are no reason to stop.
        out_of_range="earliest",
        **limits,
    )
    async with reader:
        await copy_records(reader, wish.count, total, renderer)


def _columns_copier(wish: Wish, renderer: Renderer, total: int) -> Callable[..., Awaitable[None]] | None:
    """How nothing but the values of very many records is printed faster, where numpy and pyarrow are installed."""
    from functools import partial

    from moldau.cli.render import FormatRenderer

    null = renderer.null_of_plain_values if isinstance(renderer, FormatRenderer) else None
    if null is None or wish.count is not None or total < COLUMNS_RECORDS_MIN:
        return None
    try:
        from moldau.cli.consume_columns import copy_values
    except ImportError:
        return None
    return partial(copy_values, null=null)


async def copy_records(
    batches: AsyncIterable[Sequence[ConsumedRecord]], count: int | None, total: int | None, renderer: Renderer
) -> None:
    """From a reader to stdout, until it ends, enough is read, or nobody listens any more."""
    import asyncio

    from moldau.cli.output import Progress, is_pipe, write

    loop = asyncio.get_running_loop()
    watched = sys.stdout.fileno() if is_pipe(sys.stdout) else None
    task = asyncio.current_task()
    assert task is not None
    hung_up = False

    def on_hangup() -> None:
        # `consume | head -1` should end with head, not with the next record.
        nonlocal hung_up
        hung_up = True
        task.cancel()

    if watched is not None:
        loop.add_reader(watched, on_hangup)
    done = 0
    # A bar would be torn by records on the same screen.
    with Progress("consuming", total if not sys.stdout.isatty() else None) as progress:
        try:
            async for records in batches:
                if count is not None and done + len(records) >= count:
                    write(renderer.render(records[: count - done]))
                    return
                done += len(records)
                write(renderer.render(records))
                if total is not None and not sys.stdout.isatty():
                    progress.update(done, f"{done:,} records")
        except asyncio.CancelledError:
            if not hung_up:
                raise
            raise BrokenPipeError from None
        finally:
            if watched is not None:
                loop.remove_reader(watched)


async def _partitions(client: ClusterClient, wish: Wish) -> list[TopicPartition]:
    from moldau.cli.topic import choose_partitions

    return [
        where
        for topic in dict.fromkeys(wish.topics)
        for where in await choose_partitions(client, topic, wish.partitions)
    ]


async def _resolve(client: ClusterClient, start: Start, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The first offset to read of each partition."""
    from moldau.client import admin

    if start.kind is StartKind.END:
        return dict(ends)
    if start.kind is StartKind.TIME:
        found = await admin.list_offsets(client, dict.fromkeys(ends, start.number))
        return {where: found[where].offset if found[where].offset >= 0 else end for where, end in ends.items()}
    firsts = {
        where: one.offset
        for where, one in (await admin.list_offsets(client, dict.fromkeys(ends, admin.EARLIEST))).items()
    }
    if start.kind is StartKind.BEGINNING:
        return firsts
    if start.kind is StartKind.LAST:
        return {where: max(firsts[where], end - start.number) for where, end in ends.items()}
    if start.number > max(ends.values()):
        kept = ", ".join(f"{where} has {firsts[where]} to {end}" for where, end in list(ends.items())[:3])
        raise CommandError(f"offset {start.number} is past the end: {kept}", EXIT_ERROR)
    return {where: min(max(firsts[where], start.number), end) for where, end in ends.items()}
