"""Connections to other brokers, as replication needs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from moldau.broker.endpoints import PROTOCOLS
from moldau.broker.settings import Settings
from moldau.cluster import BrokerRegistration, Endpoint
from moldau.protocol.message import Message


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
