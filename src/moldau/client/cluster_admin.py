"""Administration of a cluster's own shape: leaders, replicas, voters, nodes. Plain values in and out, as in `admin`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moldau.client.admin import ADMIN_TIMEOUT_MS
from moldau.client.cluster import ClusterClient
from moldau.kernel import ErrorCode, KafkaError, TopicPartition, parse_uuid

PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is on its way to other replicas."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def elect_leaders(
    client: ClusterClient, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
) -> dict[TopicPartition, ErrorCode]:
    """Let the preferred replicas lead, or, `unclean`, whoever is alive; every partition when none is named."""
    from moldau.protocol.messages.elect_leaders import ElectLeadersRequest

    named = None
    if partitions is not None:
        named = [ElectLeadersRequest.TopicPartitions(topic, indexes) for topic, indexes in _by_topic(partitions)]
    kind = UNCLEAN if unclean else PREFERRED
    response = await client.to_controller(ElectLeadersRequest(kind, named, ADMIN_TIMEOUT_MS))
    _check(response.error_code, None, "the election")
    return {
        TopicPartition(topic.topic, each.partition_id): ErrorCode(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


async def reassign(client: ClusterClient, targets: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
    """Give partitions other replicas; None stops what is under way."""
    from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest as Request

    topics = [
        Request.ReassignableTopic(
            topic,
            [
                Request.ReassignablePartition(index, None if wanted is None else list(wanted))
                for index in indexes
                for wanted in (targets[TopicPartition(topic, index)],)
            ],
        )
        for topic, indexes in _by_topic(targets)
    ]
    response = await client.to_controller(Request(timeout_ms=ADMIN_TIMEOUT_MS, topics=topics))
    _check(response.error_code, response.error_message, "the reassignment")
    for topic in response.responses:
        for each in topic.partitions:
            _check(each.error_code, each.error_message, f"{topic.name}-{each.partition_index}")


async def list_reassignments(client: ClusterClient) -> list[Reassignment]:
    from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

    response = await client.to_controller(ListPartitionReassignmentsRequest(ADMIN_TIMEOUT_MS, topics=None))
    _check(response.error_code, response.error_message, "reassignments")
    return [
        Reassignment(
            TopicPartition(topic.name, each.partition_index),
            tuple(each.replicas),
            tuple(each.adding_replicas),
            tuple(each.removing_replicas),
        )
        for topic in response.topics
        for each in topic.partitions
    ]


async def unregister_broker(client: ClusterClient, node_id: int) -> None:
    from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest

    response = await client.to_controller(UnregisterBrokerRequest(node_id))
    _check(response.error_code, response.error_message, f"broker {node_id}")


async def add_voter(
    client: ClusterClient, node_id: int, directory_id: str, endpoints: Iterable[tuple[str, str, int]]
) -> None:
    """One more voter; it must run as a controller and have caught up (KIP-853)."""
    from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest

    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=ADMIN_TIMEOUT_MS,
        voter_id=node_id,
        voter_directory_id=parse_uuid(directory_id),
        listeners=[AddRaftVoterRequest.Listener(*each) for each in endpoints],
    )
    response = await client.to_controller(request)
    _check(response.error_code, response.error_message, f"voter {node_id}")


async def remove_voter(client: ClusterClient, node_id: int, directory_id: str) -> None:
    from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest

    response = await client.to_controller(RemoveRaftVoterRequest(None, node_id, parse_uuid(directory_id)))
    _check(response.error_code, response.error_message, f"voter {node_id}")


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return list(topics.items())


def _check(code: int, message: str | None, what: str) -> None:
    if code:
        known: Any = ErrorCode(code)
        raise KafkaError(known, f"{what}: {message or known.name}")
