"""`host:port` lists as users write them."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.client.errors import SettingsError

PORT_MAX = 65535

Address = tuple[str, int]


def parse_bootstrap(servers: str | Sequence[str]) -> list[Address]:
    """Parse `host:port,host:port`, or the same as a list; IPv6 addresses stand in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [parse_address(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise SettingsError("bootstrap.servers is empty: give at least one host:port")
    return addresses


def parse_address(text: str) -> Address:
    # A listener's URL is a common paste; its scheme says nothing that we need.
    rest = text.partition("://")[2] if "://" in text else text
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not tail.startswith(":"):
            raise SettingsError(f"{text!r} is not an address: write an IPv6 address as [host]:port")
        port_text = tail[1:]
    else:
        host, colon, port_text = rest.rpartition(":")
        if not colon:
            raise SettingsError(f"{text!r} is not an address: the port is missing, write {rest or 'host'}:9092")
        if ":" in host:
            raise SettingsError(f"{text!r} is not an address: write an IPv6 address as [{rest}]:9092")
    if not host:
        raise SettingsError(f"{text!r} is not an address: the host is missing")
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) <= PORT_MAX:
        raise SettingsError(f"{text!r} is not an address: {port_text!r} is no port between 1 and {PORT_MAX}")
    return host, int(port_text)
