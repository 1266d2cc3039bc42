"""The consumer protocol on a machine by hand: joins, heartbeats, leaves, fences, timers, records (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.coordination import Step
from moldau.coordination.groups.consumer import ConsumerGroup
from moldau.coordination.groups.consumer_protocol import RECONCILING_HEARTBEAT_MS, WAITING_HEARTBEAT_MS
from moldau.coordination.groups.consumer_records import ConsumerRecord
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.coordinator.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from moldau.protocol.messages.coordinator.consumer_group_partition_metadata import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.coordination.consumer_play import Client, ConsumerPlay, settle
from tests.coordination.topics import Topics

MEMBER, EPOCH, TARGET, TARGET_EPOCH, CURRENT, EXPRESSION = 5, 3, 7, 6, 8, 16


def new_play(**settings: Any) -> ConsumerPlay:
    return ConsumerPlay(Topics(orders=6, users=2), **settings)


def test_the_first_member_gets_every_partition_at_once_in_epoch_2() -> None:
    play = new_play()
    answer = play.beat("m", topics=["orders"])
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 2)
    assert play.held(answer.assignment) == {"orders": set(range(6))}
    assert answer.heartbeat_interval_ms == 5000
    assert play.group().state_name == "Stable"


def test_a_join_logs_what_kafka_logs_in_its_order() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    assert play.kinds_logged(0) == [
        (MEMBER, False),
        (EPOCH, False),
        (TARGET, False),
        (TARGET_EPOCH, False),
        (CURRENT, False),
    ]


def test_a_steady_heartbeat_logs_nothing_and_answers_no_assignment() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    logged = len(play.log)
    answer = play.beat("m", 2)
    assert (answer.member_epoch, answer.assignment, len(play.log)) == (2, None, logged)


def test_a_full_request_is_answered_with_the_assignment_though_nothing_changed() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    logged = len(play.log)
    answer = play.beat("m", 2, topics=["orders"], timeout_ms=300_000, owned={"orders": set(range(6))})
    assert play.held(answer.assignment) == {"orders": set(range(6))}
    assert len(play.log) == logged


def test_version_0_gets_a_member_id_from_the_broker() -> None:
    answer = new_play().beat("", topics=["orders"], version=0)
    assert len(answer.member_id) == 22


def test_a_second_member_gets_its_share_only_when_the_first_has_given_it_up() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    first.beat()
    second.beat()
    assert (second.held, second.epoch) == ({}, 3)
    assert second.interval_ms == WAITING_HEARTBEAT_MS
    # Told to keep three, it says so with its next heartbeat.
    first.beat()
    assert (len(first.held["orders"]), first.epoch) == (3, 2)
    assert first.interval_ms == RECONCILING_HEARTBEAT_MS
    second.beat()
    assert second.held == {}, "the first still has all six"
    first.beat()
    assert first.epoch == 3
    second.beat()
    assert second.held["orders"] == set(range(6)) - first.held["orders"]
    assert play.group().state_name == "Stable"
    first.beat()
    assert first.interval_ms == 5000


@pytest.mark.parametrize(("others", "interval_ms"), [(1, 20), (49, 100), (149, 200)])
def test_who_waits_for_a_partition_asks_the_less_often_the_larger_the_group_is(others: int, interval_ms: int) -> None:
    play = new_play()
    play.beat("owner", topics=["orders"])
    for number in range(others - 1):
        play.beat(f"idle-{number}", topics=["users"])
    late = Client(play, "late", topics=["orders"])
    late.beat()
    assert late.held == {} and late.interval_ms == interval_ms


def test_a_member_that_does_not_say_what_it_has_still_has_everything() -> None:
    play = new_play()
    play.beat("a", topics=["orders"])
    second = Client(play, "b", topics=["orders"])
    second.beat()
    for _ in range(3):
        assert play.beat("a", 2).member_epoch == 2
        second.beat()
    assert second.held == {}


def test_a_member_that_does_not_give_up_in_its_rebalance_timeout_is_out() -> None:
    play = new_play()
    play.beat("a", topics=["orders"], timeout_ms=20_000)
    second = Client(play, "b", topics=["orders"])
    second.beat()
    play.beat("a", 2, owned={"orders": set(range(6))})
    for _ in range(4):
        play.pass_time(5000)
        if "a" in play.group().members:
            play.beat("a", 2, owned={"orders": set(range(6))})
    assert "a" not in play.group().members
    second.beat()
    assert second.held == {"orders": set(range(6))}


def test_a_silent_member_is_out_after_its_session_timeout() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    for _ in range(9):
        play.pass_time(5000)
        second.beat()
    assert set(play.group().members) == {"b"}
    assert second.held == {"orders": set(range(6))}


def test_an_answer_that_was_lost_does_not_fence_a_member_that_has_no_more_than_it_should() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    first.beat()
    second.beat()
    first.beat()
    kept = dict(first.held)
    play.beat("a", 2, owned=kept)  # moves it to epoch 3; the answer is lost
    assert play.group().members["a"].holding.epoch == 3
    assert play.beat("a", 2, owned=kept).member_epoch == 3
    assert play.beat("a", 2, owned={"orders": set(range(6))}) is ErrorCode.FENCED_MEMBER_EPOCH
    assert play.beat("a", 2) is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize("epoch", [1, 3, 99])
def test_a_wrong_epoch_is_fenced(epoch: int) -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    assert play.beat("m", epoch) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_may_join_again_under_its_id() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    answer = play.beat("m", 0, topics=["orders"])
    assert (answer.member_epoch, play.held(answer.assignment)) == (2, {"orders": set(range(6))})


def test_unknown_groups_and_members() -> None:
    play = new_play()
    assert play.beat("m", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert play.beat("m", -1) is ErrorCode.GROUP_ID_NOT_FOUND
    play.beat("m", topics=["orders"])
    assert play.beat("x", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.beat("x", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_frees_partitions_and_logs_tombstones_in_kafkas_order() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    logged = len(play.log)
    answer = first.leave()
    assert (answer.member_id, answer.member_epoch) == ("a", -1)
    assert play.kinds_logged(logged)[:4] == [(CURRENT, True), (TARGET, True), (MEMBER, True), (EPOCH, False)]
    settle(play, [second])
    assert second.held == {"orders": set(range(6))}


def test_the_group_may_not_grow_beyond_its_limit() -> None:
    play = new_play(group__consumer__max__size=1)
    play.beat("a", topics=["orders"])
    assert play.beat("b", topics=["orders"]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert play.beat("a", 2).member_epoch == 2


def test_a_member_without_topics_is_a_member() -> None:
    play = new_play()
    answer = play.beat("m", topics=[])
    assert (answer.member_epoch, play.held(answer.assignment)) == (1, {})
    assert play.kinds_logged(0) == [(MEMBER, False), (CURRENT, False)]


def test_a_new_subscription_takes_effect_and_what_is_unwanted_is_given_up() -> None:
    play = new_play()
    client = Client(play, "m", topics=["orders"])
    client.beat()
    client.beat(topics=["users"])
    settle(play, [client])
    assert client.held == {"users": {0, 1}}


def test_targets_are_made_at_most_once_per_interval_and_the_first_at_once() -> None:
    play = new_play(group__consumer__assignment__interval__ms=1000)
    first, second, third = (Client(play, name, topics=["orders"]) for name in "abc")
    first.beat()
    assert first.held == {"orders": set(range(6))}
    second.beat()
    third.beat()
    assert (play.group().epoch, play.group().target_epoch) == (4, 2)
    assert play.group().state_name == "Assigning"
    play.pass_time(999)
    assert play.group().target_epoch == 2
    play.pass_time(1)
    assert play.group().target_epoch == 4, "nobody had to ask"
    settle(play, [first, second, third])
    assert [len(each.held["orders"]) for each in (first, second, third)] == [2, 2, 2]


def test_new_partitions_and_deleted_topics_change_the_assignment() -> None:
    play = new_play()
    client = Client(play, "m", topics=["orders", "users"])
    client.beat()
    play.topics.counts["orders"] = 8
    play.change_topics("orders")
    settle(play, [client])
    assert client.held["orders"] == set(range(8))
    play.topics.delete("users")
    play.change_topics(deleted=["users"])
    settle(play, [client])
    assert client.held == {"orders": set(range(8))}


def test_a_topic_that_nobody_reads_changes_nothing() -> None:
    play = new_play()
    Client(play, "m", topics=["orders"]).beat()
    logged = len(play.log)
    play.topics.create("other", 3)
    play.change_topics("other")
    assert len(play.log) == logged


def test_members_vote_for_the_assignor() -> None:
    play = new_play()
    Client(play, "a", topics=["orders"], assignor="range").beat()
    assert play.machine.consumer.describe(play.group()).assignor_name == "range"


# -- static members ----------------------------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_gets_its_partitions_without_a_new_epoch() -> None:
    play = new_play()
    first = Client(play, "a", topics=["orders"], instance="one")
    second = Client(play, "b", topics=["orders"], instance="two")
    settle(play, [first, second])
    held, epoch = dict(first.held), play.group().epoch
    answer = first.leave(-2)
    assert (answer.member_epoch, play.group().epoch) == (-2, epoch)
    back = Client(play, "a2", topics=["orders"], instance="one")
    assert back.beat() is ErrorCode.NONE
    assert (back.held, play.group().epoch) == (held, epoch)
    assert play.beat("a", epoch, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    assert set(play.group().members) == {"a2", "b"}


def test_an_instance_that_did_not_leave_keeps_its_place() -> None:
    play = new_play()
    Client(play, "a", topics=["orders"], instance="one").beat()
    assert play.beat("b", topics=["orders"], instance="one") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert play.beat("b", 2, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    assert play.beat("b", 2, instance="two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.beat("b", -2, instance="one") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_loses_its_partitions_after_its_session() -> None:
    play = new_play()
    first = Client(play, "a", topics=["orders"], instance="one")
    second = Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    first.leave(-2)
    second.beat()
    assert len(second.held["orders"]) == 3
    assert second.interval_ms == 5000, "nobody waits for one who is away"
    for _ in range(10):
        play.pass_time(5000)
        second.beat()
    assert second.held == {"orders": set(range(6))}


def test_a_refused_join_leaves_no_trace() -> None:
    play = new_play()
    assert play.beat("m", regex="[") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (play.log, play.machine.groups) == ([], {})


# -- offsets -----------------------------------------------------------------------------------------------------------


def commit(play: ConsumerPlay, member: str, epoch: int, topic: str, partition: int, version: int = 9) -> Any:
    partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(partition, 5)]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    answer = play.answer(OffsetCommitRequest("g", epoch, member, topics=topics), version)
    return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.topics[0].partitions[0].error_code)


def test_who_may_commit() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    kept, lost = min(first.held["orders"]), min(second.held["orders"])
    assert commit(play, "a", 3, "orders", kept) is ErrorCode.NONE
    assert commit(play, "a", 2, "orders", kept) is ErrorCode.NONE, "it has had it since epoch 2"
    assert commit(play, "a", 2, "orders", lost) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, "b", 2, "orders", lost) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, "a", 4, "orders", kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, "x", 3, "orders", kept) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(play, "", -1, "orders", kept) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(play, "a", 3, "orders", kept, version=8) is ErrorCode.UNSUPPORTED_VERSION
    first.leave()
    second.leave()
    assert commit(play, "", -1, "orders", kept) is ErrorCode.NONE, "nobody is there to object"


def test_who_may_commit_in_a_transaction() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    kept, lost = min(first.held["orders"]), min(second.held["orders"])

    def commit_both(member: str, epoch: int, *indexes: int) -> ErrorCode:
        partitions = [TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(index, 5) for index in indexes]
        topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("orders", partitions)]
        answer = play.answer(TxnOffsetCommitRequest("t", "g", 7, 0, epoch, member, topics=topics))
        return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.topics[0].partitions[0].error_code)

    assert commit_both("a", 3, kept) is ErrorCode.NONE
    assert commit_both("a", 2, kept) is ErrorCode.NONE, "it has had it since epoch 2"
    assert commit_both("a", 2, kept, lost) is ErrorCode.ILLEGAL_GENERATION
    assert commit_both("a", 4, kept) is ErrorCode.ILLEGAL_GENERATION
    assert commit_both("x", 3, kept) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_both("", -1, kept) is ErrorCode.NONE, "a producer before KIP-447"


def test_who_may_fetch_offsets() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    check = play.machine.consumer.check_fetch
    check(play.group(), None, -1)
    check(play.group(), "m", 2)
    for member, epoch, code in (
        ("m", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as refusal:
            check(play.group(), member, epoch)
        assert refusal.value.code is code


# -- after a restart ---------------------------------------------------------------------------------------------------


def test_a_restart_forgets_nothing_that_members_were_told() -> None:
    play = new_play()
    clients = [Client(play, name, topics=["orders", "users"]) for name in "abc"]
    for client in clients[:2]:
        client.beat()
    play.restart()
    settle(play, clients)
    before = {client.id: (client.epoch, dict(client.held)) for client in clients}
    logged = len(play.log)
    play.restart()
    for client in clients:
        assert client.beat() is ErrorCode.NONE
    assert {client.id: (client.epoch, client.held) for client in clients} == before
    assert len(play.log) == logged


def test_deleting_a_group_leaves_only_tombstones() -> None:
    play = new_play()
    client = Client(play, "m", topics=["orders"], regex="or.*")
    client.beat()
    client.leave()
    step = Step(0, 0)
    play.machine.consumer.tombstones(play.group(), step)
    play.log += step.records
    play.restart()
    assert play.machine.groups == {}


# -- records of other brokers ------------------------------------------------------------------------------------------


def replayed(play: ConsumerPlay, *records: ConsumerRecord) -> ConsumerGroup:
    for record in records:
        play.machine.replay(*record.encode())
    return play.group()


def test_a_record_that_older_brokers_wrote_is_deleted_with_the_next_change() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    legacy = ConsumerRecord(ConsumerGroupPartitionMetadataKey("g"), ConsumerGroupPartitionMetadataValue())
    replayed(play, legacy)
    logged = len(play.log)
    play.beat("m", 2, topics=["users"])
    play.beat("m", 2, topics=["orders"])
    assert play.kinds_logged(logged).count((4, True)) == 1


def test_partitions_without_epochs_of_their_own_are_the_members_since_its_epoch() -> None:
    topic = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(b"t" * 16, [3, 4])
    value = ConsumerGroupCurrentMemberAssignmentValue(7, 6, 0, [topic])
    record = ConsumerRecord(ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value)
    assert replayed(new_play(), record).members["m"].holding.assigned == {b"t" * 16: {3: 7, 4: 7}}


def test_a_member_in_a_state_that_we_do_not_know_must_come_without_partitions() -> None:
    play = new_play()
    play.beat("m", topics=["orders"])
    value = ConsumerGroupCurrentMemberAssignmentValue(2, 1, 55)
    replayed(play, ConsumerRecord(ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value))
    assert play.beat("m", 2) is ErrorCode.FENCED_MEMBER_EPOCH
    assert play.beat("m", 2, owned={"orders": {0}}) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = play.beat("m", 2, owned={})
    assert play.held(answer.assignment) == {"orders": set(range(6))}


def test_an_assignor_that_we_do_not_know_is_replaced_by_uniform() -> None:
    play = new_play()
    answer = play.beat("m", topics=["orders"], assignor="somebody's")
    assert play.held(answer.assignment) == {"orders": set(range(6))}


def test_the_history_says_why_the_group_was_rebalanced() -> None:
    play = new_play()
    first, second = Client(play, "a", topics=["orders"]), Client(play, "b", topics=["orders"])
    settle(play, [first, second])
    first.leave()
    settle(play, [second])
    reasons = [rebalance.reason for rebalance in play.group().history.last]
    assert reasons == ["a joined", "b joined", "a left"]
