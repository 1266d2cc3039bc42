"""The simulated network: bytes in their order, links that break, requests that linger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.testing.dice import SeededDice
from moldau.testing.loop import Process, SeededLoop, run
from moldau.testing.simulation import SimulatedNetwork

PORT = 9092


class Server:
    """Reads everything and answers it in capitals."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.loop = network.loop
        self.process = Process("server")
        self.received = bytearray()
        self.is_closed = False
        self.process.run(lambda: self._listen(network.listener_of(self.process)))

    def _listen(self, listen: Callable[[Any], Any]) -> None:
        listening = listen(SimpleNamespace(port=PORT))
        self.loop.add_reader(listening.fileno(), lambda: self._accept(listening))

    def _accept(self, listening: Any) -> None:
        sock, _ = listening.accept()
        self.loop.add_reader(sock.fileno(), lambda: self._read(sock))

    def _read(self, sock: Any) -> None:
        buffer = bytearray(64)
        try:
            count = sock.recv_into(buffer)
        except ConnectionResetError:
            count = 0
        if not count:
            self.is_closed = True
            sock.close()
            return
        self.received += buffer[:count]
        rest = bytes(buffer[:count]).upper()
        while rest:
            try:
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                self.loop.add_writer(sock.fileno(), lambda: None)


class Client:
    def __init__(self, network: SimulatedNetwork) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.link = network.connect(PORT, self.received.extend, self._on_lost)

    def _on_lost(self) -> None:
        self.is_lost = True


def simulated(seed: int, scenario: Callable[[SimulatedNetwork, Server], Any]) -> None:
    async def main() -> None:
        network = SimulatedNetwork(SeededLoop.running(), SeededDice(seed))
        await scenario(network, Server(network))

    run(main(), SeededDice(seed))


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_their_order(seed: int) -> None:
    async def scenario(network: SimulatedNetwork, server: Server) -> None:
        network.stall_percent, network.stall_ms_max = 20, 500
        client = Client(network)
        for number in range(30):
            client.link.send(b"a%d " % number)
        await asyncio.sleep(60)
        assert client.received == b"".join(b"A%d " % number for number in range(30))

    simulated(seed, scenario)


def test_a_cut_link_loses_what_was_under_way_at_both_ends() -> None:
    async def scenario(network: SimulatedNetwork, server: Server) -> None:
        network.stall_percent, network.stall_ms_max = 100, 1000
        client = Client(network)
        client.link.send(b"lost")
        client.link.cut()
        await asyncio.sleep(5)
        assert (bytes(server.received), client.is_lost, server.is_closed) == (b"", True, True)

    simulated(1, scenario)


def test_a_request_that_nobody_waits_for_arrives_all_the_same() -> None:
    async def scenario(network: SimulatedNetwork, server: Server) -> None:
        network.stall_percent, network.stall_ms_max = 100, 1000
        client = Client(network)
        client.link.send(b"late")
        client.link.abandon()
        await asyncio.sleep(5)
        assert (bytes(server.received), bytes(client.received), server.is_closed) == (b"late", b"", True)

    simulated(1, scenario)


def test_the_death_of_a_process_cuts_its_links_and_closes_its_port() -> None:
    outcomes = set()
    for seed in range(20):

        async def scenario(network: SimulatedNetwork, server: Server) -> None:
            client = Client(network)
            client.link.send(b"x")
            while not server.received:
                await asyncio.sleep(0.001)
            server.process.die()
            with pytest.raises(ConnectionRefusedError):
                Client(network)
            await asyncio.sleep(1)
            assert client.is_lost
            outcomes.add(bytes(client.received))

        simulated(seed, scenario)
    # The answer had left: it may arrive or not.
    assert outcomes == {b"", b"X"}
