"""The doors through which time, chance, files and connections come in.

Everything below the broker's shell takes these as arguments and imports no clock, dice, file or socket of its own. The
real ones live in `moldau.broker.host`; the simulated ones, with crashes and virtual time, in `moldau.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Timer(Protocol):
    """A call that is due later; cancelling twice is harmless."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for timeouts: the wall may jump, the other never goes back."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


class Dice(Protocol):
    """Chance. Ids that must be unguessable or unique come from here too."""

    def random_bytes(self, count: int) -> bytes: ...

    def below(self, bound: int) -> int: ...


class File(Protocol):
    """An open file. Reads and writes name their position; nothing is durable before `sync`."""

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers back to back, or raise OSError; what a failed write left behind is unknown."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make the bytes durable. After an error nothing is known about them: never call it again (fsyncgate)."""
        ...

    def fileno(self) -> int:
        """The descriptor for `os.sendfile`, or -1 where there is none (simulated disks)."""
        ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system, as small as a log needs it. Paths are plain strings joined with '/'."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless it exists or `create` is given."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directories(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file; durable after `sync_directory` of the parent."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """The whole file, durably and atomically: temporary file, sync, rename, sync of the directory."""
        ...

    def modified_ms(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int: ...

    def allocate(self, path: str, size: int) -> None:
        """A file that takes up so much room, whatever is in it; none at all when there is not so much (OSError)."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """An exclusive lock held by this process; BlockingIOError when another holds it."""
        ...


class Network(Protocol):
    """Connections to other brokers; the listener's side is the shell's own affair."""

    async def connect(self, host: str, port: int) -> Connection: ...


class Connection(Protocol):
    """A byte stream to a peer."""

    async def read_exactly(self, count: int) -> bytes:
        """EOFError when the peer closes first."""
        ...

    async def write(self, data: Buffer) -> None: ...

    def close(self) -> None: ...
