"""`moldau dlq`: the letters that streams could not read; looked at, and sent back where they came from.

Sending back is a transaction: the records and the place up to which letters were sent back, in a consumer group of its
own. So it goes on where it stopped, and nothing is sent twice.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.group_plan import DryRun, Execute
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient, ConsumedRecord
    from moldau.kernel import TopicPartition
    from moldau.spark.pipelines import DeadLetter

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Dead letters: list, show, send them back.")

# Letters of one transaction.
REDRIVE_RECORDS_MAX = 1000
_COLUMNS = ("offset", "from", "reason", "when")

Letters = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of dead letters.", show_default=False)]


@app.command("list")
def list_letters(
    topic: Letters,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 50,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """List dead letters, the newest last, and how many there are of each kind."""
    from moldau.cli.output import say, show_rows
    from moldau.cli.remote import on_cluster

    kinds: Counter[str] = Counter()

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        newest: list[tuple[int, int, dict[str, Any]]] = []  # a heap, for there may be more than fit
        async for record, letter in _letters(client, topic):
            row = _row(record, letter)
            kinds[row["exception"] or "no dead letter"] += 1
            place = heapq.heappush if len(newest) < limit else heapq.heappushpop
            place(newest, (record.timestamp, kinds.total(), row))
        return [row for _, _, row in sorted(newest, key=lambda one: one[:2])]

    rows = on_cluster(bootstrap, properties, work)
    show_rows(output, {title.upper(): title for title in _COLUMNS}, rows)
    if output is Output.TABLE:
        sys.stdout.flush()  # the remark comes after it, also where both go into one file
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        say(f"{kinds.total()} in {topic}{f': {told}' if told else ''}")


@app.command()
def show(
    topic: Letters,
    place: Annotated[
        str, typer.Argument(metavar="[PARTITION:]OFFSET", help="Which one, as `list` shows it.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show one dead letter: where it came from, why, the stack, and the record as it was."""
    from moldau.cli.output import show_fields, show_object
    from moldau.cli.remote import on_cluster

    partition, offset = _parse_place(place)

    async def work(client: ClusterClient) -> dict[str, Any]:
        from moldau.cli.remote import find_topic
        from moldau.client import read_partition
        from moldau.kernel import ErrorCode, KafkaError

        if partition >= len((await find_topic(client, topic)).partitions):
            raise CommandError(f"topic {topic!r} has no partition {partition}", EXIT_NOT_FOUND)
        try:
            async for record in read_partition(client, topic, partition, start=offset, stop=offset + 1):
                return _row(record, _letter_of(record)) | _contents(record)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
        raise CommandError(f"{topic}-{partition} has no record at offset {offset}", EXIT_NOT_FOUND)

    found = on_cluster(bootstrap, properties, work)
    if show_object(output, found):
        return
    stack = found.pop("stack")
    show_fields(f"{topic} {found.pop('offset')}", {name: one for name, one in found.items() if one is not None})
    if stack:
        print(f"\n{stack.rstrip()}")


@app.command()
def redrive(
    topic: Letters,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Where to; without it, where each letter came from.")
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Property = None,
) -> None:
    """Send dead letters back, each once, from where the last time ended. Shows the plan; --execute does it."""
    from moldau.cli.group_plan import refuse_both_modes
    from moldau.cli.output import say, show_table
    from moldau.cli.remote import on_cluster

    refuse_both_modes(execute, dry_run)

    async def work(client: ClusterClient) -> tuple[Counter[str], int]:
        sender = Redrive(client, topic, to)
        await sender.run(bootstrap if execute else None)
        return sender.sent, sender.left

    sent, left = on_cluster(bootstrap, properties, work)
    show_table({"TO": "to", "RECORDS": "records"}, [{"to": name, "records": count} for name, count in sent.items()])
    sys.stdout.flush()
    if left:
        say(f"{left} records are no dead letters and stay: they do not say where they came from; --to sends them")
    count = sum(sent.values())
    if execute:
        say(f"{count} sent back")
    else:
        say("nothing is sent: this is the plan; --execute does it")


class Redrive:
    """From where the last one ended up to the end as it is now, a transaction at a time."""

    def __init__(self, client: ClusterClient, topic: str, to: str | None) -> None:
        self.sent: Counter[str] = Counter()
        self.left = 0
        self._client = client
        self._topic = topic
        self._to = to
        self._group = f"moldau-dlq-{topic}"

    async def run(self, bootstrap: str | None) -> None:
        """Count only when there is nowhere to send."""
        from moldau.client import Producer, group_admin

        if bootstrap is None:
            done = await group_admin.stable_group_offsets(self._client, self._group)
            async for record, letter in _letters(
                self._client, self._topic, {at: one.offset for at, one in done.items()}
            ):
                self._target(record, letter)
            return
        settings = {"transactional.id": self._group}
        async with Producer({"bootstrap.servers": bootstrap, **settings}) as producer:
            # Whoever sent letters back before us and was killed is out from here on, and what they left is decided.
            await producer.init_transactions()
            done = await group_admin.stable_group_offsets(self._client, self._group)
            pending: list[tuple[ConsumedRecord, DeadLetter | None]] = []
            async for found in _letters(self._client, self._topic, {at: one.offset for at, one in done.items()}):
                pending.append(found)
                if len(pending) == REDRIVE_RECORDS_MAX:
                    await self._send(producer, pending)
                    pending = []
            await self._send(producer, pending)

    async def _send(self, producer: Any, letters: list[tuple[ConsumedRecord, DeadLetter | None]]) -> None:
        from moldau.kernel import TopicPartition

        if not letters:
            return
        sources = {letter.topic for _, letter in letters if letter is not None}
        await self._check_targets(sources if self._to is None else {self._to})
        async with producer.transaction():
            offsets: dict[TopicPartition, int] = {}
            for record, letter in letters:
                offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
                target = self._target(record, letter)
                if target is None:
                    continue
                headers = letter.own_headers if letter is not None else record.headers
                partition = letter.partition if letter is not None and target == letter.topic else None
                await producer.send(target, record.value, key=record.key, headers=list(headers), partition=partition)
            await producer.send_offsets_to_transaction(offsets, self._group)

    async def _check_targets(self, targets: set[str]) -> None:
        """Before the transaction: a topic that is gone would be waited for, or made anew by accident."""
        found = (await self._client.metadata(targets)).topics
        for name in sorted(targets):
            if name not in found or found[name].error:
                raise CommandError(
                    f"topic {name!r}, where letters came from, does not exist: nothing more is sent; name another one "
                    "with --to",
                    EXIT_NOT_FOUND,
                )

    def _target(self, record: ConsumedRecord, letter: DeadLetter | None) -> str | None:
        target = self._to or (letter.topic if letter is not None else None)
        if target is None:
            self.left += 1
        else:
            self.sent[target] += 1
        return target


async def _letters(client: ClusterClient, topic: str, start: dict[TopicPartition, int] | None = None) -> Any:
    """Committed records up to the end as it is now, each with what it says as a dead letter."""
    from moldau.cli.remote import find_topic
    from moldau.client import IsolationLevel, PartitionReader, admin
    from moldau.kernel import TopicPartition

    info = await find_topic(client, topic)
    everything = [TopicPartition(topic, one.partition) for one in info.partitions]
    committed = IsolationLevel.READ_COMMITTED
    latest = dict.fromkeys(everything, admin.LATEST)
    ends = await admin.list_offsets(client, latest, isolation_level=committed)
    starts = await admin.list_offsets(client, dict.fromkeys(everything, admin.EARLIEST))
    places = {where: max((start or {}).get(where, 0), starts[where].offset) for where in everything}
    stop = {where: ends[where].offset for where in everything}
    async with PartitionReader(client, places, stop=stop, isolation_level=committed) as reader:
        async for records in reader:
            for record in records:
                yield record, _letter_of(record)


def _letter_of(record: ConsumedRecord) -> DeadLetter | None:
    from moldau.spark.pipelines import dead_letter_of

    return dead_letter_of(record.headers)


def _row(record: ConsumedRecord, letter: DeadLetter | None) -> dict[str, Any]:
    from moldau.cli.options import time_text

    source = None if letter is None else f"{letter.topic}-{letter.partition}@{letter.offset}"
    return {
        "offset": f"{record.partition}:{record.offset}",
        "from": source,
        "reason": None if letter is None else letter.reason,
        "exception": None if letter is None else letter.exception,
        "pipeline": None if letter is None else letter.pipeline,
        "when": time_text(record.timestamp),
    }


def _contents(record: ConsumedRecord) -> dict[str, Any]:
    import json

    from moldau.cli.record_lines import record_line

    shown = json.loads(record_line(record))
    kept = ("key", "key_base64", "value", "value_base64")
    letter = _letter_of(record)
    stack = None if letter is None else letter.stack
    return {name: shown[name] for name in kept if name in shown} | {"stack": stack}


def _parse_place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.rpartition(":")
    if not offset.isdecimal() or (colon and not partition.isdecimal()):
        raise usage(f"{text}: write PARTITION:OFFSET as `moldau dlq list` shows it, such as 0:17")
    return int(partition or 0), int(offset)
