"""EndTxn (key 26), versions 0 to 5: commit or abort a transaction.

Answered when the decision is committed; the markers are written right behind the answer, before any other request is
looked at where nothing has to be waited for: who has the answer to a commit can read it, and can begin the next
transaction at once. A retry is answered as the first attempt.

From 5 on (KIP-890) every end bumps the epoch, and the answer has the id and epoch to go on with: an end
that comes late then cannot hit the next transaction. From 2 on PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.coordination.transactions import EPOCH_BUMP_VERSION, EndTransaction
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_VERSION_MIN = 2
EPOCH_BUMP_VERSION_MIN = 5


async def handle(request: EndTxnRequest, context: Context) -> EndTxnResponse:
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    bumps_epoch = context.version >= EPOCH_BUMP_VERSION_MIN
    try:
        following: ProducerIdAndEpoch = await context.node.transactions.ask(
            request.transactional_id,
            EndTransaction,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            request.committed,
            EPOCH_BUMP_VERSION if bumps_epoch else 0,
        )
    except KafkaError as refusal:
        code = refusal.code
        if code == ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION_MIN:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(error_code=code)
    if not bumps_epoch:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.epoch)
