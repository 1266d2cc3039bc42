"""What the quorum's handlers have in common: whose request it is, and where the leader can be found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from moldau.broker.quorum_messages import METADATA_PARTITION
from moldau.kernel import METADATA_TOPIC

if TYPE_CHECKING:
    from moldau.broker.node import Node


def has_other_cluster_id(cluster_id: str | None, node: Node) -> bool:
    return cluster_id is not None and cluster_id != node.cluster_id


def names_metadata(topics: Iterable[tuple[str, Sequence[Any]]]) -> bool:
    """Whether a request is about `__cluster_metadata-0` and nothing else."""
    named = list(topics)
    if len(named) != 1 or named[0][0] != METADATA_TOPIC or len(named[0][1]) != 1:
        return False
    partition = named[0][1][0]
    index = getattr(partition, "partition_index", None)
    return bool((partition.partition if index is None else index) == METADATA_PARTITION)


def leader_endpoints(response: Any, node: Node) -> list[Any]:
    """The leader's address on the controllers' listener, where it is known."""
    leader_id = node.controller.quorum.leader_id
    address = node.addresses.find(leader_id) if leader_id >= 0 else None
    return [] if address is None else [response.NodeEndpoint(leader_id, *address)]
