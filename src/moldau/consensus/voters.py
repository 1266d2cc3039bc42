"""Who votes: replicas by id and directory, sets of voters, and the arithmetic of majorities. Values only.

A voter set is static (`controller.quorum.voters`, kraft.version 0: directories are unknown) or written in the log
(kraft.version 1), where the latest set is in force as soon as it is appended, committed or not (KIP-853).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

NO_DIRECTORY = bytes(16)


class ReplicaKey(NamedTuple):
    """A node and the directory of its metadata log: a node that lost its disk is another replica."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY


class VoterEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1


@dataclass(frozen=True, slots=True)
class Voters:
    """In the order of their ids."""

    all: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> Voters:
        return cls(tuple(sorted(voters, key=lambda voter: voter.key.node_id)))

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.key.node_id for voter in self.all)

    def find(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.all if voter.key.node_id == node_id), None)

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica votes. A directory that nobody wrote down is any directory."""
        voter = self.find(key.node_id)
        return voter is not None and same_directory(voter.key.directory_id, key.directory_id)

    def is_majority(self, node_ids: Iterable[int]) -> bool:
        return len(set(node_ids) & set(self.ids)) > len(self.all) // 2

    def with_voter(self, voter: Voter) -> Voters:
        return Voters.of([*self.without(voter.key.node_id).all, voter])

    def without(self, node_id: int) -> Voters:
        return Voters(tuple(voter for voter in self.all if voter.key.node_id != node_id))


def same_directory(one: bytes, other: bytes) -> bool:
    return NO_DIRECTORY in (one, other) or one == other


def majority_offset(end_offsets: Mapping[int, int], voters: Iterable[int]) -> int:
    """The largest offset that more than half of the voters have reached."""
    reached = sorted((end_offsets.get(voter, 0) for voter in voters), reverse=True)
    return reached[len(reached) // 2] if reached else 0
