"""Kafka's own command-line tools for groups print on Moldau what they print on Kafka."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moldau.protocol.messages.leave_group import LeaveGroupRequest
from tests.differential.batches import batch
from tests.differential.pair import Pair, Side, produce
from tests.differential.test_groups import commit, ready, stable, subscription
from tests.java import run_tool

pytestmark = pytest.mark.oracle


def printed(side: Side, *arguments: str) -> str:
    """A tool's output with what is of one cluster only taken out, and its lines in one order."""
    done = run_tool("consumer-groups", *arguments, bootstrap=side.bootstrap, check=False)
    out = re.sub(r"differential-[0-9a-f-]{36}", "member", done.stdout + done.stderr)
    out = re.sub(r"127\.0\.0\.1:\d+\s+\((\d)\)", r"host (\1)", out)
    out = re.sub(r"^\[[\d :,-]+\]", "", out, flags=re.MULTILINE)
    lines = [re.sub(r"\s+", " ", line).strip() for line in out.splitlines()]
    return "\n".join(sorted(line for line in lines if line))


def test_consumer_groups(pair: Pair, tmp_path: Path) -> None:
    group, idle = pair.topic("group"), pair.topic("idle")
    # For ever: the records are old, and the shared Kafka looks for old ones now and then.
    topic = pair.create("wanted", 2, {"retention.ms": "-1"}, batches=[batch(b"a", b"b", b"c")])
    for side in pair.sides:
        ready(side, group)
        ready(side, idle)
        side.ask(produce(topic, batch(b"d"), partition=1), 9)
    stable(pair, group, protocols=[("range", subscription(topic))])
    for side in pair.sides:
        side.ask(commit(side, group, {topic: {0: 1, 1: 1}}, 9, 1, side.notes["member"]), 9)
        side.ask(commit(side, idle, {topic: {0: 2, 1: 0}}, 9), 9)

    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,1\n{topic},1,1\n")
    for arguments in (
        ("--describe", "--group", group),
        ("--describe", "--group", group, "--members", "--verbose"),
        ("--describe", "--group", group, "--state", "--verbose"),
        ("--describe", "--group", idle),
        ("--describe", "--group", idle, "--offsets", "--verbose"),
        ("--describe", "--group", pair.topic("nobody")),
        ("--delete", "--group", group),
        ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--dry-run"),
        ("--reset-offsets", "--group", idle, "--topic", topic, "--to-earliest", "--dry-run"),
        ("--reset-offsets", "--group", idle, "--topic", topic, "--to-latest", "--execute"),
        ("--reset-offsets", "--group", idle, "--topic", f"{topic}:0", "--shift-by", "-2", "--execute"),
        ("--reset-offsets", "--group", idle, "--all-topics", "--to-offset", "99", "--dry-run"),
        ("--reset-offsets", "--group", idle, "--topic", topic, "--from-file", str(plan), "--execute"),
        ("--reset-offsets", "--group", idle, "--topic", topic, "--by-duration", "PT0S", "--export", "--dry-run"),
        ("--describe", "--group", idle),
        ("--delete-offsets", "--group", group, "--topic", topic),
        ("--delete-offsets", "--group", idle, "--topic", f"{topic}:1"),
        ("--describe", "--group", idle),
        ("--delete", "--group", idle),
        ("--describe", "--group", idle),
    ):
        ours, theirs = (printed(side, *arguments) for side in pair.sides)
        assert ours == theirs, arguments
    for side in pair.sides:
        side.ask(LeaveGroupRequest(group, members=[LeaveGroupRequest.MemberIdentity(side.notes["member"])]), 5)
        assert group in run_tool("consumer-groups", "--list", bootstrap=side.bootstrap).stdout.split()
        listed = run_tool("consumer-groups", "--list", "--state", "Empty", bootstrap=side.bootstrap).stdout
        assert re.search(rf"^{re.escape(group)}\s+Empty", listed, re.MULTILINE), listed
