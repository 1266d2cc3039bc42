"""InitProducerId (key 22), versions 0 to 5: a producer id and an epoch.

Without a transactional id: a new id, for an idempotent producer. Ids come in blocks of 1000 that the metadata log hands
out, so that none is ever given twice. A producer that names its id and epoch (version 3, KIP-360) gets a new id as
well: nothing is remembered to bump.
With one: the next epoch of the id that belongs to it, which fences older instances; a transaction that one of them left
open is aborted first, and the answer waits for that. An instance that names its id and epoch goes on after an error.
Version 4 knows PRODUCER_FENCED; before, that is INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.coordination.transactions import InitializeProducer
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FENCED_VERSION_MIN = 4


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return _refused(ErrorCode.INVALID_REQUEST)
    ids = context.node.producer_ids
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await ids.next(), producer_epoch=0)
    expected = None
    if request.producer_id != -1:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    await ids.ready()
    try:
        given: ProducerIdAndEpoch = await context.node.transactions.ask(
            request.transactional_id, InitializeProducer, request.transaction_timeout_ms, expected
        )
    except KafkaError as refusal:
        if refusal.code == ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION_MIN:
            return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        return _refused(refusal.code)
    return InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
