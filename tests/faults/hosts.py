"""Hosts with addresses of their own on one machine: network namespaces on a bridge, and cuts between any two of them.

A cut makes one host send its frames for another to a hardware address that nobody has: they vanish in silence, as they
do when a switch fails, and in that direction only. A cut of one port is a route into nothing, at both ends. Needs root
and iproute2; nothing leaves the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

NETWORK = "10.231.77"
NOBODY = "02:00:00:00:ff:fe"
CLIENT = 200  # the number of the host on which clients run


def why_not() -> str | None:
    """What stands in the way of namespaces here, if anything."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip on PATH: install iproute2"
    name = f"moldau-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces are not permitted here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


def address_of(host: int) -> str:
    return f"{NETWORK}.{host}"


class Hosts:
    """One for each number, and one for clients; all are gone at the end."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = (*numbers, CLIENT)
        self._unique = f"moldau{os.getpid()}"
        self._cuts: set[tuple[int, int]] = set()
        # (host, words of a rule that takes what it sends)
        self._rules: list[tuple[int, tuple[str, ...]]] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def prefix(self, host: int) -> tuple[str, ...]:
        """What makes a command run on a host."""
        return ("ip", "netns", "exec", self._name(host))

    @property
    def path_of_clients(self) -> str:
        return f"/run/netns/{self._name(CLIENT)}"

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def cut_one_way(self, source: int, target: int) -> None:
        """What `source` sends never arrives at `target`."""
        self._on(
            source, "neighbour", "replace", address_of(target), "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"
        )
        self._cuts.add((source, target))

    def cut(self, one: int, other: int) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_port(self, one: int, other: int, port: int) -> None:
        """Whichever of the two has it: what they say on other ports arrives."""
        for source, target in ((one, other), (other, one)):
            for side in ("sport", "dport"):
                rule = ("to", address_of(target), "ipproto", "tcp", side, str(port), "blackhole")
                self._on(source, "rule", "add", *rule)
                self._rules.append((source, rule))

    def isolate(self, host: int) -> None:
        for other in self.numbers:
            if other != host:
                self.cut(host, other)

    def heal(self) -> None:
        for source, target in sorted(self._cuts):
            self._on(source, "neighbour", "delete", address_of(target), "dev", "eth0")
        self._cuts.clear()
        for source, rule in self._rules:
            self._on(source, "rule", "delete", *rule)
        self._rules.clear()

    # -- building ------------------------------------------------------------------------------------------------------

    def _name(self, host: int | str) -> str:
        return f"{self._unique}-{host}"

    def _on(self, host: int | str, *command: str) -> None:
        subprocess.run(["ip", "-netns", self._name(host), *command], check=True, capture_output=True)

    def _make(self) -> None:
        for host in ("switch", *self.numbers):
            subprocess.run(["ip", "netns", "add", self._name(host)], check=True, capture_output=True)
            self._on(host, "link", "set", "lo", "up")
        self._on("switch", "link", "add", "br0", "type", "bridge")
        self._on("switch", "link", "set", "br0", "up")
        for host in self.numbers:
            peer = ("peer", "name", "eth0", "netns", self._name(host))
            self._on("switch", "link", "add", f"port{host}", "type", "veth", *peer)
            self._on("switch", "link", "set", f"port{host}", "master", "br0", "up")
            self._on(host, "address", "add", f"{address_of(host)}/24", "dev", "eth0")
            self._on(host, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for host in ("switch", *self.numbers):
            subprocess.run(["ip", "netns", "delete", self._name(host)], check=False, capture_output=True)
