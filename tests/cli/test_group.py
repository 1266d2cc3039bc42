"""`moldau group`: listing, describing, cloning and deleting, on Moldau and on Apache Kafka, beside Kafka's own tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from moldau.cli.remote import on_cluster
from moldau.client import ClusterClient, group_admin
from moldau.client.group_admin import CommittedOffset
from moldau.kernel import TopicPartition
from tests.cli.conftest import Moldau
from tests.client.group_members import Members
from tests.client.proxy import Proxy
from tests.java import run_tool
from tests.oracle import require_oracle

pytestmark = pytest.mark.clients


@pytest.fixture
def orders(cluster: Moldau, new_name: Callable[[], str]) -> str:
    """A topic of three partitions with 5, 3 and 0 records."""
    name = new_name()
    cluster("topic", "create", name, "-p", "3")
    cluster.fill(name, 0, *[b"v"] * 5)
    cluster.fill(name, 1, *[b"v"] * 3)
    return name


def kafkas_tool(cluster: Moldau, *args: str) -> list[list[str]]:
    """The rows of Kafka's own tool, without the heading."""
    require_oracle()
    lines = run_tool("consumer-groups", *args, bootstrap=cluster.bootstrap).stdout.splitlines()
    return [line.split() for line in lines if line.strip()][1:]


def test_list_shows_every_group_with_its_state_as_kafkas_tool_does(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    active, empty = new_name(), new_name()
    cluster("group", "reset", empty, "--topic", orders, "--to-earliest", "--execute")
    with Members(cluster.bootstrap, active, orders, 3):
        rows = cluster("group", "list", "-o", "json").json
        told = dict(kafkas_tool(cluster, "--list", "--state"))
    # Others use the cluster too.
    found = {row["group"]: row for row in rows if row["group"] in (active, empty)}
    assert {group: row["state"] for group, row in found.items()} == {group: told[group] for group in (active, empty)}
    assert found[active] == {
        "group": active,
        "type": "Classic",
        "state": "Stable",
        "protocol": "consumer",
        "coordinator": 1,
    }
    assert (found[empty]["state"], found[empty]["protocol"]) == ("Empty", None)


def test_list_filters_and_forgives_how_a_state_is_written(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")

    def listed(*options: str) -> bool:
        return group in [row["group"] for row in cluster("group", "list", *options, "-o", "jsonl").lines]

    assert listed("--state", "empty") and listed("--state", "Stable", "--state", "EMPTY", "--type", "classic")
    assert not listed("--state", "preparing-rebalance") and not listed("--type", "Consumer")
    assert "there are Empty, Stable, PreparingRebalance" in cluster("group", "list", "--state", "fine", code=2).err
    assert "there are Classic, Consumer" in cluster("group", "list", "--type", "new", code=2).err


def test_describe_shows_members_offsets_and_lag_as_kafkas_tool_does(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Members(cluster.bootstrap, group, orders, 3, client_ids=("till", "kitchen")) as members:
        members.commit({0: 2, 1: 3})
        (found,) = cluster("group", "describe", group, "-o", "json").json
        shown = cluster("group", "describe", group).out
        told = kafkas_tool(cluster, "--describe", "--group", group)
        ((_, address, coordinator, assignor, state, count),) = kafkas_tool(
            cluster, "--describe", "--group", group, "--state"
        )
    assert {(*row[1:7], row[8]) for row in told} == {
        tuple(
            "-" if row[key] is None else str(row[key])
            for key in ("topic", "partition", "committed", "end", "lag", "member", "client")
        )
        for row in found["offsets"]
    }
    host, port = found["coordinator"]["host"], found["coordinator"]["port"]
    assert (address, coordinator) == (f"{host}:{port}", f"({found['coordinator']['id']})")
    assert (assignor, state, count) == (found["assignor"], found["state"], str(len(found["members"])))
    assert (found["type"], found["total_lag"]) == ("Classic", 3)
    assert {row["client"]: row["host"] for row in found["members"]} == {"till": "127.0.0.1", "kitchen": "127.0.0.1"}
    held = sorted(partition for row in found["members"] for partition in row["assignment"][orders])
    assert held == [0, 1, 2]
    lines = [line.split() for line in shown.splitlines()]
    assert (
        [group] in lines
        and ["state:", "Stable"] in lines
        and ["total", "lag:", "3", "(not", "counting", "1", "partition", "of", "unknown", "lag)"] in lines
    )
    assert [line[4] for line in lines if line[1:2] in (["till"], ["kitchen"])] == [
        f"{orders}:{text}" for text in [partitions_of(row) for row in found["members"]]
    ]


def partitions_of(member: dict[str, Any]) -> str:
    ((_, held),) = member["assignment"].items()
    return str(held[0]) if len(held) == 1 else f"{held[0]}-{held[-1]}"


def test_describe_of_an_empty_group_shows_what_it_committed(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    cluster("group", "reset", group, "--topic", f"{orders}:0", "--to-offset", "4", "--execute")
    (found,) = cluster("group", "describe", group, "-o", "jsonl").lines
    assert (found["state"], found["members"], found["assignor"]) == ("Empty", [], None)
    (row,) = found["offsets"]
    assert (row["committed"], row["end"], row["lag"], row["client"]) == (4, 5, 1, None)
    assert [line[1:6] for line in kafkas_tool(cluster, "--describe", "--group", group)] == [
        [orders, "0", "4", "5", "1"]
    ]


def test_describe_of_a_group_that_does_not_exist_says_where_to_look(cluster: Moldau) -> None:
    done = cluster("group", "describe", "nobody-here", code=3)
    assert done.err == "error: group 'nobody-here' does not exist; `moldau group list` shows the groups\n"


def test_describe_shows_the_rebalances_that_a_broker_tells(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")
    told = [{"began_ms": 1_700_000_000_123, "duration_ms": 12, "generation": 3, "members": 2, "reason": "one joined"}]

    def tell(key: int, response: Any) -> None:
        if key == 15:
            response.groups[0].unknown_tags = ((10_001, json.dumps(told).encode()),)

    async def work() -> tuple[str, str]:
        async with Proxy(cluster.bootstrap, on_response=tell) as proxy:
            through = Moldau(proxy.bootstrap)
            table = await asyncio.to_thread(through.run, "group", "describe", group)
            document = await asyncio.to_thread(through.run, "group", "describe", group, "-o", "json")
            return table.out, document.out

    table, document = asyncio.run(work())
    assert json.loads(document)[0]["rebalances"] == told
    *_, heading, row = table.splitlines()
    assert heading.split() == ["REBALANCED", "TOOK_MS", "GENERATION", "MEMBERS", "REASON"]
    assert row.split() == ["2023-11-14T22:13:20.123Z", "12", "3", "2", "one", "joined"]


def test_describe_on_a_terminal_is_drawn(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    with Members(cluster.bootstrap, group, orders, 3):
        code, shown = cluster.on_terminal("group", "describe", group)
    assert code == 0 and "─" in shown and f"{orders}:0-2" in shown


def test_clone_copies_offsets_with_their_metadata_once_it_is_told_to(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    source, target = new_name(), new_name()
    told = {
        TopicPartition(orders, 0): CommittedOffset(2, 0, "by the till"),
        TopicPartition(orders, 1): CommittedOffset(2),
    }

    async def commit(client: ClusterClient) -> None:
        await group_admin.alter_group_offsets(client, source, told)

    on_cluster(cluster.bootstrap, None, commit)
    done = cluster("group", "clone", source, target, "-o", "json")
    assert [(row["partition"], row["current"], row["new"]) for row in done.json] == [(0, None, 2), (1, None, 2)]
    assert "--execute does it" in done.err
    assert target not in [row["group"] for row in cluster("group", "list", "-o", "json").json]
    done = cluster("group", "clone", source, target, "--execute")
    assert done.err == f"2 offsets of group '{target}' set\n"
    copied = on_cluster(cluster.bootstrap, None, lambda client: group_admin.group_offsets(client, [target]))
    assert copied == {target: told}


def test_clone_refuses_what_makes_no_sense(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    source, target = new_name(), new_name()
    assert "does not exist" in cluster("group", "clone", "nobody-here", target, code=3).err
    assert "same group" in cluster("group", "clone", source, source, code=2).err
    cluster("group", "reset", source, "--topic", orders, "--to-earliest", "--execute")
    with Members(cluster.bootstrap, target, orders, 3, client_ids=("till",)):
        refused = cluster("group", "clone", source, target, "--execute", code=1)
    assert f"group '{target}' is Stable with 1 member (till at 127.0.0.1): nothing was done" in refused.err


def test_delete_goes_on_after_a_missing_one_and_names_the_members_of_an_active_one(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    first, active, last = new_name(), new_name(), new_name()
    for group in (first, last):
        cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")
    done = cluster("group", "delete", first, "nobody-here", "-o", "json", code=3)
    assert [row["result"] for row in done.json] == ["deleted", "not found"]
    assert "`moldau group list` shows the groups" in done.err
    assert cluster("group", "delete", "nobody-here", "--if-exists").err == ""
    with Members(cluster.bootstrap, active, orders, 3, client_ids=("till", "kitchen")):
        done = cluster("group", "delete", active, last, "-o", "json", code=1)
    assert [row["result"] for row in done.json] == ["refused", "deleted"]
    assert f"group '{active}' is Stable with 2 members" in done.err and "till at 127.0.0.1" in done.err
    assert {first, last} & {row["group"] for row in cluster("group", "list", "-o", "json").json} == set()


def test_delete_of_a_topics_offsets_leaves_the_others(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")
    cluster("group", "delete", group, "--topic", f"{orders}:0,2")
    (found,) = cluster("group", "lag", group, "-o", "json").json
    assert [row["partition"] for row in found["partitions"]] == [1]
    assert "no offsets there" in cluster("group", "delete", group, "--topic", f"{orders}:0", code=3).err
    assert "does not exist" in cluster("group", "delete", "nobody-here", "--topic", orders, code=3).err
    with Members(cluster.bootstrap, group, orders, 3):
        assert "is Stable with 1 member" in cluster("group", "delete", group, "--topic", orders, code=1).err


def test_a_terminal_is_asked_before_a_group_goes(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")
    code, shown = cluster.on_terminal("group", "delete", group, typed=b"n\n", until=b"[y/N]")
    assert code == 1 and f"Delete {group} with all offsets?" in shown and "nothing was done" in shown
    code, shown = cluster.on_terminal("group", "delete", group, "--yes")
    assert code == 0 and "[y/N]" not in shown and "deleted" in shown
