"""`moldau consume -g` and `tail -g`: a group goes on where it left off, and what was printed is read."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import SECONDS_MAX, Moldau
from tests.client.group_members import Members

pytestmark = pytest.mark.clients


@pytest.fixture
def orders(cluster: Moldau, new_name: Callable[[], str]) -> str:
    """Two partitions with ten records each."""
    name = new_name()
    cluster("topic", "create", name, "-p", "2")
    for partition in range(2):
        cluster.fill(name, partition, *(b"%d-%d" % (partition, number) for number in range(10)))
    return name


def lag(cluster: Moldau, group: str) -> tuple[str, int]:
    """The state, and how many records are left of both partitions, which must have been committed."""
    (found,) = cluster("group", "lag", group, "-o", "json").json
    first, second = [row["lag"] for row in found["partitions"]]
    return found["state"], first + second


def test_each_run_goes_on_where_the_last_one_stopped(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    first = cluster.run("consume", orders, "-g", group, "-n", "7").out.split()
    assert len(first) == 7 and lag(cluster, group) == ("Empty", 13)
    second = cluster.run("consume", orders, "-g", group, "-n", "5").out.split()
    assert lag(cluster, group) == ("Empty", 8)
    rest = cluster.run("consume", orders, "-g", group, "--exit").out.split()
    assert sorted(first + second + rest) == sorted(
        f"{partition}-{number}" for partition in (0, 1) for number in range(10)
    )
    assert lag(cluster, group) == ("Empty", 0)
    assert cluster.run("consume", orders, "-g", group, "--exit").out == ""


def test_start_says_where_to_begin_only_where_nothing_is_committed(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    fresh, known = new_name(), new_name()
    assert cluster.run("consume", orders, "-g", fresh, "-s", "end", "--exit").out == ""
    cluster("group", "reset", known, "--topic", orders, "--to-offset", "8", "--execute")
    out = cluster.run("consume", orders, "-g", known, "-s", "end", "--exit").out
    assert sorted(out.split()) == ["0-8", "0-9", "1-8", "1-9"]


def test_ctrl_c_commits_what_was_printed_and_leaves(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    # Nothing is committed on the way.
    command = ("consume", orders, "-g", group, "-X", "auto.commit.interval.ms=3600000")
    reading = cluster.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    for _ in range(20):
        reading.stdout.readline()
    cluster.fill(orders, 0, *[b"late"] * 5)
    for _ in range(5):
        assert reading.stdout.readline() == b"late\n"
    assert cluster("group", "lag", group, "-o", "json").json[0]["state"] == "Stable"
    reading.send_signal(signal.SIGINT)
    _, complaints = reading.communicate(timeout=SECONDS_MAX)
    assert (reading.returncode, complaints) == (0, b"")
    assert lag(cluster, group) == ("Empty", 0)


def test_members_share_the_partitions(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    with Members(cluster.bootstrap, group, orders, 2) as members:
        command = ("consume", orders, "-g", group, "-n", "10", "-f", "%p\\n", "-X", "client.id=ours")
        reading = cluster.start(*command, stdout=subprocess.PIPE)
        deadline = time.monotonic() + SECONDS_MAX
        while reading.poll() is None:
            assert time.monotonic() < deadline
            # librdkafka's member gives a partition up only while it polls.
            members.consumers[0].poll(0.05)
        out, _ = reading.communicate()
    assert len(set(out.split())) == 1 and len(out.split()) == 10


def test_what_is_not_the_groups_business_is_refused(cluster: Moldau, orders: str) -> None:
    assert "leave -p out, or -g" in cluster("consume", orders, "-g", "any", "-p", "0", code=2).err
    assert "`moldau group reset any` moves it" in cluster("consume", orders, "-g", "any", "-s", "3", code=2).err
    assert "does not exist" in cluster("consume", "no-such-topic", "-g", "any", code=3).err
    assert "session.timeout.mss" in cluster("consume", orders, "-g", "any", "-X", "session.timeout.mss=1", code=2).err


def test_without_a_group_there_is_one_of_its_own_that_is_gone_afterwards(cluster: Moldau, orders: str) -> None:
    def groups() -> set[str]:
        found = {row["group"] for row in cluster("group", "list", "-o", "json").json}
        return {group for group in found if group.startswith("console-consumer-")}

    before = groups()
    reading = cluster.start("consume", orders, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    lines = {reading.stdout.readline() for _ in range(20)}
    assert lines == {f"{partition}-{number}\n".encode() for partition in (0, 1) for number in range(10)}
    own = groups() - before
    assert own, "the reader is not among the groups"
    reading.send_signal(signal.SIGINT)
    _, complaints = reading.communicate(timeout=SECONDS_MAX)
    assert (reading.returncode, complaints) == (0, b"")
    assert len(own - groups()) == 1
