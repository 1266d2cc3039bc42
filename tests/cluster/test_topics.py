"""Decisions about topics: what is created, deleted and grown, and what is refused without touching the rest.

Every refusal and its words are compared with Apache Kafka in `tests/differential/test_topics.py`; here are the records,
what Kafka cannot be asked, and clusters of more than one broker.
"""

from __future__ import annotations

import pytest

from moldau.cluster import ConfigKind, MetadataImage, decide_delete_topics
from moldau.kernel import METADATA_TOPIC, ErrorCode
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.cluster.kit import DIRECTORY, cluster, created, decider, replayed, topic


def _grow(name: str, count: int, assignments: list[list[int]] | None = None) -> CreatePartitionsRequest:
    kinds = CreatePartitionsRequest
    by_hand = None if assignments is None else [kinds.CreatePartitionsAssignment(ids) for ids in assignments]
    return kinds(topics=[kinds.CreatePartitionsTopic(name, count, by_hand)])


def test_a_created_topic_has_its_partitions_configs_and_a_new_id() -> None:
    image = created(cluster(), topic("orders", 3, configs={"retention.ms": "5"}))
    made = image.topics["orders"]
    assert [(each.replicas, each.isr, each.leader, each.leader_epoch) for each in made.partitions] == [
        ((1,), (1,), 1, 0)
    ] * 3
    assert all(each.directories == (DIRECTORY,) for each in made.partitions)
    assert image.config(ConfigKind.TOPIC, "orders") == {"retention.ms": "5"}
    assert image.topic_by_id(made.id) == made


def test_minus_one_means_the_brokers_defaults() -> None:
    decision = decider(partitions=4, factor=2).create(
        cluster(1, 2, 3), CreateTopicsRequest(topics=[topic("orders", -1, -1)])
    )
    result = decision.response.topics[0]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 2)


def test_fenced_brokers_get_no_replicas() -> None:
    image = created(cluster(1, 2, 3, fenced=[2]), topic("orders", 10, 2))
    assert {replica for each in image.topics["orders"].partitions for replica in each.replicas} == {1, 3}
    decision = decider().create(cluster(1, 2, fenced=[2]), CreateTopicsRequest(topics=[topic("orders", 1, 2)]))
    assert decision.response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "only 1 broker(s) are registered" in str(decision.response.topics[0].error_message)


def test_a_manual_assignment_may_name_a_fenced_broker_but_not_only_such() -> None:
    image = cluster(1, 2, fenced=[2])
    partition = created(image, topic("mixed", -1, -1, assignments={0: [2, 1]})).topics["mixed"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1), (1,), 1)
    decision = decider().create(image, CreateTopicsRequest(topics=[topic("x", -1, -1, assignments={0: [2]})]))
    assert decision.response.topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_validate_only_makes_no_records() -> None:
    request = CreateTopicsRequest(topics=[topic("orders", 3)], validate_only=True)
    decision = decider().create(cluster(), request)
    assert not decision.records
    assert decision.response.topics[0].topic_id == bytes(16)
    grow = _grow("orders", 9)
    grow.validate_only = True
    decided = decider().create_partitions(created(cluster(), topic("orders")), grow)
    assert not decided.records and decided.response.results[0].error_code == 0


def test_one_refused_topic_does_not_touch_the_others() -> None:
    image = cluster()
    request = CreateTopicsRequest(topics=[topic("good"), topic("bad name"), topic("also.good"), topic("also_good")])
    decision = decider().create(image, request)
    assert {each.name: each.error_code for each in decision.response.topics} == {
        "good": 0,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "also.good": 0,
        "also_good": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert set(replayed(image, decision.records).topics) == {"good", "also.good"}


def test_the_metadata_topic_cannot_be_created() -> None:
    decision = decider().create(cluster(), CreateTopicsRequest(topics=[topic(METADATA_TOPIC)]))
    assert decision.response.topics[0].error_code == ErrorCode.INVALID_REQUEST
    assert not decision.records


def test_a_request_may_not_become_an_unbounded_batch() -> None:
    many = CreateTopicsRequest(topics=[topic(f"t{number}", 100) for number in range(101)])
    decision = decider().create(cluster(), many)
    assert {each.error_code for each in decision.response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert not decision.records
    configs: dict[str, str | None] = {"retention.ms": "1", "segment.ms": "1", "flush.ms": "1"}
    chatty = CreateTopicsRequest(topics=[topic(f"t{number}", configs=configs) for number in range(2500)])
    decision = decider().create(cluster(), chatty)
    assert {each.error_code for each in decision.response.topics} == {ErrorCode.POLICY_VIOLATION}
    grown = decider().create_partitions(created(cluster(), topic("orders")), _grow("orders", 10_002))
    assert grown.response.results[0].error_code == ErrorCode.POLICY_VIOLATION
    assert not grown.records


def test_added_partitions_follow_the_ones_that_are_there() -> None:
    image = created(cluster(1, 2), topic("orders", 2, 2))
    decision = decider().create_partitions(image, _grow("orders", 4, [[1, 2], [2, 1]]))
    grown = replayed(image, decision.records).topics["orders"]
    assert [each.replicas for each in grown.partitions[2:]] == [(1, 2), (2, 1)]
    assert grown.partitions[:2] == image.topics["orders"].partitions
    refused = decider().create_partitions(image, _grow("orders", 3, [[1]]))
    assert refused.response.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# -- delete ------------------------------------------------------------------------------------------------------------

State = DeleteTopicsRequest.DeleteTopicState


def _delete(image: MetadataImage, *states: State, enabled: bool = True) -> tuple[dict[str | None, int], MetadataImage]:
    decision = decide_delete_topics(image, DeleteTopicsRequest(topics=list(states)), 6, deletion_enabled=enabled)
    answers = {each.name: each.error_code for each in decision.response.responses}
    return answers, replayed(image, decision.records)


def test_a_deleted_topic_takes_its_id_and_configs_with_it() -> None:
    image = created(cluster(), topic("gone", configs={"retention.ms": "5"}), topic("stays"))
    gone = image.topics["gone"]
    answers, after = _delete(image, State(name="gone"))
    assert answers == {"gone": 0}
    assert set(after.topics) == {"stays"}
    assert after.topic_by_id(gone.id) is None
    assert after.config(ConfigKind.TOPIC, "gone") == {}


def test_deletion_can_be_switched_off() -> None:
    image = created(cluster(), topic("stays"))
    answers, after = _delete(image, State(name="stays"), enabled=False)
    assert answers == {"stays": ErrorCode.TOPIC_DELETION_DISABLED}
    assert after.topics == image.topics


@pytest.mark.parametrize("twice", ("name", "id", "both"))
def test_a_topic_that_is_named_twice_is_not_deleted(twice: str) -> None:
    image = created(cluster(), topic("stays"), topic("goes"))
    by_name, by_id = State(name="stays"), State(name=None, topic_id=image.topics["stays"].id)
    states = {"name": (by_name, by_name), "id": (by_id, by_id), "both": (by_name, by_id)}[twice]
    answers, after = _delete(image, *states, State(name="goes"))
    assert set(after.topics) == {"stays"}
    assert answers["goes"] == 0
    assert set(answers.values()) == {0, ErrorCode.INVALID_REQUEST}
