"""The quorum's machine: effects in order, votes before words, agreement only over what a majority holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from moldau.consensus import (
    NO_LEADER,
    AdvanceHighWatermark,
    AgreedRecordsLostError,
    AppendLeaderChange,
    BeginEpochRequest,
    EndEpochRequest,
    EpochEnd,
    FetchAnswer,
    FetchRequest,
    PersistState,
    Quorum,
    QuorumConfig,
    QuorumState,
    ReplicaKey,
    Role,
    Send,
    TruncateTo,
    VoteAnswer,
    Voter,
    VoteRequest,
    Voters,
    majority_offset,
)
from moldau.kernel import ErrorCode, KafkaError
from moldau.testing import SeededDice

DIRECTORY = bytes(range(16))
KEY = ReplicaKey(1, DIRECTORY)
NOW = 1_000_000


@dataclass
class Log:
    start_offset: int = 0
    end_offset: int = 0
    last_epoch: int = 0
    snapshot: EpochEnd | None = None
    first_snapshot: EpochEnd | None = None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        return EpochEnd(min(epoch, self.last_epoch), self.end_offset if epoch >= self.last_epoch else 0)


def quorum(count: int = 1, state: QuorumState | None = None, log: Log | None = None) -> Quorum:
    voters = Voters.of([Voter(KEY), *(Voter(ReplicaKey(node_id)) for node_id in range(2, count + 1))])
    return Quorum(KEY, log or Log(), state or QuorumState(), voters, config=QuorumConfig(), dice=SeededDice("quorum"))


def elected(machine: Quorum, log: Log) -> None:
    """Bring a machine of three to lead epoch 1."""
    machine.start(NOW)
    asked = [each for each in machine.poll(machine.due_ms + 10_000) if isinstance(each, Send)]
    assert machine.role is Role.PROSPECTIVE
    pre_vote = asked[0].request
    assert isinstance(pre_vote, VoteRequest) and pre_vote.is_pre_vote and pre_vote.epoch == 0
    (persisted,) = machine.on_vote_answer(2, pre_vote, VoteAnswer(0, NO_LEADER, granted=True), NOW)
    assert persisted == PersistState(QuorumState(1, NO_LEADER, 1, DIRECTORY))
    vote = VoteRequest(1, KEY, 0, 0, False, ReplicaKey(2))
    machine.on_vote_answer(2, vote, VoteAnswer(1, NO_LEADER, granted=True), NOW)
    assert machine.is_leader
    log.end_offset, log.last_epoch = log.end_offset + 1, 1


def test_a_quorum_of_one_leads_at_once_and_persists_its_vote_first() -> None:
    machine = quorum()
    first, second, third = machine.start(NOW)
    assert first == PersistState(QuorumState(epoch=1, leader_id=-1, voted_id=1, voted_directory_id=DIRECTORY))
    assert isinstance(second, PersistState) and second.state.leader_id == 1
    assert third == AppendLeaderChange(epoch=1, leader_id=1, voters=(1,), granting=(1,))
    assert machine.is_leader


def test_every_start_of_a_quorum_of_one_opens_a_new_epoch() -> None:
    machine = quorum(state=QuorumState(epoch=41))
    machine.start(NOW)
    assert machine.epoch == 42


def test_nothing_is_agreed_before_a_record_of_the_own_epoch_is() -> None:
    log = Log(end_offset=10)
    machine = quorum(log=log)
    machine.start(NOW)
    assert machine.flushed(10, NOW) == []
    assert machine.flushed(11, NOW) == [AdvanceHighWatermark(11)]
    assert machine.flushed(11, NOW) == []
    assert machine.flushed(15, NOW) == [AdvanceHighWatermark(15)]


def test_three_voters_agree_on_what_two_of_them_hold() -> None:
    log = Log()
    machine = quorum(3, log=log)
    elected(machine, log)
    assert machine.flushed(1, NOW) == []
    log.end_offset = 8
    fetch = FetchRequest(1, ReplicaKey(2), 5, 1, 0)
    assert machine.on_fetch(fetch, NOW)[0] == [AdvanceHighWatermark(1)], "the leader's own part is flushed up to 1"
    assert machine.flushed(8, NOW) == [AdvanceHighWatermark(5)]
    assert machine.on_fetch(FetchRequest(1, ReplicaKey(9), 8, 1, 0), NOW)[0] == [], "an observer does not count"
    assert machine.on_fetch(FetchRequest(1, ReplicaKey(3), 7, 1, 0), NOW)[0] == [AdvanceHighWatermark(7)]
    assert machine.on_fetch(FetchRequest(1, ReplicaKey(2), 6, 1, 0), NOW)[0] == [], "the high watermark never falls"


def test_a_follower_that_hears_from_its_leader_would_not_vote_for_another() -> None:
    machine = quorum(3)
    machine.start(NOW)
    machine.on_begin_epoch(BeginEpochRequest(4, 2, KEY), NOW)
    beforehand = VoteRequest(4, ReplicaKey(3), 9, 9, True, KEY)
    assert machine.on_vote(beforehand, NOW)[1].granted, "it has not fetched anything from the leader yet"
    (sent,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(sent.request, FetchRequest) and sent.to == 2
    machine.on_fetch_answer(2, sent.request, FetchAnswer(4, 2, high_watermark=0), NOW)
    assert not machine.on_vote(beforehand, NOW)[1].granted
    machine.on_failed(2, sent.request, NOW, is_unreachable=True)
    (again,) = [each for each in machine.poll(NOW + 50) if isinstance(each, Send)]
    machine.on_failed(2, again.request, NOW + 50, is_unreachable=True)
    assert machine.on_vote(beforehand, NOW + 50)[1].granted, "nobody listens where the leader was"


def test_a_vote_is_given_once_in_an_epoch_and_kept_over_a_restart() -> None:
    machine = quorum(3)
    machine.start(NOW)
    effects, answer = machine.on_vote(VoteRequest(1, ReplicaKey(2), 0, 0, False, KEY), NOW)
    assert answer.granted
    assert effects[-1] == PersistState(QuorumState(1, NO_LEADER, 2, bytes(16)))
    again = quorum(3, state=QuorumState(1, NO_LEADER, 2))
    again.start(NOW)
    assert again.on_vote(VoteRequest(1, ReplicaKey(2), 0, 0, False, KEY), NOW)[1].granted
    assert not again.on_vote(VoteRequest(1, ReplicaKey(3), 5, 5, False, KEY), NOW)[1].granted
    fenced = again.on_vote(VoteRequest(0, ReplicaKey(3), 5, 5, False, KEY), NOW)[1]
    assert fenced.error is ErrorCode.FENCED_LEADER_EPOCH


def test_an_observer_that_loses_sight_of_its_leader_gives_no_second_vote_in_the_epoch() -> None:
    """It may vote: that it is a voter may stand in a record that it has not read yet."""
    voters = Voters.of([Voter(ReplicaKey(2)), Voter(ReplicaKey(3))])
    machine = Quorum(KEY, Log(), QuorumState(), voters, config=QuorumConfig(), dice=SeededDice("observer"))
    machine.start(NOW)
    assert machine.on_vote(VoteRequest(1, ReplicaKey(2), 0, 0, False, KEY), NOW)[1].granted
    (persisted,) = machine.on_begin_epoch(BeginEpochRequest(1, 2, KEY), NOW)[0]
    machine.poll(machine.due_ms)
    machine.poll(machine.due_ms + 10_000)
    assert machine.role is Role.UNATTACHED and machine.leader_id == NO_LEADER
    other = VoteRequest(1, ReplicaKey(3), 5, 5, False, KEY)
    assert not machine.on_vote(other, NOW)[1].granted
    assert isinstance(persisted, PersistState)
    again = Quorum(KEY, Log(), persisted.state, voters, config=QuorumConfig(), dice=SeededDice("observer"))
    again.start(NOW)
    again.poll(again.due_ms + 10_000)
    again.poll(again.due_ms + 10_000)
    assert again.leader_id == NO_LEADER and not again.on_vote(other, NOW)[1].granted


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_leader_without_what_was_agreed_is_told_of_and_nothing_is_cut(is_snapshot: bool) -> None:
    """Most of those who agreed have lost their disks."""
    log = Log(end_offset=9, last_epoch=3)
    machine = quorum(3, log=log)
    machine.start(NOW)
    machine.on_begin_epoch(BeginEpochRequest(4, 2, KEY), NOW)
    (first,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(first.request, FetchRequest)
    machine.on_fetch_answer(2, first.request, FetchAnswer(4, 2, high_watermark=8), NOW)
    machine.on_begin_epoch(BeginEpochRequest(5, 3, KEY), NOW)
    (second,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(second.request, FetchRequest)
    end = EpochEnd(3, 6)
    answer = FetchAnswer(5, 3, high_watermark=-1, snapshot=end) if is_snapshot else FetchAnswer(5, 3, diverging=end)
    with pytest.raises(
        AgreedRecordsLostError, match=r"node 3, which leads epoch 5, parts from ours at offset 6, .* below 8 "
    ):
        machine.on_fetch_answer(3, second.request, answer, NOW)


def test_a_vote_for_a_directory_that_is_not_ours_is_refused() -> None:
    machine = quorum(3)
    machine.start(NOW)
    answer = machine.on_vote(VoteRequest(1, ReplicaKey(2), 0, 0, False, ReplicaKey(1, bytes([9]) * 16)), NOW)[1]
    assert answer.error is ErrorCode.INVALID_VOTER_KEY and not answer.granted


def test_a_follower_goes_back_to_where_the_logs_part() -> None:
    log = Log(end_offset=9, last_epoch=3)
    machine = quorum(3, log=log)
    machine.start(NOW)
    machine.on_begin_epoch(BeginEpochRequest(4, 2, KEY), NOW)
    (sent,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(sent.request, FetchRequest)
    answer = FetchAnswer(4, 2, high_watermark=9, diverging=EpochEnd(3, 6))
    assert machine.on_fetch_answer(2, sent.request, answer, NOW) == [TruncateTo(6)]
    assert machine.high_watermark == 0, "what is dropped is not agreed"


def test_an_answer_to_what_the_log_ended_with_before_it_was_cut_is_late() -> None:
    """Two fetches may be under way, where a follower lost sight of its leader for a moment."""
    log = Log(end_offset=9, last_epoch=3)
    machine = quorum(3, log=log)
    machine.start(NOW)
    machine.on_begin_epoch(BeginEpochRequest(4, 2, KEY), NOW)
    (sent,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(sent.request, FetchRequest)
    answer = FetchAnswer(4, 2, high_watermark=9, diverging=EpochEnd(3, 6))
    assert machine.on_fetch_answer(2, sent.request, answer, NOW) == [TruncateTo(6)]
    log.end_offset = 6
    (sent_again,) = [each for each in machine.poll(NOW) if isinstance(each, Send)]
    assert isinstance(sent_again.request, FetchRequest)
    machine.on_fetch_answer(2, sent_again.request, FetchAnswer(4, 2, high_watermark=9, records=b"three"), NOW)
    log.end_offset, log.last_epoch = 9, 4
    assert machine.note_log_end() == [AdvanceHighWatermark(9)]
    machine.flushed(9, NOW)
    assert machine.on_fetch_answer(2, sent.request, answer, NOW) == []


def test_the_first_successor_stands_at_once_when_a_leader_ends_its_epoch() -> None:
    machine = quorum(3)
    machine.start(NOW)
    machine.on_begin_epoch(BeginEpochRequest(4, 2, KEY), NOW)
    machine.on_end_epoch(EndEpochRequest(4, 2, (KEY, ReplicaKey(3))), NOW)
    machine.poll(NOW)
    assert machine.role is Role.PROSPECTIVE


def test_a_leader_that_nobody_fetches_from_resigns() -> None:
    log = Log()
    machine = quorum(3, log=log)
    elected(machine, log)
    machine.poll(NOW + 2_999)
    assert machine.is_leader
    machine.poll(NOW + 3_000)
    assert machine.role is Role.RESIGNED


def test_voters_change_one_at_a_time_and_only_when_caught_up() -> None:
    log = Log()
    machine = quorum(3, log=log)
    elected(machine, log)
    new = Voter(ReplicaKey(4, bytes([4]) * 16))
    with pytest.raises(KafkaError, match="own epoch is not agreed"):
        machine.add_voter(new)
    machine.flushed(1, NOW)
    machine.on_fetch(FetchRequest(1, ReplicaKey(2), 1, 1, 0), NOW)
    with pytest.raises(KafkaError, match="has not caught up"):
        machine.add_voter(new)
    machine.on_fetch(FetchRequest(1, new.key, 1, 1, 0), NOW)
    (appended,) = machine.add_voter(new)
    machine.note_voters(1, machine.voters.with_voter(new))
    log.end_offset = 2
    assert machine.voters.ids == (1, 2, 3, 4)
    with pytest.raises(KafkaError, match="Another change"):
        machine.remove_voter(ReplicaKey(2))
    with pytest.raises(KafkaError, match="Another change"):
        machine.add_voter(Voter(ReplicaKey(5)))
    assert appended


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_majority_offset_is_the_largest_that_more_than_half_reached(count: int) -> None:
    voters = range(count)
    for ends in itertools.product(range(4), repeat=count):
        reached = dict(zip(voters, ends, strict=True))
        best = max(offset for offset in range(4) if sum(end >= offset for end in ends) > count // 2)
        assert majority_offset(reached, voters) == best
