"""Which replicas move where: as few as can be. Pure; knows neither clients nor options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from moldau.kernel import TopicPartition

Assignment = Mapping[TopicPartition, tuple[int, ...]]


def plan_moves(
    now: Assignment, brokers: Sequence[int], racks: Mapping[int, str | None] | None = None
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that change, with their next replicas, so that `brokers` hold all of them about equally.

    Only replicas on other brokers have to move; beyond that one moves where its broker holds at least two more than
    another. A leader keeps its place where it can, and no partition stands in fewer `racks` than before if it can help.
    """
    racks = racks or {}
    wanted = {partition: list(replicas) for partition, replicas in now.items()}
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(replica for replicas in wanted.values() for replica in replicas if replica in load)
    for replicas in wanted.values():
        if len(replicas) > len(brokers):
            raise ValueError(f"{len(replicas)} replicas do not fit on {len(brokers)} brokers")
        for index, replica in enumerate(replicas):
            if replica not in brokers:
                taken = {racks.get(each) for each in replicas if each != replica}
                free = [each for each in brokers if each not in replicas]
                replicas[index] = min(free, key=lambda each: (racks.get(each) in taken, load[each]))
                load[replicas[index]] += 1
    while _level(wanted, load, racks):
        pass
    return {partition: tuple(after) for partition, after in wanted.items() if tuple(after) != now[partition]}


def _level(wanted: dict[TopicPartition, list[int]], load: Counter[int], racks: Mapping[int, str | None]) -> bool:
    """Move one replica from a full broker to an empty one, the fullest first; whether there was one to move."""
    order = sorted(load, key=lambda each: (-load[each], each))
    for fuller in order:
        for emptier in reversed(order):
            if load[fuller] - load[emptier] < 2:
                break
            movable = [replicas for replicas in wanted.values() if _may_move(replicas, fuller, emptier, racks)]
            if movable:
                # Of a partition that it does not lead, where there is one.
                chosen = max(movable, key=lambda replicas: replicas.index(fuller))
                chosen[chosen.index(fuller)] = emptier
                load[fuller] -= 1
                load[emptier] += 1
                return True
    return False


def _may_move(replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str | None]) -> bool:
    if source not in replicas or target in replicas:
        return False
    others = [racks.get(each) for each in replicas if each != source]
    return racks.get(target) not in others or racks.get(source) in others
