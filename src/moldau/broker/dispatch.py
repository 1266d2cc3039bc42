"""From a frame to a handler and back to bytes: headers, versions, encoding. One place for every API key."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from moldau.broker.api_table import REFUSED, SERVED, Served
from moldau.broker.config_forwarding import forward_configs
from moldau.broker.connection import Connection, FrameError, Part, drive
from moldau.broker.plain_commit import PLAIN_COMMIT_VERSION_MAX, PLAIN_COMMIT_VERSION_MIN, answer_plain_commit
from moldau.broker.refusals import refuse_request
from moldau.broker.single_batch import (
    FAST_PRODUCE_VERSION_MAX,
    FAST_PRODUCE_VERSION_MIN,
    LEADER_HINTS_VERSION_MIN,
    answer_single_batch,
)
from moldau.kernel import KafkaError
from moldau.protocol.headers import decode_request_header
from moldau.protocol.message import Message
from moldau.protocol.messages.produce import ProduceResponse
from moldau.protocol.messages.registry import API_MESSAGES, request_class
from moldau.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from moldau.broker.node import Node

PRODUCE, OFFSET_COMMIT, API_VERSIONS = 0, 8, 18
ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 33, 44
OWN_SOFTWARE = "moldau"
_PREFIX_AND_CORRELATION = struct.Struct(">ii")


class Context:
    """What a handler may know besides its request."""

    __slots__ = ("client_id", "connection", "dispatcher", "node", "version")

    def __init__(
        self, node: Node, connection: Connection, dispatcher: Dispatcher, version: int, client_id: str | None
    ) -> None:
        self.node = node
        self.connection = connection
        self.dispatcher = dispatcher
        self.version = version
        self.client_id = client_id

    @property
    def listener(self) -> str:
        return self.dispatcher.listener

    @property
    def is_own_client(self) -> bool:
        """Whether the client said that it is ours: it understands a little more than Kafka's protocol has."""
        session = self.connection.session
        return session is not None and session[0] == OWN_SOFTWARE


Handler = Callable[[Any, Context], Coroutine[Any, None, Any]]


class NoAnswer:
    """Returned by a handler whose request is not to be answered (acks 0)."""


class RawAnswer:
    """Returned by a handler that encoded its body itself, as parts, because it holds slices of files."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class Route:
    """A served key with its classes loaded."""

    __slots__ = ("flexible_from", "handle", "key", "request", "requests_count", "version_max", "version_min")

    def __init__(self, served: Served) -> None:
        module = import_module(f"moldau.broker.handlers.{served.handler}")
        self.key = served.key
        self.handle: Handler = module.handle
        self.request: type[Message] = request_class(served.key)
        self.version_min = served.version_min
        self.version_max = served.version_max
        self.flexible_from = API_MESSAGES[served.key].flexible_from
        self.requests_count = 0


class Dispatcher:
    """Routes of one listener. A controller's listener serves the keys that Kafka has there, a broker's the others."""

    def __init__(self, node: Node, listener: str, *, is_controller: bool) -> None:
        self.node = node
        self.listener = listener
        self.is_controller = is_controller
        self.is_for_clients = not is_controller
        role = "controller" if is_controller else "broker"
        self.served = {key: served for key, served in SERVED.items() if role in API_MESSAGES[key].listeners}
        self._routes: dict[int, Route] = {}
        self.fast_produce_count = 0
        self.plain_commit_count = 0

    def dispatch(self, connection: Connection, frame: memoryview) -> Sequence[Part] | Any | None:
        """Start the handler of one request; parts of the answer, a parked handler, or None when none is owed."""
        try:
            key, version, correlation_id, client_id, position = decode_request_header(frame)
        except ProtocolError as error:
            raise FrameError(str(error)) from None
        if key == PRODUCE and FAST_PRODUCE_VERSION_MIN <= version <= FAST_PRODUCE_VERSION_MAX and self.is_for_clients:
            # One batch, nothing unusual: the way of nearly every request of a busy broker.
            answer = answer_single_batch(self, connection, frame, position, version, correlation_id)
            if answer is not None:
                self.fast_produce_count += 1
                return answer
        route = self._routes.get(key) or self._load(key)
        if key == OFFSET_COMMIT and PLAIN_COMMIT_VERSION_MIN <= version <= PLAIN_COMMIT_VERSION_MAX:
            reply = answer_plain_commit(self.node, connection, frame, position, version, correlation_id, client_id)
            if reply is not None:
                route.requests_count += 1
                self.plain_commit_count += 1
                return reply
        if not route.version_min <= version <= route.version_max:
            if key != API_VERSIONS:
                raise FrameError(
                    f"{API_MESSAGES[key].name} version {version} is not served"
                    f" ({route.version_min} to {route.version_max} are)"
                )
            # Trap 1: the body is not read; the answer is version 0 and names what we can.
            request: Any = None
            version = 0
            context = Context(self.node, connection, self, -1, client_id)
        else:
            try:
                request = route.request.decode(frame[position:], version)
            except ProtocolError as error:
                raise FrameError(f"{API_MESSAGES[key].name} version {version} does not parse: {error}") from None
            context = Context(self.node, connection, self, version, client_id)
        route.requests_count += 1
        # Trap 2: the header of an ApiVersions answer never became flexible.
        flexible = version >= route.flexible_from and key != API_VERSIONS

        def finish(response: Any) -> Sequence[Part] | None:
            return encode_answer(response, version, correlation_id, flexible)

        return drive(connection, _handle(route, request, context), finish)

    def encode_refused_batch(
        self, connection: Connection, response: ProduceResponse, version: int, correlation_id: int
    ) -> Sequence[Part]:
        """What becomes of a produce request whose batch was accepted, and then not committed in time."""
        self.node.metrics.failed_produce_requests += 1
        if version >= LEADER_HINTS_VERSION_MIN:
            self.node.listeners.add_leader_endpoints(response, Context(self.node, connection, self, version, None))
        parts = encode_answer(response, version, correlation_id, flexible=True)
        assert parts is not None
        return parts

    def route(self, key: int) -> Route:
        return self._routes.get(key) or self._load(key)

    def _load(self, key: int) -> Route:
        served = self.served.get(key)
        if served is None:
            if key in SERVED:
                raise FrameError(f"{API_MESSAGES[key].name} is not served on listener {self.listener}")
            if key in REFUSED:
                raise FrameError(f"{API_MESSAGES[key].name} is not served: {REFUSED[key].reason}")
            raise FrameError(f"api key {key} does not exist")
        route = self._routes[key] = Route(served)
        return route

    @property
    def request_counts(self) -> dict[int, int]:
        counts = {key: route.requests_count for key, route in self._routes.items()}
        counts[PRODUCE] = counts.get(PRODUCE, 0) + self.fast_produce_count
        return counts


# Only the active controller decides these; other brokers hand them on.
FORWARDED = frozenset((19, 20, 33, 37, 43, 44, 45, 46, 55, 57, 64, 80, 81))


async def _handle(route: Route, request: Any, context: Context) -> Any:
    node = context.node
    try:
        if route.key in FORWARDED and context.dispatcher.is_for_clients and not node.controller.is_active:
            if route.key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
                return await forward_configs(node, request, context.version)
            return await node.channel.forward(request, context.version)
        return await route.handle(request, context)
    except KafkaError as refusal:
        # Raised from below and not answered item by item: the whole request is refused.
        response = refuse_request(route.key, request, refusal)
        if response is None:
            raise
        return response


async def answer_inner(frame: bytes, context: Context) -> bytes:
    """The answer, header included, to a request that came inside of another one."""
    key, version, correlation_id, client_id, position = decode_request_header(memoryview(frame))
    route = context.dispatcher.route(key)
    if not route.version_min <= version <= route.version_max:
        raise ProtocolError(f"{API_MESSAGES[key].name} version {version} is not served")
    request = route.request.decode(memoryview(frame)[position:], version)
    route.requests_count += 1
    inner = Context(context.node, context.connection, context.dispatcher, version, client_id)
    parts = encode_answer(await _handle(route, request, inner), version, correlation_id, version >= route.flexible_from)
    assert parts is not None
    whole = b"".join(part for part in parts if isinstance(part, bytes | bytearray))
    return whole[4:]


def encode_answer(response: Any, version: int, correlation_id: int, flexible: bool) -> Sequence[Part] | None:
    if response is NoAnswer:
        return None
    out = bytearray(9 if flexible else 8)
    if isinstance(response, RawAnswer):
        size = sum(part.size if not isinstance(part, (bytes, bytearray)) else len(part) for part in response.parts)
        _PREFIX_AND_CORRELATION.pack_into(out, 0, len(out) - 4 + size, correlation_id)
        first = response.parts[0]
        assert isinstance(first, (bytes, bytearray))
        out += first
        return [out, *response.parts[1:]]
    response.encode_into(out, version)
    _PREFIX_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return (out,)
