"""Brokers come, live, are missed and go: registration, sessions, heartbeats, AlterPartition, reassignment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moldau.cluster import (
    BrokerSessions,
    MetadataImage,
    PartitionPolicy,
    comes_from_the_same_place,
    decide_alter_partition,
    decide_heartbeat,
    decide_reassign,
    decide_register_broker,
    decide_unregister_broker,
    fence,
    list_reassignments,
    prefer_leaders,
)
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.metadata_records.broker_registration_change_record import BrokerRegistrationChangeRecord
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
from tests.cluster.kit import DIRECTORY, cluster, created, replayed, topic

POLICY = PartitionPolicy(min_isr=lambda _topic: 1, is_unclean_allowed=lambda _topic: False)
NOW = 50_000
OLD, NEW = bytes([1]) * 16, bytes([77]) * 16


@pytest.fixture
def image() -> MetadataImage:
    return created(cluster(1, 2, 3), topic("t", -1, -1, assignments={0: [1, 2, 3], 1: [2, 3, 1]}))


@pytest.fixture
def sessions() -> BrokerSessions:
    found = BrokerSessions(9000)
    for node_id in (1, 2, 3):
        found.begin(node_id, 100 + node_id, NOW)
    return found


def register(image: MetadataImage, sessions: BrokerSessions, now_ms: int = NOW, **changes: Any) -> Any:
    features = [BrokerRegistrationRequest.Feature("metadata.version", 7, 30)]
    fields: dict[str, Any] = {"broker_id": 1, "incarnation_id": NEW, "features": features, "log_dirs": [NEW]}
    request = BrokerRegistrationRequest(cluster_id="c", rack=None, **fields | changes)
    return decide_register_broker(
        image, request, cluster_id="c", next_offset=500, sessions=sessions, policy=POLICY, now_ms=now_ms
    )


# -- registration ------------------------------------------------------------------------------------------------------


def test_a_broker_gets_the_offset_of_its_registration_as_its_epoch(
    image: MetadataImage, sessions: BrokerSessions
) -> None:
    decision = register(image, sessions, broker_id=9)
    after = replayed(image, decision.records)
    assert decision.response == after.brokers[9].epoch == 500
    assert after.brokers[9].fenced


def test_a_new_incarnation_waits_for_the_end_of_the_old_session(image: MetadataImage, sessions: BrokerSessions) -> None:
    with pytest.raises(KafkaError) as refusal:
        register(image, sessions, NOW + 8_999)
    assert refusal.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    after = replayed(image, register(image, sessions, NOW + 9_000).records)
    first, second = after.topics["t"].partitions
    assert (first.leader, first.isr, second.isr) == (2, (2, 3), (2, 3)), "the old one is in sync with nobody"


def test_a_new_incarnation_does_not_wait_for_one_whose_connection_broke(
    image: MetadataImage, sessions: BrokerSessions
) -> None:
    sessions.touch(1, 101, 7, NOW)
    sessions.suspect(1, 101, NOW + 400)
    assert register(image, sessions).response == 500


@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_name_of_which_a_new_controller_has_not_heard_yet_is_taken(
    image: MetadataImage, sessions: BrokerSessions, is_suspect: bool
) -> None:
    """For a session from its election, or until a suspicion has run out: what lives has told of itself by then."""
    end_ms = NOW + 9000
    if is_suspect:
        end_ms = NOW + 400
        sessions.suspect(1, 101, end_ms)
    with pytest.raises(KafkaError) as refusal:
        register(image, sessions, end_ms - 1)
    assert refusal.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert register(image, sessions, end_ms).response == 500


def test_a_new_incarnation_comes_from_the_place_of_the_old_one_if_it_listens_there(image: MetadataImage) -> None:
    registered = image.brokers[1].endpoints
    assert registered
    listeners = [BrokerRegistrationRequest.Listener(*each) for each in registered]
    assert comes_from_the_same_place(image, BrokerRegistrationRequest(1, listeners=listeners))
    listeners[0].port += 1
    assert not comes_from_the_same_place(image, BrokerRegistrationRequest(1, listeners=listeners))
    assert not comes_from_the_same_place(image, BrokerRegistrationRequest(9, listeners=listeners))


def test_the_same_incarnation_keeps_its_epoch_and_its_place(image: MetadataImage, sessions: BrokerSessions) -> None:
    decision = register(image, sessions, incarnation_id=OLD)
    assert decision.response == 101
    assert replayed(image, decision.records).topics == image.topics


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"log_dirs": []}, ErrorCode.INVALID_REQUEST),
        ({"log_dirs": [bytes(16)]}, ErrorCode.INVALID_REQUEST),
        ({"log_dirs": [NEW, NEW]}, ErrorCode.INVALID_REQUEST),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_registration_that_cannot_be_is_refused(
    image: MetadataImage, sessions: BrokerSessions, changes: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refusal:
        register(image, sessions, broker_id=9, **changes)
    assert refusal.value.code == code


def test_an_unregistered_broker_is_in_sync_with_nobody(image: MetadataImage) -> None:
    after = replayed(image, decide_unregister_broker(image, 1, POLICY).records)
    assert set(after.brokers) == {2, 3}
    assert all(1 not in partition.isr and partition.leader == 2 for partition in after.topics["t"].partitions)
    with pytest.raises(KafkaError):
        decide_unregister_broker(after, 1, POLICY)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_ends_when_nothing_is_heard_for_so_long(sessions: BrokerSessions) -> None:
    sessions.touch(2, 102, 7, NOW + 5000)
    assert sessions.expired(NOW + 8_999) == []
    assert sessions.expired(NOW + 9_000) == [1, 3]
    assert sessions.due_ms == NOW + 9_000


def test_a_broken_connection_is_a_suspicion_that_a_heartbeat_clears(sessions: BrokerSessions) -> None:
    assert sessions.suspect(1, 101, NOW + 400)
    assert not sessions.suspect(1, 101, NOW + 900), "the first one counts"
    assert not sessions.suspect(2, 55, NOW + 400), "an older incarnation's connection"
    assert sessions.expired(NOW + 400) == [1]
    sessions.touch(1, 101, 3, NOW + 300)
    assert sessions.expired(NOW + 400) == []


def test_a_fenced_broker_leads_nothing_and_comes_back_unfenced_where_it_is_in_sync(image: MetadataImage) -> None:
    alone = replayed(image, [*fence(image, 2, POLICY)])
    alone = replayed(alone, fence(alone, 3, POLICY))
    last = replayed(alone, fence(alone, 1, POLICY))
    assert [(each.leader, each.isr) for each in last.topics["t"].partitions] == [(NO_LEADER, (1,))] * 2
    sessions = BrokerSessions(9000)
    beat = BrokerHeartbeatRequest(2, 102, last.brokers[2].epoch)
    decision = decide_heartbeat(last, beat, sessions.touch(2, 102, 0, NOW), sessions, POLICY, 900, lambda _node: 0)
    after = replayed(last, decision.records)
    assert not decision.response.is_fenced and not after.brokers[2].fenced
    assert {each.leader for each in after.topics["t"].partitions} == {NO_LEADER}, "it may lack what was committed"
    beat = BrokerHeartbeatRequest(1, 101, last.brokers[1].epoch)
    decision = decide_heartbeat(after, beat, sessions.touch(1, 101, 0, NOW), sessions, POLICY, 900, lambda _node: 0)
    assert {each.leader for each in replayed(after, decision.records).topics["t"].partitions} == {1}


def test_a_broker_that_has_not_read_its_own_registration_stays_fenced(image: MetadataImage) -> None:
    fenced = replayed(image, fence(image, 2, POLICY))
    sessions = BrokerSessions(9000)
    beat = BrokerHeartbeatRequest(2, 102, 101)
    decision = decide_heartbeat(fenced, beat, sessions.touch(2, 102, 0, NOW), sessions, POLICY, 900, lambda _node: 0)
    assert (decision.response.is_fenced, decision.response.is_caught_up, decision.records) == (True, False, ())


def test_a_broker_goes_when_others_lead_and_everybody_knows(image: MetadataImage, sessions: BrokerSessions) -> None:
    seen = {1: 0, 2: 0, 3: 0}
    beat = BrokerHeartbeatRequest(1, 101, 200, want_shut_down=True)
    session = sessions.touch(1, 101, 200, NOW)
    first = decide_heartbeat(image, beat, session, sessions, POLICY, 900, seen.__getitem__)
    assert not first.response.should_shut_down
    moved = replayed(image, first.records)
    assert moved.brokers[1].in_controlled_shutdown and moved.topics["t"].partitions[0].leader == 2
    waiting = decide_heartbeat(moved, beat, session, sessions, POLICY, 950, seen.__getitem__)
    assert not waiting.response.should_shut_down, "the new leaders may not know that they lead"
    seen.update({2: 2000, 3: 2000})
    last = decide_heartbeat(moved, beat, session, sessions, POLICY, 950, seen.__getitem__)
    assert last.response.should_shut_down
    assert replayed(moved, last.records).brokers[1].fenced


def test_a_broker_that_lost_a_directory_leads_nothing_of_it_and_goes_on_with_the_others(image: MetadataImage) -> None:
    second = bytes([9]) * 16
    known = image.brokers[1]
    image = replace(image, brokers={**image.brokers, 1: replace(known, log_directories=(DIRECTORY, second))})
    partition = image.topics["t"].partitions[1]._replace(leader=1, directories=(DIRECTORY, DIRECTORY, second))
    topic_image = replace(image.topics["t"], partitions=(image.topics["t"].partitions[0], partition))
    image = replace(image, topics={"t": topic_image})
    sessions = BrokerSessions(9000)
    beat = BrokerHeartbeatRequest(1, 101, 200, offline_log_dirs=[DIRECTORY])
    decision = decide_heartbeat(image, beat, sessions.touch(1, 101, 0, NOW), sessions, POLICY, 900, lambda _node: 0)
    after = replayed(image, decision.records)
    assert after.brokers[1].log_directories == (second,) and not after.brokers[1].fenced
    assert [(each.leader, each.isr) for each in after.topics["t"].partitions] == [(2, (2, 3)), (1, (2, 3, 1))]


# -- AlterPartition ----------------------------------------------------------------------------------------------------


def alter(image: MetadataImage, isr: dict[int, int], **changes: Any) -> tuple[int, Any]:
    """(error, records) of one leader's request for t-0."""
    kinds = AlterPartitionRequest
    before = image.topics["t"].partitions[0]
    fields: dict[str, Any] = {
        "leader_epoch": before.leader_epoch,
        "partition_epoch": before.partition_epoch,
        "leader_recovery_state": 0,
        "broker_id": before.leader,
        "topic_id": image.topics["t"].id,
    } | changes
    broker_id, topic_id = fields.pop("broker_id"), fields.pop("topic_id")
    asked = kinds.PartitionData(0, new_isr_with_epochs=[kinds.BrokerState(*each) for each in isr.items()], **fields)
    request = kinds(broker_id, 100 + broker_id, [kinds.TopicData(topic_id, [asked])])
    decision = decide_alter_partition(image, request, 3, POLICY)
    return decision.response.topics[0].partitions[0].error_code, decision.records


def test_the_leader_decides_who_is_in_sync(image: MetadataImage) -> None:
    error, records = alter(image, {1: 101, 3: 103})
    after = replayed(image, records).topics["t"].partitions[0]
    assert (error, after.isr, after.leader_epoch, after.partition_epoch) == (0, (1, 3), 0, 1)


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ({1: 101}, {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({1: 101}, {"partition_epoch": 7}, ErrorCode.NOT_CONTROLLER),
        ({1: 101}, {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({1: 101}, {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({2: 102}, {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ({2: 102}, {}, ErrorCode.INVALID_REQUEST),
        ({1: 101, 9: 109}, {}, ErrorCode.INVALID_REQUEST),
        ({1: 101}, {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({1: 101}, {"topic_id": NEW}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({1: 101, 2: 99}, {}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_leader_that_is_wrong_changes_nothing(
    image: MetadataImage, isr: dict[int, int], changes: dict[str, Any], code: ErrorCode
) -> None:
    assert alter(image, isr, **changes) == (code, [])


def test_a_fenced_replica_does_not_come_into_sync(image: MetadataImage) -> None:
    fenced = replayed(image, fence(image, 3, POLICY))
    assert alter(fenced, {1: 101, 2: 102, 3: 103}) == (ErrorCode.INELIGIBLE_REPLICA, [])


# -- reassignment ------------------------------------------------------------------------------------------------------


def reassign(image: MetadataImage, replicas: list[int] | None, index: int = 0) -> Any:
    kinds = AlterPartitionReassignmentsRequest
    request = kinds(topics=[kinds.ReassignableTopic("t", [kinds.ReassignablePartition(index, replicas)])])
    decision = decide_reassign(image, request, POLICY, lambda replica: DIRECTORY)
    return decision.response.responses[0].partitions[0].error_code, replayed(image, decision.records)


def test_a_reassignment_makes_nobody_a_leader_whose_directory_failed() -> None:
    image = created(cluster(1, 2, 3), topic("t", -1, -1, assignments={0: [1, 2]}))
    topic_id = image.topics["t"].id
    gone = PartitionChangeRecord(
        partition_id=0, topic_id=topic_id, leader=NO_LEADER, isr=[], eligible_leader_replicas=[2], last_known_elr=[1]
    )
    image = replayed(image, [gone, BrokerRegistrationChangeRecord(2, image.brokers[2].epoch, log_dirs=[NEW])])
    request_of = AlterPartitionReassignmentsRequest
    partition = request_of.ReassignablePartition(0, [2, 3])
    request = request_of(topics=[request_of.ReassignableTopic("t", [partition])])
    policy = replace(POLICY, min_isr=lambda _topic: 2, keeps_elr=True)
    after = replayed(image, decide_reassign(image, request, policy, lambda replica: DIRECTORY).records)
    assert (after.topics["t"].partitions[0].leader, after.topics["t"].partitions[0].elr) == (NO_LEADER, (2,))


def test_a_reassignment_adds_first_and_removes_when_all_are_in_sync() -> None:
    image = created(cluster(1, 2, 3, 4), topic("t", -1, -1, assignments={0: [1, 2]}))
    error, after = reassign(image, [3, 4])
    partition = after.topics["t"].partitions[0]
    assert error == 0
    assert (partition.replicas, partition.adding, partition.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert (partition.leader, partition.isr) == (1, (1, 2))
    ongoing = list_reassignments(after, ListPartitionReassignmentsRequest(topics=None)).topics[0].partitions[0]
    assert (ongoing.replicas, ongoing.adding_replicas, ongoing.removing_replicas) == ([3, 4, 1, 2], [3, 4], [1, 2])
    code, records = alter(after, {1: 101, 2: 102, 3: 103, 4: 104})
    done = replayed(after, records).topics["t"].partitions[0]
    assert code == ErrorCode.NEW_LEADER_ELECTED, "the change stands, and takes the leadership away"
    assert (done.replicas, done.isr, done.leader, done.adding) == ((3, 4), (3, 4), 3, ())


def test_a_cancelled_reassignment_leaves_all_as_it_was() -> None:
    image = created(cluster(1, 2, 3, 4), topic("t", -1, -1, assignments={0: [1, 2]}))
    _, begun = reassign(image, [3, 4])
    error, after = reassign(begun, None)
    partition = after.topics["t"].partitions[0]
    assert (error, partition.replicas, partition.isr, partition.leader) == (0, (1, 2), (1, 2), 1)
    assert reassign(after, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("replicas", [[], [1, 1], [1, 9]])
def test_an_impossible_assignment_is_refused(image: MetadataImage, replicas: list[int]) -> None:
    error, after = reassign(image, replicas)
    assert error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert after.topics == image.topics


def test_leadership_goes_back_to_the_first_replicas(image: MetadataImage) -> None:
    fenced = replayed(image, fence(image, 1, POLICY))
    assert list(prefer_leaders(fenced, POLICY, 10)) == [], "who is gone cannot lead"
    moved = replayed(image, [record for record in fence(image, 1, POLICY) if hasattr(record, "topic_id")])
    back = replayed(moved, alter_all_in_sync(moved))
    assert {partition.leader for partition in back.topics["t"].partitions} == {2}
    after = replayed(back, list(prefer_leaders(back, POLICY, 10)))
    assert [partition.leader for partition in after.topics["t"].partitions] == [1, 2]


@pytest.mark.parametrize(("percent_max", "moved"), [(0, 1), (24, 1), (25, 0), (100, 0)])
def test_who_misses_little_of_its_share_is_left_alone(percent_max: int, moved: int) -> None:
    image = created(cluster(1, 2), topic("t", -1, -1, assignments={index: [1, 2] for index in range(4)}))
    away = PartitionChangeRecord(partition_id=3, topic_id=image.topics["t"].id, leader=2)
    records = list(prefer_leaders(replayed(image, [away]), POLICY, 10, imbalance_percent_max=percent_max))
    assert [(record.partition_id, record.leader) for record in records] == [(3, 1)] * moved


def alter_all_in_sync(image: MetadataImage) -> Any:
    return alter(image, {1: 101, 2: 102, 3: 103})[1]
