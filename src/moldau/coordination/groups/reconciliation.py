"""One safe step of a member from what it has towards what it should have.

A member first gives up what is no longer its own and stays in its epoch until it reports so; then it moves to the
target's epoch and gets what is free; what others still have it gets later. No partition has two members at any time,
because only what nobody owns is ever given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from moldau.coordination.groups.consumer import NO_PARTITIONS, Holding, MemberState, Partitions, Target
from moldau.kernel import ErrorCode, KafkaError

# Partitions by topic id that a member says it has.
Owned = Mapping[bytes, Collection[int]]
# Whether nobody else has a partition.
IsFree = Callable[[bytes, int], bool]


@dataclass(frozen=True, slots=True)
class Goal:
    epoch: int
    target: Target
    # Topics that the member wants now: what it wanted when the target was made may be more.
    topic_ids: frozenset[bytes]


def reconcile(
    holding: Holding, goal: Goal, is_free: IsFree, owned: Owned | None, *, has_new_subscription: bool
) -> Holding:
    """The member's next holding, or the same; `owned` is None when the member did not say."""
    if holding.state is MemberState.STABLE and holding.epoch == goal.epoch:
        return _give_up_unwanted(holding, goal, owned) if has_new_subscription else holding
    if holding.state is MemberState.UNREVOKED and _has_any(owned, holding.revoking):
        return _give_up_unwanted(holding, goal, owned) if has_new_subscription else holding
    return _approach(holding, goal, is_free, owned)


def require_understood(holding: Holding, owned: Owned | None) -> None:
    """Of a state that only a newer version knows we can take over nobody but a member without partitions."""
    if holding.state is MemberState.UNKNOWN and (owned is None or owned):
        message = (
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _approach(holding: Holding, goal: Goal, is_free: IsFree, owned: Owned | None) -> Holding:
    kept: dict[bytes, dict[int, int]] = {}
    unwanted: dict[bytes, dict[int, int]] = {}
    wanted = {topic_id: goal.target[topic_id] for topic_id in goal.target if topic_id in goal.topic_ids}
    for topic_id, epochs in holding.assigned.items():
        target = wanted.get(topic_id, frozenset())
        for partition, epoch in epochs.items():
            side = kept if partition in target else unwanted
            side.setdefault(topic_id, {})[partition] = epoch
    if unwanted and _has_any(owned, unwanted):
        return _moved(holding, holding.epoch, MemberState.UNREVOKED, kept, unwanted)
    is_waiting = False
    for topic_id, target in wanted.items():
        for partition in target:
            if partition in kept.get(topic_id, ()):
                continue
            if is_free(topic_id, partition):
                kept.setdefault(topic_id, {})[partition] = goal.epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED if is_waiting else MemberState.STABLE
    return _moved(holding, goal.epoch, state, kept, NO_PARTITIONS)


def _give_up_unwanted(holding: Holding, goal: Goal, owned: Owned | None) -> Holding:
    """There is no new target yet, but what a member does not want any more it need not keep until there is."""
    kept = {topic_id: epochs for topic_id, epochs in holding.assigned.items() if topic_id in goal.topic_ids}
    if len(kept) == len(holding.assigned):
        return holding
    revoking = {topic_id: dict(epochs) for topic_id, epochs in holding.revoking.items()}
    for topic_id, epochs in holding.assigned.items():
        if topic_id not in kept:
            revoking.setdefault(topic_id, {}).update(epochs)
    if _has_any(owned, revoking):
        return _moved(holding, holding.epoch, MemberState.UNREVOKED, kept, revoking)
    return _moved(holding, holding.epoch, holding.state, kept, holding.revoking)


def _moved(holding: Holding, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions) -> Holding:
    next_holding = Holding(epoch, holding.epoch, state, assigned, revoking)
    # A step that changes nothing but the epoch before is none: it must not be logged again and again.
    return holding if replace(next_holding, previous_epoch=holding.previous_epoch) == holding else next_holding


def _has_any(owned: Owned | None, partitions: Partitions) -> bool:
    """A member that does not say what it has still has everything."""
    if owned is None:
        return True
    return any(
        partition in partitions[topic_id]
        for topic_id, indexes in owned.items()
        if topic_id in partitions
        for partition in indexes
    )


def is_subset(owned: Owned | None, assigned: Partitions) -> bool:
    if owned is None:
        return False
    return all(partition in assigned.get(topic_id, ()) for topic_id, indexes in owned.items() for partition in indexes)


def owned_by(topics: Iterable[tuple[bytes, Iterable[int]]]) -> Owned:
    owned: dict[bytes, set[int]] = {}
    for topic_id, indexes in topics:
        owned.setdefault(topic_id, set()).update(indexes)
    return owned
