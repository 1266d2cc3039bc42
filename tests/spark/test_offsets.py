"""How far a batch goes, which ranges its tasks read, what is lost: the rules of Spark's connector, as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.kernel import TopicPartition
from moldau.spark.offsets import (
    TASK_OFFSETS_MIN,
    OffsetRange,
    OffsetsFormatError,
    count_new,
    group_ranges,
    limit_offsets,
    offsets_from_json,
    offsets_to_json,
    plan_batch,
    split_ranges,
)

P0, P1, P2 = (TopicPartition("orders", partition) for partition in range(3))


def test_offsets_are_written_as_sparks_connector_writes_them_in_order() -> None:
    offsets = {P1: 5, P0: 23, TopicPartition("a", 10): 1, TopicPartition("a", 9): 2}
    shaped = offsets_to_json(offsets)
    assert json.dumps(shaped) == '{"a": {"9": 2, "10": 1}, "orders": {"0": 23, "1": 5}}'
    assert offsets_from_json(shaped) == offsets


@pytest.mark.parametrize("broken", [[], "x", {"orders": 5}, {"orders": {"x": 1}}, {"orders": {"0": "1"}}, None])
def test_other_shapes_are_no_offsets(broken: object) -> None:
    with pytest.raises(OffsetsFormatError):
        offsets_from_json(broken)


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    assert limit_offsets({P0: 0, P1: 10}, {P0: 300, P1: 110}, {}, 100) == {P0: 75, P1: 35}


def test_a_partition_with_little_is_not_starved() -> None:
    assert limit_offsets({P0: 0, P1: 0}, {P0: 10_000, P1: 3}, {}, 100) == {P0: 99, P1: 1}


def test_a_limit_above_what_waits_changes_nothing() -> None:
    assert limit_offsets({P0: 1, P1: 5}, {P0: 4, P1: 5}, {}, 100) == {P0: 4, P1: 5}


def test_a_new_partition_takes_part_from_its_earliest_offset() -> None:
    assert limit_offsets({P0: 0}, {P0: 100, P1: 200}, {P1: 100}, 100) == {P0: 50, P1: 150}


def test_a_partition_that_shrank_is_told_as_it_is() -> None:
    assert limit_offsets({P0: 50, P1: 0}, {P0: 5, P1: 10}, {}, 4) == {P0: 5, P1: 4}


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 10**12), st.integers(0, 10**12))),
    st.integers(1, 10**9),
)
def test_limits_move_on_and_stay_below_the_end(places: dict[int, tuple[int, int]], offsets_max: int) -> None:
    start = {TopicPartition("t", place): begin for place, (begin, _) in places.items()}
    latest = {TopicPartition("t", place): begin + size for place, (begin, size) in places.items()}
    limited = limit_offsets(start, latest, {}, offsets_max)
    assert all(start[where] <= limited[where] <= latest[where] for where in latest)
    assert limited == latest or limited != start
    assert sum(limited[where] - start[where] for where in limited) <= offsets_max + len(limited)


def test_new_offsets_are_counted_with_whole_new_partitions() -> None:
    assert count_new({P0: 5}, {P0: 7, P1: 3}) == 5


def sizes(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(one.where.partition, one.start, one.end) for one in ranges]


def test_empty_ranges_are_left_out() -> None:
    assert split_ranges([OffsetRange(P0, 5, 5), OffsetRange(P1, 5, 3)], None, None) == []


# The figures of Spark's own rules: in proportion, small ones whole, the last piece takes the rest.
@pytest.mark.parametrize(
    ("given_sizes", "partitions_min", "records_max", "expected"),
    [
        ([10], 1, None, [(0, 0, 10)]),
        ([10], 3, None, [(0, 0, 3), (0, 3, 6), (0, 6, 10)]),
        ([10, 20], 3, None, [(0, 0, 10), (1, 0, 10), (1, 10, 20)]),
        ([1, 100], 4, None, [(0, 0, 1), (1, 0, 33), (1, 33, 66), (1, 66, 100)]),
        ([10, 20, 30], 2, None, [(0, 0, 10), (1, 0, 20), (2, 0, 30)]),
        ([1], 5, None, [(0, 0, 1)]),
        ([10, 3], None, 4, [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3)]),
        ([8], 4, 4, [(0, 0, 2), (0, 2, 4), (0, 4, 6), (0, 6, 8)]),
    ],
)
def test_ranges_are_cut_as_asked(
    given_sizes: list[int],
    partitions_min: int | None,
    records_max: int | None,
    expected: list[tuple[int, int, int]],
) -> None:
    ranges = [OffsetRange(TopicPartition("orders", place), 0, size) for place, size in enumerate(given_sizes)]
    assert sizes(split_ranges(ranges, partitions_min, records_max)) == expected


@given(
    st.lists(st.integers(0, 10**6), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(10_000, 10**6),
)
def test_cut_ranges_cover_everything_once(
    given_sizes: list[int], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [OffsetRange(TopicPartition("t", place), 7, 7 + size) for place, size in enumerate(given_sizes)]
    pieces = split_ranges(ranges, partitions_min, records_max)
    for one in ranges:
        at = one.start
        for piece in (piece for piece in pieces if piece.where == one.where):
            assert piece.start == at and piece.size > 0
            assert records_max is None or piece.size <= records_max
            at = piece.end
        assert at == one.end


def test_a_small_batch_is_one_task_and_a_large_one_a_task_per_range() -> None:
    small = [OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10)]
    assert group_ranges(small, is_split=False) == [tuple(small)]
    assert group_ranges(small, is_split=True) == [(small[0],), (small[1],)]
    large = [OffsetRange(P0, 0, TASK_OFFSETS_MIN), OffsetRange(P1, 0, 1)]
    assert group_ranges(large, is_split=False) == [(large[0],), (large[1],)]
    assert group_ranges([], is_split=False) == []
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    assert f"a task for each {TASK_OFFSETS_MIN} offsets" in page.read_text()


def test_ranges_that_are_not_worth_a_task_each_share_tasks_evenly() -> None:
    half = TASK_OFFSETS_MIN // 2
    ranges = [OffsetRange(TopicPartition("t", number), 0, half) for number in range(4)]
    assert [len(group) for group in group_ranges(ranges, is_split=False)] == [2, 2]
    ranges[0] = OffsetRange(TopicPartition("t", 0), 0, 3 * half)
    groups = group_ranges(ranges, is_split=False)
    assert {one for group in groups for one in group} == set(ranges) and sum(map(len, groups)) == len(ranges)
    assert (ranges[0],) in groups and len(groups) == 3


def test_a_batch_reads_from_where_the_last_ended_and_new_partitions_whole() -> None:
    plan = plan_batch({P0: 5}, {P0: 9, P1: 3}, {P1: 0})
    assert plan.ranges == (OffsetRange(P0, 5, 9), OffsetRange(P1, 0, 3)) and plan.losses == ()


def test_what_is_lost_is_told_in_a_line_each() -> None:
    plan = plan_batch({P0: 50, P2: 1}, {P0: 5, P1: 9, TopicPartition("x", 0): 3}, {P1: 4})
    assert plan.ranges == (OffsetRange(P0, 0, 5), OffsetRange(P1, 4, 9))
    gone, remade, late, lost = plan.losses
    assert gone.startswith("partition orders-2 is gone")
    assert remade.startswith("partition orders-0 ends at offset 5, before offset 50") and "\n" not in remade
    assert late.startswith("partition orders-1 is new and starts at offset 4")
    assert lost.startswith("partition x-0 came and went")
