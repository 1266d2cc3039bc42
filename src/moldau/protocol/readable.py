"""Which batches of a fetched partition a reader may see.

Follows the rules of Fetch: a partial batch may stand at the end, control batches are not for readers, and under
read_committed the batches of aborted transactions are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moldau.kernel import Buffer
from moldau.protocol.batches import (
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    control_kind,
    iterate_batches,
    iterate_records,
)

_ABORT = 0


class AbortedTransactions:
    """Which transactional batches to leave out: those of a producer between its first aborted offset and its marker."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Pairs of producer id and first offset."""
        self._coming = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether readers must not see the batch; call it for every batch in order, control batches too."""
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.is_control:
            if header.is_transactional and header.producer_id in self._open:
                marker = next(iterate_records(batch), None)
                if marker is not None and control_kind(marker.key) == _ABORT:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def readable_batches(
    records: Buffer, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """Every whole batch of a fetched partition; the bytes are None for one that readers must not see.

    `aborted` is None under read_uncommitted.
    """
    hidden = AbortedTransactions(aborted or ())
    for header, batch in iterate_batches(records):
        if header.magic != MAGIC:
            raise CorruptBatchError(f"batch at offset {header.base_offset} has magic {header.magic}, not {MAGIC}")
        yield header, None if hidden.hides(header, batch) else batch
