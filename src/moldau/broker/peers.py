"""Connections to other brokers: replica fetchers have their own, everything else shares one for each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.endpoints import PROTOCOLS
from moldau.broker.settings import Settings
from moldau.cluster import BrokerRegistration, Endpoint
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.message import Message

if TYPE_CHECKING:
    from moldau.broker.node import Node

ASK_MS_MAX = 10_000


class Peer(Protocol):
    """A connection to a broker; requests raise OSError when it breaks, KafkaError when the broker cannot do it."""

    async def request(self, message: Message, *, timeout_ms: int | None = None) -> Any: ...

    def close(self) -> None: ...


Connect = Callable[[Endpoint, int], Awaitable[Peer]]


async def connect_to_peer(endpoint: Endpoint, timeout_ms: int) -> Peer:
    # Only brokers of several need the client.
    from moldau.client import Connection

    return await Connection.connect(
        endpoint.host, endpoint.port, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
    )


def inter_broker_endpoint(settings: Settings, broker: BrokerRegistration) -> Endpoint | None:
    """Where other brokers reach a broker: `inter.broker.listener.name`, or the one of the protocol between brokers."""
    name = settings.text("inter.broker.listener.name").upper()
    if name:
        return broker.endpoint(name)
    protocol = PROTOCOLS[settings.text("security.inter.broker.protocol").upper()]
    return next((each for each in broker.endpoints if each.security_protocol == protocol), None)


class Peers:
    """Brokers to ask, by id."""

    def __init__(self, node: Node, connect: Connect) -> None:
        self._node = node
        self.connect = connect
        self._connections: dict[int, tuple[Endpoint, Peer]] = {}
        self._turns: dict[int, asyncio.Lock] = {}

    def endpoint_of(self, broker_id: int) -> Endpoint | None:
        broker = self._node.image.brokers.get(broker_id)
        return None if broker is None else inter_broker_endpoint(self._node.settings, broker)

    async def ask(self, broker_id: int, message: Message, timeout_ms: int = ASK_MS_MAX) -> Any:
        """OSError or KafkaError: nobody knows whether it was done."""
        # A task of its own: handlers are driven without one, and connecting needs one.
        return await self._node.loop.create_task(self._ask(broker_id, message, timeout_ms))

    async def _ask(self, broker_id: int, message: Message, timeout_ms: int) -> Any:
        peer = await self._connected(broker_id, timeout_ms)
        try:
            return await peer.request(message, timeout_ms=timeout_ms)
        except OSError:
            known = self._connections.get(broker_id)
            if known is not None and known[1] is peer:
                del self._connections[broker_id]
            peer.close()
            raise

    async def _connected(self, broker_id: int, timeout_ms: int) -> Peer:
        async with self._turns.setdefault(broker_id, asyncio.Lock()):
            endpoint = self.endpoint_of(broker_id)
            if endpoint is None:
                raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not known here")
            known = self._connections.get(broker_id)
            if known is not None:
                if known[0] == endpoint:
                    return known[1]
                known[1].close()
            peer = await self.connect(endpoint, timeout_ms)
            self._connections[broker_id] = endpoint, peer
            return peer

    def close(self) -> None:
        for _, peer in self._connections.values():
            peer.close()
        self._connections.clear()
