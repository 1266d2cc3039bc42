"""Keeping what is whole of a damaged partition. Only a person asks for this, after `verify` said what is lost.

A damaged segment is written anew from its whole batches; offsets keep their numbers, so there is a gap where something
is missing, and none is ever given out again: where the end is lost, an empty segment keeps the next one. The old file
stays beside the new one as `.damaged`. Everything that is left is synced, and the recovery point says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.kernel import Disk, TopicPartition
from moldau.storage.loading import remove_if_there
from moldau.storage.log_directory import LogDirectory
from moldau.storage.scan import SCAN_PIECE_BYTES
from moldau.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from moldau.storage.verify import SegmentLook, look_at_segment, segment_bases

DAMAGED_SUFFIX = ".damaged"
# Loading takes a file of this name for a leftover, should the repair itself be interrupted.
_NEW_SUFFIX = ".part"
REPAIR_LOG = "moldau-repair.log"


@dataclass(frozen=True, slots=True)
class Repaired:
    file: str
    bytes_kept: int
    bytes_dropped: int
    saved_as: str


def repair_partition(disk: Disk, root: LogDirectory, partition: TopicPartition, *, cut: bool) -> list[Repaired]:
    """What was done, durably. With `cut` nothing behind the first damage is kept. The directory is locked by us."""
    directory = root.partition_path(partition)
    # An interrupted repair leaves a log that is still refused, or one that is whole.
    root.remove_clean_shutdown()
    recovery_points = root.read_recovery_points()
    done: list[Repaired] = []
    is_cut = False
    next_offset = -1
    for base in segment_bases(disk.list(directory)):
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        look = look_at_segment(disk, path, base)
        overlaps = base < next_offset
        if not look.findings and not is_cut and not overlaps:
            next_offset = max(next_offset, look.next_offset)
            _sync(disk, path)
            continue
        kept = _kept(look, cut=cut, nothing=is_cut or overlaps)
        done.append(_write_anew(disk, path, look.size, kept))
        if kept:
            next_offset = max(next_offset, look.findings[0].first_offset if cut else look.next_offset)
        is_cut = is_cut or cut
    safe = recovery_points.get(partition, 0)
    if next_offset < safe:
        disk.open(f"{directory}/{safe:020d}{LOG_SUFFIX}", create=True).close()
    disk.sync_directory(directory)
    root.write_recovery_points({**recovery_points, partition: max(next_offset, safe)})
    return done


def _sync(disk: Disk, path: str) -> None:
    file = disk.open(path)
    file.sync()
    file.close()


def _kept(look: SegmentLook, *, cut: bool, nothing: bool) -> list[tuple[int, int]]:
    if nothing:
        return []
    if cut:
        return [each for each in look.whole if each[1] <= look.findings[0].position]
    return look.whole


def _write_anew(disk: Disk, path: str, size: int, kept: list[tuple[int, int]]) -> Repaired:
    stem = path.removesuffix(LOG_SUFFIX)
    bytes_kept = sum(end - start for start, end in kept)
    if kept:
        remove_if_there(disk, path + _NEW_SUFFIX)
        source, target = disk.open(path), disk.open(path + _NEW_SUFFIX, create=True)
        position = 0
        for start, end in kept:
            while start < end:
                data = source.read(start, min(SCAN_PIECE_BYTES, end - start))
                target.write(position, (data,))
                position += len(data)
                start += len(data)
        target.sync()
        target.close()
        source.close()
    saved = path + DAMAGED_SUFFIX
    disk.rename(path, saved)
    if kept:
        disk.rename(path + _NEW_SUFFIX, path)
    # Positions have changed. The index of aborted transactions names offsets, which have not.
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        remove_if_there(disk, stem + suffix)
    return Repaired(path.rpartition("/")[2], bytes_kept, size - bytes_kept, saved.rpartition("/")[2])
