"""The judge of histories: clean ones are clean, and every planted bug is found by its name."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.testing import AnomalyKind, History, Outcome, check, report
from tests.testing import transactional_log as planted
from tests.testing.transactional_log import Log, play

A, B = ("orders", 0), ("orders", 1)
SEEDS = range(20)


@given(st.integers(0, 2**32), st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_what_a_correct_log_does_is_clean(seed: int, steps: int) -> None:
    assert report(check(play(seed, steps))) == "no anomalies"


BUGS = [
    (planted.DropsAcknowledged, AnomalyKind.LOST_WRITE),
    (planted.DropsTheLastOfAll, AnomalyKind.UNSEEN),
    (planted.AppendsTwice, AnomalyKind.DUPLICATE),
    (planted.ShowsAborted, AnomalyKind.ABORTED_READ),
    (planted.CommitsHalf, AnomalyKind.TORN_TRANSACTION),
    (planted.CommitsOffsetsAlone, AnomalyKind.TORN_TRANSACTION),
    (planted.SwapsTwo, AnomalyKind.INCONSISTENT_OFFSETS),
    (planted.ChangesAValue, AnomalyKind.INCONSISTENT_OFFSETS),
    (planted.LosesOffsets, AnomalyKind.LOST_OFFSET),
    (planted.LosesOffsetsOfWrites, AnomalyKind.TORN_TRANSACTION),
    (planted.CommitsOffsetsOfAborted, AnomalyKind.ABORTED_READ),
    (planted.InventsRecords, AnomalyKind.PHANTOM),
    (planted.InventsOffsets, AnomalyKind.PHANTOM),
    (planted.ReadsBeyondTheStableOffset, AnomalyKind.PRECOMMITTED_READ),
    (planted.SkipsOnRead, AnomalyKind.POLL_SKIP),
    (planted.GoesBackOnRead, AnomalyKind.NONMONOTONIC_POLL),
    (planted.InsertsBefore, AnomalyKind.REALTIME_ORDER),
    (planted.InsertsBefore, AnomalyKind.NONMONOTONIC_SEND),
]


@pytest.mark.parametrize(("bug", "kind"), BUGS, ids=[f"{bug.__name__}-{kind}" for bug, kind in BUGS])
def test_a_planted_bug_is_found(bug: type[Log], kind: AnomalyKind) -> None:
    found = [seed for seed in SEEDS if any(each.kind is kind for each in check(play(seed, log=bug)))]
    assert len(found) >= len(SEEDS) // 2, f"found with the seeds {found} only"


# -- by hand -----------------------------------------------------------------------------------------------------------


def found(history: History) -> list[str]:
    return [str(each) for each in check(history)]


def test_a_line_of_the_report_names_the_partition_the_offset_the_value_and_who() -> None:
    history = History()
    history.send("p1", A, "paid", 7)
    history.send("p1", A, "sent", 8)
    history.poll("r1", A, (8, "sent"))
    assert found(history) == [
        "lost-write: orders-0 'paid' at offset 7 of p1's plain 0..1 (ok) was never read, but offset 8 was"
    ]
    assert report(check(history)) == found(history)[0]


def test_a_write_of_unknown_outcome_may_be_there_or_not() -> None:
    history = History()
    history.send("p1", A, "maybe", outcome=Outcome.INFO)
    history.send("p2", A, "perhaps", outcome=Outcome.INFO)
    history.final_read("r", {A: [(0, "maybe")]})
    assert found(history) == []


def test_what_is_read_once_is_committed_whatever_its_writer_heard() -> None:
    history = History()
    with history.transaction("p1") as transaction:
        transaction.send(A, "left", 0)
        transaction.send(B, "right", 0)
    history.poll("r", A, (0, "left"))
    assert found(history) == [], "the other half may still come"
    history.final_read("fresh", {A: [(0, "left")], B: []})
    assert [each.kind for each in check(history)] == [AnomalyKind.UNSEEN, AnomalyKind.TORN_TRANSACTION]


def test_a_transaction_of_unknown_outcome_that_the_final_read_alone_saw_is_whole() -> None:
    history = History()
    with history.transaction("p1") as transaction:
        transaction.send(A, "left")
        transaction.send(B, "right")
    history.final_read("fresh", {A: [(0, "left")], B: []})
    assert AnomalyKind.TORN_TRANSACTION in [each.kind for each in check(history)]


def test_polls_of_a_failed_transaction_count() -> None:
    history = History()
    history.send("p1", A, "x", 0)
    history.send("p1", A, "y", 1)
    with history.transaction("p2") as transaction:
        transaction.poll(A, 0, "wrong")
        transaction.failed()
    assert [each.kind for each in check(history)] == [
        AnomalyKind.PHANTOM,
        AnomalyKind.INCONSISTENT_OFFSETS,
        AnomalyKind.LOST_WRITE,
    ]


def test_gaps_between_offsets_are_no_skips() -> None:
    history = History()
    history.assign("r", {A: 0})
    for value, offset in (("x", 0), ("y", 5), ("z", 17)):
        history.send("p", A, value, offset)
        history.poll("r", A, (offset, value))
    assert found(history) == []


def test_what_an_assigned_reader_passes_over_is_a_skip_from_its_first_record_on() -> None:
    history = History()
    for offset, value in enumerate("xyz"):
        history.send("p", A, value, offset)
    history.poll("all", A, (0, "x"), (1, "y"), (2, "z"))
    history.assign("some", {A: 1})
    history.poll("some", A, (2, "z"))
    (only,) = found(history)
    assert only.startswith("poll-skip: orders-0: some's plain") and only.endswith("skipped offset 1")


def test_a_subscribed_reader_may_jump_between_polls_but_not_within_one() -> None:
    history = History()
    for offset, value in enumerate("xyz"):
        history.send("p", A, value, offset)
    history.poll("all", A, (0, "x"), (1, "y"), (2, "z"))
    history.subscribe("member")
    history.poll("member", A, (2, "z"))
    history.poll("member", A, (0, "x"))
    assert found(history) == []
    history.poll("member", A, (0, "x"), (2, "z"))
    history.poll("member", A, (2, "z"), (1, "y"))
    assert [each.kind for each in check(history)] == [AnomalyKind.POLL_SKIP, AnomalyKind.NONMONOTONIC_POLL]


def test_transactions_may_interleave() -> None:
    history = History()
    with history.transaction("p1") as one, history.transaction("p2") as two:
        for offset, transaction in enumerate((one, two, one, two)):
            transaction.send(A, f"{transaction.process} {offset}", offset)
        one.succeeded()
        two.succeeded()
    values = ["p1 0", "p2 1", "p1 2", "p2 3"]
    history.final_read("fresh", {A: list(enumerate(values))})
    assert found(history) == []


def test_transactions_that_read_each_other_are_a_circle() -> None:
    history = History()
    with history.transaction("p1") as one, history.transaction("p2") as two, history.transaction("p3") as three:
        one.send(A, "one", 0)
        two.send(B, "two", 0)
        three.send(B, "three", 1)
        two.poll(A, 0, "one")
        one.poll(B, 0, "two")
        three.poll(A, 0, "one")
        for transaction in (one, two, three):
            transaction.succeeded()
    (only,) = check(history)
    assert only.kind is AnomalyKind.CIRCULAR_FLOW
    assert "p1" in only.what and "p2" in only.what and "p3" not in only.what


def test_a_later_commit_may_replace_an_offset_and_an_unknown_one_may_come_late() -> None:
    history = History()
    for offset in (5, 3):
        with history.plain("owner") as operation:
            operation.commit_offset("g", A, offset)
            operation.succeeded()
    history.read_offset("r", "g", A, 3)
    with history.plain("owner") as operation:
        operation.commit_offset("g", A, 9)
    history.read_offset("r", "g", A, 3)
    history.read_offset("r", "g", A, 9)
    assert found(history) == []
    history.read_offset("r", "g", A, 5)
    history.read_offset("r", "g", A, None)
    assert [each.kind for each in check(history)] == [AnomalyKind.LOST_OFFSET, AnomalyKind.LOST_OFFSET]


def test_a_value_that_is_sent_twice_cannot_be_judged() -> None:
    history = History()
    history.send("p1", A, "x", 0)
    history.send("p2", A, "x", 1)
    with pytest.raises(ValueError, match="'x' was sent twice"):
        check(history)


def test_an_operation_that_raised_never_ended() -> None:
    history = History()
    with pytest.raises(ZeroDivisionError), history.transaction("p") as transaction:
        transaction.send(A, "x")
        raise ZeroDivisionError
    assert history.operations[0].outcome is Outcome.INFO and history.operations[0].end == float("inf")


def test_a_history_survives_a_file() -> None:
    history = play(7)
    with pytest.raises(ZeroDivisionError), history.plain("dies"):
        raise ZeroDivisionError
    again = History()
    again.read(history.lines())
    assert again.operations == history.operations


def test_a_hundred_thousand_transactions_are_judged_in_seconds() -> None:
    """The bound is loose: what grows with the square of the history takes minutes."""
    history, count, dice = History(), 100_000, random.Random(1)
    partitions = [("t", index) for index in range(8)]
    logs: dict[tuple[str, int], list[str]] = {partition: [] for partition in partitions}
    for number in range(count):
        with history.transaction(f"p{number % 16}") as transaction:
            for partition in dice.sample(partitions, 2):
                logs[partition].append(f"v{number}")
                transaction.send(partition, f"v{number}", len(logs[partition]) - 1)
            transaction.commit_offset("g", ("in", 0), number)
            transaction.succeeded()
        if number % 10 == 0:
            history.read_offset("r", "g", ("in", 0), number)
    history.final_read("fresh", {partition: list(enumerate(values)) for partition, values in logs.items()})
    start = time.process_time()
    assert check(history) == []
    seconds = time.process_time() - start
    print(f"{seconds:.1f} s")
    assert seconds < 60
