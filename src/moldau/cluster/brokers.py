"""Decisions about brokers: registration, fencing, and who leads their partitions.

Pure. A broker registers fenced, opens its logs, and is unfenced; partitions that it may lead get it as their leader
then. Every change of leadership raises the leader epoch, which is what lets readers notice a truncated log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moldau.cluster.decision import Decision
from moldau.cluster.features import FeatureRange
from moldau.cluster.image import Endpoint, MetadataImage, PartitionImage, TopicImage
from moldau.cluster.partition_change import Election, PartitionChange
from moldau.kernel import NO_LEADER
from moldau.protocol.messages.metadata_records.broker_registration_change_record import BrokerRegistrationChangeRecord
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
from moldau.protocol.messages.metadata_records.register_broker_record import RegisterBrokerRecord
from moldau.protocol.messages.metadata_records.register_controller_record import RegisterControllerRecord

# Directory ids below this name none: unassigned, lost, migrating.
RESERVED_DIRECTORY_ID_MAX = 100
FENCE, UNFENCE = 1, -1


def register_controller(
    node_id: int, incarnation_id: bytes, endpoints: Sequence[Endpoint], features: Mapping[str, FeatureRange]
) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        end_points=[RegisterControllerRecord.ControllerEndpoint(*endpoint) for endpoint in endpoints],
        features=[
            RegisterControllerRecord.ControllerFeature(name, each.low, each.high) for name, each in features.items()
        ],
    )


def register_broker(
    node_id: int,
    epoch: int,
    incarnation_id: bytes,
    endpoints: Sequence[Endpoint],
    features: Mapping[str, FeatureRange],
    rack: str | None,
    log_directories: Sequence[bytes],
) -> RegisterBrokerRecord:
    """A new incarnation; its epoch is the offset of this very record."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=incarnation_id,
        broker_epoch=epoch,
        end_points=[RegisterBrokerRecord.BrokerEndpoint(*endpoint) for endpoint in endpoints],
        features=[RegisterBrokerRecord.BrokerFeature(name, each.low, each.high) for name, each in features.items()],
        rack=rack,
        fenced=True,
        log_dirs=list(log_directories),
    )


def change_fencing(image: MetadataImage, node_id: int, fenced: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=image.brokers[node_id].epoch, fenced=fenced)


@dataclass(frozen=True, slots=True)
class PartitionPolicy:
    """What configurations say about a topic's partitions."""

    min_isr: Callable[[str], int]  # min.insync.replicas
    is_unclean_allowed: Callable[[str], bool]  # unclean.leader.election.enable
    keeps_elr: bool = False  # eligible.leader.replicas.version


def is_active(image: MetadataImage, node_id: int) -> bool:
    """Whether a broker may lead and be in sync."""
    broker = image.brokers.get(node_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def can_serve(image: MetadataImage, partition: PartitionImage, replica: int) -> bool:
    """Whether a replica may lead: its broker is active, and the directory that it is in works (KIP-858)."""
    if not is_active(image, replica) or replica not in partition.replicas:
        return False
    directory_id = partition.directories[partition.replicas.index(replica)]
    is_known = int.from_bytes(directory_id, "big") >= RESERVED_DIRECTORY_ID_MAX
    return not is_known or directory_id in image.brokers[replica].log_directories


def each_partition(image: MetadataImage, node_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """The partitions that have a replica on the broker."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield topic, index, partition


def leave(
    image: MetadataImage,
    node_id: int,
    policy: PartitionPolicy,
    *,
    is_unclean: bool = False,
    where: Collection[bytes] | None = None,
) -> Iterator[PartitionChangeRecord]:
    """A broker is in sync with nobody and leads nothing any more; others lead where they can.

    `where` names directories: only what it has in them is meant.
    """
    unclean = (node_id,) if is_unclean else ()
    for topic, index, partition in each_partition(image, node_id):
        if where is not None and partition.directories[partition.replicas.index(node_id)] not in where:
            continue

        def may_lead(replica: int, partition: PartitionImage = partition) -> bool:
            return replica != node_id and can_serve(image, partition, replica)

        is_concerned = node_id == partition.leader or node_id in partition.isr
        if not is_concerned and not (is_unclean and node_id in partition.elr):
            continue
        record = PartitionChange(
            topic.id,
            index,
            partition,
            may_lead,
            policy.min_isr(topic.name),
            policy.keeps_elr,
            Election.UNCLEAN if policy.is_unclean_allowed(topic.name) else Election.ONLINE,
            isr=[replica for replica in partition.isr if replica != node_id],
            unclean=unclean,
        ).record()
        if record is not None:
            yield record


def lead_again(
    image: MetadataImage, node_id: int, policy: PartitionPolicy, *, unclean: bool
) -> Iterator[PartitionChangeRecord]:
    """What a returning broker leads.

    Partitions without a leader that have it among their in-sync (or eligible, KIP-966) replicas get it. After an
    unclean stop the ones that it already leads get a new epoch, because the end of their logs may be gone.
    """

    # Decided together with the end of its fence.
    image = _without_fence(image, node_id)
    for topic, index, partition in each_partition(image, node_id):

        def may_lead(replica: int, partition: PartitionImage = partition) -> bool:
            return can_serve(image, partition, replica)

        if partition.leader == NO_LEADER:
            record = PartitionChange(
                topic.id,
                index,
                partition,
                may_lead,
                policy.min_isr(topic.name),
                # An eligible replica that a Kafka wrote down stays one, whatever is agreed on now.
                policy.keeps_elr or bool(partition.elr),
                Election.UNCLEAN if policy.is_unclean_allowed(topic.name) else Election.ONLINE,
            ).record()
            if record is not None:
                yield record
        elif partition.leader == node_id and unclean:
            yield PartitionChangeRecord(partition_id=index, topic_id=topic.id, leader=node_id)


def _without_fence(image: MetadataImage, node_id: int) -> MetadataImage:
    broker = replace(image.brokers[node_id], fenced=False, in_controlled_shutdown=False)
    return replace(image, brokers={**image.brokers, node_id: broker})


def lose_directories(
    image: MetadataImage, node_id: int, offline: Collection[bytes], policy: PartitionPolicy
) -> list[Any]:
    """Directories of a broker failed: others lead what it had there."""
    broker = image.brokers[node_id]
    left = [each for each in broker.log_directories if each not in offline]
    record = BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker.epoch, log_dirs=left)
    return [record, *leave(image, node_id, policy, where=offline)]


def fence(image: MetadataImage, node_id: int, policy: PartitionPolicy) -> list[Any]:
    return [change_fencing(image, node_id, FENCE), *leave(image, node_id, policy)]


def unfence(image: MetadataImage, node_id: int, policy: PartitionPolicy) -> list[Any]:
    broker = image.brokers[node_id]
    record = change_fencing(image, node_id, UNFENCE)
    if broker.in_controlled_shutdown:
        record.in_controlled_shutdown = UNFENCE
    return [record, *lead_again(image, node_id, policy, unclean=False)]


def begin_shutdown(image: MetadataImage, node_id: int, policy: PartitionPolicy) -> list[Any]:
    """Controlled shutdown: others lead before the broker goes."""
    epoch = image.brokers[node_id].epoch
    record = BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=epoch, in_controlled_shutdown=FENCE)
    return [record, *leave(image, node_id, policy)]


def decide_assign_directory(
    image: MetadataImage, topic: str, index: int, node_id: int, directory_id: bytes
) -> Decision[None]:
    """A replica lives in another of its broker's directories now."""
    found = image.topics.get(topic)
    if found is None:
        return Decision(None)
    partition = found.partitions[index]
    directories = [
        directory_id if replica == node_id else directory
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
    ]
    return Decision(None, [PartitionChangeRecord(partition_id=index, topic_id=found.id, directories=directories)])
