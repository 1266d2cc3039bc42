"""Where replicas go: properties that hold for every cluster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.placement import UsableBroker, place_replicas
from moldau.testing.dice import SeededDice

RACKS = st.sampled_from([None, "a", "b", "c"])


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[UsableBroker], int, int, int]:
    racks = draw(st.lists(RACKS, min_size=1, max_size=9))
    with_racks = draw(st.booleans())
    brokers = [UsableBroker(node, rack if with_racks else None) for node, rack in enumerate(racks, 1)]
    factor = draw(st.integers(1, len(brokers)))
    return brokers, draw(st.integers(1, 60)), factor, draw(st.integers(0, 1000))


@given(placements())
def test_replicas_are_distinct_brokers_and_loads_are_even(case: tuple[list[UsableBroker], int, int, int]) -> None:
    brokers, count, factor, seed = case
    placed = place_replicas(brokers, count, factor, SeededDice(seed))
    assert len(placed) == count
    nodes = {broker.node_id for broker in brokers}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= nodes
    leaders = Counter(replicas[0] for replicas in placed)
    loads = [leaders[node] for node in nodes]
    assert max(loads) - min(loads) <= 1, "leaderships are spread evenly"


@given(placements())
def test_the_same_dice_give_the_same_places(case: tuple[list[UsableBroker], int, int, int]) -> None:
    brokers, count, factor, seed = case
    first = place_replicas(brokers, count, factor, SeededDice(seed))
    assert first == place_replicas(list(reversed(brokers)), count, factor, SeededDice(seed))


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 40), st.integers(0, 1000))
def test_as_many_replicas_as_racks_stand_in_different_racks(per_rack: int, racks: int, count: int, seed: int) -> None:
    brokers = [UsableBroker(10 * rack + number, f"r{rack}") for rack in range(racks) for number in range(per_rack)]
    rack_of = {broker.node_id: broker.rack for broker in brokers}
    for replicas in place_replicas(brokers, count, racks, SeededDice(seed)):
        assert len({rack_of[node] for node in replicas}) == racks
