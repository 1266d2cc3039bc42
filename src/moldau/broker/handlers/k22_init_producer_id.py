"""InitProducerId (key 22), versions 0 to 5: a producer id for idempotent producers.

Ids come in blocks of 1000 that the metadata log hands out, so that none is ever given twice. A producer that names its
id and epoch (version 3, KIP-360) gets a new id as well: without a transactional id nothing is remembered to bump.
Not served yet: transactional ids (NOT_COORDINATOR would send the client in circles; INVALID_REQUEST says it plainly).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    producer_id = await context.node.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
