"""The sparse indexes of one segment, as Kafka's `.index` and `.timeindex` files hold them.

Both map to places *at or before* the answer: the reader goes on from there, batch by batch. In memory an index is a
pair of arrays, so that a look-up is one bisect and writing the file is a few slices. They know no file and no batch.

    .index      8 bytes an entry: offset of the batch's last record relative to the segment's base 4 | position 4
    .timeindex 12 bytes an entry: largest timestamp so far 8 | relative offset of the batch that has it 4
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
RELATIVE_OFFSET_MAX = 2**31 - 1
NO_TIMESTAMP = -1

_SWAP = sys.byteorder == "little"
assert array("i").itemsize == 4 and array("q").itemsize == 8


class CorruptIndexError(ValueError):
    """Bytes that are no index of this segment: it is rebuilt from the log."""


class OffsetIndex:
    """Relative offset -> position of a batch that ends there."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def position_for_offset(self, relative_offset: int) -> int:
        """Where to start looking for the batch that holds the offset."""
        index = bisect_right(self.offsets, relative_offset)
        return self.positions[index - 1] if index else 0

    def position_at_or_before(self, position: int) -> int:
        """The last known start of a batch that is not after `position`."""
        index = bisect_right(self.positions, position)
        return self.positions[index - 1] if index else 0

    def truncate(self, size: int) -> None:
        """Forget batches that start at or after `size`."""
        index = bisect_left(self.positions, size)
        del self.offsets[index:]
        del self.positions[index:]

    def to_bytes(self) -> bytes:
        entries = array("i", bytes(len(self.offsets) * OFFSET_ENTRY_BYTES))
        entries[0::2] = self.offsets
        entries[1::2] = self.positions
        if _SWAP:
            entries.byteswap()
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, log_bytes: int) -> OffsetIndex:
        """An index that fits a log of `log_bytes`; CorruptIndexError when it cannot be this segment's."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptIndexError(f"{len(data)} bytes are no whole number of entries")
        entries = array("i", data)
        if _SWAP:
            entries.byteswap()
        index = cls()
        index.offsets = entries[0::2]
        index.positions = entries[1::2]
        if index.offsets and (
            index.offsets[0] < 0
            or index.positions[0] < 0
            or index.positions[-1] >= log_bytes
            or not _rises_strictly(index.offsets)
            or not _rises_strictly(index.positions)
        ):
            raise CorruptIndexError("entries do not rise or point past the end of the log")
        return index


class TimeIndex:
    """Timestamp -> relative offset of the batch up to which no later timestamp was seen."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Only a later timestamp makes an entry: the index rises in both columns."""
        if timestamp > (self.timestamps[-1] if self.timestamps else NO_TIMESTAMP):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def offset_for(self, timestamp: int) -> int:
        """The relative offset from which on a record of that time or later may be found."""
        index = bisect_right(self.timestamps, timestamp)
        return self.offsets[index - 1] if index else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget entries about batches that end at or after the offset."""
        index = bisect_left(self.offsets, relative_offset)
        del self.timestamps[index:]
        del self.offsets[index:]

    def to_bytes(self) -> bytes:
        timestamps, offsets = self.timestamps[:], self.offsets[:]
        if _SWAP:
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        entries = array("i", bytes(len(offsets) * TIME_ENTRY_BYTES))
        entries[0::3] = halves[0::2]
        entries[1::3] = halves[1::2]
        entries[2::3] = offsets
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptIndexError(f"{len(data)} bytes are no whole number of entries")
        entries = array("i", data)
        index = cls()
        index.offsets = entries[2::3]
        halves = array("i", bytes(len(index.offsets) * 8))
        halves[0::2] = entries[0::3]
        halves[1::2] = entries[1::3]
        index.timestamps = array("q", halves.tobytes())
        if _SWAP:
            index.timestamps.byteswap()
            index.offsets.byteswap()
        if index.offsets and (
            index.offsets[0] < 0 or not _rises(index.offsets) or not _rises_strictly(index.timestamps)
        ):
            raise CorruptIndexError("entries do not rise")
        return index


def _rises_strictly(column: array[int]) -> bool:
    return all(map(int.__lt__, column, column[1:]))


def _rises(column: array[int]) -> bool:
    return all(map(int.__le__, column, column[1:]))
