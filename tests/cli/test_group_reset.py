"""`moldau group reset`: every target beside Kafka's own tool, plans that go through files, and what is refused."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.group_reset import duration_ms
from moldau.cli.group_text import parse_scope, partitions_text
from tests.cli.conftest import Moldau
from tests.client.group_members import Members
from tests.java import run_tool
from tests.oracle import require_oracle

pytestmark = pytest.mark.clients

BEGAN = "2024-05-01T10:00:0{}Z"
# What Python allows as long as nobody says otherwise.
CSV_FIELD_CHARS_MAX = 128 << 10


@pytest.fixture
def orders(cluster: Moldau, new_name: Callable[[], str]) -> str:
    """Two partitions: six records of three seconds without the first two, and four records of one second."""
    name = new_name()
    cluster("topic", "create", name, "-p", "2")
    for second, partition, count in ((1, 0, 2), (2, 0, 2), (3, 0, 2), (2, 1, 4)):
        moment = datetime.fromisoformat(BEGAN.format(second))
        cluster.fill(name, partition, *[b"v"] * count, timestamp_ms=int(moment.timestamp() * 1000))
    cluster("topic", "trim", name, "--to-offset", "2", "--partition", "0")
    return name


def plan(cluster: Moldau, group: str, *options: str) -> dict[int, int]:
    rows = cluster("group", "reset", group, *options, "-o", "json").json
    return {row["partition"]: row["new"] for row in rows}


def committed(cluster: Moldau, group: str) -> dict[int, int]:
    (found,) = cluster("group", "lag", group, "-o", "json").json
    return {row["partition"]: row["committed"] for row in found["partitions"]}


def test_every_target_is_where_kafkas_tool_goes(
    cluster: Moldau, orders: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    require_oracle()
    group = new_name()
    cluster("group", "reset", group, "--topic", orders, "--to-offset", "3", "--execute")
    listed = tmp_path / "plan.csv"
    listed.write_text(f"{orders},0,5\n{orders},1,99\n")
    here = ("--topic", orders)
    for expected, ours, theirs in (
        ({0: 2, 1: 0}, (*here, "--to-earliest"), (*here, "--to-earliest")),
        ({0: 6, 1: 4}, ("--all-topics", "--to-latest"), ("--all-topics", "--to-latest")),
        ({0: 2, 1: 0}, (*here, "--shift", "-3"), (*here, "--shift-by", "-3")),
        ({0: 5, 1: 4}, (*here, "--shift-by", "2"), (*here, "--shift-by", "2")),
        ({0: 6, 1: 4}, (*here, "--to-offset", "50"), (*here, "--to-offset", "50")),
        ({1: 1}, ("--topic", f"{orders}:1", "--to-offset", "1"), ("--topic", f"{orders}:1", "--to-offset", "1")),
        ({0: 4, 1: 4}, (*here, "--to-datetime", BEGAN.format(3)), (*here, "--to-datetime", "2024-05-01T10:00:03.000Z")),
        ({0: 6, 1: 4}, (*here, "--by-duration", "PT1H"), (*here, "--by-duration", "PT1H")),
        ({0: 2, 1: 0}, (*here, "--by-duration", "P20000D"), (*here, "--by-duration", "P20000D")),
        ({0: 2, 1: 0}, (*here, "--by-duration", "P30000D"), (*here, "--by-duration", "P20000D")),
        ({0: 5, 1: 4}, ("--from-file", str(listed)), ("--from-file", str(listed))),
    ):
        assert plan(cluster, group, *ours) == expected, ours
        told = run_tool(
            "consumer-groups", "--reset-offsets", "--group", group, *theirs, "--dry-run", bootstrap=cluster.bootstrap
        ).stdout.splitlines()
        rows = [line.split() for line in told if line.startswith(group)]
        assert {int(row[2]): int(row[3]) for row in rows} == expected, theirs
    assert committed(cluster, group) == {0: 3, 1: 3}


def test_the_plan_is_shown_and_only_execute_does_it(cluster: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    done = cluster("group", "reset", group, "--topic", orders, "--to-latest")
    assert [line.split() for line in done.out.splitlines()] == [
        ["TOPIC", "PARTITION", "CURRENT", "NEW"],
        [orders, "0", "-", "6"],
        [orders, "1", "-", "4"],
    ]
    assert done.err == "nothing is changed: this is the plan; --execute does it\n"
    assert "does not exist" in cluster("group", "lag", group, code=3).err
    done = cluster("group", "reset", group, "--topic", orders, "--to-latest", "--execute")
    assert done.err == f"2 offsets of group '{group}' set\n"
    assert committed(cluster, group) == {0: 6, 1: 4}
    (row,) = cluster("group", "reset", group, "--topic", f"{orders}:1", "--to-earliest", "-o", "json").json
    assert row == {"topic": orders, "partition": 1, "current": 4, "new": 0}


def test_offsets_out_of_range_are_clamped_with_a_warning(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    done = cluster("group", "reset", new_name(), "--topic", orders, "--to-offset", "1", "-o", "json")
    assert [row["new"] for row in done.json] == [2, 1]
    assert f"warning: {orders}-0 has offsets 2 to 6: 2 is taken for 1\n" in done.err
    assert f"{orders}-1" not in done.err


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_printed_plan_is_what_from_file_reads(
    cluster: Moldau, orders: str, new_name: Callable[[], str], tmp_path: Path, form: str
) -> None:
    source, target = new_name(), new_name()
    printed = cluster("group", "reset", source, "--topic", orders, "--to-offset", "3", "--dry-run", "-o", form).out
    saved = tmp_path / "plan"
    saved.write_text(printed)
    cluster("group", "reset", target, "--from-file", str(saved), "--execute")
    assert committed(cluster, target) == {0: 3, 1: 3}


def test_plans_as_csv_go_to_kafkas_tool_and_back(
    cluster: Moldau, orders: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    require_oracle()
    group = new_name()
    saved = tmp_path / "plan.csv"

    def tool(*options: str) -> str:
        return run_tool(
            "consumer-groups", "--reset-offsets", "--group", group, *options, bootstrap=cluster.bootstrap
        ).stdout

    saved.write_text(cluster("group", "reset", group, "--topic", orders, "--to-offset", "3", "-o", "csv").out)
    tool("--from-file", str(saved), "--execute")
    assert committed(cluster, group) == {0: 3, 1: 3}
    saved.write_text(tool("--topic", orders, "--to-latest", "--dry-run", "--export"))
    cluster("group", "reset", group, "--from-file", str(saved), "--execute")
    assert committed(cluster, group) == {0: 6, 1: 4}


def test_a_plan_of_several_groups_gives_each_its_own_rows(
    cluster: Moldau, orders: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    saved = tmp_path / "plan.csv"
    saved.write_text(f"mine,{orders},0,3\nother,{orders},1,2\n")
    assert plan(cluster, "mine", "--from-file", str(saved)) == {0: 3}
    assert "no offsets for group 'third'" in cluster("group", "reset", "third", "--from-file", str(saved), code=2).err


def test_an_active_group_is_refused_and_its_members_are_named(
    cluster: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Members(cluster.bootstrap, group, orders, 2, client_ids=("till", "kitchen")) as members:
        members.commit({0: 3})
        refused = cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute", code=1)
    assert refused.err.startswith(f"error: group '{group}' is Stable with 2 members (")
    assert "till at 127.0.0.1" in refused.err and "kitchen at 127.0.0.1" in refused.err
    assert refused.err.endswith("nothing was done; stop them first, then reset it\n")
    assert committed(cluster, group) == {0: 3}
    cluster("group", "reset", group, "--topic", orders, "--to-earliest", "--execute")
    assert committed(cluster, group) == {0: 2, 1: 0}


def test_what_cannot_be_is_refused_with_the_next_step(
    cluster: Moldau, orders: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    group = new_name()

    def refused(code: int, *options: str) -> str:
        return cluster("group", "reset", group, *options, code=code).err

    assert "choose one of --to-earliest" in refused(2, "--topic", orders)
    assert "choose one of --to-earliest" in refused(2, "--topic", orders, "--to-earliest", "--to-latest")
    assert "say what to reset" in refused(2, "--to-earliest")
    assert "say what to reset" in refused(2, "--to-earliest", "--all-topics", "--topic", orders)
    assert "exclude each other" in refused(2, "--topic", orders, "--to-earliest", "--execute", "--dry-run")
    assert "no committed offsets: name what to reset" in refused(1, "--all-topics", "--to-earliest")
    assert f"no committed offset to shift in {orders}-0, {orders}-1" in refused(1, "--topic", orders, "--shift", "1")
    assert "has no partition 7" in refused(3, "--topic", f"{orders}:7", "--to-earliest")
    assert "does not exist" in refused(3, "--topic", "no-such-topic", "--to-earliest")
    assert "is no time" in refused(2, "--topic", orders, "--to-datetime", "yesterday")
    assert "is before 1970" in refused(2, "--topic", orders, "--to-datetime", "1969-12-31T23:00Z")
    assert "is no time" in refused(2, "--topic", orders, "--to-datetime", "9" * 30)
    assert "write PT1H30M" in refused(2, "--topic", orders, "--by-duration", "9" * 18 + "d")
    assert "No such file" in refused(1, "--from-file", str(tmp_path / "missing.csv"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("orders,0\n", "entry 1 has 2 columns"),
        ("orders,0,1\norders,one,1\n", "entry 2 is no topic, partition and offset"),
        ("orders,0,-4\n", "entry 1 is no topic"),
        ('{"topic": "orders", "partition": 0}\n', "entry 1 is no topic"),
        ('{"topic": "orders", "partition": true, "offset": 1}\n', "entry 1 is no topic"),
        ('{"topic": "orders", "partition": 0, "offset": Infinity}\n', "entry 1 is no topic"),
        ('{"topic": ["orders"], "partition": 0, "offset": 1}\n', "entry 1 is no topic"),
        ("orders,0,99999999999999999999\n", "entry 1 is no topic"),
        ("o" * 200_000 + ",0,1\n", "is no CSV: field larger"),
        ("[" * 100_000, "is no JSON: maximum recursion"),
        ("\udcff", "is no text in UTF-8: invalid start byte at byte 0"),
        ("[1]", "entry 1 is no JSON object"),
        ("[{]", "is no JSON"),
        ("", "no offsets for group 'any'"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_the_place(
    moldau: Moldau, tmp_path: Path, text: str, complaint: str
) -> None:
    saved = tmp_path / "plan"
    saved.write_bytes(text.encode(errors="surrogateescape"))
    csv.field_size_limit(CSV_FIELD_CHARS_MAX)  # `moldau produce` may have raised it in this process
    said = moldau("group", "reset", "any", "--from-file", str(saved), code=2).err
    assert complaint in said


def test_partitions_are_read_and_written_as_spans() -> None:
    assert parse_scope("orders") == ("orders", None)
    assert parse_scope("orders:0,2-4, 7") == ("orders", [0, 2, 3, 4, 7])
    assert partitions_text([7, 0, 2, 4, 3]) == "0,2-4,7" and partitions_text([1, 2]) == "1-2"
    for text in ("orders:", "orders:one", "orders:1;2", ":1", "orders:-1"):
        with pytest.raises(CommandError, match="orders:0,2-4"):
            parse_scope(text)


def test_a_span_that_runs_backwards_or_beyond_every_topic_is_refused() -> None:
    with pytest.raises(CommandError, match="orders:0,4-2: 4-2 runs backwards; write 2-4"):
        parse_scope("orders:0,4-2")
    with pytest.raises(CommandError, match="no partition 99999999999; `moldau topic describe orders`"):
        parse_scope("orders:0-99999999999")


def test_durations_are_iso_or_short() -> None:
    for text, expected in (
        ("PT1H30M", 5_400_000),
        ("P2D", 172_800_000),
        ("P1DT1S", 86_401_000),
        ("pt0.5s", 500),
        ("P1W", 604_800_000),
        ("90m", 5_400_000),
        ("250ms", 250),
    ):
        assert duration_ms(text) == expected, text
    for text in ("P", "PT", "1 hour", "P1M", "-PT1H", "12"):
        with pytest.raises(CommandError, match="PT1H30M"):
            duration_ms(text)
