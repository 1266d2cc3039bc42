"""Several nodes are one cluster: they agree on a controller and on metadata, miss the dead, take back the living."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker import StartError
from moldau.client import ClusterClient, ConnectionFailed, Producer
from moldau.client.group_admin import CommittedOffset, alter_group_offsets, find_coordinators
from moldau.cluster import PartitionImage
from moldau.kernel import METADATA_TOPIC, NO_LEADER, ErrorCode, TopicPartition
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.vote import VoteRequest
from tests.broker.cluster_kit import Cluster, metrics_of, run_aside, wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as running:
        yield running


def create(cluster: Cluster, node_id: int, name: str, *, partitions: int = 3, factor: int = 3) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name, num_partitions=partitions, replication_factor=factor)
    (result,) = cluster.ask(node_id, CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0, result.error_message


def create_on(cluster: Cluster, name: str, *replicas: int) -> None:
    """A topic of one partition, led by the first of them."""
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(0, list(replicas))
    topic = CreateTopicsRequest.CreatableTopic(name, -1, -1, assignments=[assignment])
    (result,) = cluster.ask(replicas[0], CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0, result.error_message


def test_every_node_forwards_to_the_one_that_decides_and_follows_its_log(cluster: Cluster) -> None:
    for node_id in cluster.nodes:
        create(cluster, node_id, f"by-{node_id}")
    names = {f"by-{node_id}" for node_id in cluster.nodes}
    wait_for(lambda: all(names <= set(node.image.topics) for node in cluster.running.values()))
    images = [node.image for node in cluster.running.values()]
    for name in names:
        (partitions,) = {image.topics[name].partitions for image in images}
        assert {len(set(each.replicas)) for each in partitions} == {3}


def test_the_lag_of_a_group_is_shown_by_its_coordinator_also_where_that_only_follows(cluster: Cluster) -> None:
    bootstrap, where, group = cluster.nodes[1].bootstrap, TopicPartition("followed", 0), "behind"

    async def fill_and_commit() -> int:
        async with ClusterClient(bootstrap) as client, Producer(bootstrap) as producer:
            coordinator = (await find_coordinators(client, [group]))[group]
            assert isinstance(coordinator, int)
            leader = next(node_id for node_id in cluster.nodes if node_id != coordinator)
            create_on(cluster, where.topic, leader, coordinator)
            for _ in range(5):
                await producer.send(where.topic, b"v", partition=0)
            await alter_group_offsets(client, group, {where: CommittedOffset(2)})
            return coordinator

    coordinator = run_aside(fill_and_commit())
    lag = f'kafka_consumergroup_lag{{consumergroup="{group}",partition="0",topic="{where.topic}"}}'
    wait_for(lambda: metrics_of(cluster.node(coordinator)).get(lag) == 3)


def test_a_request_is_forwarded_also_when_the_controller_has_to_be_connected_to_first(cluster: Cluster) -> None:
    """After a failover, say: a client's request may come before the next heartbeat has opened the connection."""
    passive = next(node_id for node_id in (1, 2, 3) if node_id != cluster.active())
    channel = cluster.node(passive).channel

    async def forget_connection() -> None:
        channel.close()

    for attempt in range(5):
        cluster.run_on(passive, forget_connection())
        create(cluster, passive, f"connected-{attempt}", partitions=1)


def test_the_quorum_is_described_by_its_leader_also_through_others(cluster: Cluster) -> None:
    active = cluster.active()
    topics = [DescribeQuorumRequest.TopicData(METADATA_TOPIC, [DescribeQuorumRequest.PartitionData(0)])]
    for node_id in cluster.nodes:
        (partition,) = cluster.ask(node_id, DescribeQuorumRequest(topics=topics)).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (0, active)
        assert [each.replica_id for each in partition.current_voters] == [1, 2, 3]
        assert [each.replica_id for each in partition.observers] == [4]
        assert all(each.last_fetch_timestamp > 0 for each in partition.current_voters)


def test_no_two_brokers_get_the_same_producer_ids(cluster: Cluster) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answers = [cluster.ask(node_id, request) for node_id in (1, 2, 3, 4) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == len(answers)


def test_only_the_active_controller_answers_brokers(cluster: Cluster) -> None:
    passive = next(node_id for node_id in (1, 2, 3) if node_id != cluster.active())
    answer = cluster.ask(passive, BrokerHeartbeatRequest(4, 0), controller=True)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def test_a_second_broker_with_the_same_id_is_refused_while_the_first_lives(cluster: Cluster) -> None:
    request = BrokerRegistrationRequest(
        4,
        cluster.node(1).cluster_id,
        bytes(range(16)),
        features=[BrokerRegistrationRequest.Feature("metadata.version", 7, 30)],
        log_dirs=[bytes(range(16))],
    )
    answer = cluster.ask(cluster.active(), request, controller=True)
    assert answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_second_broker_with_the_same_id_is_refused_by_a_controller_that_has_not_heard_of_the_first(
    cluster: Cluster,
) -> None:
    active = cluster.node(cluster.active())
    first = active.controller.latest.brokers[4]
    sessions = active.active.sessions

    async def register(listeners: list[BrokerRegistrationRequest.Listener]) -> tuple[int, bool]:
        """As if this controller had just been elected: what it answers, and whether it suspects the first."""
        sessions.begin(4, first.epoch, active.clock.monotonic_ms())
        features = [BrokerRegistrationRequest.Feature("metadata.version", 7, 30)]
        other = bytes(range(16))
        request = BrokerRegistrationRequest(
            4, active.cluster_id, other, listeners=listeners, features=features, log_dirs=[other]
        )
        answer = await active.active.answer(request, 4)
        session = sessions.find(4)
        assert session is not None
        is_suspect = session.suspect_until_ms is not None
        sessions.touch(4, first.epoch, 0, active.clock.monotonic_ms())
        return answer.error_code, is_suspect

    here = [BrokerRegistrationRequest.Listener(*each) for each in first.endpoints]
    for listeners, is_suspect in (([], False), (here, True)):
        refusal = ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert cluster.run_on(active.node_id, register(listeners)) == (refusal, is_suspect)
    assert active.controller.latest.brokers[4].epoch == first.epoch


def test_a_broker_of_another_cluster_is_refused(cluster: Cluster) -> None:
    request = BrokerRegistrationRequest(9, "another", bytes(range(16)), log_dirs=[bytes(range(16))])
    answer = cluster.ask(cluster.active(), request, controller=True)
    assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    answer = cluster.ask(cluster.active(), VoteRequest("another", 1), controller=True)
    assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_an_old_incarnation_changes_nothing(cluster: Cluster) -> None:
    create(cluster, 1, "kept")
    node = cluster.node(cluster.active())
    leader = node.controller.latest.topics["kept"].partitions[0].leader
    topics = [AlterPartitionRequest.TopicData(node.controller.latest.topics["kept"].id)]
    stale = AlterPartitionRequest(leader, node.controller.latest.brokers[leader].epoch - 1, topics)
    assert cluster.ask(node.node_id, stale, controller=True).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_brokers_own_keys_are_set_by_asking_it_and_only_it(cluster: Cluster) -> None:
    kinds = IncrementalAlterConfigsRequest

    def threads(broker: str, count: int) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
        return kinds.AlterConfigsResource(4, broker, [kinds.AlterableConfig("num.io.threads", 0, str(count))])

    for node_id in cluster.nodes:
        others = str(node_id % len(cluster.nodes) + 1)
        asked = [threads(others, 9), threads(str(node_id), 10 + node_id), threads("", 7)]
        answers = cluster.ask(node_id, kinds(resources=asked)).responses
        codes = [(each.resource_name, each.error_code) for each in answers]
        assert codes == [(others, ErrorCode.INVALID_REQUEST), (str(node_id), 0), ("", 0)]
        assert answers[0].error_message == f"Unexpected broker id, expected {node_id}, but received {others}"
        wait_for(lambda node_id=node_id: cluster.node(node_id).settings.integer("num.io.threads") == 10 + node_id)


def test_a_leader_changes_who_is_in_sync_wherever_the_controller_is(cluster: Cluster) -> None:
    create(cluster, 2, "shrunk", partitions=1)
    wait_for(lambda: all("shrunk" in node.image.topics for node in cluster.running.values()))
    image = cluster.node(1).image
    topic, partition = image.topics["shrunk"], image.topics["shrunk"].partitions[0]
    leader = cluster.node(partition.leader)
    kinds = AlterPartitionRequest
    isr = [kinds.BrokerState(partition.leader, image.brokers[partition.leader].epoch)]
    asked = kinds.PartitionData(0, partition.leader_epoch, [], isr, 0, partition.partition_epoch)
    request = kinds(partition.leader, leader.membership.epoch, [kinds.TopicData(topic.id, [asked])])
    answer = cluster.run_on(partition.leader, leader.alter_partition(request))
    (altered,) = answer.topics[0].partitions
    assert (altered.error_code, altered.isr, altered.leader_epoch) == (0, [partition.leader], partition.leader_epoch)
    assert altered.partition_epoch > partition.partition_epoch
    again = cluster.run_on(partition.leader, leader.alter_partition(request))
    assert again.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_vote_that_cannot_be_written_down_is_not_given() -> None:
    """Else the node could vote for another in the same epoch after a restart."""
    with Cluster(3) as cluster:
        passive = next(node_id for node_id in (1, 2, 3) if node_id != cluster.active())
        node = cluster.node(passive)
        state = Path(cluster.nodes[passive].data, "__cluster_metadata-0", "quorum-state")
        state.unlink()
        (state / "in-the-way").mkdir(parents=True)
        partition = VoteRequest.PartitionData(
            replica_epoch=node.controller.quorum.epoch + 1, replica_id=9, last_offset_epoch=1, last_offset=1 << 40
        )
        request = VoteRequest(None, passive, [VoteRequest.TopicData(METADATA_TOPIC, [partition])])
        for _ in range(2):
            # The second time it might believe that it has voted already.
            with pytest.raises(ConnectionFailed):
                cluster.ask(passive, request, controller=True)
        wait_for(node.failed.done)
        (state / "in-the-way").rmdir()
        state.rmdir()


def test_a_voter_that_lost_its_vote_does_not_start_and_the_others_go_on() -> None:
    with Cluster(3) as cluster:
        active = cluster.active()
        passive = next(node_id for node_id in (1, 2, 3) if node_id != active)
        cluster.nodes[passive].stop()
        state = Path(cluster.nodes[passive].data, "__cluster_metadata-0", "quorum-state")
        kept = state.read_bytes()
        state.unlink()
        with pytest.raises(StartError, match=f"the vote of node {passive} is lost"):
            cluster.nodes[passive].start()
        create(cluster, active, "meanwhile", factor=2)
        state.write_bytes(kept)
        cluster.nodes[passive].start()
        wait_for(lambda: "meanwhile" in cluster.node(passive).image.topics)


def test_a_stopped_broker_is_fenced_others_lead_and_it_comes_back() -> None:
    with Cluster(3) as cluster:
        create(cluster, 1, "moved", partitions=6)
        first = cluster.active()
        cluster.nodes[first].stop()
        others = [node_id for node_id in (1, 2, 3) if node_id != first]
        second = wait_for(lambda: next((each for each in others if cluster.node(each).controller.is_active), None))
        survivor = cluster.node(second)
        wait_for(lambda: survivor.image.brokers[first].fenced or survivor.image.brokers[first].in_controlled_shutdown)
        partitions = wait_for(
            lambda: (
                None
                if any(each.leader == first for each in survivor.image.topics["moved"].partitions)
                else survivor.image.topics["moved"].partitions
            )
        )
        assert {each.leader for each in partitions} <= set(others)

        def shown(name: str) -> float:
            return sum(metrics_of(cluster.node(node_id))[name] for node_id in others)

        wait_for(lambda: shown("kafka_server_replicamanager_underreplicatedpartitions") == 6)
        controller = "kafka_controller_kafkacontroller"
        wait_for(lambda: shown(f"{controller}_fencedbrokercount") == len(others))
        assert shown(f"{controller}_activecontrollercount") == 1
        assert shown(f"{controller}_offlinepartitionscount") == 0
        assert shown("kafka_server_raftmetrics_current_leader") == second * len(others)
        create(cluster, second, "meanwhile", factor=2)
        cluster.nodes[first].start()
        wait_for(lambda: not survivor.image.brokers[first].fenced)
        wait_for(lambda: "meanwhile" in cluster.node(first).image.topics)
        create(cluster, first, "afterwards")


def test_a_partition_that_may_lose_data_is_led_as_soon_as_it_may() -> None:
    with Cluster(4) as cluster:
        active = cluster.active()
        leader, other = next(node_id for node_id in (1, 2, 3) if node_id != active), 4  # which is no voter
        create_on(cluster, "risky", leader, other)
        controller = cluster.node(active)

        def partition() -> PartitionImage:
            return controller.image.topics["risky"].partitions[0]

        cluster.nodes[other].stop()
        wait_for(lambda: partition().isr == (leader,))
        cluster.nodes[leader].stop()
        wait_for(lambda: partition().leader == NO_LEADER)
        cluster.nodes[other].start()
        wait_for(lambda: not controller.image.brokers[other].fenced)
        assert partition().leader == NO_LEADER
        kinds = IncrementalAlterConfigsRequest
        may_lose = kinds.AlterableConfig("unclean.leader.election.enable", 0, "true")
        asked = kinds(resources=[kinds.AlterConfigsResource(2, "risky", [may_lose])])
        assert cluster.ask(active, asked).responses[0].error_code == 0
        wait_for(lambda: partition().leader == other)
        assert (partition().isr, partition().leader_recovery_state) == ((other,), 1)
        wait_for(lambda: controller.metrics.unclean_elections == 1)
        cluster.nodes[leader].start()
        wait_for(lambda: set(partition().isr) == {leader, other})
        assert partition().leader_recovery_state == 0
