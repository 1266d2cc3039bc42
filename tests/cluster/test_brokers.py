"""Registration, fencing and leadership: who leads after what."""

from __future__ import annotations

import pytest

from moldau.cluster import (
    FENCE,
    MetadataImage,
    PartitionImage,
    PartitionPolicy,
    change_fencing,
    decide_allocate_producer_ids,
    decide_assign_directory,
    decide_elect_leaders,
    lead_again,
)
from moldau.kernel import NO_LEADER, ErrorCode
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
from tests.cluster.kit import cluster, created, replayed, topic

PREFERRED, UNCLEAN = 0, 1
POLICY = PartitionPolicy(min_isr=lambda _topic: 1, is_unclean_allowed=lambda _topic: False)


def _with(image: MetadataImage, **changes: object) -> MetadataImage:
    """The only partition of topic t, changed by a record."""
    record = PartitionChangeRecord(partition_id=0, topic_id=image.topics["t"].id, **changes)  # type: ignore[arg-type]
    return replayed(image, [record])


def _partition(image: MetadataImage) -> PartitionImage:
    return image.topics["t"].partitions[0]


def _elect(kind: int, *partitions: tuple[str, list[int]]) -> ElectLeadersRequest:
    named = [ElectLeadersRequest.TopicPartitions(*each) for each in partitions] or None
    return ElectLeadersRequest(election_type=kind, topic_partitions=named)


@pytest.fixture
def image() -> MetadataImage:
    return created(cluster(1, 2), topic("t", -1, -1, assignments={0: [1, 2]}))


def test_a_fenced_broker_is_not_alive_and_keeps_its_registration(image: MetadataImage) -> None:
    after = replayed(image, [change_fencing(image, 1, FENCE)])
    assert [broker.node_id for broker in after.alive_brokers] == [2]
    assert after.brokers[1].epoch == image.brokers[1].epoch


def test_after_a_clean_stop_a_broker_leads_as_before(image: MetadataImage) -> None:
    assert list(lead_again(image, 1, POLICY, unclean=False)) == []


def test_after_an_unclean_stop_what_it_leads_gets_a_new_epoch(image: MetadataImage) -> None:
    after = replayed(image, lead_again(image, 1, POLICY, unclean=True))
    assert (_partition(after).leader, _partition(after).leader_epoch) == (1, 1)
    assert list(lead_again(image, 2, POLICY, unclean=True)) == []


def test_a_returning_broker_leads_what_has_no_leader_if_it_is_in_sync(image: MetadataImage) -> None:
    leaderless = replayed(_with(image, leader=NO_LEADER, isr=[2]), [change_fencing(image, 2, FENCE)])
    assert list(lead_again(leaderless, 1, POLICY, unclean=False)) == []
    after = replayed(leaderless, lead_again(leaderless, 2, POLICY, unclean=False))
    assert (_partition(after).leader, _partition(after).isr) == (2, (2,))


def test_a_returning_broker_leads_as_the_only_eligible_replica(image: MetadataImage) -> None:
    eligible = _with(image, leader=NO_LEADER, isr=[], eligible_leader_replicas=[2], last_known_elr=[1])
    after = _partition(replayed(eligible, lead_again(eligible, 2, POLICY, unclean=False)))
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (2, (2,), (), ())


def test_a_preferred_election_gives_the_partition_back_to_its_first_replica(image: MetadataImage) -> None:
    moved = _with(image, leader=2)
    decision = decide_elect_leaders(moved, _elect(PREFERRED, ("t", [0])), POLICY)
    assert decision.response.replica_election_results[0].partition_result[0].error_code == 0
    after = _partition(replayed(moved, decision.records))
    assert (after.leader, after.leader_epoch) == (1, _partition(moved).leader_epoch + 1)


def test_a_preferred_leader_that_is_away_is_not_elected(image: MetadataImage) -> None:
    moved = _with(image, leader=2, isr=[2])
    decision = decide_elect_leaders(moved, _elect(PREFERRED, ("t", [0])), POLICY)
    result = decision.response.replica_election_results[0].partition_result[0]
    assert result.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert not decision.records


def test_an_unclean_election_takes_any_replica_that_is_alive(image: MetadataImage) -> None:
    lost = _with(image, leader=NO_LEADER, isr=[1])
    lost = replayed(lost, [change_fencing(lost, 1, FENCE)])
    after = _partition(replayed(lost, decide_elect_leaders(lost, _elect(UNCLEAN, ("t", [0])), POLICY).records))
    assert (after.leader, after.isr) == (2, (2,))
    dark = replayed(lost, [change_fencing(lost, 2, FENCE)])
    result = decide_elect_leaders(dark, _elect(UNCLEAN, ("t", [0])), POLICY).response.replica_election_results[0]
    assert result.partition_result[0].error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_an_election_of_everything_leaves_out_what_needs_none(image: MetadataImage) -> None:
    moved = created(_with(image, leader=2), topic("u"), seed=1)
    decision = decide_elect_leaders(moved, _elect(PREFERRED), POLICY)
    results = {each.topic: each.partition_result for each in decision.response.replica_election_results}
    assert [each.error_code for each in results["t"]] == [0]
    assert results["u"] == []


def test_a_moved_replica_is_assigned_its_directory(image: MetadataImage) -> None:
    after = replayed(image, decide_assign_directory(image, "t", 0, 2, b"another-one-dir!").records)
    assert _partition(after).directories[1] == b"another-one-dir!"
    assert _partition(after).directories[0] == _partition(image).directories[0]
    assert not decide_assign_directory(image, "gone", 0, 2, b"another-one-dir!").records


def test_blocks_of_producer_ids_never_overlap(image: MetadataImage) -> None:
    first = decide_allocate_producer_ids(image, 1)
    after = replayed(image, first.records)
    second = decide_allocate_producer_ids(after, 2)
    assert not set(first.response) & set(second.response)
    assert len(first.response) == len(second.response) == 1000
