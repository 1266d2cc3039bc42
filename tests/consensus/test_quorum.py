"""The quorum's machine: effects in order, votes before words, agreement only over what a majority holds."""

from __future__ import annotations

import itertools

import pytest

from moldau.consensus import (
    AdvanceHighWatermark,
    AppendLeaderChange,
    PersistState,
    Quorum,
    QuorumState,
    RequestVotes,
    Role,
    majority_offset,
)

DIRECTORY = bytes(range(16))


def quorum(voters: tuple[int, ...] = (1,), state: QuorumState | None = None) -> Quorum:
    return Quorum(1, DIRECTORY, voters, state or QuorumState())


def test_a_quorum_of_one_leads_at_once_and_persists_its_vote_first() -> None:
    machine = quorum()
    first, second, third = machine.elect()
    assert first == PersistState(QuorumState(epoch=1, leader_id=-1, voted_id=1, voted_directory_id=DIRECTORY))
    assert isinstance(second, PersistState) and second.state.leader_id == 1
    assert third == AppendLeaderChange(epoch=1, leader_id=1, voters=(1,), granting=(1,))
    assert machine.is_leader


def test_every_start_opens_a_new_epoch() -> None:
    machine = quorum(state=QuorumState(epoch=41))
    machine.elect()
    assert machine.epoch == 42


def test_nothing_is_agreed_before_a_record_of_the_own_epoch_is() -> None:
    machine = quorum()
    machine.elect()
    machine.begin_epoch_at(10)
    assert machine.record_durable(1, 10) == []
    assert machine.record_durable(1, 11) == [AdvanceHighWatermark(11)]
    assert machine.record_durable(1, 11) == []
    assert machine.record_durable(1, 15) == [AdvanceHighWatermark(15)]


def test_three_voters_need_two_votes_and_agree_on_what_two_hold() -> None:
    machine = quorum((1, 2, 3))
    assert machine.elect()[-1] == RequestVotes(1, (2, 3))
    assert machine.role is Role.CANDIDATE
    assert machine.record_vote(2, epoch=1, granted=False) == []
    assert machine.record_vote(9, epoch=1, granted=True) == [], "not a voter"
    assert machine.record_vote(3, epoch=0, granted=True) == [], "an old answer"
    assert isinstance(machine.record_vote(3, epoch=1, granted=True)[-1], AppendLeaderChange)
    machine.begin_epoch_at(0)
    assert machine.record_durable(1, 8) == []
    assert machine.record_durable(2, 5) == [AdvanceHighWatermark(5)]
    assert machine.record_durable(3, 7) == [AdvanceHighWatermark(7)]
    assert machine.record_durable(2, 6) == [], "the high watermark never falls"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_majority_offset_is_the_largest_that_more_than_half_reached(count: int) -> None:
    voters = range(count)
    for ends in itertools.product(range(4), repeat=count):
        reached = dict(zip(voters, ends, strict=True))
        best = max(offset for offset in range(4) if sum(end >= offset for end in ends) > count // 2)
        assert majority_offset(reached, voters) == best
