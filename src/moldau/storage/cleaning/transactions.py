"""Transactions as a cleaner meets them, going over a log from its start.

Records of an aborted transaction go at once. A marker stays until none of its transaction's records is left, and then
for `delete.retention.ms` more, so that a reader in the middle of the transaction still learns how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.kernel import Buffer
from moldau.protocol.batches import BatchHeader
from moldau.protocol.markers import read_marker
from moldau.storage.transaction_index import AbortedTransaction


class MetTransactions:
    """`aborted` are those of the range that is cleaned."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        # The next to begin is the last.
        self._to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_met: set[int] = set()
        self._committed_met: set[int] = set()
        # Aborted transactions of which something is left, in the order of their markers.
        self.left: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """A batch of records."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_met.add(header.producer_id)
            return True
        self._committed_met.add(header.producer_id)
        return False

    def is_marker_of_nothing(self, header: BatchHeader, batch: Buffer) -> bool:
        """A control batch; whether no record of its transaction was met."""
        self._begin_up_to(header.last_offset)
        marker = read_marker(batch)
        if marker is None:
            return False
        producer_id = header.producer_id
        if marker.committed:
            is_met = producer_id in self._committed_met
            self._committed_met.discard(producer_id)
            return not is_met
        aborted = self._aborted.pop(producer_id, None)
        is_met = producer_id in self._aborted_met
        self._aborted_met.discard(producer_id)
        if aborted is not None and is_met:
            self.left.append(aborted)
        return not is_met

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            aborted = self._to_come.pop()
            self._aborted[aborted.producer_id] = aborted
