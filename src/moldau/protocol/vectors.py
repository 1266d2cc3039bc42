"""Plain records by the thousand, with numpy: where they end, and the numbers in them.

Where a record ends is the one thing that cannot be read for many at once, except in runs. Needs numpy, so only those
who know that it is installed import this.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from moldau.kernel import Buffer
from moldau.protocol.batches import CorruptBatchError, read_varint

# Looking for a run of records of one size costs as much as some thirty steps of the loop.
RUN_ROWS_MIN = 32
LOOP_ROWS_MIN = 128

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def _ends_of_records(data: Buffer, position: int) -> Iterator[int]:
    """Where each record ends; the reader says when to stop.

    A negative size in one or two bytes is stepped over here and found by the reader.
    """
    while True:
        byte = data[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
        elif (second := data[position + 1]) < 0x80:
            position += 2 + (((byte & 0x7F) | second << 7) >> 1)
        else:
            size, position = read_varint(data, position)
            if size < 0:
                raise CorruptBatchError(f"record claims {size} bytes")
            position += size
        yield position


class RecordFinder:
    """Where the records of one batch end.

    Records of one size follow each other in many topics, and a run of them is found at once: whatever begins where a
    record ends is a record, so equal sizes in equal steps are certain. Where sizes differ the loop goes on, longer each
    time that no run was found.
    """

    __slots__ = ("_data", "_loop_rows", "_position", "_view")

    def __init__(self, data: Buffer, view: Bytes, position: int) -> None:
        self._data = data
        self._view = view
        self._position = position
        self._loop_rows = LOOP_ROWS_MIN

    def take(self, count: int) -> Positions:
        """The ends of the next `count` records."""
        ends = np.empty(count, np.int64)
        done = 0
        while done < count:
            if count - done >= RUN_ROWS_MIN:
                step, length = self._find_run(count - done)
                ends[done : done + length] = self._position + step * np.arange(1, length + 1)
                done += length
                self._position += step * length
                if length >= RUN_ROWS_MIN:
                    self._loop_rows = LOOP_ROWS_MIN
                    continue
            length = min(self._loop_rows, count - done)
            ends[done : done + length] = np.fromiter(_ends_of_records(self._data, self._position), np.int64, length)
            done += length
            self._position = int(ends[done - 1])
            self._loop_rows *= 2
        return ends

    def _find_run(self, count_max: int) -> tuple[int, int]:
        """The bytes that the next record takes, and how many from it on take as many."""
        position, view = self._position, self._view
        first, second = self._data[position], self._data[position + 1]
        if first < 0x80:
            step = 1 + (first >> 1)
        elif second < 0x80:
            step = 2 + (((first & 0x7F) | second << 7) >> 1)
        else:
            return 0, 0
        count = min(count_max, (len(view) - position - 1) // step)
        stop = position + count * step
        same = view[position:stop:step] == first
        if first >= 0x80:
            same &= view[position + 1 : stop + 1 : step] == second
        return step, count if same.all() else int(same.argmin())


# -- varints -----------------------------------------------------------------------------------------------------------

_VARINT_SHIFT_MAX = 63


def read_varints(view: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """The zigzag varint at each position, and the position after it. IndexError past the end of `view`."""
    byte = view[at]
    raw = byte.astype(np.uint64)
    at = at + 1
    more = byte >= 0x80
    if more.any():
        # Second bytes are many, so all are read and most often used. A position past the end is found by the caller:
        # it is past the end of the record, too.
        raw &= np.uint64(0x7F)
        byte = view.take(at, mode="clip") * more
        raw |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7)
        at += more
        shift = 14
        rest = np.flatnonzero(byte >= 0x80)
        while len(rest):
            byte = view[at[rest]]
            if shift == _VARINT_SHIFT_MAX and np.any(byte > 1):
                raise CorruptBatchError("varint longer than 64 bits")
            raw[rest] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            at[rest] += 1
            rest = rest[byte >= 0x80]
            shift += 7
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), at


def skip_varints(view: Bytes, at: Positions) -> Positions:
    """The position after each varint. Their lengths were checked before."""
    more = view[at] >= 0x80
    at = at + 1
    at += more
    rest = np.flatnonzero(more)
    rest = rest[view[at[rest] - 1] >= 0x80]
    while len(rest):
        at[rest] += 1
        rest = rest[view[at[rest] - 1] >= 0x80]
    return at
