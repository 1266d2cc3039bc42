"""Transactions: who may write in which, how each ends. A pure machine for `coordination.Shard`."""

from moldau.coordination.transactions.events import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkersWritten,
    ProducerIdSource,
    TransactionSettings,
    WriteMarkers,
)
from moldau.coordination.transactions.machine import HELD_MS_MAX, TransactionMachine
from moldau.coordination.transactions.states import STATES_BY_TITLE, TransactionState
from moldau.coordination.transactions.transaction import EPOCH_BUMP_VERSION, Transaction

__all__ = [
    "EPOCH_BUMP_VERSION",
    "HELD_MS_MAX",
    "STATES_BY_TITLE",
    "AddPartitions",
    "DescribeTransaction",
    "EndTransaction",
    "InitializeProducer",
    "ListTransactions",
    "MarkersWritten",
    "ProducerIdSource",
    "Transaction",
    "TransactionMachine",
    "TransactionSettings",
    "TransactionState",
    "WriteMarkers",
]
