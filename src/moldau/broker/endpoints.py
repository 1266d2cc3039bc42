"""Which addresses the node listens on and which it tells clients: Kafka's `listeners` and their companions.

A wildcard bind without an advertised address tells each client the address that it reached us by (trap 39): the most
asked support question of the field answers itself. Port 0 is advertised as the port that the system gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moldau.broker.settings import ConfigError, Settings

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = range(4)
PROTOCOLS = {"PLAINTEXT": PLAINTEXT, "SSL": SSL, "SASL_PLAINTEXT": SASL_PLAINTEXT, "SASL_SSL": SASL_SSL}
WILDCARDS = ("", "0.0.0.0", "::")
# Where the quorum's own listener would be if none is configured; only written into the log, never opened.
DEFAULT_CONTROLLER_ENDPOINT = ("CONTROLLER", "localhost", 9093)
_ENDPOINT = re.compile(r"([A-Za-z0-9_-]+)://(?:\[([^\]]*)\]|([^:\[\]]*)):(-?[0-9]+)")


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """A listener as configured. `advertised` is None where nothing was said about it."""

    name: str
    host: str
    port: int
    security_protocol: int
    advertised: tuple[str, int] | None
    is_controller: bool


def parse_endpoint(text: str, key: str) -> tuple[str, str, int]:
    """NAME://host:port; an IPv6 host stands in brackets."""
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{key}: {text!r} is not of the form NAME://host:port")
    name, bracketed, plain, port = match.groups()
    number = int(port)
    if not 0 <= number <= 65535:
        raise ConfigError(f"{key}: port {number} of {text!r} is not between 0 and 65535")
    return name.upper(), bracketed if bracketed is not None else plain, number


def read_listeners(settings: Settings) -> list[ListenerSpec]:
    """Every listener of this node; ConfigError in one line when they do not fit together."""
    listeners = [parse_endpoint(text, "listeners") for text in settings.items("listeners")]
    if not listeners:
        raise ConfigError("listeners is empty: a broker needs an address to listen on, e.g. PLAINTEXT://localhost:9092")
    names = [name for name, _, _ in listeners]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"listeners: {name} is named twice")
    ports = [(host, port) for _, host, port in listeners if port]
    for host, port in ports:
        if ports.count((host, port)) > 1:
            raise ConfigError(f"listeners: port {port} is used twice")
    advertised = {
        name: (host, port)
        for name, host, port in (
            parse_endpoint(text, "advertised.listeners") for text in settings.items("advertised.listeners")
        )
    }
    for name, (host, _) in advertised.items():
        if name not in names:
            raise ConfigError(f"advertised.listeners: {name} is not one of listeners ({', '.join(names)})")
        if host in WILDCARDS:
            raise ConfigError(f"advertised.listeners: {name} must name an address that clients can reach, not {host!r}")
    controllers = {name.upper() for name in settings.items("controller.listener.names")}
    protocols = _protocol_map(filter(None, settings.text("listener.security.protocol.map").split(",")))
    if not settings.is_set("listener.security.protocol.map"):
        # Kafka's default for controllers, unless the map says otherwise (KIP-631).
        protocols |= {name: "PLAINTEXT" for name in controllers if name not in PROTOCOLS}
    specs = [
        ListenerSpec(name, host, port, _protocol(name, protocols), advertised.get(name), name in controllers)
        for name, host, port in listeners
    ]
    if all(spec.is_controller for spec in specs) and settings.items("process.roles") != ("controller",):
        raise ConfigError("listeners: every listener is a controller's; clients have nowhere to connect")
    inter_broker = settings.text("inter.broker.listener.name").upper()
    if inter_broker and inter_broker not in names:
        raise ConfigError(f"inter.broker.listener.name: {inter_broker} is not one of listeners ({', '.join(names)})")
    for spec in specs:
        if spec.security_protocol != PLAINTEXT:
            raise ConfigError(f"listener {spec.name}: only PLAINTEXT is served; TLS and SASL are not built yet")
    return specs


def controller_endpoint(specs: Sequence[ListenerSpec]) -> tuple[str, str, int]:
    """The address under which the quorum's only voter is recorded."""
    for spec in specs:
        if spec.is_controller:
            return spec.name, spec.host or "localhost", spec.port or DEFAULT_CONTROLLER_ENDPOINT[2]
    return DEFAULT_CONTROLLER_ENDPOINT


def _protocol_map(entries: Iterable[str]) -> dict[str, str]:
    protocols = {}
    for entry in entries:
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL ({', '.join(PROTOCOLS)})"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def _protocol(name: str, protocols: dict[str, str]) -> int:
    protocol = protocols.get(name, name)
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"listener {name} has no security protocol: add {name}:PLAINTEXT to listener.security.protocol.map"
        )
    return PROTOCOLS[protocol]
