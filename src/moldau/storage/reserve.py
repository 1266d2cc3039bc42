"""Room on a disk that is kept for what must be written even when it is full.

A log directory holds the file `.moldau-reserve`, which takes up space and says nothing. A checkpoint or a change of the
metadata that finds no room has the file removed and is written in its place; without it a full disk could not even be
trimmed, as the new start is checkpointed first. `on_spent` is told, so that nobody else takes the room before the
file is there again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moldau.kernel import Buffer, DirectoryLock, Disk, File
from moldau.storage.faults import is_full

RESERVE_FILE = ".moldau-reserve"


class Reserve:
    """The file of one directory; of no size there is none."""

    __slots__ = ("_disk", "_path", "is_spent", "on_spent", "size")

    def __init__(self, disk: Disk, directory: str, size: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{RESERVE_FILE}"
        self.size = size
        self.is_spent = False
        # Called in whichever thread wrote.
        self.on_spent: Callable[[], None] | None = None

    def fill(self) -> None:
        """Take the room, or take it again. OSError when there is none."""
        if self.size:
            if not self._disk.exists(self._path) or self._disk.size(self._path) != self.size:
                self._disk.allocate(self._path, self.size)
        elif self._disk.exists(self._path):
            self._disk.remove(self._path)
        self.is_spent = False

    def spend(self) -> bool:
        """Give the room back to the disk; whether there was any."""
        try:
            self._disk.remove(self._path)
        except FileNotFoundError:
            return False
        self.is_spent = True
        if self.on_spent is not None:
            self.on_spent()
        return True


class ReservedFile:
    """Writes name their position, so one that found no room can be made again from its beginning."""

    __slots__ = ("_file", "_reserve")

    def __init__(self, file: File, reserve: Reserve) -> None:
        self._file = file
        self._reserve = reserve

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            self._file.write(position, buffers)
        except OSError as error:
            if not is_full(error) or not self._reserve.spend():
                raise
            self._file.write(position, buffers)

    def read(self, position: int, count: int) -> bytes:
        return self._file.read(position, count)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class ReservedDisk:
    """A disk as they see it who may use the reserve: the metadata log and the checkpoints of a directory."""

    __slots__ = ("_disk", "_reserve")

    def __init__(self, disk: Disk, reserve: Reserve) -> None:
        self._disk = disk
        self._reserve = reserve

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            file = self._disk.open(path, create=create)
        except OSError as error:
            if not is_full(error) or not self._reserve.spend():
                raise
            file = self._disk.open(path, create=create)
        return ReservedFile(file, self._reserve)

    def replace_file(self, path: str, data: bytes) -> None:
        try:
            self._disk.replace_file(path, data)
        except OSError as error:
            if not is_full(error) or not self._reserve.spend():
                raise
            self._disk.replace_file(path, data)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def make_directories(self, path: str) -> None:
        self._disk.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def remove_tree(self, path: str) -> None:
        self._disk.remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def read_file(self, path: str) -> bytes:
        return self._disk.read_file(path)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def allocate(self, path: str, size: int) -> None:
        self._disk.allocate(path, size)

    def lock(self, path: str) -> DirectoryLock:
        return self._disk.lock(path)
