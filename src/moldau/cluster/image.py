"""The cluster's metadata at one offset of the metadata log: immutable, shared freely, replaced as a whole.

Nothing here decides; `delta.py` makes the next image out of records, the controller's decisions are made of images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from moldau.kernel import NO_LEADER


class ConfigKind:
    """Resource types of configurations, by their protocol numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    kind: int
    name: str


class Endpoint(NamedTuple):
    """One advertised address of a node."""

    listener: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    node_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_directories: tuple[bytes, ...]
    cordoned_log_directories: tuple[bytes, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    node_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]


class PartitionImage(NamedTuple):
    """A partition's assignment and leadership (a tuple: a cluster holds many thousands)."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    id: bytes
    partitions: tuple[PartitionImage, ...]


EMPTY: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return EMPTY


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything that the metadata log says, up to and including `offset`."""

    offset: int = -1
    epoch: int = 0
    features: Mapping[str, int] = field(default_factory=_nothing)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=_nothing)
    controllers: Mapping[int, ControllerRegistration] = field(default_factory=_nothing)
    topics: Mapping[str, TopicImage] = field(default_factory=_nothing)
    topic_names: Mapping[bytes, str] = field(default_factory=_nothing)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=_nothing)
    next_producer_id: int = 0
    # Records that are kept but not acted on (ACLs, SCRAM users, quotas, tokens, kinds of a newer Kafka), by identity.
    kept: Mapping[tuple[Any, ...], Any] = field(default_factory=_nothing)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def config(self, kind: int, name: str) -> Mapping[str, str]:
        return self.configs.get(ConfigResource(kind, name), EMPTY)

    @property
    def alive_brokers(self) -> list[BrokerRegistration]:
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]
