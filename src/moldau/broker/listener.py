"""A listening socket and its connections: who may connect, for how long, with how much memory.

Limits, each with its Kafka key: `max.connections`, `max.connections.per.ip`, `connections.max.idle.ms`,
`socket.request.max.bytes`, `queued.max.request.bytes`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.broker.connection import READ_BYTES, Connection, Part

# Kafka's default of 50 drops connections in a storm; the kernel's own limit (somaxconn) still applies.
BACKLOG = 4096
ACCEPTS_PER_TURN_MAX = 256
IDLE_SWEEPS_PER_TIMEOUT = 10
ACCEPT_PAUSE_SECONDS = 1.0
# Who holds memory that others wait for must go on with its frame within this time.
FINISHING_SECONDS_MAX = 5.0
# Buffers of finished large frames that are kept for the next ones.
POOLED_BYTES_MAX = 8 << 20
POOLED_BUFFER_BYTES_MIN = 64 << 10
# Bytes of unfinished frames that all connections together may hold when `queued.max.request.bytes` is not set.
REQUEST_BYTES_HELD_MAX = 256 << 20

Dispatch = Callable[[Connection, memoryview], "Sequence[Part] | Any | None"]


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """`listeners` and the limits of its connections."""

    name: str
    host: str
    port: int
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    idle_ms_max: int = 600_000
    frame_bytes_max: int = 100 << 20
    request_bytes_held_max: int = REQUEST_BYTES_HELD_MAX
    backlog: int = BACKLOG


# Where sockets come from: the machine, or a simulated network.
Listen = Callable[[ListenerConfig], socket.socket]


class Listener:
    def __init__(
        self,
        config: ListenerConfig,
        dispatch: Dispatch,
        *,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        report_bug: Callable[[Connection, BaseException], None],
        listen: Listen,
    ) -> None:
        self.config = config
        self.name = config.name
        self.dispatch = dispatch
        self.loop = loop
        self.say = say
        self._report_bug = report_bug
        self.frame_bytes_max = config.frame_bytes_max
        self.read_buffer = bytearray(READ_BYTES)
        self.read_view = memoryview(self.read_buffer)
        # In the order of their coming: a simulated run can be repeated.
        self.connections: dict[Connection, None] = {}
        self.paused: set[Connection] = set()
        self.accepted_count = 0
        self._per_address: Counter[str] = Counter()
        self._bytes_held = 0
        self._bytes_held_max = config.request_bytes_held_max
        self._finishing: Connection | None = None
        self._finisher: asyncio.TimerHandle | None = None
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._pauser: asyncio.TimerHandle | None = None
        self.is_started = False
        self._socket = listen(config)
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        self.is_started = True
        self.loop.add_reader(self._socket.fileno(), self._accept)
        self._sweep_idle()

    def stop_accepting(self) -> None:
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for timer in (self._sweeper, self._pauser, self._finisher):
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()

    def report_bug(self, connection: Connection, error: BaseException) -> None:
        """A handler failed in a way that no protocol error names: our side gets the traceback, the client a close."""
        self._report_bug(connection, error)
        connection.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the ones that are open go on
                self.say(f"accept_failed listener={self.name} reason={str(error)!r}")
                # The socket stays readable: without a pause the loop would spin.
                self.loop.remove_reader(self._socket.fileno())
                self._pauser = self.loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            self._admit(accepted, address[0], address[1])

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self.loop.add_reader(self._socket.fileno(), self._accept)

    def _admit(self, accepted: socket.socket, host: str, port: int) -> None:
        config = self.config
        if len(self.connections) >= config.connections_max:
            self._turn_away(accepted, host, f"max.connections is {config.connections_max}")
            return
        if self._per_address[host] >= config.connections_per_address_max:
            self._turn_away(accepted, host, f"max.connections.per.ip is {config.connections_per_address_max}")
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, accepted, f"{host}:{port}")
        self.connections[connection] = None
        self._per_address[host] += 1
        self.accepted_count += 1
        self.loop.add_reader(connection.fd, connection.on_readable)

    def _turn_away(self, accepted: socket.socket, host: str, reason: str) -> None:
        self.say(f"connection_refused peer={host} reason={reason!r}")
        accepted.close()

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.paused.discard(connection)
        self.finish_frame(connection)
        host = connection.peer.rpartition(":")[0]
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]

    def _sweep_idle(self) -> None:
        """Close connections that neither asked nor took anything for too long."""
        timeout = self.config.idle_ms_max / 1000
        if timeout <= 0:
            return
        for connection in list(self.connections):
            if connection.is_paused_for_memory:
                continue  # silent because we do not read it
            connection.idle_sweeps += 1
            if connection.idle_sweeps > IDLE_SWEEPS_PER_TIMEOUT and not connection.waits_for_us:
                connection.close()
        self._sweeper = self.loop.call_later(timeout / IDLE_SWEEPS_PER_TIMEOUT, self._sweep_idle)

    # -- memory for unfinished frames ----------------------------------------------------------------------------------

    @property
    def is_over_memory(self) -> bool:
        return self._bytes_held > self._bytes_held_max

    def may_finish(self, connection: Connection) -> bool:
        """Over the cap one connection at a time may go on with its frame, so that some frame is finished."""
        if self._finishing is None:
            self._finishing = connection
            self._finisher = self.loop.call_later(FINISHING_SECONDS_MAX, self._give_up_on, connection)
        return self._finishing is connection

    def _give_up_on(self, connection: Connection) -> None:
        if self._finishing is connection:
            connection.refuse("half a frame, then silence, while others wait for its memory")

    def finish_frame(self, connection: Connection) -> None:
        if self._finishing is connection:
            self._finishing = None
            if self._finisher is not None:
                self._finisher.cancel()
            self.loop.call_soon(self._resume_paused)

    def borrow(self, capacity: int) -> bytearray:
        """A buffer of at least `capacity` bytes; large ones come back to a small pool."""
        if capacity >= POOLED_BUFFER_BYTES_MIN:
            capacity = 1 << (capacity - 1).bit_length()
            pooled = self._pool.get(capacity)
            if pooled:
                self._pooled_bytes -= capacity
                self._bytes_held += capacity
                return pooled.pop()
        self._bytes_held += capacity
        return bytearray(capacity)

    def release(self, buffer: bytearray) -> None:
        """Give a buffer back; nothing may look into it any more."""
        size = len(buffer)
        was_over = self.is_over_memory
        self._bytes_held -= size
        if size >= POOLED_BUFFER_BYTES_MIN and self._pooled_bytes + size <= POOLED_BYTES_MAX:
            self._pool.setdefault(size, []).append(buffer)
            self._pooled_bytes += size
        if was_over and not self.is_over_memory:
            self.loop.call_soon(self._resume_paused)

    def _resume_paused(self) -> None:
        """Let them try again; who still may not read pauses at its next turn."""
        for connection in list(self.paused):
            connection.resume()


def listen_on_host(config: ListenerConfig) -> socket.socket:
    """A socket of this machine."""
    host = config.host or None
    infos = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # An empty host means every address: prefer the IPv6 wildcard, which takes IPv4 too.
    infos.sort(key=lambda info: info[0] != (socket.AF_INET6 if host is None or ":" in host else socket.AF_INET))
    problem: OSError | None = None
    for family, kind, protocol, _, address in infos:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            problem = error
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host in (None, "::") else 1)
            sock.bind(address)
            sock.listen(config.backlog)
            sock.setblocking(False)
            return sock
        except OSError as error:
            sock.close()
            problem = error
    assert problem is not None
    raise problem
