"""A plan of offsets for a group: shown first, done with `--execute`.

Printed with `-o csv` (the rows of Kafka's own tool: topic,partition,offset), `-o json` or `-o jsonl`, it is what
`moldau group reset --from-file` reads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, CommandError, usage
from moldau.cli.options import Output

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.group_admin import CommittedOffset
    from moldau.kernel import TopicPartition


OFFSET_MAX = 2**63 - 1


class PlanOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this only the plan is shown.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan, as without --execute.")]
PlanFormat = Annotated[
    PlanOutput, typer.Option("-o", "--output", help="How to print the plan; csv, json and jsonl suit --from-file.")
]


@dataclass(frozen=True, slots=True)
class Move:
    partition: TopicPartition
    current: int | None
    new: CommittedOffset


def refuse_both_modes(execute: bool, dry_run: bool) -> None:
    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")


def show_plan(output: PlanOutput, group: str, moves: Sequence[Move], *, executed: bool) -> None:
    from moldau.cli.output import say

    _print_plan(output, moves)
    sys.stdout.flush()  # the remark comes after it, also where both go into one file
    if executed:
        say(f"{len(moves)} {'offset' if len(moves) == 1 else 'offsets'} of group {group!r} set")
    else:
        say("nothing is changed: this is the plan; --execute does it")


def _print_plan(output: PlanOutput, moves: Sequence[Move]) -> None:
    from moldau.cli.output import show_rows

    rows = [
        {
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "current": move.current,
            "new": move.new.offset,
        }
        for move in moves
    ]
    if output is PlanOutput.CSV:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([row["topic"], row["partition"], row["new"]] for row in rows)
        return
    columns = ("topic", "partition", "current", "new")
    show_rows(Output(output.value), {title.upper(): title for title in columns}, rows)


def read_plan(path: Path, group: str) -> dict[TopicPartition, int]:
    """Offsets from a plan: rows of topic,partition,offset (or group,topic,partition,offset), or JSON objects."""
    from moldau.kernel import TopicPartition

    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}") from None
    offsets: dict[TopicPartition, int] = {}
    for number, (owner, topic, partition, offset) in _plan_rows(text, path):
        if owner not in (None, group):
            continue
        index, new = _whole_number(partition), _whole_number(offset)
        if not isinstance(topic, str) or not topic or index is None or new is None:
            raise usage(f"{path}: entry {number} is no topic, partition and offset")
        offsets[TopicPartition(topic, index)] = new
    if not offsets:
        raise usage(f"{path} has no offsets for group {group!r}")
    return offsets


def _whole_number(given: object) -> int | None:
    """Of a text, or as JSON has it; None for what no partition and no offset can be."""
    if isinstance(given, str) and re.fullmatch(r"\s*\d{1,19}\s*", given, re.ASCII):
        given = int(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= OFFSET_MAX:
        return given
    return None


def _plan_rows(text: str, path: Path) -> Iterable[tuple[int, Sequence[Any]]]:
    import csv
    import json

    if not text.lstrip().startswith(("[", "{")):
        try:
            rows = list(csv.reader(text.splitlines()))
        except csv.Error as error:
            raise usage(f"{path} is no CSV: {error}") from None
        for number, row in enumerate(rows, 1):
            if row and len(row) not in (3, 4):
                raise usage(f"{path}: entry {number} has {len(row)} columns; write topic,partition,offset")
            if row:
                yield number, ([None, *row] if len(row) == 3 else row)
        return
    try:
        is_array = text.lstrip().startswith("[")
        entries = json.loads(text) if is_array else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise usage(f"{path} is no JSON: {error}") from None
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise usage(f"{path}: entry {number} is no JSON object")
        new = entry.get("new", entry.get("offset"))
        yield number, (entry.get("group"), entry.get("topic"), entry.get("partition"), new)


async def require_inactive(client: ClusterClient, group: str, verb: str) -> None:
    """Only members may commit while there are members; a group that does not exist will begin to."""
    from moldau.cli.group_text import members_text
    from moldau.client import group_admin
    from moldau.kernel import ErrorCode, KafkaError

    found = (await group_admin.describe_groups(client, [group]))[group]
    if isinstance(found, KafkaError):
        if found.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise found
    elif found.is_active:
        raise CommandError(
            f"group {group!r} is {found.state} with {members_text(found)}: nothing was done; stop them first, "
            f"then {verb}",
            EXIT_ERROR,
        )


async def committed_offsets(client: ClusterClient, group: str) -> dict[TopicPartition, CommittedOffset]:
    from moldau.client import group_admin
    from moldau.kernel import KafkaError

    found = (await group_admin.group_offsets(client, [group]))[group]
    if isinstance(found, KafkaError):
        raise found
    return found


async def carry_out(client: ClusterClient, group: str, moves: Iterable[Move]) -> None:
    from moldau.client import group_admin

    await group_admin.alter_group_offsets(client, group, {move.partition: move.new for move in moves})
