"""Transactions as metric families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moldau.broker.transactions import Transactions

if TYPE_CHECKING:
    from moldau.broker.node import Node


def transaction_families(node: Node, transactions: Transactions, gauge: Any, counter: Any) -> Iterator[Any]:
    began_ms = [
        transaction.started_ms
        for machine in transactions.coordinator.machines()
        for transaction in machine.open_transactions()
    ]
    age_ms = node.clock.now_ms() - min(began_ms) if began_ms else 0
    yield gauge("moldau_transactions_open", "Transactions begun and not over.", value=len(began_ms))
    yield gauge("moldau_transaction_oldest_age_seconds", "Age of the oldest open one.", value=max(age_ms, 0) / 1000)
    yield counter("moldau_transactions_committed", "Transactions committed.", value=transactions.committed_count)
    yield counter("moldau_transactions_aborted", "Transactions aborted.", value=transactions.aborted_count)
