"""`moldau group lag`: once, as a check, and live."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from moldau.cli.group_watch import LagHistory, Rate, drain_text
from moldau.client.group_admin import GroupDescription, GroupLag, PartitionLag
from moldau.kernel import TopicPartition
from tests.cli.conftest import SECONDS_MAX, Moldau
from tests.client.group_members import Members

pytestmark = pytest.mark.clients


@pytest.fixture
def orders(cluster: Moldau, new_name: Callable[[], str]) -> str:
    """Two partitions with 5 and 3 records."""
    name = new_name()
    cluster("topic", "create", name, "-p", "2")
    cluster.fill(name, 0, *[b"v"] * 5)
    cluster.fill(name, 1, *[b"v"] * 3)
    return name


def commit(cluster: Moldau, group: str, scope: str, offset: int) -> None:
    cluster("group", "reset", group, "--topic", scope, "--to-offset", str(offset), "--execute")


def test_lag_is_shown_by_partition_with_its_total(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group, other = new_name(), new_name()
    commit(cluster, group, orders, 1)
    commit(cluster, other, f"{orders}:1", 3)
    first, second = cluster("group", "lag", group, other, "-o", "json").json
    assert (first["group"], first["state"], first["total_lag"]) == (group, "Empty", 6)
    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in first["partitions"]] == [
        (0, 1, 5, 4),
        (1, 1, 3, 2),
    ]
    assert (second["group"], second["total_lag"]) == (other, 0)
    lines = [line.split() for line in cluster("group", "lag", group, other).out.splitlines()]
    assert lines[:4] == [[group], ["state:", "Empty"], ["members:", "0"], ["total", "lag:", "6"]]
    assert lines[5:8] == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CLIENT"],
        [orders, "0", "1", "5", "4", "-"],
        [orders, "1", "1", "3", "2", "-"],
    ]


def test_partitions_that_are_read_and_not_committed_are_counted_apart(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Members(cluster.bootstrap, group, orders, 2, client_ids=("till",)) as members:
        members.commit({0: 5})
        (found,) = cluster("group", "lag", group, "-o", "json").json
        shown = cluster("group", "lag", group).out
    assert [(row["lag"], row["client"]) for row in found["partitions"]] == [(0, "till"), (None, "till")]
    assert found["total_lag"] == 0 and "total lag: 0 (not counting 1 partition of unknown lag)" in shown


def test_max_is_a_check_for_scripts(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    commit(cluster, group, orders, 1)
    cluster("group", "lag", group, "--max", "6")
    done = cluster("group", "lag", group, "--max", "5", "-o", "json", code=4)
    assert done.json[0]["total_lag"] == 6
    assert done.err == f"error: {group} is 6 records behind, more than 5\n"
    assert "more than 5" in cluster("group", "lag", group, "--max", "5", "--watch", "-o", "jsonl", code=4).err


def test_a_group_that_does_not_exist_is_not_found(cluster: Moldau) -> None:
    done = cluster("group", "lag", "nobody-here", code=3)
    assert done.err == "error: group 'nobody-here' does not exist; `moldau group list` shows the groups\n"


def test_watch_tells_rates_as_soon_as_something_moves(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    commit(cluster, group, f"{orders}:0", 1)
    options = ("--watch", "--interval", "0.1", "-o", "jsonl")
    watch = cluster.start("group", "lag", group, *options, stdout=subprocess.PIPE)
    assert watch.stdout is not None
    try:
        first = json.loads(watch.stdout.readline())
        assert (first["total_lag"], first["consumed_per_second"]) == (4, None)
        commit(cluster, group, f"{orders}:0", 3)
        for line in watch.stdout:
            found = json.loads(line)
            if found["total_lag"] == 2:
                break
        assert found["consumed_per_second"] > 0 and found["produced_per_second"] == 0
        assert found["drain_seconds"] > 0
        assert found["partitions"][0]["consumed_per_second"] == found["consumed_per_second"]
    finally:
        watch.terminate()
        watch.wait()
        watch.stdout.close()


def test_watch_ends_after_a_count_and_with_ctrl_c(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    commit(cluster, group, orders, 1)
    done = cluster.run("group", "lag", group, "--watch", "--interval", "0.1", "-n", "2")
    assert done.out.count(f"{group}  Empty  total lag 6") == 2
    assert "0.0 in and 0.0 out a second, drained in never" in done.out
    watch = cluster.start("group", "lag", group, "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watch.stdout is not None
    assert b"total lag 6" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    _, complaints = watch.communicate(timeout=SECONDS_MAX)
    assert (watch.returncode, complaints) == (0, b"")
    assert "use -o jsonl" in cluster("group", "lag", group, "--watch", "-o", "json", code=2).err


def test_watch_redraws_in_place_on_a_terminal(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    commit(cluster, group, orders, 1)
    code, shown = cluster.on_terminal("group", "lag", group, "--watch", "--interval", "0.1", "-n", "3")
    assert code == 0 and shown.count("total lag 6") >= 3
    # The cursor goes back up over what was drawn before.
    assert shown.count("\x1b[1A") >= 2 * 4


# -- rates -------------------------------------------------------------------------------------------------------------


def look(*places: tuple[int | None, int | None]) -> GroupLag:
    description = GroupDescription("g", "Classic", "consumer", "Stable", 1, "range", None, (), None)
    partitions = (
        PartitionLag(TopicPartition("t", number), committed, end, None)
        for number, (committed, end) in enumerate(places)
    )
    return GroupLag(description, tuple(partitions))


def test_rates_are_over_the_window_not_over_the_last_interval() -> None:
    history = LagHistory(window_seconds=10)
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    history.add(0, look((0, 100), (None, 5)))
    assert history.rate(first) is None and history.total() is None
    # Commits come in leaps of 5 seconds, records steadily.
    for now, committed in ((2, 0), (4, 0), (5, 100), (6, 100), (8, 100), (10, 200)):
        history.add(now, look((committed, 100 + 10 * now), (None, 5)))
    assert history.rate(first) == Rate(10.0, 20.0)
    assert history.rate(second) is None and history.total() == Rate(10.0, 20.0)
    for now in (12, 14, 16, 18, 20):
        history.add(now, look((200, 200), (3, 5)))
    assert history.rate(first) == Rate(0.0, 0.0)
    assert history.rate(second) == Rate(0.0, 0.0)


def test_the_time_to_drain_follows_from_what_is_gained() -> None:
    assert Rate(10, 30).drain_seconds(100) == 5
    assert Rate(10, 10).drain_seconds(100) is None and Rate(10, 5).drain_seconds(1) is None
    assert Rate(10, 0).drain_seconds(0) == 0
    for seconds, text in (
        (None, "never"),
        (0.2, "0s"),
        (59.4, "59s"),
        (61, "1m01s"),
        (3600, "1h00m"),
        (90000, "25h00m"),
    ):
        assert drain_text({"produced_per_second": 1.0, "drain_seconds": seconds}) == text
    assert drain_text({"produced_per_second": None, "drain_seconds": None}) == "-"
