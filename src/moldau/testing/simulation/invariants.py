"""What must hold inside a node: after every step, and when everything is over."""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker import Node
from moldau.coordination.transactions import TransactionState
from moldau.testing.history import Partition
from moldau.testing.loop import Process
from moldau.testing.simulation.node import SimulatedNode

AT_REST = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class Invariants:
    """High watermark and last stable offset: in order, and never falling, also from one life to the next."""

    def __init__(self, node: SimulatedNode, violate: Callable[[str], None]) -> None:
        self._node = node
        self._violate = violate
        self._seen: dict[Partition, tuple[int, int]] = {}

    def check(self, _process: Process) -> None:
        node = self._node.node
        if node is None:
            return
        seen = self._seen
        for partition in node.replicas:
            if partition.leader is None:
                continue
            high_watermark, stable = partition.high_watermark, partition.last_stable_offset
            where = (partition.topic, partition.index)
            before = seen.get(where)
            if before == (high_watermark, stable):
                continue
            if stable > high_watermark or (before is not None and (high_watermark < before[0] or stable < before[1])):
                self._violate(
                    f"{partition}: high watermark {high_watermark} and last stable offset {stable} came after {before}"
                )
            seen[where] = (high_watermark, stable)


def at_rest_problems(simulated: SimulatedNode) -> list[str]:
    """What is not over: transactions that their coordinator or a partition still holds open."""
    node = simulated.node
    if node is None:
        return ["the node is not up"]
    leaderless = [f"{partition} has no leader" for partition in node.replicas if partition.leader is None]
    return [*unfinished(node), *leaderless]


def unfinished(node: Node) -> list[str]:
    """Transactions that are open on a node."""
    problems = []
    transactions = node.transactions_in_use
    for machine in transactions.coordinator.machines() if transactions is not None else ():
        problems += [
            f"{each.transactional_id} is {each.state.title}"
            for each in machine.transactions.values()
            if each.state not in AT_REST
        ]
    groups = node.groups_in_use
    if groups is not None and any(machine.offsets.pending for machine in groups.coordinator.machines()):
        problems.append("offsets of a group are pending")
    for partition in node.replicas:
        for state in partition.log.producers.active():
            if state.transaction_first_offset >= 0:
                problems.append(
                    f"{partition} has a transaction of producer {state.producer_id} open since offset"
                    f" {state.transaction_first_offset}"
                )
    return problems
