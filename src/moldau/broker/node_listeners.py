"""Where a node is reached: its listeners, who handles what comes in there, and the addresses that others are told."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moldau.broker.dispatch import Context, Dispatcher
from moldau.broker.endpoints import WILDCARDS, ListenerSpec
from moldau.broker.listener import BACKLOG, REQUEST_BYTES_HELD_MAX, Listen, Listener, ListenerConfig
from moldau.cluster import BrokerRegistration, Endpoint
from moldau.consensus import VoterEndpoint

if TYPE_CHECKING:
    from moldau.broker.node import Node
    from moldau.broker.settings import Settings


class NodeListeners:
    """In the order of `listeners`; empty until they are opened."""

    def __init__(self, node: Node, listen: Listen) -> None:
        self._node = node
        self._listen = listen
        self._specs: Sequence[ListenerSpec] = ()
        self._listeners: list[Listener] = []
        self.dispatchers: list[Dispatcher] = []

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners)

    def __getitem__(self, place: int) -> Listener:
        return self._listeners[place]

    # -- from the first connection to the last -------------------------------------------------------------------------

    def open(self, specs: Sequence[ListenerSpec]) -> None:
        """Take the ports; nobody is let in yet. OSError says in one line what is in the way."""
        self._specs = specs
        node = self._node
        for spec in specs:
            dispatcher = Dispatcher(node, spec.name, is_controller=spec.is_controller)
            try:
                listener = Listener(
                    listener_config(node.settings, spec),
                    dispatcher.dispatch,
                    loop=node.loop,
                    say=node.say,
                    report_bug=node.report_bug,
                    listen=self._listen,
                )
            except OSError as error:
                where = f"{spec.host or '*'}:{spec.port}"
                raise OSError(
                    f"cannot listen on {where}: {error.strerror or error};"
                    f" is another broker running there? Choose another port, or 0 for a free one"
                ) from None
            self._listeners.append(listener)
            self.dispatchers.append(dispatcher)

    def start(self) -> None:
        for listener in self._listeners:
            if not listener.is_started:
                listener.start()

    def start_for_controllers(self) -> None:
        """Members of the quorum first: without them there is nothing to serve clients with."""
        for spec, listener in self._pairs():
            if spec.is_controller:
                listener.start()

    def reconfigure(self) -> None:
        for spec, listener in self._pairs():
            listener.config = listener_config(self._node.settings, spec)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop_accepting()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    @property
    def owe_answers(self) -> bool:
        """To clients; members of the quorum wait for news all the time, and ask the next leader."""
        return any(
            connection.is_owed_answers
            for spec, listener in self._pairs()
            if not spec.is_controller
            for connection in listener.connections
        )

    # -- addresses -----------------------------------------------------------------------------------------------------

    def registered(self, *, is_controller: bool) -> list[Endpoint]:
        """What the metadata says of this node."""
        endpoints = []
        for spec, listener in self._pairs():
            if spec.is_controller != is_controller:
                continue
            host, port = spec.advertised or (spec.host, 0)
            if host in WILDCARDS:
                host = socket.gethostname()
            endpoints.append(Endpoint(spec.name, host, port or listener.port, spec.security_protocol))
        return endpoints

    def voter_endpoints(self) -> list[VoterEndpoint]:
        endpoints = self.registered(is_controller=True)
        return [VoterEndpoint(each.listener, each.host, each.port) for each in endpoints]

    def endpoint_for(self, broker: BrokerRegistration, context: Context) -> Endpoint | None:
        """A broker's address on the listener that the client uses."""
        endpoint = broker.endpoint(context.listener)
        if endpoint is None or broker.node_id != self._node.node_id:
            return endpoint
        spec = next(spec for spec in self._specs if spec.name == context.listener)
        if spec.advertised is None and spec.host in WILDCARDS:
            return endpoint._replace(host=context.connection.local_host)
        return endpoint

    def add_leader_endpoints(self, response: Any, context: Context) -> None:
        """KIP-951: beside the new leader's id, its address."""
        leaders = {
            answer.current_leader.leader_id
            for topic in response.responses
            for answer in topic.partition_responses
            if answer.current_leader is not None
        }
        for node_id in sorted(leaders):
            broker = self._node.image.brokers.get(node_id)
            endpoint = None if broker is None else self.endpoint_for(broker, context)
            if broker is not None and endpoint is not None:
                response.node_endpoints.append(
                    type(response).NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack)
                )

    @property
    def bootstrap(self) -> str:
        """An address that works from this machine."""
        for spec, listener in self._pairs():
            if not spec.is_controller:
                host = "127.0.0.1" if spec.host in WILDCARDS else spec.host
                return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        return f"{self._specs[0].host or '127.0.0.1'}:{self._listeners[0].port}"

    def _pairs(self) -> Iterator[tuple[ListenerSpec, Listener]]:
        return zip(self._specs, self._listeners, strict=True)


def listener_config(settings: Settings, spec: ListenerSpec) -> ListenerConfig:
    held_max = settings.integer("queued.max.request.bytes")
    return ListenerConfig(
        name=spec.name,
        host=spec.host,
        port=spec.port,
        connections_max=settings.integer("max.connections"),
        connections_per_address_max=settings.integer("max.connections.per.ip"),
        idle_ms_max=settings.integer("connections.max.idle.ms"),
        frame_bytes_max=settings.integer("socket.request.max.bytes"),
        request_bytes_held_max=held_max if held_max > 0 else REQUEST_BYTES_HELD_MAX,
        backlog=(
            settings.integer("socket.listen.backlog.size") if settings.is_set("socket.listen.backlog.size") else BACKLOG
        ),
    )
