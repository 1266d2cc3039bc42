"""What nodes of a cluster say to the active controller and to each other, said to both: above all what is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.kernel import METADATA_TOPIC
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from moldau.protocol.messages.envelope import EnvelopeRequest
from moldau.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from moldau.protocol.messages.vote import VoteRequest
from moldau.testing import Broker
from tests.differential.pair import Pair, Side, versions_of
from tests.oracle import RunningKafka

pytestmark = pytest.mark.oracle

DIRECTORY = bytes(range(1, 17))
_ONLY_PARTITION = DescribeQuorumRequest.PartitionData(0)
EPOCHS = ("*.leader_epoch", "*.node_endpoints")


@pytest.fixture
def controllers(apache_kafka: RunningKafka, embedded_moldau: Broker) -> Iterator[Pair]:
    """The controllers' listeners of both."""
    assert embedded_moldau.node is not None
    ours = f"127.0.0.1:{embedded_moldau.node.listeners[1].port}"
    sides = Side("Moldau", ours), Side("Kafka", apache_kafka.controller_bootstrap)
    yield Pair(*sides, "controllers")
    for side in sides:
        side.wire.close()


def test_controllers_listeners_name_the_same_ranges(controllers: Pair) -> None:
    """What Kafka's controllers serve beyond ours comes with authentication, quotas and share groups."""
    ours, theirs = (
        {each.api_key: (each.min_version, each.max_version) for each in side.ask(ApiVersionsRequest(), 0).api_keys}
        for side in controllers.sides
    )
    shared = ours.keys() & theirs.keys()
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert set(ours) <= set(theirs)
    assert {52, 53, 54, 55, 56, 58, 59, 62, 63, 67, 70, 73, 80, 81, 82} <= shared


# -- the quorum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(52))
def test_votes_that_cannot_be_are_refused(controllers: Pair, version: int) -> None:
    kinds = VoteRequest
    old = kinds.PartitionData(0, replica_epoch=0, replica_id=9, last_offset_epoch=-1, last_offset=-1)
    for cluster_id, topic, partition, say in (
        ("another", METADATA_TOPIC, old, "another cluster"),
        (None, "other", old, "another topic"),
        (None, METADATA_TOPIC, old, "no log"),
    ):
        topics = [kinds.TopicData(topic, [partition])]
        request = VoteRequest(cluster_id=cluster_id, voter_id=1 if version else -1, topics=topics)
        controllers.ask(request, version, masks=EPOCHS, say=say)


@pytest.mark.parametrize("version", versions_of(53))
def test_leaders_of_the_past_are_refused(controllers: Pair, version: int) -> None:
    kinds = BeginQuorumEpochRequest
    for cluster_id, topic, say in (
        ("another", METADATA_TOPIC, "another cluster"),
        (None, "other", "another topic"),
        (None, METADATA_TOPIC, "an old epoch"),
    ):
        topics = [kinds.TopicData(topic, [kinds.PartitionData(0, leader_id=9, leader_epoch=0)])]
        request = BeginQuorumEpochRequest(cluster_id=cluster_id, voter_id=1 if version else -1, topics=topics)
        controllers.ask(request, version, masks=EPOCHS, say=say)


@pytest.mark.parametrize("version", versions_of(54))
def test_ends_of_the_past_are_refused(controllers: Pair, version: int) -> None:
    kinds = EndQuorumEpochRequest
    for cluster_id, topic, say in (
        ("another", METADATA_TOPIC, "another cluster"),
        (None, "other", "another topic"),
        (None, METADATA_TOPIC, "an old epoch"),
    ):
        topics = [kinds.TopicData(topic, [kinds.PartitionData(0, leader_id=9, leader_epoch=0)])]
        controllers.ask(EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics), version, masks=EPOCHS, say=say)


@pytest.mark.parametrize("version", versions_of(59))
def test_snapshots_that_are_not_there(controllers: Pair, version: int) -> None:
    kinds = FetchSnapshotRequest
    partition = kinds.PartitionSnapshot(0, 0, kinds.SnapshotId(7, 1), 0)
    topics = [kinds.TopicSnapshot(METADATA_TOPIC, [partition])]
    request = FetchSnapshotRequest(cluster_id="another", replica_id=9, topics=topics)
    controllers.ask(request, version, masks=EPOCHS, say="another cluster")


@pytest.mark.parametrize("version", versions_of(80))
def test_voters_that_cannot_be_added(controllers: Pair, version: int) -> None:
    listeners = [AddRaftVoterRequest.Listener("CONTROLLER", "127.0.0.1", 1)]
    for cluster_id, node_id, say in (("another", 9, "another cluster"), (None, 1, "a voter already")):
        request = AddRaftVoterRequest(cluster_id, 1000, node_id, DIRECTORY, listeners)
        controllers.ask(request, version, masks=("error_message",), say=say)


@pytest.mark.parametrize("version", versions_of(81))
def test_voters_that_cannot_be_removed(controllers: Pair, version: int) -> None:
    for cluster_id, node_id, say in (("another", 9, "another cluster"), (None, 9, "no voter")):
        request = RemoveRaftVoterRequest(cluster_id, node_id, DIRECTORY)
        controllers.ask(request, version, masks=("error_message",), say=say)


@pytest.mark.parametrize("version", versions_of(82))
def test_voters_that_cannot_be_updated(controllers: Pair, version: int) -> None:
    here = [UpdateRaftVoterRequest.Listener("CONTROLLER", "127.0.0.1", 1)]
    fine = UpdateRaftVoterRequest.KRaftVersionFeature(0, 1)
    for cluster_id, epoch, node_id, directory_id, listeners, feature, say in (
        ("another", 1, 9, DIRECTORY, here, fine, "another cluster"),
        (None, 0, 9, DIRECTORY, here, fine, "an old epoch"),
        (None, 1 << 20, 9, DIRECTORY, here, fine, "a future epoch"),
    ):
        request = UpdateRaftVoterRequest(cluster_id, epoch, node_id, directory_id, listeners, feature)
        controllers.ask(request, version, masks=("current_leader",), say=say)
    quorum = DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(METADATA_TOPIC, [_ONLY_PARTITION])])
    epochs = {side: side.ask(quorum, 2).topics[0].partitions[0].leader_epoch for side in controllers.sides}
    for directory_id, listeners, feature, say in (
        (bytes(16), here, fine, "no directory"),
        (DIRECTORY, [], fine, "no listeners"),
        (
            DIRECTORY,
            [UpdateRaftVoterRequest.Listener("PLAINTEXT", "127.0.0.1", 1)],
            fine,
            "not the controllers' listener",
        ),
        (DIRECTORY, here, UpdateRaftVoterRequest.KRaftVersionFeature(1, 0), "versions the wrong way round"),
        (DIRECTORY, here, fine, "no voter"),
    ):

        def asked(side: Side, directory: Any = directory_id, listeners: Any = listeners, feature: Any = feature) -> Any:
            return UpdateRaftVoterRequest(None, epochs[side], 9, directory, listeners, feature)

        controllers.ask(asked, version, masks=("current_leader",), say=say)


def test_voters_that_cannot_be_added_or_removed_whoever_leads(controllers: Pair) -> None:
    here = [AddRaftVoterRequest.Listener("CONTROLLER", "127.0.0.1", 1)]
    elsewhere = [AddRaftVoterRequest.Listener("PLAINTEXT", "127.0.0.1", 1)]
    for node_id, directory_id, listeners, say in (
        (9, bytes(16), here, "no directory"),
        (9, DIRECTORY, [], "no listeners"),
        (9, DIRECTORY, elsewhere, "not the controllers' listener"),
        (9, DIRECTORY, here, "nobody knows it"),
    ):
        request = AddRaftVoterRequest(None, 500, node_id, directory_id, listeners)
        controllers.ask(request, 1, masks=("error_message",), say=say)
    controllers.ask(RemoveRaftVoterRequest(None, 9, bytes(16)), 0, masks=("error_message",), say="no directory")


# -- brokers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(62))
def test_brokers_that_cannot_register(controllers: Pair, apache_kafka: RunningKafka, version: int) -> None:
    features = [BrokerRegistrationRequest.Feature("metadata.version", 1, 2)]
    directories = [DIRECTORY] if version >= 2 else []

    def request(cluster_id: str) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(9, cluster_id, DIRECTORY, [], features, None, log_dirs=directories)

    controllers.ask(request("another"), version, say="another cluster")


@pytest.mark.parametrize("version", versions_of(63))
def test_heartbeats_of_strangers(controllers: Pair, version: int) -> None:
    for node_id, say in ((9, "never registered"), (1, "another incarnation")):
        controllers.ask(BrokerHeartbeatRequest(node_id, 12345678, 0), version, say=say)


@pytest.mark.parametrize("version", versions_of(56))
def test_leaders_of_another_incarnation_change_nothing(controllers: Pair, version: int) -> None:
    topics = [AlterPartitionRequest.TopicData(DIRECTORY, [AlterPartitionRequest.PartitionData(0)])]
    controllers.ask(AlterPartitionRequest(1, 12345678, topics), version, say="another incarnation")
    controllers.ask(AlterPartitionRequest(9, 1, topics), version, say="never registered")
    controllers.ask(AlterPartitionRequest(9, 1), version, say="nothing to change")


@pytest.mark.parametrize("version", versions_of(64))
def test_who_is_not_registered_cannot_be_unregistered(pair: Pair, version: int) -> None:
    pair.ask(UnregisterBrokerRequest(99), version)


@pytest.mark.parametrize("version", versions_of(67))
def test_strangers_get_no_producer_ids(controllers: Pair, version: int) -> None:
    controllers.ask(AllocateProducerIdsRequest(1, 12345678), version, say="another incarnation")
    controllers.ask(AllocateProducerIdsRequest(9, 1), version, say="never registered")


@pytest.mark.parametrize("version", versions_of(70))
def test_controllers_register_whatever_they_can_do(controllers: Pair, version: int) -> None:
    # It stays registered: features that the cluster wants to change must suit it too.
    names = ("metadata.version", "kraft.version", "transaction.version", "group.version", "share.version")
    names += ("streams.version", "eligible.leader.replicas.version")
    features = [ControllerRegistrationRequest.Feature(name, 0, 99) for name in names]
    request = ControllerRegistrationRequest(9, DIRECTORY, features=features)
    controllers.ask(request, version)


@pytest.mark.parametrize("version", versions_of(73))
def test_strangers_have_no_directories(controllers: Pair, version: int) -> None:
    controllers.ask(AssignReplicasToDirsRequest(1, 12345678), version, say="another incarnation")
    controllers.ask(AssignReplicasToDirsRequest(9, 1), version, say="never registered")


@pytest.mark.parametrize("version", versions_of(58))
def test_an_envelope_with_a_request_that_brokers_answer_themselves_is_refused(controllers: Pair, version: int) -> None:
    principal = bytes.fromhex("0000055573657206616c69636500") + b"\x00"
    inner = struct.pack(">hhih1s", 18, 0, 5, 1, b"x")
    controllers.ask(EnvelopeRequest(inner, principal, bytes([127, 0, 0, 1])), version)


# -- reassignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(45))
def test_reassignments_that_cannot_be(pair: Pair, version: int) -> None:
    kinds = AlterPartitionReassignmentsRequest
    topic = pair.create("r")
    for name, index, replicas, say in (
        (topic, 0, [1], "as it is"),
        (topic, 0, [], "nowhere"),
        (topic, 0, [1, 1], "twice"),
        (topic, 0, [9], "an unknown broker"),
        (topic, 7, [1], "an unknown partition"),
        (topic, 0, None, "nothing to cancel"),
        (pair.topic("missing"), 0, [1], "an unknown topic"),
    ):
        topics = [kinds.ReassignableTopic(name, [kinds.ReassignablePartition(index, replicas)])]
        request = AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=topics)
        pair.ask(request, version, masks=("*.error_message",), say=say)


@pytest.mark.parametrize("version", versions_of(46))
def test_nothing_is_reassigned(pair: Pair, version: int) -> None:
    kinds = ListPartitionReassignmentsRequest
    topic = pair.create("l")
    pair.ask(ListPartitionReassignmentsRequest(topics=None), version, say="all")
    for name, say in ((topic, "one"), (pair.topic("missing"), "missing")):
        topics = [kinds.ListPartitionReassignmentsTopics(name, [0])]
        pair.ask(ListPartitionReassignmentsRequest(topics=topics), version, say=say)
