"""Making a log durable without making the event loop wait.

The log notes in `Unsynced` what it wrote; the loop turns that into a `FlushTask`, a thread runs it, and the loop
completes it. A task touches nothing of the log: it holds the open files and the bytes that it needs. Several logs'
tasks may run side by side, one log has at most one under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.kernel import Disk, File
from moldau.storage.faults import is_full, is_passing
from moldau.storage.segment import Segment


@dataclass(slots=True)
class FlushTask:
    """`error` is what went wrong, for `PartitionLog.complete_flush` to judge; `run` itself does not raise it."""

    disk: Disk
    # The recovery point that holds once everything below is on disk.
    offset: int
    generation: int
    files: list[File]
    # Indexes and snapshots written at rolls. One that is gone by now is not missed.
    paths: list[str]
    epochs_path: str
    epochs: bytes | None
    directories: list[str]
    error: OSError | None = None
    # What was not there to sync with (room for the epochs, a descriptor): nothing is broken, the next task may do.
    postponed: OSError | None = None

    def run(self) -> None:
        """Sync everything; called in a thread, once."""
        try:
            for file in self.files:
                file.sync()
            for path in self.paths:
                self._sync_path(path)
            if self.epochs is not None:
                self._write_epochs(self.epochs)
            if self.postponed is not None:
                return
            for directory in self.directories:
                self.disk.sync_directory(directory)
        except OSError as error:
            self.error = error

    def _sync_path(self, path: str) -> None:
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if not is_passing(error):
                raise
            self.postponed = error
            return
        try:
            file.sync()
        finally:
            file.close()

    def _write_epochs(self, epochs: bytes) -> None:
        try:
            self.disk.replace_file(self.epochs_path, epochs)
        except OSError as error:
            # Also where a sync said it: the file is not in its place, and is written anew from its first byte.
            if not is_full(error):
                raise
            self.postponed = error


class Unsynced:
    """What a log has written and not yet made durable, besides its active segment's bytes."""

    __slots__ = ("directory", "generation", "messages", "parent", "paths", "segments", "since_ms", "under_way")

    def __init__(self, messages: int) -> None:
        # Rolled segments with the files they were written through.
        self.segments: list[tuple[Segment, File | None]] = []
        self.paths: list[str] = []
        # Whether names were made or changed in the log's directory, and whether that itself is new in its parent.
        self.directory = False
        self.parent = False
        # Counts truncations: a flush that began before one says nothing about the bytes after it.
        self.generation = 0
        self.under_way = False
        self.messages = messages
        # When unflushed messages were first looked at; -1 when there are none.
        self.since_ms = -1

    def note_path(self, path: str) -> None:
        self.directory = True
        if path not in self.paths:
            self.paths.append(path)

    def take_back(self, task: FlushTask, messages: int) -> None:
        """What a postponed task could not do is due again; the files that it synced are safe."""
        self.paths = [*task.paths, *(path for path in self.paths if path not in task.paths)]
        self.directory = self.parent = True
        self.messages = messages

    def forget_segments(self, gone: list[Segment]) -> None:
        self.segments = [(segment, file) for segment, file in self.segments if segment not in gone]

    def take(
        self, disk: Disk, directory: str, end_offset: int, active: Segment, epochs_path: str, epochs: bytes | None
    ) -> FlushTask:
        files = [file or disk.open(segment.path(".log")) for segment, file in self.segments]
        if active.size:
            files.append(active.open())
        directories = []
        if self.directory:
            directories.append(directory)
            if self.parent and "/" in directory:
                directories.append(directory.rsplit("/", 1)[0])
        task = FlushTask(disk, end_offset, self.generation, files, self.paths, epochs_path, epochs, directories)
        self.segments, self.paths = [], []
        self.directory = self.parent = False
        self.messages, self.since_ms = 0, -1
        self.under_way = True
        return task
