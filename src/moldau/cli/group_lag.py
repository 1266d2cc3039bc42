"""`moldau group lag`: how far groups are behind. Its live table is `group_watch`'s."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_CHECK_FAILED, EXIT_NOT_FOUND, CommandError, usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.group_admin import GroupLag

LAG_COLUMNS = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "COMMITTED": "committed",
    "END": "end",
    "LAG": "lag",
    "CLIENT": "client",
}


def lag(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="One or several groups.", show_default=False)],
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Show it again and again, with rates and the time to drain.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often --watch looks.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End --watch after this many looks.")
    ] = None,
    max_: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=0, help="Exit code 4 when a group is more records behind than this."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show how many records groups are behind, partition by partition."""
    from moldau.cli.group_watch import looks, show_looks
    from moldau.cli.remote import on_cluster

    if watch and output is Output.JSON:
        raise usage("--watch has no end for one JSON document: use -o jsonl, a line a look")
    if not watch:
        found = on_cluster(bootstrap, properties, lambda client: group_lags(client, groups))
        _show(output, found)
        check_lag(found, max_)
        return

    async def work(client: ClusterClient) -> None:
        await show_looks(looks(client, groups, interval, count), output, max_)

    try:
        on_cluster(bootstrap, properties, work)
    except KeyboardInterrupt:
        pass  # the usual end of a watch


async def group_lags(client: ClusterClient, groups: Sequence[str]) -> list[GroupLag]:
    """In the order asked; the first group that does not exist, or is refused, is the error."""
    from moldau.cli.group_text import not_found
    from moldau.client import group_admin
    from moldau.kernel import ErrorCode, KafkaError

    found: list[GroupLag] = []
    for group, answer in (await group_admin.group_lags(client, groups)).items():
        if isinstance(answer, KafkaError):
            if answer.code is ErrorCode.GROUP_ID_NOT_FOUND:
                raise CommandError(not_found(group), EXIT_NOT_FOUND)
            raise answer
        found.append(answer)
    return found


def lag_rows(found: GroupLag) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "committed": one.committed,
            "end": one.end,
            "lag": one.lag,
            "client": one.member.client_id if one.member is not None else None,
            "member": one.member.member_id if one.member is not None else None,
        }
        for one in found.partitions
    ]


def lag_summary(found: GroupLag) -> dict[str, Any]:
    return {"group": found.group.group_id, "state": found.group.state, "total_lag": found.total}


def _show(output: Output, found: list[GroupLag]) -> None:
    from moldau.cli.output import show_fields, show_rows, show_table

    if output is not Output.TABLE:
        show_rows(output, {}, [lag_summary(one) | {"partitions": lag_rows(one)} for one in found])
        return
    for index, one in enumerate(found):
        if index:
            print()
        show_fields(one.group.group_id, _headline(one))
        if one.partitions:
            print()
            show_table(LAG_COLUMNS, lag_rows(one))


def _headline(found: GroupLag) -> dict[str, Any]:
    total = total_text(found.total, lag_rows(found))
    return {"state": found.group.state, "members": len(found.group.members), "total lag": total}


def total_text(total: int, rows: Sequence[dict[str, Any]]) -> str:
    unknown = sum(1 for row in rows if row["lag"] is None)
    if not unknown:
        return str(total)
    return f"{total} (not counting {unknown} {'partition' if unknown == 1 else 'partitions'} of unknown lag)"


def check_lag(found: Iterable[GroupLag], lag_max: int | None) -> None:
    if lag_max is None:
        return
    sys.stdout.flush()  # the verdict comes after the figures, also where both go into one file
    behind = [f"{one.group.group_id} is {one.total} records behind" for one in found if one.total > lag_max]
    if behind:
        raise CommandError(f"{', '.join(behind)}, more than {lag_max}", EXIT_CHECK_FAILED)
