"""CreateTopics, DeleteTopics, CreatePartitions: every way in which both agree and refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from moldau.kernel import ZERO_UUID
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.differential.deliberate import COLLIDES_WITHIN, without_configs_set_elsewhere
from tests.differential.pair import Pair, Side, versions_of

pytestmark = pytest.mark.oracle

UNKNOWN_ID = bytes(range(16))


def _topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assignments: dict[int, list[int]] | None = None,
    configs: Sequence[tuple[str, str | None]] | None = None,
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name,
        partitions,
        factor,
        [CreateTopicsRequest.CreatableReplicaAssignment(index, ids) for index, ids in (assignments or {}).items()],
        [CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in configs or ()],
    )


def _create(*topics: CreateTopicsRequest.CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def _compare(pair: Pair, request: CreateTopicsRequest, version: int, say: str) -> tuple[Any, Any]:
    # Kafka answers topics and configs in the order of hash maps.
    return pair.ask(
        request,
        version,
        masks=("topics.*.topic_id",),
        unordered=("topics", "topics.*.configs"),
        edit=without_configs_set_elsewhere("topics"),
        say=say,
    )


@pytest.mark.parametrize("version", versions_of(19))
def test_topics_are_created(pair: Pair, version: int) -> None:
    name = pair.topic
    _compare(pair, _create(_topic(name("one"))), version, "one")
    _compare(pair, _create(_topic(name("two"), 2), _topic(name("three"), 3)), version, "two at once")
    _compare(pair, _create(_topic(name("m"), -1, -1, assignments={1: [1], 0: [1]})), version, "manual assignment")
    configured = [("retention.ms", "1000"), ("cleanup.policy", "compact , delete"), ("segment.ms", " 5000 ")]
    _compare(pair, _create(_topic(name("c"), configs=configured)), version, "configs")
    _compare(pair, _create(_topic(name("v"), 4), validate_only=True), version, "validate only")
    _compare(
        pair, _create(_topic(name("v"), 4, configs=configured), validate_only=True), version, "validate only again"
    )
    _compare(pair, _create(_topic(name("some")), _topic("bad name")), version, "one good, one bad")
    if version >= 4:
        _compare(pair, _create(_topic(name("d"), -1, -1)), version, "defaults")
    for side in pair.sides:
        side.learn_ids([name(each) for each in ("one", "two", "three", "m", "c", "some")])


@pytest.mark.parametrize("version", versions_of(19))
def test_topics_are_refused(pair: Pair, version: int) -> None:
    name = pair.topic
    pair.create("there", 2)
    pair.create("with.dot")
    for bad in ("", ".", "..", "a b", "x" * 250, "é", "a/b"):
        _compare(pair, _create(_topic(bad)), version, "invalid name")
    _compare(pair, _create(_topic(name("there"))), version, "exists")
    _compare(pair, _create(_topic(name("there")), validate_only=True), version, "exists, validate only")
    _compare(pair, _create(_topic(name("with_dot"))), version, "collides")
    colliding = _create(_topic(name("a_b")), _topic(name("a.b")), validate_only=True)
    pair.ask(
        colliding, version, deliberate=(COLLIDES_WITHIN,), unordered=("topics",), say="collides within the request"
    )
    _compare(pair, _create(_topic(name("x")), _topic(name("x"))), version, "twice in the request")
    _compare(
        pair,
        _create(_topic(name("x")), _topic(name("x")), _topic(name("y")), validate_only=True),
        version,
        "twice, one good",
    )
    _compare(pair, _create(), version, "none")
    for partitions in (0, -1, -2, -100):
        _compare(pair, _create(_topic(name("p"), partitions), validate_only=True), version, f"{partitions} partitions")
    for factor in (0, -1, -2, 2, 3, 32767):
        _compare(pair, _create(_topic(name("f"), 1, factor), validate_only=True), version, f"factor {factor}")
    _compare(pair, _create(_topic(name("big"), 10_001), validate_only=True), version, "very many partitions")
    _compare(pair, _create(_topic("__cluster_metadata")), version, "the metadata topic")


@pytest.mark.parametrize("version", versions_of(19))
def test_manual_assignments_are_refused(pair: Pair, version: int) -> None:
    name = pair.topic("a")

    def manual(assignments: dict[int, list[int]], partitions: int = -1, factor: int = -1) -> CreateTopicsRequest:
        return _create(_topic(name, partitions, factor, assignments=assignments), validate_only=True)

    _compare(pair, manual({0: [1]}, partitions=1), version, "with a count")
    _compare(pair, manual({0: [1]}, factor=1), version, "with a factor")
    _compare(pair, manual({0: [1]}, 1, 1), version, "with both")
    _compare(pair, manual({0: []}), version, "nobody")
    _compare(pair, manual({0: [2]}), version, "a broker that is not there")
    _compare(pair, manual({0: [1, 1]}), version, "a broker twice")
    _compare(pair, manual({0: [-1]}), version, "a negative broker")
    _compare(pair, manual({0: [1, 2]}), version, "one there, one not")
    _compare(pair, manual({1: [1]}), version, "a gap")
    _compare(pair, manual({0: [1], 2: [1]}), version, "another gap")
    _compare(pair, manual({-1: [1]}), version, "a negative partition")
    double = _topic(name, -1, -1, assignments={0: [1]})
    double.assignments.append(CreateTopicsRequest.CreatableReplicaAssignment(0, [1]))
    _compare(pair, _create(double, validate_only=True), version, "a partition twice")


@pytest.mark.parametrize("version", versions_of(19))
def test_configs_of_new_topics_are_refused(pair: Pair, version: int) -> None:
    for configs in (
        [("no.such.key", "1")],
        [("retention.ms", "abc")],
        [("retention.ms", "-2")],
        [("retention.ms", None)],
        [("retention.ms", None), ("segment.ms", None)],
        [("cleanup.policy", "shred")],
        [("min.insync.replicas", "0")],
        [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")],
        [("remote.storage.enable", "true")],
        [("segment.bytes", "1")],
        [("segment.bytes", "1048576"), ("segment.bytes", "1048577")],
        [("compression.type", "brotli")],
        [("unclean.leader.election.enable", "yes")],
        [("message.timestamp.type", "never")],
        [("log.retention.ms", "1000")],
        [("", "x")],
    ):
        request = _create(_topic(pair.topic("c"), configs=configs), validate_only=True)
        _compare(pair, request, version, f"configs {configs}")


# -- delete ------------------------------------------------------------------------------------------------------------


def _delete(version: int, *names: str) -> DeleteTopicsRequest:
    if version < 6:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names], timeout_ms=10_000
    )


@pytest.mark.parametrize("version", versions_of(20))
def test_topics_are_deleted_by_name(pair: Pair, version: int) -> None:
    a, b, missing = pair.create("a"), pair.create("b"), pair.topic("missing")
    pair.ask(_delete(version), version, say="none")
    pair.ask(_delete(version, missing), version, say="unknown")
    pair.ask(_delete(version, "bad name", ""), version, unordered=("responses",), say="invalid names")
    pair.ask(_delete(version, b, b), version, unordered=("responses",), say="twice")
    pair.ask(_delete(version, missing, missing), version, unordered=("responses",), say="unknown twice")
    pair.ask(_delete(version, a, missing), version, unordered=("responses",), say="one of two")
    pair.ask(_delete(version, a), version, say="gone")


def test_topics_are_deleted_by_id(pair: Pair) -> None:
    a, b, c = pair.create("a"), pair.create("b"), pair.create("c")
    state = DeleteTopicsRequest.DeleteTopicState

    def by_id(*names: str) -> Any:
        return lambda side: DeleteTopicsRequest(
            topics=[state(name=None, topic_id=side.topic_ids[name]) for name in names], timeout_ms=10_000
        )

    def named(*topics: DeleteTopicsRequest.DeleteTopicState) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topics=list(topics), timeout_ms=10_000)

    def both(side: Side) -> DeleteTopicsRequest:
        return named(state(name=a, topic_id=side.topic_ids[a]))

    def name_and_id(side: Side) -> DeleteTopicsRequest:
        return named(state(name=b), state(name=None, topic_id=side.topic_ids[b]))

    def mixed(side: Side) -> DeleteTopicsRequest:
        return named(state(name=c), state(name=None, topic_id=side.topic_ids[a]), state(name=None, topic_id=UNKNOWN_ID))

    for request, say in (
        (both, "name and id in one"),
        (named(state(name=None, topic_id=ZERO_UUID)), "neither"),
        (named(state(name=None, topic_id=UNKNOWN_ID)), "unknown id"),
        (named(state(name=None, topic_id=UNKNOWN_ID), state(name=None, topic_id=UNKNOWN_ID)), "unknown id twice"),
        (named(state(name=a, topic_id=UNKNOWN_ID)), "name and unknown id"),
        (by_id(b, b), "the same id twice"),
        (name_and_id, "a name and its id"),
        (mixed, "a name, an id, an unknown id"),
        (by_id(a), "gone"),
    ):
        pair.ask(request, 6, unordered=("responses",), say=say)


# -- add partitions ----------------------------------------------------------------------------------------------------


def _grow(*topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(
                name,
                count,
                None
                if assignments is None
                else [CreatePartitionsRequest.CreatePartitionsAssignment(ids) for ids in assignments],
            )
            for name, count, assignments in topics
        ],
        timeout_ms=10_000,
        validate_only=validate_only,
    )


@pytest.mark.parametrize("version", versions_of(37))
def test_partitions_are_added_and_refused(pair: Pair, version: int) -> None:
    t, u, missing = pair.create("t", 2), pair.create("u", 1), pair.topic("missing")
    for topics, say in (
        ((), "none"),
        (((missing, 2, None),), "unknown topic"),
        ((("bad name", 2, None),), "invalid name"),
        (((t, 2, None),), "as many as now"),
        (((t, 1, None),), "fewer"),
        (((t, 0, None),), "zero"),
        (((t, -1, None),), "negative"),
        (((t, 4, [[1]]),), "too few assignments"),
        (((t, 4, [[1], [1], [1]]),), "too many assignments"),
        (((t, 3, []),), "no assignments"),
        (((t, 3, [[2]]),), "a broker that is not there"),
        (((t, 3, [[1, 1]]),), "a broker twice"),
        (((t, 3, [[]]),), "nobody"),
        (((t, 3, None), (t, 4, None)), "twice"),
        (((t, 3, None), (t, 4, None), (u, 2, None)), "twice, one good"),
    ):
        request = _grow(*topics, validate_only=True)
        pair.ask(request, version, unordered=("results",), say=say)
    pair.ask(_grow((t, 3, None), validate_only=True), version, say="validate only")
    pair.ask(_grow((t, 3, None)), version, say="grows")
    pair.ask(_grow((t, 4, [[1]]), (missing, 2, None)), version, unordered=("results",), say="grows by hand")
    pair.ask(_grow((t, 4, None)), version, say="has so many now")
