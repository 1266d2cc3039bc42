"""The producer id of an idempotent producer without transactions: any broker gives one (InitProducerId)."""

from __future__ import annotations

from typing import Any

from moldau.client.cluster import ClusterClient
from moldau.client.transactions import Identity
from moldau.kernel import ErrorCode, KafkaError

_TRANSACTION_TIMEOUT_NONE = 2**31 - 1


async def new_producer_id(client: ClusterClient) -> Identity:
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest

    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TRANSACTION_TIMEOUT_NONE)

    async def attempt() -> Any:
        response = await (await client.any_connection()).request(request)
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KafkaError(code, f"the broker gave no producer id: {code.name}")
        return response

    response = await client.retry(attempt)
    return Identity(response.producer_id, response.producer_epoch)
