"""A partition's leader and its followers, rule by rule. What they do together is in `test_replication_simulated`."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.cluster import InSyncProposal, PartitionFollower, PartitionLeader, divergence, truncation_offset
from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import LeaderEpochs

LAG_MS = 100


def leader_of(*isr: int, high_watermark: int = 0, **more: Any) -> PartitionLeader:
    return PartitionLeader(0, 5, isr, high_watermark, replicas=(0, 1, 2), node_epoch=70, **more)


def fetch(
    leader: PartitionLeader,
    replica: int,
    offset: int,
    end: int,
    now_ms: int = 0,
    *,
    epoch: int = 9,
    eligible: bool = True,
) -> InSyncProposal | None:
    proposal = leader.note_fetch(
        replica, epoch, offset, 0, end, now_ms, lag_ms_max=LAG_MS, is_eligible=lambda *_: eligible
    )
    leader.advance(end)
    return proposal


def laggards(leader: PartitionLeader, end: int, now_ms: int) -> InSyncProposal | None:
    return leader.drop_laggards(end, now_ms, lag_ms_max=LAG_MS, is_eligible=lambda *_: True)


def test_one_replica_commits_what_it_appends() -> None:
    leader = PartitionLeader(0, 0, (0,), 0, min_in_sync=2)
    assert leader.advance(3) and leader.high_watermark == 3
    assert not leader.advance(3)


def test_what_every_in_sync_replica_has_is_committed() -> None:
    leader = leader_of(0, 1, 2)
    fetch(leader, 1, 7, 10)
    assert leader.high_watermark == 0, "nobody knows what broker 2 has"
    fetch(leader, 2, 4, 10)
    assert leader.high_watermark == 4
    fetch(leader, 2, 2, 10)
    assert leader.high_watermark == 4, "it never falls"


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    leader = leader_of(0, min_in_sync=2)
    assert not leader.advance(10)
    with pytest.raises(KafkaError) as refused:
        leader.check_in_sync()
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.verdict(10) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_follower_that_is_proposed_is_waited_for_before_the_controller_answers() -> None:
    leader = leader_of(0, high_watermark=5)
    proposal = fetch(leader, 1, 6, 8)
    assert proposal is not None and (proposal.isr, proposal.broker_epochs) == ((0, 1), (70, 9))
    assert (leader.isr, leader.maximal_isr, leader.high_watermark) == ((0,), (0, 1), 6)
    assert fetch(leader, 2, 8, 8) is None, "one proposal at a time"
    assert leader.on_accepted(proposal, 5, 1, (0, 1))
    assert (leader.isr, leader.partition_epoch) == ((0, 1), 1)


@pytest.mark.parametrize(
    ("offset", "eligible", "epoch_start"), ((4, True, 0), (6, True, 7), (6, False, 0)), ids=("hw", "epoch", "fenced")
)
def test_a_follower_does_not_join(offset: int, eligible: bool, epoch_start: int) -> None:
    leader = leader_of(0, high_watermark=5, epoch_start_offset=epoch_start)
    assert fetch(leader, 1, offset, 8, eligible=eligible) is None
    assert leader.maximal_isr == (0,)


def test_under_steady_load_the_high_watermark_waits_for_one_that_has_nearly_caught_up() -> None:
    """Else it would always be a little behind, and never join."""
    leader = leader_of(0, high_watermark=5)
    leader.advance(10)
    assert fetch(leader, 1, 9, 10, 1000) is None, "below the high watermark"
    leader.advance(12)
    assert fetch(leader, 1, 10, 12, 1001) is None, "but it had all that there was at its last fetch"
    leader.advance(14)
    assert leader.high_watermark == 12, "so it is waited for"
    assert fetch(leader, 1, 12, 14, 1002) is not None


def test_one_that_nearly_caught_up_and_died_is_waited_for_no_longer_than_one_that_lags() -> None:
    leader = leader_of(0, 1, high_watermark=5)
    fetch(leader, 1, 10, 10, 1000)
    assert fetch(leader, 2, 10, 10, 1000) is not None
    leader.on_refused(leader.proposal, ErrorCode.INELIGIBLE_REPLICA)  # type: ignore[arg-type]
    fetch(leader, 2, 10, 10, 1000, eligible=False)
    fetch(leader, 1, 20, 20, 1010)
    assert leader.high_watermark == 20


def test_who_did_not_fetch_up_to_the_end_in_time_is_proposed_to_leave_and_counts_until_then() -> None:
    leader = leader_of(0, 1, 2)
    fetch(leader, 1, 10, 10, 1000)
    fetch(leader, 2, 4, 10, 1000)
    assert laggards(leader, 10, LAG_MS) is None, "it was in sync when we began to lead"
    proposal = laggards(leader, 10, 1001)
    assert proposal is not None and (proposal.isr, proposal.removed) == ((0, 1), (2,))
    leader.advance(10)
    assert leader.high_watermark == 4
    assert leader.on_accepted(proposal, 5, 1, (0, 1))
    leader.advance(10)
    assert leader.high_watermark == 10


def test_who_has_everything_does_not_lag_however_long_nobody_wrote() -> None:
    leader = leader_of(0, 1, 2)
    for replica in (1, 2):
        fetch(leader, replica, 10, 10, 1000)
    assert laggards(leader, 10, 999_999) is None


@pytest.mark.parametrize(
    ("code", "again", "maximal"),
    (
        (ErrorCode.INELIGIBLE_REPLICA, False, (0,)),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, (0,)),
        (ErrorCode.INVALID_UPDATE_VERSION, False, (0, 1)),
        (ErrorCode.FENCED_LEADER_EPOCH, False, (0, 1)),
        (ErrorCode.REQUEST_TIMED_OUT, True, (0, 1)),
    ),
)
def test_a_proposal_counts_until_it_is_known_not_to_be_in_force(
    code: ErrorCode, again: bool, maximal: tuple[int, ...]
) -> None:
    leader = leader_of(0, high_watermark=5)
    proposal = fetch(leader, 1, 6, 8)
    assert proposal is not None
    assert leader.on_refused(proposal, code) is again
    assert leader.maximal_isr == maximal


def test_the_metadata_settles_a_proposal_and_an_older_answer_changes_nothing() -> None:
    leader = leader_of(0, high_watermark=5)
    proposal = fetch(leader, 1, 6, 8)
    assert proposal is not None
    leader.follow_metadata(2, (0, 1, 2), (0, 2), 70, 0)
    assert (leader.isr, leader.maximal_isr, leader.proposal) == ((0, 2), (0, 2), None)
    assert not leader.on_accepted(proposal, 5, 1, (0, 1))
    assert leader.isr == (0, 2)


def test_a_replica_of_an_earlier_life_is_refused() -> None:
    leader = leader_of(0, 1, 2)
    fetch(leader, 1, 3, 3, epoch=9)
    with pytest.raises(KafkaError):
        fetch(leader, 1, 3, 3, epoch=8)
    with pytest.raises(KafkaError):
        fetch(leader, 3, 3, 3)


# -- where two logs part -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaders", "leader_end", "own", "own_end", "parts", "cut"),
    (
        # (epoch, start) of each; where the leader says that they part, and where the follower cuts.
        ([(0, 0)], 10, [(0, 0)], 10, None, None),
        ([(0, 0)], 10, [(0, 0)], 12, (0, 10), 10),
        ([(0, 0), (2, 10)], 15, [(0, 0), (1, 8)], 12, (0, 10), 8),
        ([(0, 0), (3, 5)], 15, [(0, 0), (1, 5), (2, 8)], 12, (0, 5), 5),
        ([(0, 0), (1, 5), (3, 9)], 15, [(0, 0), (2, 4)], 12, (1, 9), 4),
        ([(0, 0), (2, 10)], 15, [(0, 0), (1, 10)], 10, (0, 10), 10),
        ([(4, 20)], 25, [(1, 0)], 22, (1, 20), 20),
    ),
)
def test_a_log_is_cut_where_it_parts_from_the_leaders(
    leaders: list[tuple[int, int]],
    leader_end: int,
    own: list[tuple[int, int]],
    own_end: int,
    parts: tuple[int, int] | None,
    cut: int | None,
) -> None:
    epochs = LeaderEpochs(own)
    found = divergence(LeaderEpochs(leaders), leader_end, own_end, epochs.latest)
    assert found == parts
    if found is not None:
        assert truncation_offset(epochs, own_end, *found) == cut


def test_an_epoch_of_the_future_cannot_be_compared() -> None:
    with pytest.raises(KafkaError):
        divergence(LeaderEpochs([(0, 0)]), 10, 5, 3)


def test_a_follower_believes_the_leader_as_far_as_it_has_the_records() -> None:
    follower = PartitionFollower(1, 5, 3)
    assert follower.on_fetched(9, 7) and follower.high_watermark == 7
    assert not follower.on_fetched(5, 9) and follower.high_watermark == 7
    follower.on_truncated(6)
    assert follower.high_watermark == 6
