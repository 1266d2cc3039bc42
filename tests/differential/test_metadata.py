"""Metadata, DescribeTopicPartitions and DescribeCluster: what both say about topics and brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.kernel import ZERO_UUID, ErrorCode
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.metadata import MetadataRequest
from tests.differential.deliberate import COORDINATORS, REFUSES_NOTHING, USABLE_AT_ONCE
from tests.differential.pair import Pair, Side, versions_of
from tests.differential.plain import only

pytestmark = pytest.mark.oracle

Topic = MetadataRequest.MetadataRequestTopic
UNKNOWN_ID = bytes(range(16))


def _ask(version: int, topics: list[Topic] | None, *, create: bool = False, operations: bool = True) -> MetadataRequest:
    request = MetadataRequest(topics=topics)
    if version >= 4:
        request.allow_auto_topic_creation = create
    if version >= 8:
        request.include_topic_authorized_operations = operations
        request.include_cluster_authorized_operations = operations and version <= 10
    return request


def _named(*names: str | None) -> list[Topic]:
    return [Topic(name=name) for name in names]


def _own(pair: Pair) -> Callable[[Any], Any]:
    return only("topics", lambda topic: topic["name"].startswith(pair.prefix))


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_of_all_some_and_no_topics(pair: Pair, version: int) -> None:
    names = pair.create("a", 3), pair.create("b.c", 1)
    everything: list[Topic] | None = [] if version == 0 else None
    # Kafka lists topics in the order of a hash map.
    pair.ask(_ask(version, everything), version, unordered=("topics",), edit=_own(pair), say="all topics")
    pair.ask(_ask(version, everything, operations=False), version, unordered=("topics",), edit=_own(pair))
    pair.ask(_ask(version, _named(*names)), version, unordered=("topics", "topics.*.partitions"), say="named")
    pair.ask(_ask(version, _named(names[0], names[0])), version, say="twice the same")
    if version >= 1:
        pair.ask(_ask(version, []), version, say="no topics")


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_of_topics_that_do_not_exist(pair: Pair, version: int) -> None:
    there = pair.create("there")
    for name in ("", ".", "..", "a b", "x" * 250, "é", "a/b"):
        pair.ask(_ask(version, _named(name)), version)
        pair.ask(_ask(version, _named(name, there)), version, unordered=("topics",), say="beside a good one")
    if version >= 4:  # before, asking creates
        pair.ask(_ask(version, _named(pair.topic("missing"), pair.topic("missing"))), version, say="unknown, twice")


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_creates_a_topic_when_it_may(pair: Pair, version: int) -> None:
    name = pair.topic("born")
    ours, _ = pair.ask(_ask(version, _named(name), create=True), version, deliberate=(USABLE_AT_ONCE,), say="creates")
    assert ours.topics[0].error_code == 0
    for side in pair.sides:
        side.learn_ids([name])
    pair.ask(_ask(version, _named(name), create=True), version, say="created")
    if version >= 4:
        pair.ask(_ask(version, _named("bad name"), create=True), version, say="an invalid name is not created")


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_does_not_create_what_would_collide(pair: Pair, version: int) -> None:
    pair.create("x.y")
    pair.ask(_ask(version, _named(pair.topic("x_y")), create=True), version, say="collision")
    pair.ask(_ask(version, _named("__cluster_metadata"), create=True), version, say="the metadata topic")


@pytest.mark.parametrize("version", (10, 11, 12, 13))
def test_metadata_by_topic_id(pair: Pair, version: int) -> None:
    name = pair.create("t", 2)

    def by_id(side: Side) -> MetadataRequest:
        return _ask(version, [Topic(topic_id=side.topic_ids[name], name=None)])

    def id_and_name(side: Side) -> MetadataRequest:
        return _ask(version, [Topic(topic_id=side.topic_ids[name], name=name)])

    def mixed(side: Side) -> MetadataRequest:
        return _ask(version, [Topic(topic_id=side.topic_ids[name], name=None), Topic(name=name)])

    def mixed_with_unknown(side: Side) -> MetadataRequest:
        ids = side.topic_ids[name], UNKNOWN_ID, side.topic_ids[name]
        return _ask(version, [Topic(topic_id=each, name=None) for each in ids])

    pair.ask(by_id, version, unordered=("topics.*.partitions",), say="by id")
    pair.ask(id_and_name, version, say="by id and name")
    pair.ask(mixed, version, say="one by id and one by name")
    pair.ask(_ask(version, [Topic(topic_id=UNKNOWN_ID, name=None)]), version, say="unknown id")
    pair.ask(_ask(version, [Topic(topic_id=UNKNOWN_ID, name=name)]), version, say="unknown id and a name")
    neither = (REFUSES_NOTHING,) if version >= 12 else ()
    pair.ask(_ask(version, [Topic(topic_id=ZERO_UUID, name=None)]), version, deliberate=neither, say="neither")
    pair.ask(mixed_with_unknown, version, unordered=("topics",), say="a known and an unknown id")


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------------


def _describe(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else DescribeTopicPartitionsRequest.Cursor(*cursor),
    )


def test_describe_topic_partitions_page_by_page(pair: Pair) -> None:
    a, b, c = pair.create("a", 3), pair.create("b", 2), pair.create("c", 1)
    missing = pair.topic("bb")
    pair.ask(_describe(c, a, b), 0, say="sorted")
    pair.ask(_describe(a, a), 0, say="twice")
    pair.ask(_describe(a, missing), 0, say="unknown")
    pair.ask(_describe(a, "bad name"), 0, say="invalid")
    pair.ask(_describe(""), 0, deliberate=(REFUSES_NOTHING,), say="empty")
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 2001):
        pair.ask(_describe(a, b, c, limit=limit), 0, say=f"limit {limit}")
        pair.ask(_describe(a, missing, b, limit=limit), 0, say=f"limit {limit}, one unknown")
    for cursor in ((a, 0), (a, 2), (a, 3), (a, 9), (b, 1), (missing, 0), (c, 0), (c, 1), ("zzz", 0), ("", 0), (a, -1)):
        pair.ask(_describe(a, b, c, cursor=cursor), 0, say=f"cursor {cursor}")
        pair.ask(_describe(a, b, c, cursor=cursor, limit=1), 0, say=f"cursor {cursor}, limit 1")
    pair.ask(_describe(c, cursor=(a, 2)), 0, say="cursor at a topic that was not asked for")
    pair.ask(_describe(), 0, edit=_own(pair), masks=("next_cursor",), say="all topics")
    pair.ask(
        _describe(cursor=(pair.prefix, 0), limit=4), 0, edit=_own(pair), masks=("next_cursor",), say="all from a place"
    )


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(60))
def test_describe_cluster(pair: Pair, version: int) -> None:
    pair.ask(DescribeClusterRequest(), version)
    pair.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    if version >= 1:
        for kind in (0, 1, 2, 3, -1):
            pair.ask(DescribeClusterRequest(endpoint_type=kind), version, say=f"endpoint type {kind}")
    if version >= 2:
        pair.ask(DescribeClusterRequest(include_fenced_brokers=True), version)


# -- internal topics and coordinators ----------------------------------------------------------------------------------


def _coordinator(version: int, *keys: str, kind: int = 0) -> FindCoordinatorRequest:
    request = FindCoordinatorRequest()
    if version >= 4:
        request.coordinator_keys = list(keys)
    else:
        request.key = keys[0]
    if version >= 1:
        request.key_type = kind
    return request


def test_internal_topics_and_the_coordinator_of_a_group(private_pair: Pair) -> None:
    """On brokers of its own, as Kafka creates __consumer_offsets when somebody asks for a coordinator."""
    pair = private_pair
    for version in range(4, 14):
        pair.ask(_ask(version, _named("__consumer_offsets", "__transaction_state")), version, unordered=("topics",))
    for version in versions_of(10):
        pair.ask(_coordinator(version, "group"), version, until=_is_found, say="of a group")
        pair.ask(_coordinator(version, ""), version, say="of a group without a name")
        if version >= 1:
            pair.ask(
                _coordinator(version, "x", kind=3), version, deliberate=(COORDINATORS,), say="of what is not served"
            )
        if version >= 4:
            pair.ask(_coordinator(version, "a", "b"), version, unordered=("coordinators",), say="of two groups")
            pair.ask(_coordinator(version), version, say="of none")


def _is_found(answer: Any) -> bool:
    errors = [answer.error_code, *(each.error_code for each in answer.coordinators)]
    return ErrorCode.COORDINATOR_NOT_AVAILABLE not in errors
