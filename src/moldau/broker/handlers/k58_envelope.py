"""Envelope (key 58), version 0: a broker hands on a client's request that only the active controller can decide.

The request lies inside as it came, header included; its answer goes back the same way. Only requests that Kafka's
brokers forward are taken; a controller that does not lead answers NOT_CONTROLLER for all of them, so that the broker
asks the next one. Who sent the request, and from where, is not looked at before there is authorization.
"""

from __future__ import annotations

from moldau.broker.dispatch import FORWARDED, Context, answer_inner
from moldau.kernel import ErrorCode
from moldau.protocol.headers import decode_request_header
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.wire import ProtocolError


async def handle(request: EnvelopeRequest, context: Context) -> EnvelopeResponse:
    if not context.node.controller.is_active:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.NOT_CONTROLLER)
    try:
        header = decode_request_header(memoryview(bytes(request.request_data)))
    except ProtocolError:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.INVALID_REQUEST)
    if header[0] not in FORWARDED:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.INVALID_REQUEST)
    try:
        data = await answer_inner(bytes(request.request_data), context)
    except ProtocolError:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.INVALID_REQUEST)
    return EnvelopeResponse(response_data=data)
