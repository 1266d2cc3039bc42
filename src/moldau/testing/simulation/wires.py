"""Connections that simulated nodes open by themselves: to their leader, to the controller, to the quorum.

What asyncio's `create_connection` gives, on links of the simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from moldau.testing.loop import Process, current_process
from moldau.testing.simulation.network import SimulatedNetwork


class Wires:
    """The network as the loop's programs dial into it."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network

    async def __call__(self, make_protocol: Callable[[], Any], port: int) -> tuple[Any, Any]:
        process, network = current_process(), self._network
        source = "" if process is None else process.host
        await asyncio.sleep(network.delay_ms() / 1000)
        await network.wait_open(source, port)
        transport = SimulatedTransport(network, make_protocol(), process)
        transport.link = network.connect(port, transport.on_bytes, transport.on_lost, source=source, dialer=process)
        transport.protocol.connection_made(transport)
        return transport, transport.protocol


class SimulatedTransport(asyncio.Transport):
    """The dialing end of a link."""

    def __init__(self, network: SimulatedNetwork, protocol: Any, process: Process | None) -> None:
        super().__init__()
        self._network = network
        self._process = process
        self._context = copy_context()
        self.protocol = protocol
        self.link: Any = None
        self._arrived = bytearray()
        self._is_ended = False
        self._is_closed = False
        self._is_take_due = False

    # -- the network's side --------------------------------------------------------------------------------------------

    def on_bytes(self, data: bytes) -> None:
        self._arrived += data
        self._take_soon()

    def on_lost(self) -> None:
        self._is_ended = True
        self._take_soon()

    def _take_soon(self) -> None:
        if not self._is_take_due and not self._is_closed:
            self._is_take_due = True
            self._network.loop.call_soon(self._take, context=self._context)

    def _take(self) -> None:
        self._is_take_due = False
        if self._is_closed:
            return
        arrived, protocol = self._arrived, self.protocol
        while arrived and not self._is_closed:
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(bytes(arrived))
                arrived.clear()
                break
            buffer: Any = protocol.get_buffer(len(arrived))
            count = min(len(buffer), len(arrived))
            buffer[:count] = arrived[:count]
            del arrived[:count]
            protocol.buffer_updated(count)
        if self._is_ended and not self._is_closed:
            self._is_closed = True
            protocol.connection_lost(None)

    # -- the protocol's side -------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._is_closed and not self._is_ended:
            self.link.send(bytes(data))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._process is not None and self._process.is_dead:
            return  # a dead coroutine is let go of
        if not self._is_ended:
            self.link.abandon()
        self._network.loop.call_soon(self.protocol.connection_lost, None, context=self._context)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol
