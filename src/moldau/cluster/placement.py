"""Where the replicas of new partitions go: spread over racks, then over brokers, starting at a random broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from moldau.kernel import Dice


class UsableBroker(NamedTuple):
    node_id: int
    rack: str | None


def place_replicas(
    brokers: Sequence[UsableBroker], partition_count: int, replication_factor: int, dice: Dice
) -> list[tuple[int, ...]]:
    """One tuple of distinct brokers per partition, the first being the preferred leader.

    Brokers are ordered so that neighbours are in different racks. Partition p is led by broker start + p, so that
    leaderships are spread evenly; its followers come after it on the ring, a rack that has no replica yet first.
    """
    assert 0 < replication_factor <= len(brokers)
    ring = _interleave_racks(brokers)
    rack_of = {broker.node_id: broker.rack for broker in brokers}
    start = dice.below(len(ring))
    placed = []
    for partition in range(partition_count):
        leader = (start + partition) % len(ring)
        # In every round the same leader gets other followers.
        turn = partition // len(ring)
        others = len(ring) - 1
        followers = [ring[(leader + 1 + (step + turn) % others) % len(ring)] for step in range(others)]
        placed.append(_spread(ring[leader], followers, rack_of, replication_factor))
    return placed


def _spread(
    leader: int, followers: list[int], rack_of: Mapping[int, str | None], replication_factor: int
) -> tuple[int, ...]:
    replicas = [leader]
    used = {rack_of[leader]}
    while len(replicas) < replication_factor:
        chosen = next((follower for follower in followers if rack_of[follower] not in used), None)
        if chosen is None:  # every rack has one: another round
            used = set()
            chosen = followers[0]
        followers.remove(chosen)
        replicas.append(chosen)
        used.add(rack_of[chosen])
    return tuple(replicas)


def _interleave_racks(brokers: Sequence[UsableBroker]) -> list[int]:
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers):
        racks.setdefault(broker.rack, []).append(broker.node_id)
    rounds = zip_longest(*(racks[rack] for rack in sorted(racks, key=lambda rack: rack or "")))
    return [node_id for members in rounds for node_id in members if node_id is not None]
