"""Where the replicas of new partitions go: spread over racks, then over brokers, starting at a random broker."""

from __future__ import annotations

from collections.abc import Sequence
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

    Brokers are ordered so that neighbours are in different racks; partition p takes consecutive brokers from start + p,
    so leaderships and followers are spread evenly.
    """
    assert 0 < replication_factor <= len(brokers)
    ring = _interleave_racks(brokers)
    start = dice.below(len(ring))
    shift = 0
    placed = []
    for partition in range(partition_count):
        if partition and partition % len(ring) == 0:
            shift += 1  # so that the same leader gets other followers in the next round
        first = start + partition
        replicas = [ring[first % len(ring)]]
        for step in range(1, len(ring)):
            if len(replicas) == replication_factor:
                break
            candidate = ring[(first + 1 + (step - 1 + shift) % (len(ring) - 1)) % len(ring)]
            if candidate not in replicas:
                replicas.append(candidate)
        placed.append(tuple(replicas))
    return placed


def _interleave_racks(brokers: Sequence[UsableBroker]) -> list[int]:
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers):
        racks.setdefault(broker.rack, []).append(broker.node_id)
    rounds = zip_longest(*(racks[rack] for rack in sorted(racks, key=lambda rack: rack or "")))
    return [node_id for members in rounds for node_id in members if node_id is not None]
