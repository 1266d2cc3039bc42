"""What is committed of a log, as the first replica that said so has it: every other must show the same bytes.

And the ends of a producer's transactions come from one coordinator after the other: once a later one has written, a
marker of an earlier one might end a transaction that it knows nothing of (KIP-98).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from moldau.protocol.batches import CorruptBatchError, iterate_batches
from moldau.protocol.markers import read_marker

READ_BYTES = 1 << 20


class Batch(NamedTuple):
    last_offset: int
    leader_epoch: int
    digest: bytes


class Committed:
    """Batches by their first offsets, without gaps, up to `end_offset`."""

    __slots__ = ("_coordinator_epochs", "batches", "end_offset")

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.end_offset = 0
        # By producer id: whose marker was the last.
        self._coordinator_epochs: dict[int, int] = {}

    def compare(self, log: Any, start: int, end: int) -> str | None:
        """What is wrong with a log's bytes between two offsets; what lies beyond our end is taken from it."""
        while start < end:
            piece = log.read(start, READ_BYTES, offset_max=end)
            if piece is None:
                return f"nothing can be read at {start}, below {end}"
            try:
                for header, data in iterate_batches(piece.read()):
                    problem = self._compare_batch(header, data)
                    if problem is not None:
                        return problem
                    start = header.last_offset + 1
            except CorruptBatchError as error:
                return f"at {start}: {error}"
            if start < piece.next_offset:
                return f"no whole batch at {start}"
        return None

    def _compare_batch(self, header: Any, data: Any) -> str | None:
        batch = Batch(header.last_offset, header.leader_epoch, blake2b(data, digest_size=8).digest())
        known = self.batches.get(header.base_offset)
        if known is None:
            if header.last_offset < self.end_offset:
                return f"a batch begins at {header.base_offset}, where none that is committed does"
            self.batches[header.base_offset] = batch
            self.end_offset = batch.last_offset + 1
            if header.is_control and header.producer_id >= 0:
                return self._check_marker(header, data)
        elif known != batch:
            return (
                f"the batch at {header.base_offset} (to {batch.last_offset}, epoch {batch.leader_epoch}) is not the"
                f" committed one (to {known.last_offset}, epoch {known.leader_epoch})"
            )
        return None

    def _check_marker(self, header: Any, data: Any) -> str | None:
        marker = read_marker(data)
        if marker is None:
            return None
        epoch, before = marker.coordinator_epoch, self._coordinator_epochs.get(header.producer_id, -1)
        self._coordinator_epochs[header.producer_id] = epoch
        if epoch < before:
            return (
                f"the marker of producer {header.producer_id} at {header.base_offset} comes from coordinator epoch"
                f" {epoch}, {before} has written since"
            )
        return None
