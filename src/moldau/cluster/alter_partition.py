"""AlterPartition: a leader says who is in sync with it (KIP-497). Each check keeps a stale leader from the ISR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cluster.brokers import PartitionPolicy, can_serve, is_active
from moldau.cluster.decision import Decision
from moldau.cluster.delta import MetadataDelta
from moldau.cluster.image import MetadataImage, PartitionImage, TopicImage
from moldau.cluster.partition_change import RECOVERED, RECOVERING, Election, PartitionChange
from moldau.cluster.registration import check_broker_epoch
from moldau.kernel import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

    Asked = AlterPartitionRequest.PartitionData
    Answered = AlterPartitionResponse.PartitionData


def decide_alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, version: int, policy: PartitionPolicy
) -> Decision[AlterPartitionResponse]:
    from moldau.protocol.messages.alter_partition import AlterPartitionResponse

    if not request.topics:
        return Decision(AlterPartitionResponse())
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except KafkaError as refusal:
        return Decision(AlterPartitionResponse(error_code=refusal.code))
    records: list[Any] = []
    topics = []
    for topic in request.topics:
        found = image.topic_by_id(topic.topic_id)
        answers = []
        for asked in topic.partitions:
            try:
                answer, made = _alter(image, found, asked, request.broker_id, version, policy)
            except KafkaError as refusal:
                answer, made = _refused(asked, refusal.code), ()
            answers.append(answer)
            records += made
        topics.append(AlterPartitionResponse.TopicData(topic.topic_id, answers))
    return Decision(AlterPartitionResponse(topics=topics), records)


def _alter(
    image: MetadataImage, topic: TopicImage | None, asked: Asked, leader: int, version: int, policy: PartitionPolicy
) -> tuple[Answered, Sequence[Any]]:
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= asked.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[asked.partition_index]
    isr = list(asked.new_isr) if version < 3 else [each.broker_id for each in asked.new_isr_with_epochs]
    _check(partition, asked, isr, leader)
    for each in asked.new_isr_with_epochs:
        _check_eligible(image, each.broker_id, each.broker_epoch)
    for replica in isr:
        _check_eligible(image, replica, -1)
    record = PartitionChange(
        topic.id,
        asked.partition_index,
        partition,
        lambda replica: can_serve(image, partition, replica),
        policy.min_isr(topic.name),
        policy.keeps_elr,
        Election.UNCLEAN if policy.is_unclean_allowed(topic.name) else Election.ONLINE,
        isr=isr,
        recovery_state=asked.leader_recovery_state,
    ).record()
    if record is None:
        return _answer(asked.partition_index, partition), ()
    delta = MetadataDelta(image)
    delta.replay(record)
    after = delta.topics_changed[topic.id].partitions[asked.partition_index]
    if after.leader != leader:
        # The change stands all the same: it completed a reassignment that takes the leadership away.
        return _refused(asked, ErrorCode.NEW_LEADER_ELECTED), (record,)
    return _answer(asked.partition_index, after), (record,)


def _check(partition: PartitionImage, asked: Asked, isr: Sequence[int], leader: int) -> None:
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        # The leader knows more than we do: somebody else is the controller by now.
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    if asked.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if leader != partition.leader:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if asked.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)
    if set(isr) - set(partition.replicas) or leader not in isr or len(set(isr)) != len(isr):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if asked.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    # Only an unclean election begins a recovery, and nobody else is in sync before it ends.
    is_new_or_shared = len(isr) > 1 or partition.leader_recovery_state == RECOVERED
    if asked.leader_recovery_state == RECOVERING and is_new_or_shared:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _check_eligible(image: MetadataImage, replica: int, epoch: int) -> None:
    """KIP-841, KIP-903: nobody joins who is fenced, on the way out, or not the incarnation that fetched."""
    broker = image.brokers.get(replica)
    if not is_active(image, replica) or broker is None or epoch not in (-1, broker.epoch):
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)


def _refused(asked: Asked, code: int) -> Answered:
    from moldau.protocol.messages.alter_partition import AlterPartitionResponse

    return AlterPartitionResponse.PartitionData(partition_index=asked.partition_index, error_code=code)


def _answer(index: int, partition: PartitionImage) -> Answered:
    from moldau.protocol.messages.alter_partition import AlterPartitionResponse

    return AlterPartitionResponse.PartitionData(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
