"""Running a command's work on a cluster: the client from the shared options, one event loop, and an orderly end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.cli.errors import usage
from moldau.cli.options import parse_pairs

if TYPE_CHECKING:
    from moldau.client import ClusterClient, TopicInfo

T = TypeVar("T")

_INTEGERS = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_max_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
}
CLIENT_PROPERTIES = frozenset({"bootstrap.servers", "client.id", *_INTEGERS})


def on_cluster(bootstrap: str, properties: list[str] | None, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Run `work` with a client of the cluster."""
    return on_cluster_with(bootstrap, parse_pairs(properties, "-X"), work)


def on_cluster_with(bootstrap: str, properties: Mapping[str, str], work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    import asyncio
    import logging

    from moldau.client import ClusterClient

    # Commands say themselves what went wrong, once.
    logging.getLogger("moldau").addHandler(logging.NullHandler())
    options = client_options(properties)
    servers = properties.get("bootstrap.servers", bootstrap)

    async def run() -> T:
        async with ClusterClient(servers, **options) as client:
            return await work(client)

    return asyncio.run(run())


def client_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Kafka's names to the client's arguments; a name that does not exist is a usage error with the nearest one."""
    options: dict[str, Any] = {}
    for name, text in properties.items():
        if name == "bootstrap.servers":
            continue
        if name == "client.id":
            options["client_id"] = text
            continue
        argument = _INTEGERS.get(name)
        if argument is None:
            raise usage(unknown_property(name, CLIENT_PROPERTIES))
        options[argument] = whole_number(f"-X {name}", text)
    return options


def unknown_property(name: str, known: frozenset[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name.replace("_", ".").lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"this command takes {', '.join(sorted(known))}"
    return f"-X {name}: no such property here; {hint}"


def whole_number(option: str, text: str, low: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise usage(f"{option}={text}: give a whole number") from None
    if number < low:
        raise usage(f"{option}={text}: give at least {low}")
    return number


async def find_topic(client: ClusterClient, name: str) -> TopicInfo:
    """A topic that exists; one that was created a moment ago is waited for."""
    return await client.retry(lambda: client.topic(name))
