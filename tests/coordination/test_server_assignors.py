"""The assignors of the broker: balance, stickiness, racks, co-partitioning."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordination.groups.server_assignors import (
    AssignedMember,
    AssignedTopic,
    Assignment,
    assign_range,
    assign_uniform,
)

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
Members = dict[str, AssignedMember]


def members(count: int, *topic_ids: bytes, assignment: Assignment | None = None) -> Members:
    given = assignment or {}
    return {f"m{index}": AssignedMember(frozenset(topic_ids), given.get(f"m{index}", {})) for index in range(count)}


def loads(assignment: Assignment) -> dict[str, int]:
    return {member: sum(map(len, topics.values())) for member, topics in assignment.items()}


def owners(assignment: Assignment) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member, topics in assignment.items():
        for topic_id, partitions in topics.items():
            for partition in partitions:
                assert found.setdefault((topic_id, partition), member) == member
    return found


def moved(before: Assignment, after: Assignment) -> int:
    """Partitions that had an owner who is still there, and have another one now."""
    then, now = owners(before), owners(after)
    return sum(then[place] in after and now[place] != then[place] for place in then.keys() & now.keys())


# -- range -------------------------------------------------------------------------------------------------------------


def test_range_gives_runs_and_the_same_run_of_every_topic() -> None:
    assignment = assign_range(members(2, A, B), {A: AssignedTopic(3), B: AssignedTopic(3)})
    assert assignment == {
        "m0": {A: frozenset({0, 1}), B: frozenset({0, 1})},
        "m1": {A: frozenset({2}), B: frozenset({2})},
    }


def test_range_leaves_out_members_when_partitions_are_few() -> None:
    assignment = assign_range(members(3, A), {A: AssignedTopic(2)})
    assert assignment == {"m0": {A: frozenset({0})}, "m1": {A: frozenset({1})}, "m2": {}}


def test_range_goes_by_instance_so_that_a_restarted_member_gets_its_run_again() -> None:
    def assigned(first: str, second: str) -> Assignment:
        return assign_range(
            {
                "dynamic": AssignedMember(frozenset({A})),
                first: AssignedMember(frozenset({A}), instance_id="i2"),
                second: AssignedMember(frozenset({A}), instance_id="i1"),
            },
            {A: AssignedTopic(3)},
        )

    assert assigned("x", "y") == {"dynamic": {A: frozenset({2})}, "x": {A: frozenset({1})}, "y": {A: frozenset({0})}}
    assert assigned("a", "b") == {"dynamic": {A: frozenset({2})}, "a": {A: frozenset({1})}, "b": {A: frozenset({0})}}


def test_range_counts_only_subscribers() -> None:
    both = {"m0": AssignedMember(frozenset({A, B})), "m1": AssignedMember(frozenset({B}))}
    assignment = assign_range(both, {A: AssignedTopic(3), B: AssignedTopic(3)})
    assert assignment == {"m0": {A: frozenset({0, 1, 2}), B: frozenset({0, 1})}, "m1": {B: frozenset({2})}}


# -- uniform -----------------------------------------------------------------------------------------------------------


def test_uniform_is_balanced_within_one() -> None:
    assignment = assign_uniform(members(3, A, B), {A: AssignedTopic(4), B: AssignedTopic(4)})
    assert sorted(loads(assignment).values()) == [2, 3, 3]


def test_uniform_moves_only_what_it_must_when_a_member_joins() -> None:
    topics = {A: AssignedTopic(12)}
    before = assign_uniform(members(3, A), topics)
    after = assign_uniform(members(4, A, assignment=before), topics)
    assert sorted(loads(after).values()) == [3, 3, 3, 3]
    assert moved(before, after) == 3


def test_uniform_moves_nothing_between_those_who_stay_when_a_member_leaves() -> None:
    topics = {A: AssignedTopic(12)}
    before = assign_uniform(members(4, A), topics)
    staying = {name: each for name, each in members(4, A, assignment=before).items() if name != "m2"}
    after = assign_uniform(staying, topics)
    assert sorted(loads(after).values()) == [4, 4, 4]
    assert moved(before, after) == 0


def test_uniform_again_is_the_same() -> None:
    topics = {A: AssignedTopic(7), B: AssignedTopic(2)}
    before = assign_uniform(members(4, A, B), topics)
    assert assign_uniform(members(4, A, B, assignment=before), topics) == before


def test_uniform_forgets_topics_and_partitions_that_are_gone() -> None:
    before = assign_uniform(members(2, A, B), {A: AssignedTopic(4), B: AssignedTopic(4)})
    after = assign_uniform(members(2, A, assignment=before), {A: AssignedTopic(2)})
    assert set(owners(after)) == {(A, 0), (A, 1)}
    assert sorted(loads(after).values()) == [1, 1]


def test_uniform_prefers_members_in_a_rack_of_the_partition_and_keeps_the_balance() -> None:
    racks = [frozenset({"east"}), frozenset({"east"}), frozenset({"west"}), frozenset({"west"})]
    both = {
        "m0": AssignedMember(frozenset({A}), rack_id="west"),
        "m1": AssignedMember(frozenset({A}), rack_id="east"),
    }
    assert assign_uniform(both, {A: AssignedTopic(4, racks)}) == {
        "m0": {A: frozenset({2, 3})},
        "m1": {A: frozenset({0, 1})},
    }
    all_east = {A: AssignedTopic(4, [frozenset({"east"})] * 4)}
    assert sorted(loads(assign_uniform(both, all_east)).values()) == [2, 2]


def test_uniform_prefers_racks_among_members_of_different_subscriptions_too() -> None:
    three = {
        "m0": AssignedMember(frozenset({A}), rack_id="west"),
        "m1": AssignedMember(frozenset({A}), rack_id="east"),
        "m2": AssignedMember(frozenset({B}), rack_id="east"),
    }
    assignment = assign_uniform(three, {A: AssignedTopic(1, [frozenset({"east"})]), B: AssignedTopic(1)})
    assert assignment["m1"] == {A: frozenset({0})}


def test_uniform_gives_topics_that_few_want_to_them_and_the_rest_to_the_others() -> None:
    three = {
        "m0": AssignedMember(frozenset({A})),
        "m1": AssignedMember(frozenset({A, B})),
        "m2": AssignedMember(frozenset({B, C})),
    }
    assignment = assign_uniform(three, {A: AssignedTopic(3), B: AssignedTopic(3), C: AssignedTopic(3)})
    assert loads(assignment) == {"m0": 3, "m1": 3, "m2": 3}


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_uniform_holds_its_promises_through_changes(seed: int, count: int, topic_count: int, is_mixed: bool) -> None:
    """All that is wanted is given once to one who wants it, no move would help, and a second look changes nothing."""
    dice = random.Random(seed)
    ids = [bytes([number]) * 16 for number in range(1, topic_count + 1)]
    assignment: Assignment = {}
    for _ in range(4):
        topics = {
            topic_id: AssignedTopic(dice.randint(1, 9), [frozenset(dice.sample("ew", 1))] * 9) for topic_id in ids
        }
        names = [f"m{index}" for index in range(12) if dice.random() < 0.6][:count] or ["m0"]
        everyone: Members = {}
        for name in names:
            wants = dice.sample(ids, dice.randint(0, len(ids))) if is_mixed else ids
            rack = dice.choice(["e", "w", None])
            everyone[name] = AssignedMember(frozenset(wants), assignment.get(name, {}), rack_id=rack)
        assignment = assign_uniform(everyone, topics)
        check_uniform(everyone, topics, assignment)
        again = {
            name: AssignedMember(each.topic_ids, assignment[name], rack_id=each.rack_id)
            for name, each in everyone.items()
        }
        assert assign_uniform(again, topics) == assignment


def check_uniform(everyone: Members, topics: dict[bytes, AssignedTopic], assignment: Assignment) -> None:
    owned = owners(assignment)
    assert set(owned) == {
        (topic_id, partition)
        for topic_id, topic in topics.items()
        if any(topic_id in each.topic_ids for each in everyone.values())
        for partition in range(topic.partition_count)
    }
    load = loads(assignment)
    for (topic_id, _), owner in owned.items():
        assert topic_id in everyone[owner].topic_ids
        for other, each in everyone.items():
            assert topic_id not in each.topic_ids or load[owner] <= load[other] + 1
