"""`moldau group`: consumer groups, who is in them and how far they are. `lag` and `reset` have files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK, CommandError, usage
from moldau.cli.group_lag import LAG_COLUMNS, group_lags, lag, lag_rows, total_text
from moldau.cli.group_plan import DryRun, Execute, Move, PlanFormat, PlanOutput
from moldau.cli.group_reset import reset
from moldau.cli.group_text import Scope, by_topic, members_text, not_found, parse_scope, partitions_text
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property, Yes

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.group_admin import GroupLag, GroupMember
    from moldau.kernel import KafkaError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, describe, reset, clone, delete consumer groups; their lag."
)

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="One or several groups.", show_default=False)]


@app.command("list")
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state, such as stable; may be repeated.")
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only classic, consumer, share or streams; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """List the groups of the cluster."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import group_admin

    states = [_known("--state", one, group_admin.GROUP_STATES) for one in state or ()]
    types = [_known("--type", one, group_admin.GROUP_TYPES) for one in type_ or ()]
    found = on_cluster(
        bootstrap, properties, lambda client: group_admin.list_groups(client, states=states, types=types)
    )
    rows = [
        {
            "group": group.group_id,
            "type": group.group_type,
            "state": group.state,
            "protocol": group.protocol_type or None,
            "coordinator": group.coordinator,
        }
        for group in found
    ]
    columns = ("group", "type", "state", "protocol", "coordinator")
    show_rows(output, {title.upper(): title for title in columns}, rows)


def _known(option: str, text: str, names: tuple[str, ...]) -> str:
    """One of the names, however it is written: `preparing-rebalance` is PreparingRebalance."""
    plain = "".join(character for character in text.lower() if character.isalpha())
    for name in names:
        if name.lower() == plain:
            return name
    raise usage(f"{option} {text}: there are {', '.join(names)}")


# -- describe ----------------------------------------------------------------------------------------------------------


@app.command()
def describe(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show state, coordinator, members with what they read, offsets with lag, and the last rebalances."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        return [_description(client, one) for one in await group_lags(client, groups)]

    described = on_cluster(bootstrap, properties, work)
    if output is not Output.TABLE:
        show_rows(output, {}, described)
        return
    for index, group in enumerate(described):
        if index:
            print()
        _show_description(group)


def _description(client: ClusterClient, found: GroupLag) -> dict[str, Any]:
    from dataclasses import asdict

    group = found.group
    node = client.nodes[group.coordinator]
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "protocol": group.protocol_type or None,
        "assignor": group.assignor or None,
        "epoch": group.epoch,
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "total_lag": found.total,
        "members": [_member_row(member) for member in group.members],
        "offsets": lag_rows(found),
        "rebalances": None if group.rebalances is None else [asdict(one) for one in group.rebalances],
    }


def _member_row(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.client_host.removeprefix("/"),  # as Java writes addresses
        "instance": member.instance_id,
        "rack": member.rack_id,
        "epoch": member.epoch,
        "subscription": list(member.subscription),
        "assignment": by_topic(member.assignment),
        "target": None if member.target is None else by_topic(member.target),
    }


def _show_description(group: dict[str, Any]) -> None:
    from moldau.cli.options import time_text
    from moldau.cli.output import show_fields, show_table

    node = group["coordinator"]
    shown = {name: group[name] for name in ("state", "type", "protocol", "assignor")}
    shown |= {"coordinator": f"{node['id']} ({node['host']}:{node['port']})", "members": len(group["members"])}
    show_fields(group["group"], shown | {"total lag": total_text(group["total_lag"], group["offsets"])})
    if group["members"]:
        print()
        rows = [member | {"assignment": _assignment_text(member)} for member in group["members"]]
        columns = ("member", "client", "host", "instance", "assignment")
        show_table({title.upper(): title for title in columns}, rows)
    if group["offsets"]:
        print()
        show_table(LAG_COLUMNS, group["offsets"])
    if group["rebalances"]:
        print()
        rows = [one | {"when": time_text(one["began_ms"])} for one in group["rebalances"]]
        titles = {"REBALANCED": "when", "TOOK_MS": "duration_ms", "GENERATION": "generation", "MEMBERS": "members"}
        show_table(titles | {"REASON": "reason"}, rows)


def _assignment_text(member: dict[str, Any]) -> str:
    def text(assignment: dict[str, list[int]]) -> str:
        return " ".join(f"{topic}:{partitions_text(found)}" for topic, found in assignment.items()) or "-"

    if member["target"] in (None, member["assignment"]):
        return text(member["assignment"])
    return f"{text(member['assignment'])} -> {text(member['target'])}"


app.command()(lag)
app.command()(reset)


# -- clone -------------------------------------------------------------------------------------------------------------


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group to copy from.", show_default=False)],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A new group, or one without members.", show_default=False)
    ],
    execute: Execute = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: PlanFormat = PlanOutput.TABLE,
    properties: Property = None,
) -> None:
    """Copy a group's committed offsets to another group. Shows the plan; --execute does it."""
    from moldau.cli.group_plan import carry_out, committed_offsets, refuse_both_modes, require_inactive, show_plan
    from moldau.cli.remote import on_cluster

    refuse_both_modes(execute, dry_run)
    if source == target:
        raise usage("SOURCE and TARGET are the same group")

    async def work(client: ClusterClient) -> list[Move]:
        await require_inactive(client, target, f"clone {source!r} to it")
        committed = await committed_offsets(client, source)
        if not committed:
            await group_lags(client, [source])  # which tells when there is no such group
            raise CommandError(f"group {source!r} has no committed offsets, there is nothing to clone", EXIT_ERROR)
        present = await committed_offsets(client, target)
        moves = [
            Move(where, present[where].offset if where in present else None, new) for where, new in committed.items()
        ]
        if execute:
            await carry_out(client, target, moves)
        return moves

    moves = on_cluster(bootstrap, properties, work)
    show_plan(output, target, moves, executed=execute)


# -- delete ------------------------------------------------------------------------------------------------------------


@app.command()
def delete(
    groups: Groups,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:PARTITIONS]",
            help="Delete only the offsets of this topic, or of partitions as in orders:0,2-4; may be repeated.",
        ),
    ] = None,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A group that is not there is no error.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Delete groups that have no members, with their offsets; or the offsets of single topics."""
    from moldau.cli.output import confirm, show_rows
    from moldau.cli.remote import on_cluster

    scopes = [parse_scope(text) for text in topic or ()]
    what = f"the offsets of {', '.join(topic)} in " if topic else ""
    confirm(f"Delete {what}{', '.join(groups)}{'' if topic else ' with all offsets'}?", yes=yes)

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        from moldau.client import group_admin

        if scopes:
            results = {group: await _delete_offsets(client, group, scopes) for group in dict.fromkeys(groups)}
        else:
            results = await group_admin.delete_groups(client, groups)
        return [await _report_deletion(client, group, refusal, if_exists) for group, refusal in results.items()]

    rows = on_cluster(bootstrap, properties, work)
    codes = {row.pop("code") for row in rows}
    show_rows(output, {"GROUP": "group", "RESULT": "result"}, rows)
    for code in (EXIT_ERROR, EXIT_NOT_FOUND):
        if code in codes:
            raise typer.Exit(code)


async def _delete_offsets(client: ClusterClient, group: str, scopes: list[Scope]) -> KafkaError | None:
    from moldau.client import group_admin
    from moldau.kernel import ErrorCode, KafkaError

    committed = (await group_admin.group_offsets(client, [group]))[group]
    if isinstance(committed, KafkaError):
        return committed
    chosen = [
        where
        for topic, partitions in scopes
        for where in committed
        if where.topic == topic and (partitions is None or where.partition in partitions)
    ]
    try:
        await group_admin.delete_group_offsets(client, group, chosen)
    except KafkaError as refusal:
        return refusal
    if not chosen:
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"group {group!r} has no offsets there to delete")
    return None


async def _report_deletion(
    client: ClusterClient, group: str, refusal: KafkaError | None, if_exists: bool
) -> dict[str, Any]:
    """What stands in the table, and the exit code; the reason goes to stderr. One refusal does not keep the others."""
    from moldau.cli.output import say
    from moldau.client import group_admin
    from moldau.kernel import ErrorCode, KafkaError

    if refusal is None:
        return {"group": group, "result": "deleted", "code": EXIT_OK}
    if refusal.code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND):
        if not if_exists:
            say(f"error: {not_found(group) if refusal.code is ErrorCode.GROUP_ID_NOT_FOUND else refusal}")
        return {"group": group, "result": "not found", "code": EXIT_OK if if_exists else EXIT_NOT_FOUND}
    described = (await group_admin.describe_groups(client, [group]))[group]
    if isinstance(described, KafkaError) or not described.is_active:
        say(f"error: {refusal}")
    else:
        say(f"error: group {group!r} is {described.state} with {members_text(described)}: stop them first")
    return {"group": group, "result": "refused", "code": EXIT_ERROR}
