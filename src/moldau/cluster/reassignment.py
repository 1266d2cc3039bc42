"""Reassignment: partitions get other replicas, one step of the ISR at a time. Pure.

While it goes on a partition has the new replicas and the old ones (`adding`, `removing`); when all that are added are
in sync the others go (`PartitionChange`). A cancelled one goes back to what it was, unless that would lose data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cluster.brokers import PartitionPolicy, can_serve
from moldau.cluster.decision import Decision
from moldau.cluster.image import MetadataImage, PartitionImage, TopicImage
from moldau.cluster.partition_change import Election, PartitionChange
from moldau.kernel import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
    )
    from moldau.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

DirectoryOf = Callable[[int], bytes]


def decide_reassign(
    image: MetadataImage,
    request: AlterPartitionReassignmentsRequest,
    policy: PartitionPolicy,
    directory_of: DirectoryOf,
) -> Decision[AlterPartitionReassignmentsResponse]:
    from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse

    kinds = AlterPartitionReassignmentsResponse
    records: list[Any] = []
    responses = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = kinds.ReassignablePartitionResponse(asked.partition_index, error_message=None)
            try:
                found, partition = _find(image, topic.name, asked.partition_index)
                change = _change(image, found, asked.partition_index, partition, policy, directory_of)
                if asked.replicas is None:
                    record = change(**_cancelled(topic.name, asked.partition_index, partition)).record()
                else:
                    _check(image, partition, asked.replicas, request)
                    record = change(**_begun(partition, asked.replicas)).record()
                records += [] if record is None else [record]
            except KafkaError as refusal:
                result.error_code, result.error_message = refusal.code, refusal.message
            results.append(result)
        responses.append(kinds.ReassignableTopicResponse(topic.name, results))
    response = kinds(error_message=None, responses=responses)
    response.allow_replication_factor_change = request.allow_replication_factor_change
    return Decision(response, records)


def _find(image: MetadataImage, name: str, index: int) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic, topic.partitions[index]


def _change(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    policy: PartitionPolicy,
    directory_of: DirectoryOf,
) -> Callable[..., PartitionChange]:
    def change(**wanted: Any) -> PartitionChange:
        return PartitionChange(
            topic.id,
            index,
            partition,
            lambda replica: can_serve(image, partition, replica),
            policy.min_isr(topic.name),
            policy.keeps_elr,
            Election.UNCLEAN if policy.is_unclean_allowed(topic.name) else Election.ONLINE,
            directory_of=directory_of,
            **wanted,
        )

    return change


def _cancelled(name: str, index: int, partition: PartitionImage) -> dict[str, Sequence[int]]:
    if not partition.adding and not partition.removing:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = [replica for replica in partition.replicas if replica not in partition.adding]
    isr = [replica for replica in partition.isr if replica in replicas]
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {name}:{index} because it would require an unclean leader"
            " election.",
        )
    return {"replicas": replicas, "isr": isr, "adding": (), "removing": ()}


def _begun(partition: PartitionImage, target: Sequence[int]) -> dict[str, Sequence[int]]:
    """From what it was before, if one is under way: replicas that were on their way in have nothing to keep."""
    removing = sorted(set(partition.replicas) - set(target))
    settled = set(partition.replicas) - set(partition.adding)
    adding = sorted(set(target) - settled)
    return {"replicas": [*target, *removing], "adding": adding, "removing": removing}


def _check(
    image: MetadataImage,
    partition: PartitionImage,
    replicas: Sequence[int],
    request: AlterPartitionReassignmentsRequest,
) -> None:
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    if len(set(replicas)) != len(replicas):
        twice = next(replica for replica in sorted(replicas) if list(replicas).count(replica) > 1)
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes the broker {twice} more than once.",
        )
    for replica in replicas:
        if replica not in image.brokers:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {replica}, but no such broker is registered.",
            )
    factor = len(partition.replicas) - len(partition.adding)
    if not request.allow_replication_factor_change and len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(replicas)}",
        )


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse

    kinds = ListPartitionReassignmentsResponse
    if request.topics is None:
        named = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        named = [(topic.name, topic.partition_indexes) for topic in request.topics]  # type: ignore[misc]
    topics = []
    for name, indexes in named:
        topic = image.topics.get(name)
        if topic is None:
            continue
        ongoing = [
            kinds.OngoingPartitionReassignment(
                index, list(partition.replicas), list(partition.adding), list(partition.removing)
            )
            for index, partition in enumerate(topic.partitions)
            if index in indexes and (partition.adding or partition.removing)
        ]
        if ongoing:
            topics.append(kinds.OngoingTopicReassignment(name, ongoing))
    return kinds(error_message=None, topics=topics)
