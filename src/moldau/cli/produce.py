"""`moldau produce`: records from lines. Holds a piece of input and what is under way, however long the input is."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, CommandError, explain, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.cli.record_lines import Headers, InputRecord
    from moldau.client import ClusterClient, DeliveryCallback, Producer, RecordMetadata

app = typer.Typer(add_completion=False)

# Larger than the client's default: a command that reads a file wants throughput. -X batch.size=... has the last word.
BATCH_BYTES = 1 << 17
BATCH_BYTES_WITHOUT_LEAVE = 1 << 14
# With a batch of its own for each record of a small input, waiting this long costs nobody anything.
LINGER_MS = 5
INTERRUPT_FLUSH_MS_MAX = 5_000


class Format(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


_FORMAT_BY_SUFFIX = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the options say about every record."""

    topic: str
    format: Format
    key: bytes | None
    separator: bytes | None
    headers: Headers | None
    partition: int | None
    timestamp_ms: int | None
    empty_is_null: bool
    key_column: str | None
    value_column: str | None
    output: Output


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the records go.", show_default=False)],
    key: Annotated[str | None, typer.Option("-k", "--key", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of every record.")
    ] = None,
    source: Annotated[
        str, typer.Option("--from", metavar="FILE", help="A .jsonl, .csv or text file; - is standard input.")
    ] = "-",
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="What a line is; by the file's name, else lines.", show_default=False),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("-K", "--key-separator", metavar="TEXT", help="Splits a line into key and value.")
    ] = None,
    key_column: Annotated[str | None, typer.Option("--key-column", help="CSV: the column that is the key.")] = None,
    value_column: Annotated[
        str | None, typer.Option("--value-column", help="CSV: the column that is the value; else the row as JSON.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="Where to put every record; -1 chooses by key.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option("-t", "--timestamp", metavar="TIME", help="The time of every record.")
    ] = None,
    compression: Annotated[
        Codec | None, typer.Option("-z", "--compression", help="How batches are compressed.")
    ] = None,
    acks: Annotated[Acks | None, typer.Option("--acks", help="Whose word counts.")] = None,
    null: Annotated[bool, typer.Option("-Z", "--null", help="An empty value is null: a tombstone.")] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id", metavar="ID", help="All records in one transaction: seen together or never."
        ),
    ] = None,
    commit_every: Annotated[
        int | None,
        typer.Option("--commit-every", metavar="N", help="A transaction for every N records.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Write records, one a line, from standard input or a file.

    A summary goes to stderr. With -o json it goes to stdout; with -o jsonl, so does the place of every record.
    """
    import os
    import time

    from moldau.cli.options import parse_pairs, parse_time
    from moldau.cli.remote import CLIENT_PROPERTIES, on_cluster_with

    headers = [(name, value.encode()) for name, value in _header_pairs(header)]
    chosen = format_ or _FORMAT_BY_SUFFIX.get(os.path.splitext(source)[1].lower(), Format.LINES)
    if chosen is not Format.CSV and (key_column or value_column):
        raise usage("--key-column and --value-column are for --format csv")
    if chosen is not Format.LINES and key_separator is not None:
        raise usage(f"--key-separator is for --format lines, this is {chosen}")
    if key_separator == "":
        raise usage("--key-separator: give at least one character")
    plan = _Plan(
        topic=topic,
        format=chosen,
        key=key.encode() if key is not None else None,
        separator=key_separator.encode() if key_separator is not None else None,
        headers=headers or None,
        partition=partition,
        timestamp_ms=parse_time(timestamp, int(time.time() * 1000)) if timestamp is not None else None,
        empty_is_null=null,
        key_column=key_column,
        value_column=value_column,
        output=output,
    )
    given = parse_pairs(properties, "-X")
    settings: dict[str, object] = {"linger.ms": LINGER_MS}
    settings |= {name: value for name, value in given.items() if name != "default.api.timeout.ms"}
    if compression is not None:
        settings["compression.type"] = str(compression)
    if acks is not None:
        settings["acks"] = str(acks)
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    if commit_every is not None:
        if "transactional.id" not in settings:
            raise usage("--commit-every needs --transactional-id")
        if commit_every < 1:
            raise usage(f"--commit-every {commit_every}: give at least 1")
    descriptor = _open(source)

    async def work(client: ClusterClient) -> int:
        return await _produce(client, plan, settings, descriptor, commit_every)

    shared = {name: value for name, value in given.items() if name in CLIENT_PROPERTIES}
    code = on_cluster_with(bootstrap, shared, work)
    if code:
        raise typer.Exit(code)


def _header_pairs(given: list[str] | None) -> Iterator[tuple[str, str]]:
    # Not parse_pairs: names may repeat, and a value's blanks are its own.
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise usage(f"-H {text}: write it as -H name=value")
        yield name, value


def _open(source: str) -> int:
    import os

    if source != "-":
        return os.open(source, os.O_RDONLY)
    if sys.stdin.isatty():
        print("one record a line; Ctrl-D ends", file=sys.stderr)
    return sys.stdin.fileno()


class _Place:
    """Where in the input we are."""

    __slots__ = ("line",)

    def __init__(self) -> None:
        self.line = 0


class _Tally:
    """What became of the records. A refusal concerns its record; after a fault there is no use in going on."""

    def __init__(self, output: Output) -> None:
        self.taken = 0
        self.delivered = 0
        self.failed = 0
        self.first_error: str | None = None
        self.is_over = False
        self._show = output is Output.JSONL

    def on_delivery(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is not None:
            self.refuse(error)
            return
        self.delivered += 1
        if self._show and metadata is not None:
            sys.stdout.write(
                f'{{"partition":{metadata.partition},"offset":{metadata.offset},"timestamp":{metadata.timestamp}}}\n'
            )

    def refuse(self, error: Exception, line: int | None = None) -> None:
        from moldau.kernel import KafkaError

        self.failed += 1
        if self.first_error is None:
            self.first_error = (f"line {line}: " if line is not None else "") + explain(error)[0]
        if not isinstance(error, KafkaError):
            self.is_over = True


class _Transaction:
    """Records in transactions, each of so many or all in one. A record counts when its transaction is committed."""

    def __init__(self, producer: Producer, tally: _Tally, records_max: int | None) -> None:
        self.commits = 0
        self.records = 0  # in the open one
        self._producer = producer
        self._tally = tally
        self._records_max = records_max
        self._delivered: list[RecordMetadata] = []

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: DeliveryCallback,
    ) -> None:
        if not self.records:
            self._producer.begin_transaction()
        self.records += 1
        await self._producer.send(topic, value, key, headers, partition, timestamp_ms, self._on_delivery)
        if self.records == self._records_max:
            await self.commit()

    def _on_delivery(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        # An error is told by the commit, for all.
        if metadata is not None:
            self._delivered.append(metadata)

    async def commit(self) -> None:
        if not self.records:
            return
        await self._producer.commit_transaction()
        for metadata in self._delivered:
            self._tally.on_delivery(metadata, None)
        self.commits += 1
        self._begin_anew()

    async def abort(self) -> str | None:
        """What became of the open one, for the report."""
        from moldau.client import TransactionFatal, TransactionTimedOut, WrongTransactionState

        if not self.records:
            return None
        records = self.records
        self._begin_anew()
        try:
            await self._producer.abort_transaction()
        except (TransactionFatal, TransactionTimedOut, WrongTransactionState) as error:
            return f"the open transaction is left to its coordinator: {explain(error)[0]}"
        return f"the open transaction of {records} record{'' if records == 1 else 's'} was aborted"

    def _begin_anew(self) -> None:
        self.records = 0
        self._delivered = []


async def _produce(
    client: ClusterClient, plan: _Plan, settings: dict[str, object], descriptor: int, commit_every: int | None
) -> int:
    import asyncio
    import contextlib
    import time

    from moldau.cli.record_lines import LineError
    from moldau.client import Producer
    from moldau.kernel import KafkaError

    Producer(client, settings)  # a wrong setting shows before a topic is made
    await _check_topic(client, plan)
    if "batch.size" not in settings:
        settings = {**settings, "batch.size": await _batch_bytes(client, plan.topic)}
    producer = Producer(client, settings)
    started = time.monotonic()
    tally = _Tally(plan.output)
    stopped: str | None = None
    interrupted = False
    place = _Place()
    transaction: _Transaction | None = None
    send: Callable[..., Awaitable[Any]] = producer.send
    on_delivery = tally.on_delivery
    if producer.settings.transactional_id is not None:
        await producer.init_transactions()
        transaction = _Transaction(producer, tally, commit_every)
        send = transaction.send
    topic, whole_partition, whole_time = plan.topic, plan.partition, plan.timestamp_ms
    try:
        async with contextlib.aclosing(_records(plan, descriptor, place)) as pieces:
            async for records in pieces:
                for key, value, headers, partition, timestamp_ms in records:
                    tally.taken += 1
                    if whole_partition is not None:
                        partition = whole_partition if whole_partition >= 0 else None
                    if whole_time is not None:
                        timestamp_ms = whole_time
                    try:
                        await send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
                    except (KafkaError, OSError) as error:
                        tally.refuse(error, place.line)
                        tally.is_over |= transaction is not None
                    if tally.is_over:
                        break
                if tally.is_over:
                    break
    except LineError as error:
        stopped = f"line {place.line} {error}"
    except CommandError as error:
        stopped = str(error)
    except asyncio.CancelledError:
        # Ctrl-C: what was typed before it still counts.
        interrupted = True
    ended: str | None = None
    if transaction is not None:
        try:
            if stopped is None and not interrupted and not tally.is_over:
                await transaction.commit()
        except (KafkaError, OSError) as error:
            tally.refuse(error)
        ended = await transaction.abort()
        tally.failed = tally.taken - tally.delivered
    await producer.close(INTERRUPT_FLUSH_MS_MAX if interrupted else None)
    seconds = time.monotonic() - started
    _report(plan, tally, stopped, seconds, transaction, ended)
    if interrupted and stopped is None and tally.first_error is None:
        return EXIT_INTERRUPTED
    return EXIT_ERROR if stopped is not None or tally.failed else 0


def _report(
    plan: _Plan,
    tally: _Tally,
    stopped: str | None,
    seconds: float,
    transaction: _Transaction | None,
    ended: str | None,
) -> None:
    from moldau.cli.output import json_line, say

    error = stopped or tally.first_error
    if plan.output is Output.JSON:
        summary: dict[str, Any] = {"topic": plan.topic, "delivered": tally.delivered, "failed": tally.failed}
        if transaction is not None:
            summary["transactions"] = transaction.commits
        print(json_line(summary | {"seconds": round(seconds, 3), "error": error}))
    sys.stdout.flush()
    if error is not None:
        total = tally.taken
        done = "delivered" if transaction is None else "committed"
        rest = f"; {ended}" if ended is not None else ""
        say(f"error: {tally.delivered} of {total} records were {done} to {plan.topic}; first error: {error}{rest}")
        return
    rate = f", {tally.delivered / seconds:,.0f}/s" if tally.delivered >= 1000 and seconds > 0 else ""
    records = "1 record" if tally.delivered == 1 else f"{tally.delivered} records"
    if transaction is not None:
        records += f" in {transaction.commits} transaction{'' if transaction.commits == 1 else 's'}"
    say(f"produced {records} to {plan.topic} in {seconds:.2f} s{rate}")
    if ended is not None:
        say(f"note: {ended}")


async def _check_topic(client: ClusterClient, plan: _Plan) -> None:
    """Fail at once, and say so when the broker makes a topic because of us."""
    from moldau.cli.errors import EXIT_NOT_FOUND
    from moldau.cli.output import say
    from moldau.kernel import ErrorCode

    found = (await client.metadata([plan.topic])).topics.get(plan.topic)
    missing = found is None or found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    info = await client.retry(lambda: client.topic(plan.topic, allow_auto_create=True))
    if missing:
        say(f"note: topic {plan.topic!r} did not exist and was created with {len(info.partitions)} partition(s)")
    if plan.partition is not None and plan.partition >= len(info.partitions):
        raise CommandError(
            f"topic {plan.topic!r} has no partition {plan.partition}: it has {len(info.partitions)}, numbered from 0",
            EXIT_NOT_FOUND,
        )


async def _batch_bytes(client: ClusterClient, topic: str) -> int:
    """As large as is good, and not larger than the topic takes: a batch that is too large is refused as a whole."""
    from moldau.client import admin
    from moldau.kernel import KafkaError

    key = "max.message.bytes"
    try:
        entries = await admin.describe_configs(client, admin.ResourceType.TOPIC, topic, [key])
    except KafkaError:
        return BATCH_BYTES_WITHOUT_LEAVE  # who may write need not be allowed to look
    limits = [int(entry.value) for entry in entries if entry.name == key and entry.value is not None]
    return min([BATCH_BYTES, *limits])


# -- from lines to records ---------------------------------------------------------------------------------------------


async def _records(plan: _Plan, descriptor: int, place: _Place) -> AsyncGenerator[Iterator[InputRecord], None]:
    """Records as they are read, with progress on a terminal."""
    import os
    import stat

    from moldau.cli.input import read_lines
    from moldau.cli.output import Progress

    status = os.fstat(descriptor)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    parse = _PARSERS[plan.format](plan, place)
    lines_read = bytes_read = 0
    with Progress(f"producing to {plan.topic}", total) as progress:
        async for lines in read_lines(descriptor):
            yield parse(lines)
            lines_read += len(lines)
            bytes_read += sum(map(len, lines)) + len(lines)
            if not os.isatty(descriptor):
                progress.update(bytes_read, f"{lines_read:,} lines")
        yield parse([])


def _parse_lines(plan: _Plan, place: _Place) -> Callable[[list[bytes]], Iterator[InputRecord]]:
    from moldau.cli.record_lines import InputRecord, LineError

    key, separator, headers, empty_is_null = plan.key, plan.separator, plan.headers, plan.empty_is_null

    def parse(lines: list[bytes]) -> Iterator[InputRecord]:
        for line in lines:
            place.line += 1
            value: bytes | None = line
            record_key = key
            if separator is not None:
                before, found, value = line.partition(separator)
                if not found:
                    raise LineError(f"has no key: it lacks the separator {separator.decode()!r}")
                record_key = before
            if empty_is_null and not value:
                value = None
            yield InputRecord(record_key, value, headers)

    return parse


def _parse_jsonl(plan: _Plan, place: _Place) -> Callable[[list[bytes]], Iterator[InputRecord]]:
    from moldau.cli.record_lines import parse_record_line

    def parse(lines: list[bytes]) -> Iterator[InputRecord]:
        for line in lines:
            place.line += 1
            if not line.strip():
                continue
            record = parse_record_line(line)
            if plan.key is not None:
                record = record._replace(key=plan.key)
            if plan.headers is not None:
                record = record._replace(headers=[*(record.headers or ()), *plan.headers])
            if plan.empty_is_null and not record.value:
                record = record._replace(value=None)
            yield record

    return parse


def _parse_csv(plan: _Plan, place: _Place) -> Callable[[list[bytes]], Iterator[InputRecord]]:
    """The first row names the columns. A quoted cell may hold newlines, so rows end where quotes are balanced."""
    import csv
    import json

    from moldau.cli.input import LINE_BYTES_MAX
    from moldau.cli.record_lines import InputRecord, LineError

    csv.field_size_limit(LINE_BYTES_MAX)
    pending: list[str] = []
    is_open = False
    titles: list[str] = []

    def rows(lines: list[bytes]) -> Iterator[list[str]]:
        nonlocal is_open
        for line in lines:
            place.line += 1
            try:
                text = line.decode()
            except UnicodeDecodeError:
                raise LineError("is not UTF-8") from None
            pending.append(text.removesuffix("\r"))
            is_open ^= bool(text.count('"') % 2)
            if is_open:
                continue
            joined, pending[:] = "\n".join(pending), []
            if joined:
                try:
                    yield next(csv.reader([joined]))
                except csv.Error as error:
                    raise LineError(f"is no CSV ({error})") from None
        if not lines and pending:
            raise LineError("has a quote that is never closed")

    def parse(lines: list[bytes]) -> Iterator[InputRecord]:
        nonlocal titles
        for row in rows(lines):
            if not titles:
                titles = [title.removeprefix("\ufeff") for title in row]
                for column in (plan.key_column, plan.value_column):
                    if column is not None and column not in titles:
                        raise CommandError(f"there is no column {column!r}: there are {', '.join(titles)}")
                continue
            if len(row) != len(titles):
                raise LineError(f"has {len(row)} columns where the first row has {len(titles)}")
            cells = dict(zip(titles, row, strict=True))
            key = cells[plan.key_column].encode() if plan.key_column is not None else plan.key
            if plan.value_column is not None:
                text = cells[plan.value_column]
            else:
                text = json.dumps(cells, ensure_ascii=False, separators=(",", ":"))
            yield InputRecord(key, None if plan.empty_is_null and not text else text.encode(), plan.headers)

    return parse


_PARSERS: dict[Format, Callable[[_Plan, _Place], Callable[[list[bytes]], Iterator[InputRecord]]]] = {
    Format.LINES: _parse_lines,
    Format.JSONL: _parse_jsonl,
    Format.CSV: _parse_csv,
}
