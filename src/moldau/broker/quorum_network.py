"""How this node speaks to the other members of the quorum: one connection to each, answers handed to the machine.

The `addresses` know where everybody is: voters from the configuration or from the log, others from what answers said.
A connection that breaks, or an address where nobody listens, is told to the machine as a hint; silence is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.broker.settings import Settings
from moldau.consensus import (
    AgreedRecordsLostError,
    BeginEpochRequest,
    Effect,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    Quorum,
    Request,
    SnapshotAnswer,
    SnapshotRequest,
    VoteAnswer,
    VoterEndpoint,
    VoteRequest,
)
from moldau.kernel import Clock, KafkaError

if TYPE_CHECKING:
    from moldau.client import Connection

FETCH_WAIT_MS = 500
# The first of the ids under which addresses are known whose nodes are not.
BOOTSTRAP_ID_MAX = -2


class Addresses:
    """Where the members of the quorum listen."""

    def __init__(self, configured: dict[int, tuple[str, int]]) -> None:
        self._configured = configured
        self._heard: dict[int, tuple[str, int]] = {}
        # This node's own, as its listeners have it now.
        self.own: dict[int, tuple[str, int]] = {}
        self.quorum: Quorum | None = None

    def find(self, node_id: int) -> tuple[str, int] | None:
        """What the log says of a voter, before what was heard or configured."""
        if node_id in self.own:
            return self.own[node_id]
        voter = None if self.quorum is None else self.quorum.voters.find(node_id)
        if voter is not None and voter.endpoints and node_id not in self._configured:
            return voter.endpoints[0].host, voter.endpoints[0].port
        return self._configured.get(node_id) or self._heard.get(node_id)

    def note(self, node_id: int, host: str, port: int) -> None:
        if port > 0:
            self._heard[node_id] = (host, port)


class QuorumNetwork:
    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        addresses: Addresses,
        settings: Settings,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        own_endpoints: Callable[[], list[VoterEndpoint]],
        say: Callable[[str], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._client_id = f"raft-client-{node_id}"
        self._addresses = addresses
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._own_endpoints = own_endpoints
        self._say = say
        self._connections: dict[tuple[int, bool], Connection] = {}
        # In the order of their making, as everything that a simulated run goes through.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refused: set[tuple[int, str]] = set()
        self.quorum: Quorum | None = None
        self.step: Callable[[list[Effect]], None] = _not_started
        self.on_fault: Callable[[BaseException], None] = _not_started
        self._is_closed = False

    def send(self, to: int, request: Request) -> None:
        if not self._is_closed:
            is_urgent = not isinstance(request, FetchRequest | SnapshotRequest)
            task = self._loop.create_task(self._ask(to, request), name="urgent" if is_urgent else "fetch")
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _ask(self, to: int, request: Request) -> None:
        # A node alone never sends anything: it need not know how.
        from moldau.broker.quorum_messages import FetchLimits, request_message

        assert self.quorum is not None
        # Fetches wait at the leader; what is urgent must not stand behind them.
        is_fetch = isinstance(request, FetchRequest | SnapshotRequest)
        limits = FetchLimits(
            FETCH_WAIT_MS,
            self._settings.integer(
                "controller.quorum.fetch.snapshot.max.bytes"
                if isinstance(request, SnapshotRequest)
                else "controller.quorum.fetch.max.bytes"
            ),
        )
        try:
            connection = await self._connect(to, is_fetch)
            message = request_message(request, to, self._cluster_id, self._own_endpoints(), limits)
            response = await connection.request(message)
        except (OSError, KafkaError) as error:
            from moldau.client import RequestTimedOut

            self._connections.pop((to, is_fetch), None)
            if not self._is_closed:
                is_unreachable = isinstance(error, OSError) and not isinstance(error, RequestTimedOut)
                self._fail(to, request, is_unreachable=is_unreachable)
            return
        if not self._is_closed:
            try:
                self._take(to, request, response)
            except KafkaError as error:
                self._say(f"quorum_stopped reason={error.message!r}")
            except AgreedRecordsLostError as error:
                self.on_fault(error)

    def _fail(self, to: int, request: Request, *, is_unreachable: bool) -> None:
        assert self.quorum is not None
        now_ms = self._clock.monotonic_ms()
        self.step(self.quorum.on_failed(to, request, now_ms, is_unreachable=is_unreachable))

    async def _connect(self, to: int, is_fetch: bool) -> Connection:
        from moldau.client import Connection, ConnectionFailed

        connection = self._connections.get((to, is_fetch))
        if connection is not None and not connection.closed:
            return connection
        address = self._addresses.find(to)
        if address is None:
            raise ConnectionFailed("?", 0, f"the address of node {to} is not known", "it will be heard of")
        timeout_ms = self._settings.integer("controller.quorum.request.timeout.ms")
        connection = await Connection.connect(
            *address, client_id=self._client_id, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
        )
        self._connections[to, is_fetch] = connection
        return connection

    def _take(self, to: int, request: Request, response: Any) -> None:
        from moldau.broker.quorum_messages import heard

        quorum, now_ms = self.quorum, self._clock.monotonic_ms()
        assert quorum is not None
        answer, addresses = heard(response)
        for node_id, address in addresses.items():
            self._addresses.note(node_id, *address)
        if answer.epoch < 0:
            # Refused as a whole: another cluster's, say.
            if (to, answer.error.name) not in self._refused:
                self._refused.add((to, answer.error.name))
                self._say(f"quorum_request_refused by={to} request={type(request).__name__} error={answer.error.name}")
            self._clock.call_later(100, lambda: self._fail(to, request, is_unreachable=False))
            return
        match request:
            case VoteRequest():
                assert isinstance(answer, VoteAnswer)
                effects = quorum.on_vote_answer(to, request, answer, now_ms)
            case FetchRequest():
                assert isinstance(answer, FetchAnswer)
                effects = quorum.on_fetch_answer(to, request, answer, now_ms)
            case SnapshotRequest():
                assert isinstance(answer, SnapshotAnswer)
                effects = quorum.on_snapshot_answer(to, request, answer, now_ms)
            case BeginEpochRequest() | EndEpochRequest():
                effects = quorum.on_epoch_answer(to, request, answer, now_ms)
        self.step(effects)

    async def drain(self, seconds_max: float = 0.5) -> None:
        """Until the others have what was sent, fetches aside."""
        urgent = [task for task in self._tasks if task.get_name() == "urgent"]
        if urgent:
            await asyncio.wait(urgent, timeout=seconds_max)

    def close(self) -> None:
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        for task in list(self._tasks):
            task.cancel()


def _not_started(_what: object) -> None:
    raise AssertionError("the quorum was not started")


def parse_voters(items: tuple[str, ...]) -> dict[int, tuple[str, int]]:
    """`controller.quorum.voters`: id@host:port."""
    voters = {}
    for item in items:
        node_id, _, address = item.partition("@")
        host, _, port = address.rpartition(":")
        voters[int(node_id)] = (host.strip("[]"), int(port))
    return voters


def parse_servers(items: tuple[str, ...]) -> dict[int, tuple[str, int]]:
    """`controller.quorum.bootstrap.servers`: host:port, under ids below -1."""
    servers = {}
    for index, item in enumerate(items):
        host, _, port = item.rpartition(":")
        servers[BOOTSTRAP_ID_MAX - index] = (host.strip("[]"), int(port))
    return servers
