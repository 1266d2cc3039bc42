"""Looking at a partition's files without changing any: what is damaged, and what of it would be lost.

Batches are read with their checksums, in large pieces; damage does not end the look: the next batch that is whole goes
on. What a crash left above the recovery point is `CUT` by the next start; indexes, snapshots and checkpoints are
`REBUILT` by it; any other damaged batch is `LOST`. A `GAP` between segments is what compaction or a repair leaves, or a
missing file: nobody can tell.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from moldau.kernel import Disk, File
from moldau.protocol.batches import ATTRIBUTES_POSITION, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC
from moldau.protocol.checksum import crc32c
from moldau.storage.checkpoints import CorruptCheckpointError, parse_epochs, parse_partition_metadata
from moldau.storage.indexes import CorruptIndexError, OffsetIndex, TimeIndex
from moldau.storage.loading import EPOCHS_FILE, OFFSET_DIGITS
from moldau.storage.producer_state import CorruptSnapshotError, ProducerStates
from moldau.storage.scan import LENGTH_MIN, SCAN_PIECE_BYTES
from moldau.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from moldau.storage.stored_log import PARTITION_METADATA_FILE
from moldau.storage.transaction_index import CorruptTransactionIndexError, TransactionIndex

LOST, CUT, REBUILT, GAP = "lost", "cut", "rebuilt", "gap"
# A batch that is searched for in damage is not longer than this; the largest that a broker takes by default is 1 MiB.
SEARCHED_BATCH_BYTES_MAX = 256 << 20

_unpack_header = struct.Struct(">qiibIhi").unpack_from


@dataclass(frozen=True, slots=True)
class Finding:
    """`effect` is one of the four. Offsets are those that are missing, as far as they are known: [first, next)."""

    file: str
    effect: str
    reason: str
    position: int = 0
    size: int = 0
    first_offset: int = -1
    next_offset: int = -1


@dataclass(slots=True)
class SegmentLook:
    """A segment's whole batches as ranges of bytes, and what lies between them."""

    base_offset: int
    size: int = 0
    batch_count: int = 0
    next_offset: int = 0
    # [start, end) of bytes to keep, neighbours joined.
    whole: list[tuple[int, int]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def segment_bases(names: list[str]) -> list[int]:
    return sorted(
        int(name[:OFFSET_DIGITS])
        for name in names
        if name.endswith(LOG_SUFFIX) and len(name) == OFFSET_DIGITS + len(LOG_SUFFIX) and name[:OFFSET_DIGITS].isdigit()
    )


def verify_partition(
    disk: Disk, directory: str, recovery_point: int | None, on_bytes: Callable[[int], None] = lambda count: None
) -> Iterator[Finding]:
    """Everything that is wrong in a partition's directory; `on_bytes` is told of progress through the segments."""
    names = disk.list(directory)
    next_offset = -1
    for base in segment_bases(names):
        name = f"{base:020d}{LOG_SUFFIX}"
        if base < next_offset:
            yield Finding(name, LOST, f"begins at offset {base}, but the segment before it ends at {next_offset - 1}")
        elif 0 <= next_offset < base:
            yield Finding(name, GAP, f"offset {base} follows {next_offset - 1}", 0, 0, next_offset, base)
        look = look_at_segment(disk, f"{directory}/{name}", base, on_bytes)
        for finding in look.findings:
            is_tail = finding.next_offset < 0 and recovery_point is not None and finding.first_offset >= recovery_point
            yield replace(finding, effect=CUT) if is_tail else finding
        yield from _indexes(disk, directory, names, look)
        next_offset = max(next_offset, look.next_offset)
    if recovery_point is not None and next_offset < recovery_point:
        reason = f"the log ends at {max(next_offset, 0)}, below its recovery point"
        yield Finding("", LOST, reason, first_offset=max(next_offset, 0), next_offset=recovery_point)
    yield from _small_files(disk, directory, names)


def look_at_segment(
    disk: Disk, path: str, base_offset: int, on_bytes: Callable[[int], None] = lambda count: None
) -> SegmentLook:
    """Read one segment to its end, whatever is in it."""
    file = disk.open(path) if disk.exists(path) else None
    look = SegmentLook(base_offset, next_offset=base_offset)
    if file is None:
        return look
    try:
        _Reader(file, path.rpartition("/")[2], look, on_bytes).run()
    finally:
        file.close()
    return look


class _Reader:
    def __init__(self, file: File, name: str, look: SegmentLook, on_bytes: Callable[[int], None]) -> None:
        self._file, self._name, self._look, self._on_bytes = file, name, look, on_bytes
        look.size = file.size()
        self._piece, self._start = b"", 0

    def run(self) -> None:
        look, position, damage_from, reason = self._look, 0, -1, ""
        while position < look.size:
            size, problem = self._batch_at(position)
            if problem is None:
                if damage_from >= 0:
                    self._note_damage(damage_from, position, self._offset_at(position), reason)
                    damage_from = -1
                self._keep(position, size)
                position += size
            else:
                if damage_from < 0:
                    damage_from, reason = position, problem
                position = self._next_whole(position, size)
            self._on_bytes(position)
        if damage_from >= 0:
            self._note_damage(damage_from, look.size, -1, reason)

    def _bytes(self, position: int, count: int) -> tuple[bytes, int]:
        """A piece that holds what is asked for, as far as the file does, and where in it that begins."""
        if position < self._start or position + count > self._start + len(self._piece):
            self._piece = self._file.read(position, max(count, SCAN_PIECE_BYTES))
            self._start = position
        return self._piece, position - self._start

    def _batch_at(self, position: int) -> tuple[int, str | None]:
        """(size of the batch, what is wrong with it); the size is 0 where it cannot be believed."""
        left = self._look.size - position
        if left < HEADER_BYTES:
            return 0, f"{left} bytes are too few for a batch"
        data, at = self._bytes(position, HEADER_BYTES)
        base, length, _, magic, checksum, _, delta = _unpack_header(data, at)
        size = length + LENGTH_OVERHEAD_BYTES
        if length < LENGTH_MIN or magic != MAGIC or size > SEARCHED_BATCH_BYTES_MAX:
            return 0, f"length {length} and magic {magic} are no batch"
        if size > left:
            return 0, f"a batch of {size} bytes has {left}"
        data, at = self._bytes(position, size)
        if crc32c(data[at + ATTRIBUTES_POSITION : at + size]) != checksum:
            return size, f"the batch at offset {base} has a wrong checksum"
        if base < self._look.next_offset or delta < 0:
            return size, f"offset {base} follows {self._look.next_offset - 1}"
        return size, None

    def _offset_at(self, position: int) -> int:
        data, at = self._bytes(position, HEADER_BYTES)
        return int(_unpack_header(data, at)[0])

    def _keep(self, position: int, size: int) -> None:
        look = self._look
        data, at = self._bytes(position, HEADER_BYTES)
        base, *_, delta = _unpack_header(data, at)
        look.next_offset = base + delta + 1
        look.batch_count += 1
        look.positions.append(position)
        if look.whole and look.whole[-1][1] == position:
            look.whole[-1] = look.whole[-1][0], position + size
        else:
            look.whole.append((position, position + size))

    def _next_whole(self, position: int, size: int) -> int:
        """Where the next whole batch begins: behind the damaged one by its length, else wherever one is found."""
        end = self._look.size
        if size and (position + size == end or self._batch_at(position + size)[1] is None):
            return position + size
        # Byte 16 of a batch is its magic.
        candidate = position + 1
        while candidate + HEADER_BYTES <= end:
            data, at = self._bytes(candidate, HEADER_BYTES)
            found = data.find(MAGIC, at + 16)
            if found < 0:
                candidate = self._start + len(data) - 16
                continue
            candidate = self._start + found - 16
            if candidate + HEADER_BYTES <= end and self._batch_at(candidate)[1] is None:
                return candidate
            candidate += 1
        return end

    def _note_damage(self, start: int, end: int, next_offset: int, reason: str) -> None:
        first = self._look.next_offset
        self._look.findings.append(Finding(self._name, LOST, reason, start, end - start, first, next_offset))


def _indexes(disk: Disk, directory: str, names: list[str], look: SegmentLook) -> Iterator[Finding]:
    stem = f"{look.base_offset:020d}"
    if f"{stem}{INDEX_SUFFIX}" in names:
        try:
            index = OffsetIndex.from_bytes(disk.read_file(f"{directory}/{stem}{INDEX_SUFFIX}"), look.size)
            for position in index.positions:
                place = bisect_left(look.positions, position)
                if place == len(look.positions) or look.positions[place] != position:
                    raise CorruptIndexError(f"byte {position} is not where a batch begins")
        except CorruptIndexError as error:
            yield Finding(f"{stem}{INDEX_SUFFIX}", REBUILT, str(error))
    if f"{stem}{TIME_INDEX_SUFFIX}" in names:
        try:
            times = TimeIndex.from_bytes(disk.read_file(f"{directory}/{stem}{TIME_INDEX_SUFFIX}"))
            if times and look.base_offset + times.offsets[-1] >= max(look.next_offset, look.base_offset + 1):
                raise CorruptIndexError(
                    f"names offset {look.base_offset + times.offsets[-1]}, beyond the segment's end"
                )
        except CorruptIndexError as error:
            yield Finding(f"{stem}{TIME_INDEX_SUFFIX}", REBUILT, str(error))
    if f"{stem}{TRANSACTION_INDEX_SUFFIX}" in names:
        try:
            TransactionIndex.from_bytes(disk.read_file(f"{directory}/{stem}{TRANSACTION_INDEX_SUFFIX}"))
        except CorruptTransactionIndexError as error:
            yield Finding(f"{stem}{TRANSACTION_INDEX_SUFFIX}", REBUILT, str(error))


def _small_files(disk: Disk, directory: str, names: list[str]) -> Iterator[Finding]:
    for name in names:
        try:
            if name.endswith(SNAPSHOT_SUFFIX):
                ProducerStates().load_snapshot(disk.read_file(f"{directory}/{name}"))
            elif name == EPOCHS_FILE:
                parse_epochs(disk.read_file(f"{directory}/{name}"))
            elif name == PARTITION_METADATA_FILE:
                parse_partition_metadata(disk.read_file(f"{directory}/{name}"))
        except (CorruptSnapshotError, CorruptCheckpointError) as error:
            yield Finding(name, REBUILT, str(error))
