"""TxnOffsetCommit (key 28), versions 0 to 5: a group's offsets, as a part of a producer's transaction.

They count when the transaction is committed; until then readers that ask for stable offsets are told to wait. 3 names
the member and its generation (KIP-447), so that a zombie of the group is refused. The transaction must have the group's
partition of `__consumer_offsets` in it: from 5 on it is added here (KIP-890), before AddOffsetsToTxn did, which is
verified. 4 knows TRANSACTION_ABORTABLE; before, that is INVALID_TXN_STATE.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.verification import Claim, Verified
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch
from moldau.protocol.batches import NO_SEQUENCE
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

ADDS_PARTITION_VERSION_MIN, ABORTABLE_VERSION_MIN, LOADING_VERSION_MIN = 5, 4, 2
Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
TopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
PartitionAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def handle(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    known, refused = _split(request.topics, context)
    if not known:
        return TxnOffsetCommitResponse(topics=refused)
    whole, request.topics = request.topics, known
    try:
        response = await _commit(request, context)
    except KafkaError as refusal:
        code = refusal.code
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < LOADING_VERSION_MIN:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return TxnOffsetCommitResponse(topics=[_answer(topic.name, topic.partitions, code) for topic in whole])
    by_name = {topic.name: topic for topic in response.topics}
    for topic in refused:
        known_topic = by_name.setdefault(topic.name, topic)
        if known_topic is not topic:
            known_topic.partitions += topic.partitions
    response.topics = list(by_name.values())
    return response


def _split(topics: list[Topic], context: Context) -> tuple[list[Topic], list[TopicAnswer]]:
    known, refused = [], []
    for topic in topics:
        image = context.node.image.topics.get(topic.name)
        count = 0 if image is None else len(image.partitions)
        valid = [each for each in topic.partitions if 0 <= each.partition_index < count]
        beyond = [each for each in topic.partitions if not 0 <= each.partition_index < count]
        if valid:
            known.append(Topic(topic.name, valid))
        if beyond:
            refused.append(_answer(topic.name, beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return known, refused


def _answer(name: str, partitions: list[Partition], code: int) -> TopicAnswer:
    return TopicAnswer(name, [PartitionAnswer(partition.partition_index, code) for partition in partitions])


async def _commit(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = context.node.groups
    index = groups.coordinator.index_of(request.group_id)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    claim = Claim(
        request.transactional_id,
        producer,
        adds_partitions=context.version >= ADDS_PARTITION_VERSION_MIN,
        knows_abortable=context.version >= ABORTABLE_VERSION_MIN,
    )
    verified = Verified(context.node, claim)
    verified.begin(groups.coordinator.partition_at(index), NO_SEQUENCE)
    try:
        if verified.must_ask:
            await verified.ask()
        # Anew: who coordinates may have changed meanwhile.
        partition = groups.coordinator.partition_at(index)
        verified.require_accepted(partition)
        verified.check(partition, NO_SEQUENCE)
        # Where nothing is verified nobody has looked yet, and the log would refuse the whole turn.
        partition.log.producers.check_coordinators_batch(*producer)
        if min(producer) < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        response: TxnOffsetCommitResponse = await groups.ask(request.group_id, request, context)
    finally:
        verified.close()
    return response
