"""What becomes of one batch: kept as it is, thinned out, emptied, or dropped. Kafka's rules (KIP-354, KIP-534).

A record stays while it is the last of its key. A tombstone stays until the delete horizon that the first cleaning wrote
into its batch: `delete.retention.ms` from then on, so that every reader had time to see it. The horizon takes the place
of the batch's base timestamp (attribute bit 6), so the records' times are told relative to it. A batch that ends a live
producer's sequence stays, without records if need be: it is what the next leader knows of the producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.kernel import Buffer
from moldau.protocol.batches import NO_TIMESTAMP, BatchHeader, seal_batch, write_varint
from moldau.protocol.compression import Compression, compress
from moldau.storage.cleaning.fields import BATCH_RECORDS_MIN, RECORDS_PER_PICK_MAX, ReadFields
from moldau.storage.cleaning.located import Located, locate, pick, plain_records, timestamp_delta
from moldau.storage.cleaning.offset_map import OffsetMap
from moldau.storage.cleaning.transactions import MetTransactions

_CODEC_MASK = 0x07
_DELETE_HORIZON = 0x40


class LastOfProducer(NamedTuple):
    """What must stay of a live producer: its last batch of records, or without one the marker of its epoch."""

    epoch: int
    last_data_offset: int | None


class Rules:
    def __init__(
        self,
        latest: OffsetMap,
        transactions: MetTransactions,
        producers: Mapping[int, LastOfProducer],
        *,
        now_ms: int,
        delete_retention_ms: int,
        read_fields: ReadFields | None = None,
    ) -> None:
        self._latest = latest
        self._read_fields = read_fields
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms

    def clean(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        """The batch that takes its place; the same object when nothing changes, None when nothing is left."""
        if header.is_control:
            return self._clean_marker(header, batch)
        if self._transactions.is_aborted(header):
            return self._nothing_of(header)
        places = self._latest.survivors(header)
        if places is not None and not places:
            return self._nothing_of(header)
        data = plain_records(header, batch)
        if places is None:
            kept = self._kept_by_key(header, data)
        else:
            keeps_tombstones = self._keeps_tombstones(header)
            picked = self._pick(data, header.record_count, places)
            kept = [record for record in picked if record.has_value or keeps_tombstones]
        if not kept:
            return self._nothing_of(header)
        sets_horizon = not header.has_delete_horizon and not all(record.has_value for record in kept)
        if len(kept) == header.record_count and not sets_horizon:
            return batch
        return _thin_out(header, data, kept, self._horizon_ms if sets_horizon else None)

    def _clean_marker(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        may_go = self._transactions.is_marker_of_nothing(header, batch)
        if may_go and header.has_delete_horizon and header.base_timestamp <= self._now_ms:
            return self._nothing_of(header)
        if not may_go or header.has_delete_horizon:
            return batch
        data = plain_records(header, batch)
        return _thin_out(header, data, list(locate(data, header.record_count)), self._horizon_ms)

    def _keeps_tombstones(self, header: BatchHeader) -> bool:
        return not header.has_delete_horizon or self._now_ms < header.base_timestamp

    def _kept_by_key(self, header: BatchHeader, data: bytes) -> list[Located]:
        latest, base_offset = self._latest, header.base_offset
        keeps_tombstones = self._keeps_tombstones(header)
        last_of_key, end_offset = latest.offsets.get, latest.end_offset
        kept = []
        for record in self._locate(data, header.record_count):
            _, _, delta, key, has_value = record
            offset = base_offset + delta
            if offset >= end_offset or (
                # A key that the map has not seen has not changed since the last cleaning.
                key is not None and offset >= last_of_key(key, -1) and (has_value or keeps_tombstones)
            ):
                kept.append(record)
        return kept

    def _locate(self, data: bytes, count: int) -> Iterable[Located]:
        if self._read_fields is None or count < BATCH_RECORDS_MIN:
            return locate(data, count)
        return self._read_fields(data, count).located()

    def _pick(self, data: bytes, count: int, places: list[int]) -> list[Located]:
        if self._read_fields is None or count < BATCH_RECORDS_MIN or count > len(places) * RECORDS_PER_PICK_MAX:
            return pick(data, places)
        return self._read_fields(data, count).at(places)

    def _nothing_of(self, header: BatchHeader) -> Buffer | None:
        if not self._ends_a_producer(header):
            return None
        return _seal(
            header,
            b"",
            record_count=0,
            attributes=header.attributes & ~(_CODEC_MASK | _DELETE_HORIZON),
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=header.max_timestamp,
        )

    def _ends_a_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset is None:
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.last_data_offset


def _thin_out(header: BatchHeader, data: bytes, kept: list[Located], horizon_ms: int | None) -> bytearray:
    """The batch with these records only, and with a delete horizon if one is given."""
    base_timestamp, attributes = header.base_timestamp, header.attributes
    deltas = [timestamp_delta(data, record.start) for record in kept]
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = base_timestamp + max(delta for delta, _, _ in deltas)
    if horizon_ms is None:
        payload = b"".join([data[record.start : record.end] for record in kept])
    else:
        shift, base_timestamp, attributes = base_timestamp - horizon_ms, horizon_ms, attributes | _DELETE_HORIZON
        moved = bytearray()
        for record, (delta, begin, end) in zip(kept, deltas, strict=True):
            number = bytearray()
            write_varint(number, delta + shift)
            # The attributes are the byte before the time.
            write_varint(moved, 1 + len(number) + record.end - end)
            moved += data[begin - 1 : begin]
            moved += number
            moved += data[end : record.end]
        payload = bytes(moved)
    return _seal(
        header,
        payload,
        record_count=len(kept),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
    )


def _seal(
    header: BatchHeader,
    payload: bytes,
    *,
    record_count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
) -> bytearray:
    """What the batch was besides its records: offsets, epoch, producer and sequence."""
    codec = Compression(attributes & _CODEC_MASK)
    return seal_batch(
        compress(codec, payload, None) if codec else payload,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=record_count,
    )
