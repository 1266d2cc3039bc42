"""Kafka's own command-line tool for transactions prints on Moldau what it prints on Kafka."""

from __future__ import annotations

import re

import pytest

from tests.differential.pair import Side
from tests.differential.transactions import Transactions
from tests.java import run_tool

pytestmark = pytest.mark.oracle

MOMENTS = ("CurrentTransactionStartTimeMs", "TransactionDurationMs", "LastTimestamp", "DurationMin", "Duration")


def printed(side: Side, prefix: str, *arguments: str) -> list[str]:
    """What the tool prints: rows of its tables by column, producer ids by name, moments taken out."""
    done = run_tool("transactions", *arguments, bootstrap=side.bootstrap, check=False)
    out = re.sub(r"^\[[\d :,-]+\] ", "", done.stdout + done.stderr, flags=re.MULTILINE)
    columns: list[str] = []
    lines = []
    for line in out.splitlines():
        words = line.split()
        if "ProducerId" in words:
            columns = words
            lines.append(" ".join(words))
        elif columns and len(columns) - len(words) in (0, 1):  # the last column may be empty
            row = dict(zip(columns, words, strict=False))
            if row.get("TransactionalId", prefix).startswith(prefix):
                lines.append(_row(side, row))
        elif words and not line.startswith("\tat "):
            lines.append(" ".join(words))
    return [f"exit {done.returncode}", *sorted(lines)]


def _row(side: Side, row: dict[str, str]) -> str:
    for column in MOMENTS:
        if row.get(column, "None") not in ("None", "-1"):
            row[column] = "moment"
    row["ProducerId"] = side.producer_names[int(row["ProducerId"])]
    if "TopicPartitions" in row:
        row["TopicPartitions"] = ",".join(sorted(row["TopicPartitions"].split(",")))
    return str(row)


@pytest.mark.parametrize("transactions", [2], indirect=True)
def test_transactions_are_listed_described_and_aborted(transactions: Transactions) -> None:
    topic = transactions.create("t", 2)
    going, over = transactions.init("open"), transactions.init("over")
    for name in (going, over):
        transactions.begin(name, {topic: [0, 1]})
    transactions.end(over, commit=True)
    transactions.send(going, topic, b"a")
    for arguments, expected in (
        (("list",), "Ongoing"),
        (("list", "--transactional-id-pattern", f"{transactions.prefix}.*"), "CompleteCommit"),
        (("list", "--duration-filter", "3600000"), "TransactionState"),
        (("describe", "--transactional-id", going), "Ongoing"),
        (("describe", "--transactional-id", over), "CompleteCommit"),
        (("describe", "--transactional-id", transactions.topic("unknown")), "exit 1"),
        (("describe-producers", "--topic", topic, "--partition", "0"), "LatestCoordinatorEpoch"),
        (("find-hanging", "--topic", topic, "--partition", "0", "--max-transaction-timeout", "1"), "exit 0"),
        (("find-hanging", "--broker-id", "1"), "exit 0"),
        (("abort", "--topic", topic, "--partition", "0", "--start-offset", "5"), "exit 1"),
        (("abort", "--topic", topic, "--partition", "0", "--start-offset", "1"), "exit 0"),
        (("describe-producers", "--topic", topic, "--partition", "0"), "None"),
        (("forceTerminateTransaction", "--transactionalId", going), "exit 0"),
        (("describe", "--transactional-id", going), "Empty"),
    ):
        ours, theirs = (printed(side, transactions.prefix, *arguments) for side in transactions.sides)
        assert ours == theirs, arguments
        assert expected in "\n".join(ours), (arguments, ours)
