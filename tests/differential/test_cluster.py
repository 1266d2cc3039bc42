"""Everything about the cluster itself: log directories, elections, features, the quorum; and keys that nobody has."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from moldau.broker.api_table import SERVED
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from tests.differential.batches import batch
from tests.differential.pair import Pair, Side, versions_of
from tests.differential.plain import only
from tests.differential.wire import CLOSED

pytestmark = pytest.mark.oracle

METADATA_TOPIC = "__cluster_metadata"


# -- log directories ---------------------------------------------------------------------------------------------------


def _own_topics(pair: Pair) -> Any:
    def edit(tree: Any) -> Any:
        for result in tree["results"]:
            result["topics"] = [each for each in result["topics"] if each["name"].startswith(pair.prefix)]
        return tree

    return edit


def _log_dirs(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(topics=[DescribeLogDirsRequest.DescribableLogDirTopic(*each) for each in topics])


@pytest.mark.parametrize("version", versions_of(35))
def test_log_directories_are_described(pair: Pair, version: int) -> None:
    a, b = pair.create("a", 3, batches=(batch(b"x"), batch(b"y"))), pair.create("b")
    disk = ("results.*.log_dir", "results.*.total_bytes", "results.*.usable_bytes")
    hashed = ("results.*.topics", "results.*.topics.*.partitions")
    for request, say in (
        (DescribeLogDirsRequest(topics=None), "everything"),
        (_log_dirs((a, [0, 2]), (b, [0])), "some partitions"),
        (_log_dirs((a, [7]), (pair.topic("missing"), [0])), "what is not there"),
        (_log_dirs(), "an empty list"),
    ):
        pair.ask(request, version, masks=disk, unordered=hashed, edit=_own_topics(pair), say=say)


@pytest.mark.parametrize("version", versions_of(34))
def test_replicas_stay_where_they_cannot_move(pair: Pair, version: int) -> None:
    topic = pair.create("t", 2, batches=(batch(),))
    kinds = AlterReplicaLogDirsRequest

    def move(path: str | None, *topics: tuple[str, list[int]]) -> Any:
        def build(side: Side) -> AlterReplicaLogDirsRequest:
            moved = [kinds.AlterReplicaLogDirTopic(*each) for each in topics]
            return kinds(dirs=[kinds.AlterReplicaLogDir(path or side.notes["path"], moved)])

        return build

    for side in pair.sides:
        side.notes["path"] = side.ask(DescribeLogDirsRequest(topics=None), 4).results[0].log_dir
    hashed = ("results", "results.*.partitions")
    for request, say in (
        (move(None, (topic, [0, 1])), "to where they are"),
        (move("/no/such/directory", (topic, [0])), "to a directory that the broker does not have"),
        (move("relative", (topic, [0])), "to a relative path"),
        (move(None, (topic, [9])), "an unknown partition"),
        (move("/no/such/directory", (pair.topic("missing"), [0])), "an unknown topic to an unknown place"),
        (AlterReplicaLogDirsRequest(), "nothing"),
    ):
        pair.ask(request, version, unordered=hashed, say=say)
    pair.ask(move(None, (pair.topic("missing"), [0])), version, say="an unknown topic")


# -- elections ---------------------------------------------------------------------------------------------------------


def _elect(version: int, kind: int, topics: list[tuple[str, list[int]]] | None) -> ElectLeadersRequest:
    request = ElectLeadersRequest(
        topic_partitions=None if topics is None else [ElectLeadersRequest.TopicPartitions(*each) for each in topics],
        timeout_ms=10_000,
    )
    if version >= 1:
        request.election_type = kind
    return request


@pytest.mark.parametrize("version", versions_of(43))
def test_elections(pair: Pair, version: int) -> None:
    topic, missing = pair.create("t", 2), pair.topic("missing")
    hashed = ("replica_election_results", "replica_election_results.*.partition_result")
    own = only("replica_election_results", lambda each: each["topic"].startswith(pair.prefix))
    for kind in (0, 1) if version >= 1 else (0,):
        for topics, say in (
            ([(topic, [0, 1])], "of what is led"),
            ([(topic, [9])], "of an unknown partition"),
            ([(missing, [0])], "of an unknown topic"),
            ([(topic, [0]), (missing, [0])], "of one of two"),
            ([(topic, [0, 0])], "of a partition twice"),
            ([], "of nothing"),
            (None, "of everything"),
        ):
            request = _elect(version, kind, topics)
            pair.ask(request, version, unordered=hashed, edit=own, say=f"kind {kind} {say}")


# -- features ----------------------------------------------------------------------------------------------------------

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def _update(version: int, *updates: tuple[str, int, int], validate_only: bool = True) -> UpdateFeaturesRequest:
    request = UpdateFeaturesRequest(timeout_ms=10_000)
    for name, level, kind in updates:
        update = UpdateFeaturesRequest.FeatureUpdateKey(name, level)
        if version >= 1:
            update.upgrade_type = kind
        else:
            update.allow_downgrade = kind != UPGRADE
        request.feature_updates.append(update)
    if version >= 1:
        request.validate_only = validate_only
    return request


@pytest.mark.parametrize("version", versions_of(57))
def test_feature_levels_are_kept_and_refused(pair: Pair, version: int) -> None:
    """Only what changes nothing: version 0 cannot validate, and the Kafka is shared."""
    hashed = ("results",)
    name = "metadata.version"
    for updates, say in (
        ([(name, 30, UPGRADE)], "the level that it has"),
        ([(name, 31, UPGRADE)], "a level that nobody has"),
        ([(name, 1, UPGRADE)], "a level below all"),
        ([(name, 29, UPGRADE)], "a lower level as an upgrade"),
        ([(name, -1, SAFE_DOWNGRADE)], "a negative level"),
        ([("no.such.feature", 1, UPGRADE)], "a feature that nobody has"),
        ([("no.such.feature", 0, SAFE_DOWNGRADE)], "a feature that nobody has, at 0"),
        ([("", 1, UPGRADE)], "a feature without a name"),
        ([(name, 30, UPGRADE), ("no.such.feature", 1, UPGRADE)], "one good, one bad"),
        ([], "nothing"),
    ):
        request = _update(version, *updates)
        pair.ask(request, version, unordered=hashed, say=say)
    if version >= 1:
        for kind in (0, 4, -1):
            pair.ask(_update(version, (name, 30, kind)), version, unordered=hashed, say=f"upgrade type {kind}")
        for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            pair.ask(_update(version, (name, 30, kind)), version, unordered=hashed, say="the same level as a downgrade")
            pair.ask(
                _update(version, (name, 7, kind)), version, unordered=hashed, say=f"down to the oldest, type {kind}"
            )
            pair.ask(
                _update(version, (name, 29, kind)),
                version,
                unordered=hashed,
                say=f"one level down, type {kind}",
            )


# -- the quorum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(55))
def test_the_quorum_is_described(pair: Pair, version: int) -> None:
    kinds = DescribeQuorumRequest
    moving = (
        "*.high_watermark",
        "*.leader_epoch",
        "*.log_end_offset",
        "*.last_fetch_timestamp",
        "*.last_caught_up_timestamp",
        "*.replica_directory_id",
    )
    request = DescribeQuorumRequest(topics=[kinds.TopicData(METADATA_TOPIC, [kinds.PartitionData(0)])])
    pair.ask(request, version, masks=moving)
    for topics, say in (
        ([kinds.TopicData("other", [kinds.PartitionData(0)])], "another topic"),
        ([kinds.TopicData(METADATA_TOPIC, [kinds.PartitionData(1)])], "another partition"),
        ([kinds.TopicData(METADATA_TOPIC, [])], "no partition"),
        ([], "no topic"),
    ):
        pair.ask(kinds(topics=topics), version, masks=moving, say=say)


# -- what nobody serves ------------------------------------------------------------------------------------------------


def test_a_version_that_is_not_served_ends_the_connection(pair: Pair) -> None:
    for key, served in SERVED.items():
        if key == 18:
            continue
        for version in (served.version_max + 1, served.version_min - 1, 99):
            header = struct.pack(">hhih4s", key, version, 7, 4, b"test") + bytes(16)
            ours, theirs = pair.raw(struct.pack(">i", len(header)) + header, say=f"key {key} version {version}")
            assert (ours, theirs) == (CLOSED, CLOSED), f"key {key} version {version}"


@pytest.mark.parametrize("key", (-1, 4, 7, 93, 1000, 32767))
def test_a_key_that_nobody_has_ends_the_connection(pair: Pair, key: int) -> None:
    header = struct.pack(">hhih4s", key, 0, 7, 4, b"test") + bytes(16)
    ours, theirs = pair.raw(struct.pack(">i", len(header)) + header, say=f"key {key}")
    assert (ours, theirs) == (CLOSED, CLOSED)
