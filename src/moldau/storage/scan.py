"""Walking over stored batches: headers only for look-ups, with checksums for recovery.

Reads go through large pieces, so a gigabyte of batches costs a few hundred reads. Knows files and batches; does not
know which segments there are or what is done with a damaged one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.kernel import Buffer, File
from moldau.protocol.batches import ATTRIBUTES_POSITION, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, BatchHeader
from moldau.protocol.checksum import PIECE_BYTES, crc32c
from moldau.storage.indexes import NO_TIMESTAMP, RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex

SCAN_PIECE_BYTES = 4 << 20
WALK_PIECE_BYTES = 8 << 10
LENGTH_MIN = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
CONTROL_BIT = 0x20

_unpack_header = struct.Struct(">qiibIhiqqqhii").unpack_from
_unpack_walk = struct.Struct(">qiixxxxxxxiqq").unpack_from

# Called with the header and, for control batches, all bytes of a batch that has a producer id.
OnProducer = Callable[[BatchHeader, "Buffer | None"], None]
# Called with an epoch and the base offset of its first batch.
OnEpoch = Callable[[int, int], None]


class Step(NamedTuple):
    """One batch met on a walk."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int


def walk(file: File, position: int, end: int) -> Iterator[Step]:
    """Batches from `position` (the start of one) to `end`, by their headers alone; stops at what is no batch."""
    piece, start = b"", position
    while position + HEADER_BYTES <= end:
        cursor = position - start
        if cursor + HEADER_BYTES > len(piece):
            piece, start, cursor = file.read(position, min(WALK_PIECE_BYTES, end - position)), position, 0
            if len(piece) < HEADER_BYTES:
                return
        base_offset, length, leader_epoch, delta, _, max_timestamp = _unpack_walk(piece, cursor)
        size = length + LENGTH_OVERHEAD_BYTES
        if length < LENGTH_MIN or position + size > end:
            return
        yield Step(position, size, base_offset, base_offset + delta, leader_epoch, max_timestamp)
        position += size


@dataclass(slots=True)
class SegmentScan:
    """What a scan over one segment found. `stopped` says why it did not reach the end, or is None."""

    valid_bytes: int = 0
    next_offset: int = 0
    batch_count: int = 0
    stopped: str | None = None
    offsets: OffsetIndex = field(default_factory=OffsetIndex)
    times: TimeIndex = field(default_factory=TimeIndex)
    bytes_since_index: int = 0
    first_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1


def scan_segment(
    file: File,
    size: int,
    base_offset: int,
    *,
    index_interval_bytes: int,
    verify: bool = True,
    on_producer: OnProducer | None = None,
    on_epoch: OnEpoch | None = None,
) -> SegmentScan:
    """Every batch of a segment in order, up to the first that is torn, damaged or goes back in offsets.

    With `verify` the checksum of each is computed; without, bodies are not even read when they are large.
    """
    found = SegmentScan(next_offset=base_offset)
    offsets, times = found.offsets, found.times
    piece, piece_bytes = b"", SCAN_PIECE_BYTES if verify else WALK_PIECE_BYTES
    view = memoryview(piece)
    start = position = 0
    next_offset, since_index, epoch_seen = base_offset, 0, -1
    max_timestamp, max_timestamp_offset = NO_TIMESTAMP, -1
    while position < size:
        cursor = position - start
        if cursor + HEADER_BYTES > len(piece):
            if position + HEADER_BYTES > size:
                found.stopped = f"{size - position} bytes are too few for a batch"
                break
            piece = file.read(position, min(piece_bytes, size - position))
            view = memoryview(piece)
            start, cursor = position, 0
            if len(piece) < HEADER_BYTES:
                found.stopped = "the file ends early"
                break
        header = _unpack_header(piece, cursor)
        base, length, epoch, magic, checksum, attributes, delta, _, timestamp, producer_id, _, _, _ = header
        batch_bytes = length + LENGTH_OVERHEAD_BYTES
        if length < LENGTH_MIN or magic != MAGIC:
            found.stopped = f"length {length} and magic {magic} are no batch"
            break
        if position + batch_bytes > size:
            found.stopped = f"a batch of {batch_bytes} bytes has {size - position}"
            break
        if base < next_offset or delta < 0:
            found.stopped = f"offset {base} follows {next_offset - 1}"
            break
        if verify:
            end = cursor + batch_bytes
            if end > len(piece):
                piece = file.read(position, min(max(piece_bytes, batch_bytes), size - position))
                view = memoryview(piece)
                start, cursor, end = position, 0, batch_bytes
                if len(piece) < batch_bytes:
                    found.stopped = "the file ends early"
                    break
            body = cursor + ATTRIBUTES_POSITION
            # A large body is summed in place, piece by piece; a small one is copied once.
            if crc32c(view[body:end] if batch_bytes > PIECE_BYTES else piece[body:end]) != checksum:
                found.stopped = f"the batch at offset {base} has a wrong checksum"
                break
        last_offset = base + delta
        if timestamp > max_timestamp:
            max_timestamp, max_timestamp_offset = timestamp, last_offset
        if since_index > index_interval_bytes and last_offset - base_offset <= RELATIVE_OFFSET_MAX:
            offsets.append(last_offset - base_offset, position)
            if max_timestamp_offset >= 0:
                times.append(max_timestamp, max_timestamp_offset - base_offset)
            since_index = 0
        since_index += batch_bytes
        if position == 0:
            found.first_timestamp = timestamp
        if producer_id >= 0 and on_producer is not None:
            body_bytes: Buffer | None = None
            if attributes & CONTROL_BIT:
                body_bytes = file.read(position, batch_bytes)
            on_producer(tuple.__new__(BatchHeader, header), body_bytes)
        if epoch > epoch_seen:
            epoch_seen = epoch
            if on_epoch is not None:
                on_epoch(epoch, base)
        next_offset = last_offset + 1
        found.batch_count += 1
        position += batch_bytes
    found.valid_bytes = position
    found.next_offset = next_offset
    found.bytes_since_index = since_index
    found.max_timestamp = max_timestamp
    found.max_timestamp_offset = max_timestamp_offset
    return found
