"""The last offset of every key in the part of a log that is to be cleaned, in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from moldau.kernel import Buffer
from moldau.protocol.batches import BatchHeader
from moldau.storage.cleaning.fields import BATCH_RECORDS_MIN, ReadFields
from moldau.storage.cleaning.located import locate, note_keys, plain_records

# What Python needs for an entry: slot, bytes object and offset, and a key of some twenty bytes.
ENTRY_BYTES = 180


class OffsetMap:
    """Knows [first_offset, end_offset): below and above, a record is judged by its key or not at all."""

    __slots__ = (
        "_entries_max",
        "_oddly_numbered",
        "_read_fields",
        "_survivors",
        "end_offset",
        "first_offset",
        "offsets",
    )

    def __init__(self, bytes_max: int, first_offset: int, read_fields: ReadFields | None = None) -> None:
        self._read_fields = read_fields
        self.offsets: dict[bytes, int] = {}
        self.first_offset = self.end_offset = first_offset
        self._entries_max = max(bytes_max // ENTRY_BYTES, 1)
        self._survivors: array[int] | None = None
        # Base offsets of batches whose records are not numbered one by one.
        self._oddly_numbered: set[int] = set()

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= self._entries_max

    def put(self, header: BatchHeader, batch: Buffer) -> None:
        """The keys of a batch, which follows all that were put before."""
        data, base_offset, offsets = plain_records(header, batch), header.base_offset, self.offsets
        if self._read_fields is not None and header.record_count >= BATCH_RECORDS_MIN:
            fields = self._read_fields(data, header.record_count)
            if fields.is_dense and None not in fields.keys:
                offsets.update(zip(fields.keys, range(base_offset, base_offset + header.record_count), strict=True))  # type: ignore[arg-type]
                return
        if not note_keys(data, header.record_count, base_offset, offsets):
            self._oddly_numbered.add(base_offset)
            for _, _, delta, key, _ in locate(data, header.record_count):
                if key is not None:
                    offsets[key] = max(base_offset + delta, offsets.get(key, -1))

    def survivors(self, header: BatchHeader) -> list[int] | None:
        """Which records of a batch are the last of their keys, by place; None when only their keys can tell."""
        if (
            header.base_offset < self.first_offset
            or header.next_offset > self.end_offset
            or header.record_count != header.last_offset_delta + 1
            or header.base_offset in self._oddly_numbered
        ):
            return None
        if self._survivors is None:
            self._survivors = array("q", sorted(self.offsets.values()))
        all_, base_offset = self._survivors, header.base_offset
        begin = bisect_left(all_, base_offset)
        return [offset - base_offset for offset in all_[begin : bisect_left(all_, header.next_offset, begin)]]
