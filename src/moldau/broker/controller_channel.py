"""A broker's way to the active controller, whichever node that is: on this node without a detour, else over the wire.

`ask` sends what a broker itself has to say; `forward` hands on a client's request that only the controller can decide,
in the version in which it came. Both wait for a controller while there is none, and try the next one when it moved; an
answer that was lost on the way may mean that the change was made (as for any client of Kafka).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from moldau.broker.active_controller import newest_version
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.message import Message

if TYPE_CHECKING:
    from moldau.broker.node import Node
    from moldau.client import Connection

RETRY_MS = 50
ASK_MS_MAX = 10_000
FORWARD_MS_MAX = 30_000


class ControllerChannel:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._connection: Connection | None = None
        self._connected_to = -1
        self._connecting = asyncio.Lock()

    async def ask(self, message: Message, *, timeout_ms: int = ASK_MS_MAX) -> Any:
        """The controller's answer; KafkaError REQUEST_TIMED_OUT when there is none for so long."""
        node = self._node

        async def try_once() -> Any:
            if node.controller.is_active:
                return await node.active.answer(message, newest_version(message))
            connection = await self._connect()
            return await connection.request(message, timeout_ms=timeout_ms)

        return await self._insist(try_once, timeout_ms)

    async def forward(self, message: Message, version: int) -> Any:
        """A client's request; NOT_CONTROLLER comes back when nobody leads for too long."""

        async def try_once() -> Any:
            connection = await self._connect()
            return await connection.request(message, version=version, timeout_ms=FORWARD_MS_MAX)

        return await self._insist(try_once, FORWARD_MS_MAX)

    async def _insist(self, try_once: Any, timeout_ms: int) -> Any:
        node = self._node
        until_ms = node.clock.monotonic_ms() + timeout_ms
        reason: str | None = "no controller is known"
        while node.clock.monotonic_ms() < until_ms and not node.is_closed:
            try:
                response = await try_once()
            except OSError as error:
                reason = str(error)
                self._drop()
            except KafkaError as error:
                if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
                    raise
                reason = error.message
            else:
                if getattr(response, "error_code", 0) != ErrorCode.NOT_CONTROLLER:
                    return response
                reason = "the controller moved"
            await node.controller.wait_news(RETRY_MS)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The controller did not answer within {timeout_ms} ms: {reason}")

    async def _connect(self) -> Connection:
        from moldau.client import Connection, ConnectionFailed

        node = self._node
        async with self._connecting:
            leader_id = node.controller.quorum.leader_id
            address = node.addresses.find(leader_id) if leader_id >= 0 else None
            if address is None:
                raise ConnectionFailed("?", 0, "no controller is known", "a quorum of controllers must be running")
            connection = self._connection
            if connection is None or connection.closed or self._connected_to != leader_id:
                self._drop()
                connecting = Connection.connect(
                    *address, client_id=f"broker-{node.node_id}", connect_timeout_ms=2000, request_timeout_ms=30_000
                )
                # A task of its own: handlers are driven without one, and connecting needs one.
                connection = await node.loop.create_task(connecting)
                self._connection, self._connected_to = connection, leader_id
            return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._drop()
