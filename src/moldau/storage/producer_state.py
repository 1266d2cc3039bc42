"""What a partition remembers about its producers: enough to answer a retry with the first offset and refuse a gap.

The rules are those of KIP-98 and KIP-360: five batches per producer, an epoch that fences, sequences that wrap from
2^31-1 to 0. Open transactions are kept too, for the last stable offset. The state is a function of the log (replaying
the batches gives it), so recovery needs only the newest snapshot and the batches after it. Knows no file and no
clock; the snapshot's bytes are `ProducerSnapshot` version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from moldau.kernel import Buffer, ErrorCode, KafkaError
from moldau.protocol.batches import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    BatchHeader,
)
from moldau.protocol.checksum import crc32c
from moldau.protocol.markers import read_marker
from moldau.storage.transaction_index import AbortedTransaction

BATCHES_REMEMBERED = 5
NO_OFFSET = -1
EPOCH_MAX = 2**15 - 1
SNAPSHOT_VERSION = 1

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
_UINT32 = struct.Struct(">I")


class CorruptSnapshotError(ValueError):
    """Bytes that are no producer snapshot: an older one or the log itself is used instead."""


class WrittenBatch(NamedTuple):
    """A batch that a producer may send again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerState:
    """One producer."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.transaction_first_offset = NO_OFFSET
        self.batches: list[WrittenBatch] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def snapshot_fields(self) -> tuple[int, int, int, int, int, int, int, int]:
        """What survives in a snapshot, in the file's order."""
        last = self.batches[-1] if self.batches else WrittenBatch(NO_SEQUENCE, NO_OFFSET, 0, -1)
        return (
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.transaction_first_offset,
        )


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_open_transactions", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}
        # First offset -> producer id. Offsets only rise, so the first key is the oldest.
        self._open_transactions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._producers.get(producer_id)

    def active(self) -> list[ProducerState]:
        return list(self._producers.values())

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction: the last stable offset cannot pass it."""
        return next(iter(self._open_transactions), None)

    # -- the leader's questions ----------------------------------------------------------------------------------------

    def find_duplicate(
        self, producer_id: int, epoch: int, base_sequence: int, offset_delta: int
    ) -> WrittenBatch | None:
        """The batch as it was first written, when this one is a retry of one of the last five."""
        state = self._producers.get(producer_id)
        if state is None or state.epoch != epoch:
            return None
        last_sequence = (base_sequence + offset_delta) & SEQUENCE_MAX
        for batch in state.batches:
            if batch.last_sequence == last_sequence and batch.offset_delta == offset_delta:
                return batch
        return None

    def check(self, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        """Refuse what is fenced or out of sequence. A producer that is not known may begin anywhere (KIP-360)."""
        state = self._producers.get(producer_id)
        if state is None:
            return
        if epoch < state.epoch:
            raise _fenced(producer_id, epoch, state.epoch)
        if epoch != state.epoch:
            if base_sequence != 0 and state.epoch != NO_PRODUCER_EPOCH:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} begins epoch {epoch} with sequence {base_sequence}, not with 0",
                )
        else:
            last_sequence = state.batches[-1].last_sequence if state.batches else NO_SEQUENCE
            if base_sequence != (last_sequence + 1) & SEQUENCE_MAX:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} sent sequence {base_sequence} after {last_sequence}",
                )
        if state.transaction_first_offset >= 0 and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} wrote outside of its open transaction"
            )

    def check_coordinators_batch(self, producer_id: int, epoch: int) -> None:
        """Offsets that a group coordinator writes in a transaction: no sequences, but the epoch fences."""
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            raise _fenced(producer_id, epoch, state.epoch)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        state = self._producers.get(producer_id)
        if state is None:
            return
        # From version 2 on a marker carries the next epoch (KIP-890), so that one of the present epoch is a stranger
        # to the open transaction; without one it is a marker that was written already (KIP-1228).
        is_old = epoch < state.epoch
        if transaction_version >= 2 and epoch == state.epoch and state.transaction_first_offset >= 0:
            is_old = epoch != EPOCH_MAX
        if is_old:
            raise _fenced(producer_id, epoch, state.epoch)
        if coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {producer_id} comes from coordinator epoch {coordinator_epoch}, "
                f"{state.coordinator_epoch} has written since",
            )

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        state = self._producers.get(producer_id)
        return state is not None and state.transaction_first_offset >= 0 and state.epoch == epoch

    # -- the log's facts -----------------------------------------------------------------------------------------------

    def note_batch(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        offset_delta: int,
        base_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """A data batch is in the log."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_id)
        batches = state.batches
        if state.epoch != epoch:
            state.epoch = epoch
            batches.clear()
        elif len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        last_sequence = NO_SEQUENCE if base_sequence < 0 else (base_sequence + offset_delta) & SEQUENCE_MAX
        batches.append(WrittenBatch(last_sequence, base_offset + offset_delta, offset_delta, timestamp))
        state.last_timestamp = timestamp
        if transactional and state.transaction_first_offset < 0:
            state.transaction_first_offset = base_offset
            self._open_transactions[base_offset] = producer_id

    def note_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, aborted: bool
    ) -> CompletedTransaction | None:
        """An end-of-transaction marker is in the log; the transaction, unless it wrote nothing here."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_id)
        if state.epoch != epoch:
            state.epoch = epoch
            state.batches.clear()
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = timestamp
        first_offset = state.transaction_first_offset
        if first_offset < 0:
            return None
        state.transaction_first_offset = NO_OFFSET
        del self._open_transactions[first_offset]
        return CompletedTransaction(producer_id, first_offset, offset, aborted)

    def note_stored(self, header: BatchHeader, batch: Buffer | None) -> CompletedTransaction | None:
        """Replay of one stored batch with a producer id; `batch` (all its bytes) is needed for control batches."""
        if not header.is_control:
            self.note_batch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta,
                header.base_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            return None
        assert batch is not None
        marker = read_marker(batch)
        if marker is None:
            return None
        return self.note_marker(
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
            header.base_offset,
            header.max_timestamp,
            not marker.committed,
        )

    def aborted_entry(self, completed: CompletedTransaction) -> AbortedTransaction:
        """What the transaction index records, with how far readers may go now that this transaction is over."""
        first_open = self.first_open_offset
        last_stable_offset = completed.last_offset + 1 if first_open is None else first_open
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
        )

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that wrote nothing for so long, unless they have a transaction open."""
        expired = [
            state.producer_id
            for state in self._producers.values()
            if state.transaction_first_offset < 0 and now_ms - state.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def clear(self) -> None:
        self._producers.clear()
        self._open_transactions.clear()

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        entries = b"".join(_SNAPSHOT_ENTRY.pack(*state.snapshot_fields) for state in self._producers.values())
        data = bytearray(_SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, 0, len(self._producers)) + entries)
        _UINT32.pack_into(data, 2, crc32c(memoryview(data)[_CRC_START:]))
        return bytes(data)

    def load_snapshot(self, data: bytes) -> None:
        """Replace everything by what a snapshot holds; CorruptSnapshotError leaves the state as it was."""
        states = list(_read_snapshot(data))
        self.clear()
        for state in states:
            self._producers[state.producer_id] = state
        in_order = sorted(
            (s.transaction_first_offset, s.producer_id) for s in states if s.transaction_first_offset >= 0
        )
        self._open_transactions.update(in_order)


def _fenced(producer_id: int, epoch: int, seen_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {epoch}, the partition has seen epoch {seen_epoch}",
    )


def _read_snapshot(data: bytes) -> Iterable[ProducerState]:
    try:
        version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    except struct.error:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few for a snapshot") from None
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"unknown version {version}")
    if crc32c(data[_CRC_START:]) != checksum:
        raise CorruptSnapshotError("checksum does not match")
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise CorruptSnapshotError(f"{count} producers do not fill {len(data)} bytes")
    for entry in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_first = entry
        state = ProducerState(producer_id)
        state.epoch = epoch
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = timestamp
        state.transaction_first_offset = transaction_first
        if offset >= 0:
            state.batches.append(WrittenBatch(sequence, offset, delta, timestamp))
        yield state
