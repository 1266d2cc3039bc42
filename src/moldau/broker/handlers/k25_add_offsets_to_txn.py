"""AddOffsetsToTxn (key 25), versions 0 to 4: the offsets of a group will be a part of a transaction.

Adds the partition of `__consumer_offsets` that the group's offsets are in, as AddPartitionsToTxn would. Producers of
the second generation leave it to TxnOffsetCommit. From 2 on PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.cluster import OFFSETS_TOPIC
from moldau.kernel import ErrorCode, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_VERSION_MIN = 2


async def handle(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
    node = context.node
    await node.groups.ensure_topic()
    partition = TopicPartition(OFFSETS_TOPIC, node.groups.coordinator.index_of(request.group_id))
    codes = await node.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        frozenset((partition,)),
        bumps_epochs=False,
    )
    code = codes[partition]
    if code == ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION_MIN:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)
