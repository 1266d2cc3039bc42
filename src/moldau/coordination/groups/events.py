"""What happens to groups: requests of clients, ends of transactions, and changes of the cluster."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from moldau.protocol.markers import Marker


class Caller(NamedTuple):
    client_id: str
    # As Kafka shows it: "/127.0.0.1".
    host: str
    version: int


class Asked(NamedTuple):
    """A request. `token` comes back with its answer; nothing else is done with it."""

    request: Any
    token: Any
    caller: Caller


class TopicsChanged(NamedTuple):
    """Topics were created, deleted, or got more partitions; `deleted` names those whose offsets mean nothing now."""

    changed: frozenset[str]
    deleted: frozenset[str]


class EndOffsets(NamedTuple):
    """A producer's transaction ends on this partition: its offsets count, or are forgotten."""

    token: Any
    producer: tuple[int, int]
    marker: Marker
    transaction_version: int


class GroupSettings(Protocol):
    """The broker's configuration, as groups need it; asked anew each time, since much of it is dynamic."""

    def integer(self, name: str) -> int: ...

    def items(self, name: str) -> list[str]: ...

    def text(self, name: str) -> str: ...

    def group_integer(self, group: str, name: str) -> int:
        """A group's own value of `consumer.session.timeout.ms` and the like, else the broker's."""
        ...
