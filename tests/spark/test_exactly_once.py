"""What exactly once decides: batches written, skipped and refused; transactions committed and not; failures judged."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from pyspark import SparkStageInfo

from moldau.kernel import TopicPartition
from moldau.spark.exactly_once import (
    Again,
    ExactlyOnceRefused,
    GiveUp,
    Mark,
    Refuse,
    Skip,
    Write,
    check_written,
    decide,
    judge_failure,
    mark_from,
    parse_offset_log,
    unlike_reported,
)
from moldau.spark.exactly_once_batches import check_stage

BATCH = Mark("query", 7, "digest")
ORDERS = TopicPartition("orders", 0)


def stage(attempt: int = 0, completed: int = 4, failed: int = 0) -> SparkStageInfo:
    return SparkStageInfo(7, attempt, "write", 4, 0, completed, failed)


@pytest.mark.parametrize(
    ("told", "is_whole"),
    [
        ([stage()], True),
        ([None, stage(completed=0), stage(completed=3), stage()], True),
        ([None, stage(completed=3), stage(attempt=1, completed=1)], False),
        ([stage(completed=3), stage(completed=3, failed=1), stage(failed=1)], False),
        ([stage(completed=3)], False),
        ([None], False),
    ],
)
def test_a_stage_is_believed_once_spark_has_told_of_all_its_tasks(
    told: list[SparkStageInfo | None], is_whole: bool
) -> None:
    def look() -> SparkStageInfo | None:
        return told.pop(0) if len(told) > 1 else told[0]

    with nullcontext() if is_whole else pytest.raises(RuntimeError, match="stage 7"):
        check_stage(7, look, lambda: None)


@pytest.mark.parametrize(
    ("stored", "decision"),
    [
        (None, Write()),
        (Mark("query", 6, "other"), Write()),
        (Mark("query", 3, "other"), Write()),  # batches without rows leave no mark
        (BATCH, Skip()),
    ],
)
def test_a_batch_is_written_while_its_mark_is_missing(stored: Mark | None, decision: object) -> None:
    assert decide(stored, BATCH, "id") == decision


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (Mark("another", 6, "digest"), "checkpoint was lost"),
        (Mark("query", 7, "other"), "checkpoint is older"),
        (Mark("query", 9, "digest"), "checkpoint is older"),
    ],
)
def test_a_batch_that_does_not_follow_is_refused_with_the_remedy(stored: Mark, why: str) -> None:
    decision = decide(stored, BATCH, "id")
    assert isinstance(decision, Refuse) and why in decision.why and "another transactionalId" in decision.why


def test_the_newest_mark_is_found_among_other_texts() -> None:
    texts = ["", "{", "[]", '{"moldau":9}', Mark("query", 2, "d").to_metadata(), BATCH.to_metadata()]
    assert mark_from(texts) == BATCH
    assert mark_from(["", "someone else's"]) is None


def test_a_partition_that_two_tasks_wrote_to_is_refused() -> None:
    assert check_written([{ORDERS: 3}, {}, {TopicPartition("orders", 1): 2}]) == {
        ORDERS: 3,
        TopicPartition("orders", 1): 2,
    }
    with pytest.raises(ExactlyOnceRefused, match=r"several tasks .*orders-0.*foreach_batch"):
        check_written([{ORDERS: 3}, {ORDERS: 2}])


@pytest.mark.parametrize(
    ("count", "last_sequence", "is_right"),
    [(5, 4, True), (5, 3, False), (5, 9, False), (5, None, False), (2**31 + 2, 1, True)],
)
def test_a_log_must_hold_what_its_task_reported(count: int, last_sequence: int | None, is_right: bool) -> None:
    found = {} if last_sequence is None else {ORDERS: last_sequence}
    assert (unlike_reported({ORDERS: count}, found) is None) == is_right


@pytest.mark.parametrize(
    ("is_fenced", "elapsed_ms", "attempts", "verdict"),
    [
        (False, 10, 1, Again),
        (False, 10, 3, GiveUp),
        (True, 10, 1, GiveUp),  # another driver: no coordinator gives up so early
        (True, 1000, 1, Again),  # the transaction's time was over
        (True, 1000, 3, GiveUp),
    ],
)
def test_a_failure_is_tried_again_unless_another_driver_has_the_id(
    is_fenced: bool, elapsed_ms: int, attempts: int, verdict: type
) -> None:
    judged = judge_failure(
        "id",
        is_fenced=is_fenced,
        elapsed_ms=elapsed_ms,
        transaction_timeout_ms=1000,
        attempts=attempts,
        attempts_max=3,
    )
    assert isinstance(judged, verdict)


def test_offsets_of_topics_are_read_from_the_offset_log_and_others_are_not() -> None:
    sources = ['{"orders":{"0":23,"1":5}}', '{"offset":20,"timestamp":2000}', "-", "4", '{"logOffset":1}']
    text = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), *sources])
    parsed = parse_offset_log(text)
    assert parsed.by_partition == {ORDERS: 23, TopicPartition("orders", 1): 5}
    # The same sources in another run of the batch have the same digest, others another.
    assert parse_offset_log(text.replace('"batchWatermarkMs": 0', '"batchWatermarkMs": 9')).digest == parsed.digest
    assert parse_offset_log(text.replace("23", "24")).digest != parsed.digest
    with pytest.raises(ExactlyOnceRefused, match="not one that is known"):
        parse_offset_log("{}")
