"""Giving up a log's tail on disk without making the event loop wait.

The log forgets the tail at once (`begin_truncation`, `begin_restart`), a thread runs the task, the loop completes it.
Like a `FlushTask` it touches nothing of the log: nobody else uses the files that it names.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.kernel import Disk, File
from moldau.storage.loading import remove_segment
from moldau.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment


@dataclass(slots=True)
class CutTask:
    """`error` is what went wrong, for `PartitionLog.complete_cut` to judge; `run` itself does not raise it."""

    disk: Disk
    directory: str
    # Where the log ends, and how much it lost.
    end_offset: int
    bytes_cut: int
    # From the last to the first.
    removed: list[Segment]
    # The last segment's file, and what is left of it.
    file: File
    size: int
    # It was the first's and becomes the second's: the log begins anew.
    renamed_from: Segment | None = None
    renamed_to: Segment | None = None
    error: OSError | None = None

    def run(self) -> None:
        """Called in a thread, once; everything is durable when it returns."""
        try:
            for segment in self.removed:
                # Each durably: a power cut leaves a shorter log, never one with a hole.
                remove_segment(self.disk, segment)
                self.disk.sync_directory(self.directory)
            self.file.truncate(self.size)
            self.file.sync()
            if self.renamed_from is not None and self.renamed_to is not None:
                self._rename(self.renamed_from, self.renamed_to)
        except OSError as error:
            self.error = error

    def _rename(self, old: Segment, new: Segment) -> None:
        if old.stem != new.stem:
            self.disk.rename(old.stem + LOG_SUFFIX, new.stem + LOG_SUFFIX)
        remove_segment(self.disk, old, INDEX_SUFFIXES)
        self.disk.sync_directory(self.directory)
