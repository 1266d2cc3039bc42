"""What happens to transactions, what is answered, and what the machine wants done.

`token` comes back with the answer; nothing else is done with it. The answer of a refused request is its KafkaError.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from moldau.coordination.transactions.states import TransactionState
from moldau.kernel import ProducerIdAndEpoch, TopicPartition


class InitializeProducer(NamedTuple):
    """Answered with `ProducerIdAndEpoch`. `expected` is what a producer had that goes on after an error (KIP-360)."""

    token: Any
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


class AddPartitions(NamedTuple):
    """Answered with `dict[TopicPartition, ErrorCode]`. With `only_verifies` nothing is added."""

    token: Any
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    client_version: int
    only_verifies: bool = False


class EndTransaction(NamedTuple):
    """Answered with the `ProducerIdAndEpoch` of the next transaction, once the decision is committed."""

    token: Any
    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    client_version: int


class MarkersWritten(NamedTuple):
    """Every partition of the transaction has its marker."""

    transactional_id: str
    producer: ProducerIdAndEpoch


class DescribeTransaction(NamedTuple):
    """Answered with the `Transaction`."""

    token: Any
    transactional_id: str


class ListTransactions(NamedTuple):
    """Answered with `list[Transaction]`: those that pass every filter; an empty one lets all pass."""

    token: Any
    states: frozenset[TransactionState] | None
    producer_ids: frozenset[int]
    older_than_ms: int
    # A regular expression for whole transactional ids; none lets all pass.
    pattern: str


class WriteMarkers(NamedTuple):
    """To be done once the decision is committed, however often it takes; then `MarkersWritten`."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int


class TransactionSettings(Protocol):
    """The broker's configuration, as transactions need it; asked anew each time."""

    def integer(self, name: str) -> int: ...

    @property
    def transaction_version(self) -> int:
        """The finalized level of the feature."""
        ...


class ProducerIdSource(Protocol):
    def take(self) -> int | None:
        """An id that nobody had before; None when there is none at hand, but soon."""
        ...
