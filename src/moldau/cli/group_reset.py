"""`moldau group reset`: from where to where a group's committed offsets move. The plan itself is `group_plan`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import EXIT_ERROR, CommandError, usage
from moldau.cli.group_plan import DryRun, Execute, Move, PlanFormat, PlanOutput
from moldau.cli.group_text import Scope, by_topic, parse_scope
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.kernel import TopicPartition


class TargetKind(Enum):
    EARLIEST = 0
    LATEST = 1
    TIME = 2
    SHIFT = 3
    OFFSET = 4
    FILE = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go; `number` is milliseconds, a count of records or an offset, as the kind says."""

    kind: TargetKind
    number: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC[:PARTITIONS]",
            help="A topic, or partitions of it as in orders:0,2-4; may be repeated.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition that the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="DATETIME", help="To the first record of 2026-11-01T10:00 or later."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="To the first record of the last PT1H30M, P2D or 90m."),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", "--shift-by", metavar="N", help="So many records on, or back with -N.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset in every partition.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="To what a file says: a plan as csv, json or jsonl."),
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: PlanFormat = PlanOutput.TABLE,
    properties: Property = None,
) -> None:
    """Move a group's committed offsets. Shows the plan; --execute does it. The group must have no members."""
    import time

    from moldau.cli.group_plan import carry_out, refuse_both_modes, require_inactive, show_plan
    from moldau.cli.remote import on_cluster

    refuse_both_modes(execute, dry_run)
    target = _target(
        group, int(time.time() * 1000), to_earliest, to_latest, to_datetime, by_duration, shift, to_offset, from_file
    )
    scopes = [parse_scope(text) for text in topic or ()]
    if target.kind is TargetKind.FILE:
        if scopes or all_topics:
            raise usage("--from-file names its partitions itself: leave --topic and --all-topics out")
    elif bool(scopes) == all_topics:
        raise usage("say what to reset: --topic TOPIC, --topic TOPIC:0,2-4, or --all-topics")

    async def work(client: ClusterClient) -> list[Move]:
        await require_inactive(client, group, "reset it")
        moves = await _plan(client, group, scopes, target)
        if execute:
            await carry_out(client, group, moves)
        return moves

    moves = on_cluster(bootstrap, properties, work)
    show_plan(output, group, moves, executed=execute)


# -- what the options say ----------------------------------------------------------------------------------------------


def duration_ms(text: str) -> int:
    """ISO 8601 as far as its units have one length, or `90m` as elsewhere."""
    from moldau.cli.options import parse_duration_ms as parse_short
    from moldau.client import parse_duration_ms

    milliseconds = parse_duration_ms(text)
    if milliseconds is not None:
        return milliseconds
    try:
        return parse_short("--by-duration", text)
    except CommandError:
        raise usage(f"--by-duration {text}: write PT1H30M, P2D, or 90m") from None


def _target(
    group: str,
    now_ms: int,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    by_duration: str | None,
    shift: int | None,
    to_offset: int | None,
    from_file: Path | None,
) -> Target:
    from moldau.cli.group_plan import read_plan
    from moldau.cli.options import parse_time

    given = [
        to_earliest,
        to_latest,
        *(one is not None for one in (to_datetime, by_duration, shift, to_offset, from_file)),
    ]
    if given.count(True) != 1:
        raise usage(
            "choose one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift, --to-offset and "
            "--from-file"
        )
    if to_earliest:
        return Target(TargetKind.EARLIEST)
    if to_latest:
        return Target(TargetKind.LATEST)
    if to_datetime is not None:
        return Target(TargetKind.TIME, parse_time(to_datetime, now_ms))
    if by_duration is not None:
        return Target(TargetKind.TIME, max(now_ms - duration_ms(by_duration), 0))
    if shift is not None:
        return Target(TargetKind.SHIFT, shift)
    if to_offset is not None:
        return Target(TargetKind.OFFSET, to_offset)
    assert from_file is not None
    return Target(TargetKind.FILE, offsets=read_plan(from_file, group))


# -- on the cluster ----------------------------------------------------------------------------------------------------


async def _plan(client: ClusterClient, group: str, scopes: Sequence[Scope], target: Target) -> list[Move]:
    from moldau.cli.group_plan import committed_offsets
    from moldau.client import admin
    from moldau.client.group_admin import CommittedOffset

    current = {where: found.offset for where, found in (await committed_offsets(client, group)).items()}
    partitions = await _chosen(client, group, scopes, target, current)
    starts = await admin.list_offsets(client, dict.fromkeys(partitions, admin.EARLIEST))
    ends = await admin.list_offsets(client, dict.fromkeys(partitions, admin.LATEST))
    bounds = {where: (starts[where].offset, ends[where].offset) for where in partitions}
    wanted = await _wanted(client, target, bounds, current)
    return [
        Move(where, current.get(where), CommittedOffset(_clamped(where, wanted[where], *bounds[where])))
        for where in partitions
    ]


async def _chosen(
    client: ClusterClient,
    group: str,
    scopes: Sequence[Scope],
    target: Target,
    current: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    from moldau.cli.topic import choose_partitions

    if target.offsets is not None:
        scopes = list(by_topic(target.offsets).items())
    elif not scopes:
        if not current:
            raise CommandError(
                f"group {group!r} has no committed offsets: name what to reset with --topic TOPIC", EXIT_ERROR
            )
        scopes = list(by_topic(current).items())
    chosen = [where for topic, some in scopes for where in await choose_partitions(client, topic, some)]
    return sorted(set(chosen))


async def _wanted(
    client: ClusterClient,
    target: Target,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    current: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    from moldau.client import admin

    if target.offsets is not None:
        return dict(target.offsets)
    if target.kind is TargetKind.EARLIEST:
        return {where: start for where, (start, _) in bounds.items()}
    if target.kind is TargetKind.LATEST:
        return {where: end for where, (_, end) in bounds.items()}
    if target.kind is TargetKind.OFFSET:
        return dict.fromkeys(bounds, target.number)
    if target.kind is TargetKind.TIME:
        found = await admin.list_offsets(client, dict.fromkeys(bounds, target.number))
        # No record of that time or later: there is nothing to read again.
        return {where: found[where].offset if found[where].offset >= 0 else end for where, (_, end) in bounds.items()}
    missing = [str(where) for where in bounds if where not in current]
    if missing:
        raise CommandError(
            f"there is no committed offset to shift in {', '.join(missing)}: nothing was done; choose partitions with "
            "--topic TOPIC:PARTITIONS, or another target",
            EXIT_ERROR,
        )
    return {where: current[where] + target.number for where in bounds}


def _clamped(where: TopicPartition, offset: int, start: int, end: int) -> int:
    from moldau.cli.output import say

    if start <= offset <= end:
        return offset
    kept = max(start, min(offset, end))
    say(f"warning: {where} has offsets {start} to {end}: {kept} is taken for {offset}")
    return kept
