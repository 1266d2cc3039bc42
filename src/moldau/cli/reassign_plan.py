"""Which replicas move where: as few as can be. Pure; knows neither clients nor options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from moldau.kernel import TopicPartition

Assignment = Mapping[TopicPartition, tuple[int, ...]]


def plan_moves(now: Assignment, brokers: Sequence[int]) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that change, with their next replicas, so that `brokers` hold all of them about equally.

    Only replicas on other brokers have to move; beyond that one moves where its broker holds at least two more than
    another. A leader keeps its place where it can.
    """
    wanted = {partition: list(replicas) for partition, replicas in now.items()}
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(replica for replicas in wanted.values() for replica in replicas if replica in load)
    for replicas in wanted.values():
        if len(replicas) > len(brokers):
            raise ValueError(f"{len(replicas)} replicas do not fit on {len(brokers)} brokers")
        for index, replica in enumerate(replicas):
            if replica not in brokers:
                replicas[index] = min((each for each in brokers if each not in replicas), key=lambda each: load[each])
                load[replicas[index]] += 1
    while _level(wanted, load):
        pass
    return {partition: tuple(after) for partition, after in wanted.items() if tuple(after) != now[partition]}


def _level(wanted: dict[TopicPartition, list[int]], load: Counter[int]) -> bool:
    """Move one replica from the fullest broker to the emptiest; whether there was one to move."""
    order = sorted(load, key=lambda each: (-load[each], each))
    fullest, emptiest = order[0], order[-1]
    if load[fullest] - load[emptiest] < 2:
        return False
    movable = [replicas for replicas in wanted.values() if fullest in replicas and emptiest not in replicas]
    if not movable:
        return False
    # Of a partition that it does not lead, where there is one.
    chosen = max(movable, key=lambda replicas: replicas.index(fullest))
    chosen[chosen.index(fullest)] = emptiest
    load[fullest] -= 1
    load[emptiest] += 1
    return True
