"""A cleaned segment takes the place of those that it was made from; a crash at any moment leaves one or the other.

    .cleaned -> .swap     all files of the new segment, then the directory is synced: from here on a restart finishes it
    the log switches      readers that come now read the new segment, those under way keep the old files
    old -> .deleted       then the directory is synced: from here on nothing old can come back
    .swap -> final

A restart that finds a file still `.cleaned` undoes the swap, one that finds only `.swap` completes it (`loading`).
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.kernel import Disk
from moldau.storage.loading import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, remove_if_there
from moldau.storage.segment import SEGMENT_SUFFIXES, Segment


def announce(disk: Disk, directory: str, base_offset: int) -> None:
    """The new segment is whole. Waits for the disk."""
    stem = f"{directory}/{base_offset:020d}"
    for suffix in SEGMENT_SUFFIXES:
        _rename(disk, stem + suffix + CLEANED_SUFFIX, stem + suffix + SWAP_SUFFIX)
    disk.sync_directory(directory)


def retire(disk: Disk, directory: str, segments: Iterable[Segment]) -> list[str]:
    """Mark the old ones deleted; the paths to remove later. Waits for the disk."""
    marked = []
    for segment in segments:
        for suffix in SEGMENT_SUFFIXES:
            path = segment.path(suffix)
            if _rename(disk, path, path + DELETED_SUFFIX):
                marked.append(path + DELETED_SUFFIX)
    disk.sync_directory(directory)
    return marked


def give_up(disk: Disk, directory: str, base_offset: int) -> None:
    """The old ones are gone already. The log file goes last: without its indexes it is still a whole segment."""
    stem = f"{directory}/{base_offset:020d}"
    for suffix in reversed(SEGMENT_SUFFIXES):
        remove_if_there(disk, stem + suffix + SWAP_SUFFIX)


def settle(disk: Disk, segment: Segment) -> None:
    """The new one has its name for good; durable with the directory's next sync."""
    for suffix in SEGMENT_SUFFIXES:
        _rename(disk, segment.stem + suffix + SWAP_SUFFIX, segment.stem + suffix)
    segment.swap_suffix = ""


def _rename(disk: Disk, source: str, target: str) -> bool:
    try:
        disk.rename(source, target)
    except FileNotFoundError:
        return False  # most segments have no aborted transactions
    return True
