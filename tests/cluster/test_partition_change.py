"""One partition's next state: who is in sync, who is eligible, who leads, and when a reassignment is done."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.cluster import PartitionImage
from moldau.cluster.partition_change import Election, PartitionChange
from moldau.kernel import NO_LEADER

TOPIC = bytes(range(16))


def partition(**changes: Any) -> PartitionImage:
    before = PartitionImage((1, 2, 3), (1, 2, 3), 1, 5, 9, (bytes([7]) * 16,) * 3)
    return before._replace(**changes)


def change(before: PartitionImage, *, alive: tuple[int, ...] = (1, 2, 3), elr: bool = True, **wanted: Any) -> Any:
    return PartitionChange(TOPIC, 0, before, lambda replica: replica in alive, 2, elr, **wanted).record()


def test_nothing_changes_where_nothing_is_wrong() -> None:
    assert change(partition()) is None


def test_the_next_in_sync_replica_leads_when_the_leader_is_gone() -> None:
    record = change(partition(), alive=(2, 3), isr=[2, 3])
    assert (record.leader, record.isr) == (2, [2, 3])


def test_nobody_leads_who_is_not_in_sync() -> None:
    record = change(partition(isr=(1,)), alive=(2, 3), isr=[], elr=False)
    assert record.leader == NO_LEADER
    assert record.isr is None, "without eligible replicas the last one in sync stays so"


def test_replicas_that_leave_below_the_minimum_stay_eligible() -> None:
    record = change(partition(isr=(1, 2)), alive=(1,), isr=[1])
    assert (record.isr, record.eligible_leader_replicas, record.last_known_elr) == ([1], [2], None)


def test_an_eligible_replica_leads_when_nobody_is_in_sync() -> None:
    before = partition(isr=(), elr=(2, 3), leader=NO_LEADER)
    record = change(before, alive=(3,))
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (3, [3], [2])
    assert record.leader_recovery_state == -1, "nothing is lost"


def test_a_replica_that_stopped_uncleanly_is_not_eligible() -> None:
    record = change(partition(isr=(1, 2)), alive=(1,), isr=[1], unclean=(2,))
    assert record.eligible_leader_replicas is None


def test_eligible_replicas_are_forgotten_when_enough_are_in_sync() -> None:
    record = change(partition(isr=(1,), elr=(2,)), isr=[1, 3])
    assert (record.isr, record.eligible_leader_replicas) == ([1, 3], [])


def test_the_last_leader_is_remembered_when_nobody_is_left() -> None:
    record = change(partition(isr=(1,)), alive=(), isr=[], unclean=(1,))
    assert (record.leader, record.isr, record.last_known_elr) == (NO_LEADER, [], [1])
    after = partition(isr=(), leader=NO_LEADER, last_known_elr=(1,))
    back = change(after, alive=(1,))
    assert (back.leader, back.isr, back.leader_recovery_state) == (1, [1], 1)


def test_the_last_leader_is_remembered_also_while_others_are_eligible() -> None:
    """All are killed, and then each comes back and says that it stopped uncleanly: somebody has to lead."""
    record = change(partition(isr=(1,), elr=(2,)), alive=(), isr=[])
    assert (record.isr, record.eligible_leader_replicas, record.last_known_elr) == ([], [2, 1], [1])
    after = partition(isr=(), elr=(2, 1), leader=NO_LEADER, last_known_elr=(1,))
    record = change(after, alive=(), unclean=(2,))
    assert (record.eligible_leader_replicas, record.last_known_elr) == ([1], None)
    after = partition(isr=(), elr=(1,), leader=NO_LEADER, last_known_elr=(1,))
    record = change(after, alive=(), unclean=(1,))
    assert (record.eligible_leader_replicas, record.last_known_elr) == ([], None)


def test_the_last_leader_is_forgotten_when_somebody_eligible_leads() -> None:
    record = change(partition(isr=(), elr=(2, 1), leader=NO_LEADER, last_known_elr=(1,)), alive=(2,))
    assert (record.leader, record.isr, record.last_known_elr) == (2, [2], [])


@pytest.mark.parametrize(("election", "leader"), [(Election.ONLINE, NO_LEADER), (Election.UNCLEAN, 3)])
def test_an_unclean_leader_comes_only_when_asked_for(election: Election, leader: int) -> None:
    record = change(partition(isr=(1,)), alive=(3,), isr=[], elr=False, election=election)
    assert record.leader == leader
    assert (record.leader_recovery_state, record.isr) == ((1, [3]) if leader == 3 else (-1, None))


def test_the_preferred_replica_leads_again_when_asked() -> None:
    assert change(partition(leader=2)) is None
    assert change(partition(leader=2), election=Election.PREFERRED).leader == 1
    assert change(partition(leader=2, isr=(2, 3)), election=Election.PREFERRED) is None


def test_a_reassignment_is_done_when_all_that_are_added_are_in_sync() -> None:
    before = partition(replicas=(4, 5, 1), isr=(1,), adding=(4, 5), removing=(1,))
    waiting = change(before, alive=(1, 4, 5), isr=[1, 4], elr=False)
    assert (waiting.replicas, waiting.isr, waiting.leader) == (None, [1, 4], -2)
    done = change(before, alive=(1, 4, 5), isr=[1, 4, 5], elr=False)
    assert (done.replicas, done.isr, done.leader) == ([4, 5], [4, 5], 4)
    assert (done.adding_replicas, done.removing_replicas) == ([], [])
    assert len(done.directories) == 2


def test_a_removed_replica_stays_until_those_that_remain_are_enough() -> None:
    """What was committed by 1 and 2 must not be left to 2 alone, while 3 does not have it yet."""
    before = partition(isr=(2, 1), leader=2)
    begun = change(before, replicas=[3, 2, 1], removing=[1], adding=[])
    assert (begun.replicas, begun.isr, begun.removing_replicas) == ([3, 2, 1], None, [1])
    waiting = partition(replicas=(3, 2, 1), isr=(2, 1), leader=2, removing=(1,))
    done = change(waiting, isr=[2, 1, 3])
    assert (done.replicas, done.isr, done.removing_replicas) == ([3, 2], [2, 3], [])
    alone = change(before, replicas=[2, 3, 1], removing=[3, 1], adding=[])
    assert (alone.replicas, alone.isr) == ([2], [2]), "one replica cannot be more than one"


def test_a_removed_replica_is_fenced_by_a_new_leader_epoch() -> None:
    record = change(partition(), replicas=[1, 2, 3], removing=[3], adding=[], isr=[1, 2, 3])
    assert record.replicas == [1, 2]
    assert record.leader == 1, "the same leader, in a new epoch"
