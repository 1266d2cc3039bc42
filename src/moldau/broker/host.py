"""The real disk, clock and dice: the only place below the listener that asks the operating system.

Everything else gets them as ports (`moldau.kernel`). Files close when nobody holds them any more, so a range that is
being sent outlives the segment it came from.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from moldau.kernel import Buffer, DirectoryLock, File, Timer

# The kernel takes no more pieces in one call.
WRITE_BUFFERS_MAX = 1024
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC


class SystemFile:
    """An open file. Closed at the latest when the last reference goes."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, position: int, count: int) -> bytes:
        data = os.pread(self._fd, count, position)
        if len(data) == count or not data:
            return data
        return self._read_rest(data, position, count)

    def _read_rest(self, data: bytes, position: int, count: int) -> bytes:
        """A short read is the end of the file, or a call longer than the kernel's limit."""
        pieces, got = [data], len(data)
        while got < count:
            piece = os.pread(self._fd, count - got, position + got)
            if not piece:
                break
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:
            buffer = buffers[0]
            written = os.pwrite(self._fd, buffer, position)
            if written != len(buffer):
                self._write_rest(position, buffers, written)
            return
        written = os.pwritev(self._fd, buffers[:WRITE_BUFFERS_MAX], position) if buffers else 0
        if written != sum(map(len, buffers)):
            self._write_rest(position, buffers, written)

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        position += written
        for buffer in buffers:
            with memoryview(buffer) as view:
                if written >= len(view):
                    written -= len(view)
                    continue
                rest, written = view[written:], 0
                while rest:
                    count = os.pwrite(self._fd, rest, position)
                    position += count
                    rest = rest[count:]

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class SystemLock:
    """A POSIX record lock on a file, which is what Kafka takes too; it lives and dies with the process, whose id is in
    the file for whoever meets it."""

    # POSIX locks do not tell two holders in one process apart, so we do.
    _held: set[str] = set()  # noqa: RUF012

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        if self._path in self._held:
            raise BlockingIOError(f"process {os.getpid()}, which is this one")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the second is how some systems say that it is held
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise BlockingIOError(f"process {holder}" if holder else "a process that left no name") from None
        except OSError:
            os.close(self._fd)
            raise
        self._held.add(self._path)
        # Where a disk is full the lock holds as well.
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._path in self._held:
            self._held.discard(self._path)
            os.close(self._fd)


class SystemDisk:
    """The machine's file system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> File:
        return SystemFile(os.open(path, _OPEN_FLAGS | os.O_CREAT if create else _OPEN_FLAGS, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        import shutil  # dear to import, seldom needed

        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)
            while len(data) < size and (piece := os.read(fd, size - len(data))):
                data += piece
            return data
        finally:
            os.close(fd)

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def lock(self, path: str) -> DirectoryLock:
        return SystemLock(path)


class SystemClock:
    """The machine's clocks; timers run on the running event loop."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


class SystemDice:
    """The machine's secure randomness."""

    __slots__ = ()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        bits = (bound - 1).bit_length()
        while True:
            number = int.from_bytes(os.urandom((bits + 7) // 8)) >> (-bits % 8)
            if number < bound:
                return number
