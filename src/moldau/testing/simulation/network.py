"""A network in memory: listening sockets for real nodes, links from simulated clients and between nodes, and everything
that goes wrong.

A link is two streams of bytes. Pieces arrive late, in their order, whole or in part; a stream may stall for seconds; a
link may be cut, and then what was under way is lost. When a process dies its links are cut, but answers that had left
may still arrive. A client that gives up waiting may leave its request in the network, to arrive when nobody expects it
any more. Between hosts a way may be blocked, also in one direction only: what is sent stays under way, and nobody is
told, until it is open again (`wires.py` has the dialing side of nodes).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from moldau.testing.dice import SeededDice
from moldau.testing.loop import Process, SeededLoop

# From one host to another.
Way = tuple[str, str]
HOST = "127.0.0.1"
DELAY_MS_MAX = 6


class SimulatedNetwork:
    def __init__(self, loop: SeededLoop, dice: SeededDice) -> None:
        self.loop = loop
        self.dice = dice
        # Bytes under way belong to no process: they outlive their sender.
        self.context: Context = copy_context()
        self._listening: dict[int, _ListeningSocket] = {}
        # In the order of their making, so that a run can be repeated.
        self.links: dict[Link, None] = {}
        self._links_made = 0
        self.stall_percent = 0
        self.stall_ms_max = 0
        self._host_of_port: dict[int, str] = {}
        self._blocked: set[Way] = set()
        # What waits for a way to open: streams, and those who want to connect.
        self._held: dict[_Stream, None] = {}
        self._dialing: dict[asyncio.Future[None], None] = {}

    # -- ways ----------------------------------------------------------------------------------------------------------

    def block(self, *ways: Way) -> None:
        self._blocked.update(ways)

    def unblock(self, *ways: Way) -> None:
        """Without arguments: all of them."""
        if ways:
            self._blocked.difference_update(ways)
        else:
            self._blocked.clear()
        held, self._held = self._held, {}
        for stream in held:
            self.loop.call_later(self.delay_ms() / 1000, stream.go_on, context=self.context)
        dialing, self._dialing = self._dialing, {}
        for future in dialing:
            if not future.done():
                future.set_result(None)

    def is_blocked(self, way: Way) -> bool:
        return bool(self._blocked) and way in self._blocked

    def hold(self, stream: _Stream) -> None:
        self._held[stream] = None

    async def wait_open(self, source: str, port: int) -> None:
        """Until a connection to that port can be made, or be refused."""
        target = self._host_of_port.get(port, "")
        while self.is_blocked((source, target)) or self.is_blocked((target, source)):
            future: asyncio.Future[None] = self.loop.create_future()
            self._dialing[future] = None
            try:
                await future
            finally:
                self._dialing.pop(future, None)

    # -- links ---------------------------------------------------------------------------------------------------------

    def listener_of(self, process: Process) -> Callable[[Any], Any]:
        """What a node takes as `listen`; its links are cut when the process dies."""

        def listen(config: Any) -> Any:
            assert config.port not in self._listening, f"port {config.port} is taken"
            listening = self._listening[config.port] = _ListeningSocket(self, config.port, process.host)
            self._host_of_port[config.port] = process.host

            def on_death() -> None:
                if self._listening.get(config.port) is listening:
                    del self._listening[config.port]
                for link in [link for link in self.links if link.listening is listening]:
                    link.cut(keeps_answers=self.dice.chance(50))
                for link in [link for link in self.links if link.dialer is process]:
                    link.abandon()

            process.on_death.append(on_death)
            return listening

        return listen

    def connect(
        self,
        port: int,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[], None],
        *,
        source: str = "",
        dialer: Process | None = None,
    ) -> Link:
        """ConnectionRefusedError when nobody listens there."""
        listening = self._listening.get(port)
        if listening is None:
            raise ConnectionRefusedError(f"nobody listens on port {port}")
        self._links_made += 1
        link = Link(self, listening, self._links_made, on_bytes, on_lost, source, dialer)
        self.links[link] = None
        listening.arrive(link)
        return link

    def delay_ms(self) -> int:
        return max(self.dice.below(2 * DELAY_MS_MAX) - DELAY_MS_MAX, 0)

    def stop_listening(self, port: int) -> None:
        self._listening.pop(port, None)


class _Stream:
    """One direction of a link."""

    def __init__(self, network: SimulatedNetwork, on_arrival: Callable[[], None], way: Way) -> None:
        self._network = network
        self._on_arrival = on_arrival
        self.way = way
        # None is the end of the stream.
        self._under_way: deque[bytes | None] = deque()
        self._is_stalled = False
        self.arrived = bytearray()
        self.is_ended = False

    def send(self, data: bytes | None) -> None:
        network = self._network
        if network.stall_percent and network.dice.chance(network.stall_percent):
            self._is_stalled = True
            delay_ms = 1 + network.dice.below(network.stall_ms_max)
            network.loop.call_later(delay_ms / 1000, self.go_on, context=network.context)
        self._under_way.append(data)
        self._deliver_later(network.delay_ms() / 1000)

    def _deliver_later(self, delay: float) -> None:
        loop, context = self._network.loop, self._network.context
        if delay:
            loop.call_later(delay, self._deliver, context=context)
        else:
            loop.call_soon(self._deliver, context=context)

    def go_on(self) -> None:
        self._is_stalled = False
        for _ in range(len(self._under_way)):
            self._deliver_later(0)

    def _deliver(self) -> None:
        if self._under_way and not self._is_stalled:
            if self._network.is_blocked(self.way):
                self._network.hold(self)
                return
            data = self._under_way.popleft()
            if data is None:
                self.is_ended = True
            else:
                self.arrived += data
            self._on_arrival()

    def drop(self) -> None:
        self._under_way.clear()
        self.arrived.clear()


class Link:
    """A connection: the node's end is a socket, the client's end two callbacks."""

    def __init__(
        self,
        network: SimulatedNetwork,
        listening: _ListeningSocket,
        number: int,
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[], None],
        source: str,
        dialer: Process | None,
    ) -> None:
        self._network = network
        self.listening = listening
        self.number = number
        # The process that opened it, if it is one that may die.
        self.dialer = dialer
        self._on_bytes = on_bytes
        self._on_lost: Callable[[], None] | None = on_lost
        self.socket = SimulatedSocket(network, self)
        self.requests = _Stream(network, self.socket.look, (source, listening.host))
        self.answers = _Stream(network, self._on_answer_bytes, (listening.host, source))

    def send(self, data: bytes) -> None:
        self.requests.send(data)

    def _on_answer_bytes(self) -> None:
        if self._on_lost is None:
            return
        if self.answers.arrived:
            data = bytes(self.answers.arrived)
            self.answers.arrived.clear()
            self._on_bytes(data)
        if self.answers.is_ended:
            self._lose()

    def _lose(self) -> None:
        on_lost, self._on_lost = self._on_lost, None
        self._network.links.pop(self, None)
        if on_lost is not None:
            on_lost()

    def cut(self, *, keeps_answers: bool = False) -> None:
        """Both ends lose it. What was on its way to the node is lost; with `keeps_answers` the other way is not."""
        self.requests.drop()
        self.socket.reset()
        self._network.links.pop(self, None)
        if keeps_answers or self._network.is_blocked(self.answers.way):
            self.answers.send(None)
        else:
            self.answers.drop()
            self._lose()

    def abandon(self) -> None:
        """The client gives up; its request goes on through the network, the end of the stream behind it."""
        self._on_lost = None
        self._network.links.pop(self, None)
        self.requests.send(None)

    def end_answers(self) -> None:
        """The node closed its end."""
        self.answers.send(None)


class SimulatedSocket:
    """A node's end of a link, with as much of a non-blocking socket as a connection uses."""

    def __init__(self, network: SimulatedNetwork, link: Link) -> None:
        self._network = network
        self._link = link
        self._descriptor = network.loop.attach(self)
        self._reader: tuple[Callable[[], None], Context] | None = None
        self._is_look_due = False
        self._is_reset = False
        self._is_full = False

    def fileno(self) -> int:
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *option: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return HOST, self._link.listening.port

    def recv_into(self, buffer: Any, count: int = 0) -> int:
        if self._is_reset:
            raise ConnectionResetError
        requests = self._link.requests
        if not requests.arrived:
            if requests.is_ended:
                return 0
            raise BlockingIOError
        size = min(count or len(buffer), len(requests.arrived))
        if self._network.dice.chance(3):
            size = 1 + self._network.dice.below(size)
        buffer[:size] = requests.arrived[:size]
        del requests.arrived[:size]
        return size

    def send(self, data: Any) -> int:
        if self._is_reset:
            raise ConnectionResetError
        if self._is_full:
            raise BlockingIOError
        size = len(data)
        if self._network.dice.chance(3):
            # Half of it, and then no room until the client has taken that.
            size = 1 + self._network.dice.below(size)
            self._is_full = True
        self._link.answers.send(bytes(data[:size]))
        return size

    def close(self) -> None:
        self._reader = None
        if not self._is_reset:
            self._is_reset = True
            self._link.end_answers()

    def reset(self) -> None:
        self._is_reset = True
        self.look()

    # -- the loop's side -----------------------------------------------------------------------------------------------

    def watch_reads(self, callback: Callable[[], None] | None) -> None:
        self._reader = None if callback is None else (callback, copy_context())
        self.look()

    def watch_writes(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._is_full = False
            self._network.loop.call_later(0.001 + self._network.delay_ms() / 1000, callback)

    def look(self) -> None:
        """Call the reader if there is something to read, again and again until there is not."""
        requests = self._link.requests
        is_readable = requests.arrived or requests.is_ended or self._is_reset
        if self._reader is not None and is_readable and not self._is_look_due:
            self._is_look_due = True
            self._network.loop.call_soon(self._read, context=self._reader[1])

    def _read(self) -> None:
        self._is_look_due = False
        if self._reader is not None:
            self._reader[0]()
            self.look()


class _ListeningSocket:
    def __init__(self, network: SimulatedNetwork, port: int, host: str) -> None:
        self._network = network
        self.port = port
        self.host = host
        self._descriptor = network.loop.attach(self)
        self._reader: tuple[Callable[[], None], Context] | None = None
        self._waiting: deque[Link] = deque()

    def fileno(self) -> int:
        return self._descriptor

    def getsockname(self) -> tuple[str, int]:
        return HOST, self.port

    def arrive(self, link: Link) -> None:
        self._waiting.append(link)
        self._look()

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError
        link = self._waiting.popleft()
        return link.socket, (HOST, 40_000 + link.number)

    def close(self) -> None:
        self._reader = None
        self._network.stop_listening(self.port)
        for link in self._waiting:
            link.cut()

    def watch_reads(self, callback: Callable[[], None] | None) -> None:
        self._reader = None if callback is None else (callback, copy_context())
        self._look()

    def watch_writes(self, callback: Callable[[], None] | None) -> None:
        raise AssertionError("nobody writes to a listening socket")

    def _look(self) -> None:
        if self._reader is not None and self._waiting:
            self._network.loop.call_soon(self._reader[0], context=self._reader[1])
