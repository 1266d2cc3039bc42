"""The runtime alone: a machine that counts."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.coordination import Moment, Shard, ShardState, Step, partition_of
from moldau.coordination.hashing import java_string_hash
from moldau.kernel import ErrorCode, KafkaError

NOW = Moment(0, 1000)


class Counter:
    """Logs every `add`, answers with the sum."""

    def __init__(self) -> None:
        self.total = 0
        self.deadline: int | None = None

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.total += int(value or b"0")

    def handle(self, event: Any, step: Step) -> None:
        token, number = event
        if number < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        self.total += number
        if number:
            step.log(b"add", str(number).encode())
        step.answer(token, self.total)

    def on_loaded(self, step: Step) -> None:
        step.say(f"loaded {self.total}")

    def on_time(self, step: Step) -> None:
        self.deadline = None
        step.log(b"add", b"100")
        self.total += 100

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadline

    def waiting(self) -> list[Any]:
        return ["held back"]


def active() -> Shard[Counter]:
    shard = Shard(0, Counter(), lambda line: None)
    shard.activate(0, NOW)
    return shard


def test_a_shard_that_loads_or_is_over_refuses_with_the_right_error() -> None:
    shard = Shard(0, Counter(), lambda line: None)
    with pytest.raises(KafkaError) as refused:
        shard.submit(("a", 1), NOW)
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    shard.activate(0, NOW)
    shard.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    with pytest.raises(KafkaError) as refused:
        shard.submit(("a", 1), NOW)
    assert refused.value.code == ErrorCode.NOT_COORDINATOR


def test_loading_replays_and_says_so() -> None:
    lines: list[str] = []
    shard = Shard(0, Counter(), lines.append)
    shard.machine.replay(b"add", b"7")
    shard.activate(1, NOW)
    assert lines == ["loaded 7"]


def test_the_events_of_a_turn_leave_as_one_batch_and_are_answered_when_it_is_committed() -> None:
    shard = active()
    shard.submit(("a", 1), NOW)
    shard.submit(("b", 2), NOW)
    assert [record.value for record in shard.take()] == [b"1", b"2"]
    shard.appended(2)
    assert shard.commit(1) == []
    assert shard.is_waiting
    assert [tuple(answer) for answer in shard.commit(2)] == [("a", 1), ("b", 3)]
    assert not shard.is_waiting


def test_a_read_waits_for_what_it_saw() -> None:
    shard = active()
    shard.submit(("write", 5), NOW)
    shard.take()
    shard.appended(1)
    shard.submit(("read", 0), NOW)
    assert shard.take() == []
    shard.appended(1)
    assert shard.commit(0) == []
    assert [token for token, _ in shard.commit(1)] == ["write", "read"]


def test_a_refused_event_leaves_nothing() -> None:
    shard = active()
    with pytest.raises(KafkaError):
        shard.submit(("a", -1), NOW)
    assert not shard.has_turn


def test_when_an_append_fails_all_who_wait_are_told_and_the_log_decides() -> None:
    shard = active()
    shard.submit(("old", 1), NOW)
    shard.take()
    shard.appended(1)
    shard.submit(("failing", 1), NOW)
    shard.take()
    shard.submit(("later", 1), NOW)
    error = KafkaError(ErrorCode.NOT_COORDINATOR)
    told = ["old", "failing", "later", "held back"]
    assert [tuple(answer) for answer in shard.fail(error)] == [(token, error) for token in told]
    assert shard.state is ShardState.CLOSED
    again = Shard(0, Counter(), lambda line: None)
    again.machine.replay(b"add", b"1")
    again.activate(1, NOW)
    assert again.machine.total == 1


def test_who_asked_for_the_append_that_failed_may_be_told_another_error_than_the_others() -> None:
    shard = active()
    shard.submit(("old", 1), NOW)
    shard.take()
    shard.appended(1)
    shard.submit(("failing", 1), NOW)
    shard.take()
    mine, others = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR), KafkaError(ErrorCode.NOT_COORDINATOR)
    told = [tuple(answer) for answer in shard.fail(mine, others)]
    assert told == [("old", others), ("failing", mine), ("held back", others)]


def test_a_turn_ends_before_it_is_too_large_and_never_parts_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.coordination.shard.TURN_BYTES_MAX", 10)
    shard = active()
    for token, number in (("a", 1), ("b", 2), ("c", 33), ("d", 10**20), ("e", 4)):
        shard.submit((token, number), NOW)
    assert shard.is_full
    batches = []
    while shard.has_turn:
        batches.append([record.value for record in shard.take()])
        shard.appended(sum(map(len, batches)))
    assert batches == [[b"1", b"2"], [b"33"], [b"1" + b"0" * 20], [b"4"]]
    assert [token for token, _ in shard.commit(3)] == ["a", "b", "c"]
    assert [token for token, _ in shard.commit(5)] == ["d", "e"]


def test_a_timer_is_an_event_like_any_other() -> None:
    shard = active()
    shard.machine.deadline = 5
    shard.tick(Moment(5, 1005))
    assert [record.value for record in shard.take()] == [b"100"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("group", 98629247), ("my-group", -1906497762), ("žluť", 11487934), ("🐎", 1772401)],
)
def test_hash_codes_are_javas(text: str, code: int) -> None:
    assert java_string_hash(text) == code
    assert 0 <= partition_of(text, 50) < 50


def test_the_smallest_integer_counts_as_zero() -> None:
    text = "polygenelubricants"  # famous for it
    assert java_string_hash(text) == -(2**31)
    assert partition_of(text, 50) == 0
