"""The quorum of this node, put together from its configuration and its metadata log.

Voters are static (`controller.quorum.voters`), or stand in the log (kraft.version 1); without either a node is a quorum
of its own. A node that is no controller follows as an observer, which it finds through either key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from moldau.broker.endpoints import parse_endpoint
from moldau.broker.quorum_network import parse_servers, parse_voters
from moldau.broker.settings import ConfigError, Settings
from moldau.cluster import MetadataLog, MetadataLogError, voters_of
from moldau.consensus import Quorum, QuorumConfig, ReplicaKey, Voter, VoterEndpoint, Voters
from moldau.kernel import Dice, uuid_text

VOTERS_KEY, SERVERS_KEY = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
BROKER, CONTROLLER = "broker", "controller"
DEFAULT_LISTENER = "CONTROLLER"


class QuorumSettings(NamedTuple):
    """What the configuration says about the quorum and this node's part in it."""

    voters: Mapping[int, tuple[str, int]]
    servers: Mapping[int, tuple[str, int]]
    is_broker: bool
    is_controller: bool
    listener: str

    # Where our own controllers' listener is, as others may name it; None where there is none.
    own_controller_port: int | None

    @property
    def is_alone(self) -> bool:
        """Whether an empty directory becomes a quorum of this node only: nobody else is named."""
        # Port 0 is chosen at the start: whoever writes it down can only mean this node.
        own = self.own_controller_port
        others = [port for _, port in self.servers.values() if own not in (0, port)]
        return self.is_controller and not self.voters and len(self.servers) <= 1 and not others

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        return {**self.servers, **self.voters}


def read_quorum_settings(settings: Settings) -> QuorumSettings:
    voters = parse_voters(settings.items(VOTERS_KEY))
    servers = parse_servers(settings.items(SERVERS_KEY))
    roles = settings.items("process.roles")
    is_voter = settings.node_id in voters
    if not roles:
        roles = (BROKER, CONTROLLER) if is_voter or not voters else (BROKER,)
    is_controller = CONTROLLER in roles
    if voters and is_controller and not is_voter:
        raise ConfigError(f"{VOTERS_KEY} does not name node {settings.node_id}, which process.roles makes a controller")
    if voters and is_voter and not is_controller:
        raise ConfigError(f"{VOTERS_KEY} names node {settings.node_id}, which process.roles makes no controller")
    if not is_controller and not voters and not servers:
        raise ConfigError(f"a node that is only a broker needs {VOTERS_KEY} or {SERVERS_KEY} to find its controllers")
    names = settings.items("controller.listener.names")
    if is_controller and len(voters) > 1 and not names:
        raise ConfigError(
            "controller.listener.names is empty: a controller of several needs a listener for the others, e.g."
            " listeners=PLAINTEXT://:9092,CONTROLLER://:9093 and controller.listener.names=CONTROLLER"
        )
    listener = names[0].upper() if names else DEFAULT_LISTENER
    endpoints = [parse_endpoint(text, "listeners") for text in settings.items("listeners")]
    own_port = next((port for name, _, port in endpoints if name == listener), None)
    return QuorumSettings(voters, servers, BROKER in roles, is_controller, listener, own_port)


def cluster_id_of(voters: Mapping[int, tuple[str, int]]) -> str | None:
    """Nodes that are started on empty directories with the same voters belong together; None for a node alone."""
    if len(voters) < 2:
        return None
    text = ",".join(f"{node_id}@{host}:{port}" for node_id, (host, port) in sorted(voters.items()))
    digest = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    digest[0] &= 0x7F  # an id that starts with '-' trips command lines
    return uuid_text(bytes(digest))


def make_quorum(settings: Settings, known: QuorumSettings, key: ReplicaKey, log: MetadataLog, dice: Dice) -> Quorum:
    config = QuorumConfig(
        election_timeout_ms=max(settings.integer("controller.quorum.election.timeout.ms"), 1),
        election_backoff_ms_max=settings.integer("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=max(settings.integer("controller.quorum.fetch.timeout.ms"), 1),
        retry_backoff_ms=settings.integer("controller.quorum.retry.backoff.ms"),
    )
    voters = _first_voters(known, key, log)
    if log.is_vote_lost and key.node_id in voters.ids and len(voters.ids) > 1:
        # It might vote for another in an epoch in which it has voted (KIP-595, KIP-853).
        raise MetadataLogError(
            f"{log.path} has records and no quorum-state: the vote of node {key.node_id} is lost, and it must not vote"
            f" twice. Put the file back, or let the node begin anew: `moldau quorum remove {key.node_id}`, where voters"
            " are dynamic, and an empty directory"
        )
    return Quorum(
        key,
        log,
        log.read_quorum_state(),
        voters,
        config=config,
        dice=dice,
        bootstrap=tuple(known.servers),
        can_vote=known.is_controller,
    )


def _first_voters(known: QuorumSettings, key: ReplicaKey, log: MetadataLog) -> Voters:
    record = log.voters.record
    if log.voters.kraft_version > 0 and record is not None:
        voters = voters_of(record)
        # Nobody else could have another vote; the directory may have been moved.
        return Voters.of([replace(voters.all[0], key=key)]) if voters.ids == (key.node_id,) else voters
    if known.voters:
        return Voters.of(
            Voter(ReplicaKey(node_id), (VoterEndpoint(known.listener, host, port),))
            for node_id, (host, port) in known.voters.items()
        )
    return Voters.of([Voter(key)]) if known.is_alone else Voters()
