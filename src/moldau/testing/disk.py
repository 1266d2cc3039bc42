"""A disk that forgets what was not synced, fills up, and fails when told to.

A file is an inode: bytes as programs see them, bytes that are safe, and the writes in between. A directory is a list
of names as programs see it, a safe one, and the changes in between. `crash()` decides for each write and each change by
itself whether it reached the platter: writes are kept, dropped or torn at any byte, in any combination; names may
appear without their bytes and bytes without their names. What a program synced is always kept. `kill()` loses nothing:
the process died, not the machine.

Model limits: a rename happens wholly or not at all; the removal of a whole tree is durable at once; replace_file either
happened or not, as its promise says, because the temporary file is synced before the rename.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from moldau.kernel import Buffer, Dice, DirectoryLock, File

UNLIMITED_BYTES = 1 << 60


class PowerLoss(BaseException):  # not an Exception: no handler of the program under test may swallow it
    """The machine stopped in the middle of an operation. Take `crash()` of the disk and go on with that."""


class _Inode:
    __slots__ = ("bytes", "doubtful", "durable", "modified_ms", "pending")

    def __init__(self, data: bytes = b"", modified_ms: int = 0) -> None:
        self.modified_ms = modified_ms
        self.bytes = bytearray(data)
        self.durable = bytes(data)
        # (position, data) of a write, (size, None) of a truncation, since the last sync.
        self.pending: list[tuple[int, bytes | None]] = []
        # Writes that a failed sync dropped from the cache as if they were safe.
        self.doubtful: list[tuple[int, bytes | None]] = []

    def after_crash(self, dice: Dice) -> _Inode:
        data = bytearray(self.durable)
        for position, written in self.doubtful + self.pending:
            _apply_maybe(data, position, written, dice)
        return _Inode(bytes(data), self.modified_ms)


def _apply_maybe(data: bytearray, position: int, written: bytes | None, dice: Dice) -> None:
    fate = dice.below(4)
    if fate == 0:
        return
    if written is None:
        _apply(data, position, None)
        return
    if fate == 1 and written:
        # Torn: some run of its bytes made it, from the front, from the back or from the middle.
        start, end = sorted((dice.below(len(written) + 1), dice.below(len(written) + 1)))
        if dice.below(2):
            start = 0
        position, written = position + start, written[start:end]
        if not written:
            return
    _apply(data, position, written)


def _apply(data: bytearray, position: int, written: bytes | None) -> None:
    if written is None:
        if position < len(data):
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


class _Directory:
    """`changes` since the last sync: (name that goes, name that comes, inode) with None where there is none."""

    __slots__ = ("changes", "durable", "durable_name", "names")

    def __init__(self) -> None:
        # Its own name as the platter has it; None while the directory above was not synced since it was made.
        self.durable_name: str | None = None
        self.names: dict[str, _Inode] = {}
        self.durable: dict[str, _Inode] = {}
        self.changes: list[tuple[str | None, str | None, _Inode | None]] = []

    def change(self, gone: str | None, come: str | None, inode: _Inode | None) -> None:
        self.changes.append((gone, come, inode))
        _rename(self.names, gone, come, inode)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()


def _rename(names: dict[str, _Inode], gone: str | None, come: str | None, inode: _Inode | None) -> None:
    if gone is not None:
        names.pop(gone, None)
    if come is not None:
        assert inode is not None
        names[come] = inode


class SimulatedFile:
    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: SimulatedDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path

    def read(self, position: int, count: int) -> bytes:
        self._disk._check_readable(self.path)
        return bytes(self._inode.bytes[position : position + count])

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        disk, data = self._disk, b"".join(bytes(buffer) for buffer in buffers)
        grown = max(position + len(data) - len(self._inode.bytes), 0)
        room = disk.free_bytes(self.path)
        if disk._step():
            # The power goes while the data is on its way: any part of it may have left.
            self._put(position, data[: disk._dice.below(len(data) + 1)])
            raise PowerLoss
        if grown > room:
            fitting = len(data) - (grown - room)
            self._put(position, data[: disk._dice.below(max(fitting, 0) + 1)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._put(position, data)

    def _put(self, position: int, data: bytes) -> None:
        if data:
            self._inode.modified_ms = self._disk.now_ms
            self._inode.pending.append((position, data))
            _apply(self._inode.bytes, position, data)

    def size(self) -> int:
        return len(self._inode.bytes)

    def truncate(self, size: int) -> None:
        self._disk._mutate()
        if size != len(self._inode.bytes):
            self._inode.pending.append((size, None))
            _apply(self._inode.bytes, size, None)

    def sync(self) -> None:
        self._disk._mutate()
        inode = self._inode
        if id(inode) in self._disk._given_up:
            self._disk.synced_again = self.path
        if self._disk._sync_fails(self.path):
            self._disk._given_up[id(inode)] = inode
            # fsyncgate: the pages are marked clean, and the next sync will say that all is well.
            inode.doubtful += inode.pending
            inode.pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        if inode.doubtful:
            return
        inode.durable = bytes(inode.bytes)
        inode.pending.clear()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class _SimulatedLock:
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk._locks.discard(self._path)


class SimulatedDisk:
    """All faults are set by attributes and calls; without them it is an ordinary, fast file system in memory."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._directories: dict[str, _Directory] = {"": _Directory()}
        self._locks: set[str] = set()
        self._failing_syncs: list[str] = []
        self._unreadable: set[str] = set()
        # Files of which a sync failed in this life, and the one that was synced again all the same: its bytes may be
        # gone, and the disk says that all is well.
        self._given_up: dict[int, _Inode] = {}
        self.synced_again: str | None = None
        self._steps_left: int | None = None
        self._is_lost = False
        # Called when the power goes, before anything else can happen.
        self.on_power_loss: Callable[[], None] | None = None
        self.capacity_bytes = UNLIMITED_BYTES
        # The time that files get when they are written to; whoever cares moves it.
        self.now_ms = 0
        # Operations that changed something: a place for `lose_power_after`.
        self.steps = 0

    # -- faults --------------------------------------------------------------------------------------------------------

    def lose_power_after(self, steps: int) -> None:
        """Raise PowerLoss in the middle of the operation that many changes from now."""
        self._steps_left = steps

    def fail_sync(self, part_of_path: str = "") -> None:
        """The next sync of a file (or directory) whose path contains the text fails with EIO, once."""
        self._failing_syncs.append(part_of_path)

    @property
    def is_about_to_fail(self) -> bool:
        return bool(self._failing_syncs)

    def mend(self) -> None:
        """Faults that were ordered and have not come yet never will."""
        self._failing_syncs.clear()
        self._steps_left = None
        self.capacity_bytes = UNLIMITED_BYTES

    def fail_reads(self, path: str) -> None:
        self._unreadable.add(path)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Decay on the platter, seen by everyone."""
        inode = self._inode(path)
        inode.bytes[position] ^= 1 << bit
        durable = bytearray(inode.durable)
        if position < len(durable):
            durable[position] ^= 1 << bit
        inode.durable = bytes(durable)

    def crash(self) -> SimulatedDisk:
        """The disk that a machine finds when the power is back. This one is not to be used any more."""
        after = SimulatedDisk(self._dice)
        after.capacity_bytes = self.capacity_bytes
        after.now_ms = self.now_ms
        survivors: dict[int, _Inode] = {}
        moved: dict[str, str] = {"": ""}
        for path in sorted(self._directories, key=lambda path: path.split("/")):
            directory = self._directories[path]
            if path and not self._survives(path, directory, moved):
                continue
            names = dict(directory.durable)
            for gone, come, inode in directory.changes:
                if self._dice.below(2):
                    _rename(names, gone, come, inode)
            found = after._directories[moved[path]] = _Directory()
            found.durable_name = moved[path].rpartition("/")[2]
            for name in sorted(names):
                old = names[name]
                if id(old) not in survivors:
                    survivors[id(old)] = old.after_crash(self._dice)
                found.names[name] = survivors[id(old)]
            found.durable = dict(found.names)
        return after

    def _survives(self, path: str, directory: _Directory, moved: dict[str, str]) -> bool:
        """Whether a directory is there after the crash; `moved` gets the path at which it is."""
        parent, _, name = path.rpartition("/")
        if parent not in moved:
            return False
        found_name: str | None = name
        if directory.durable_name != name and self._dice.below(2):
            found_name = directory.durable_name
        if found_name is None:
            return False
        moved[path] = f"{moved[parent]}/{found_name}" if parent or path.startswith("/") else found_name
        return True

    def kill(self) -> SimulatedDisk:
        """The disk as the next process finds it when only the process died: all that was written is there."""
        after = SimulatedDisk(self._dice)
        after.capacity_bytes = self.capacity_bytes
        after._directories = self._directories
        return after

    @property
    def used_bytes(self) -> int:
        inodes = {id(inode): inode for each in self._directories.values() for inode in each.names.values()}
        return sum(len(inode.bytes) for inode in inodes.values())

    def tree(self) -> dict[str, bytes]:
        """Every file as programs see it, for comparing."""
        return {
            f"{path}/{name}": bytes(inode.bytes)
            for path, directory in sorted(self._directories.items())
            for name, inode in sorted(directory.names.items())
        }

    def _step(self) -> bool:
        """Count a change; whether the power goes now. Afterwards nothing changes any more."""
        if self._is_lost:
            raise PowerLoss
        self.steps += 1
        if self._steps_left is None:
            return False
        self._steps_left -= 1
        if self._steps_left >= 0:
            return False
        self._is_lost = True
        if self.on_power_loss is not None:
            self.on_power_loss()
        return True

    def _mutate(self) -> None:
        if self._step():
            raise PowerLoss

    def _sync_fails(self, path: str) -> bool:
        for part in self._failing_syncs:
            if part in path:
                self._failing_syncs.remove(part)
                return True
        return False

    def _check_readable(self, path: str) -> None:
        if path in self._unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    # -- the port ------------------------------------------------------------------------------------------------------

    def _split(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        if parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._directories[parent], name

    def _inode(self, path: str) -> _Inode:
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def open(self, path: str, *, create: bool = False) -> File:
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._mutate()
            inode = _Inode()
            directory.change(None, name, inode)
        return SimulatedFile(self, inode, path)

    def exists(self, path: str) -> bool:
        if path in self._directories:
            return True
        parent, _, name = path.rpartition("/")
        return parent in self._directories and name in self._directories[parent].names

    def size(self, path: str) -> int:
        return len(self._inode(path).bytes)

    def list(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        below = {other[len(path) + 1 :] for other in self._directories if other.startswith(path + "/")}
        return sorted({*self._directories[path].names, *(name for name in below if "/" not in name)})

    def make_directories(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._directories.setdefault("/".join(parts[:count]), _Directory())

    def rename(self, source: str, target: str) -> None:
        self._mutate()
        if source in self._directories:
            self._rename_tree(source, target)
            return
        inode = self._inode(source)
        from_directory, from_name = self._split(source)
        to_directory, to_name = self._split(target)
        if from_directory is to_directory:
            from_directory.change(from_name, to_name, inode)
        else:
            to_directory.change(None, to_name, inode)
            from_directory.change(from_name, None, None)

    def _rename_tree(self, source: str, target: str) -> None:
        for path in [path for path in self._directories if path == source or path.startswith(source + "/")]:
            self._directories[target + path[len(source) :]] = self._directories.pop(path)

    def remove(self, path: str) -> None:
        self._mutate()
        self._inode(path)
        directory, name = self._split(path)
        directory.change(name, None, None)

    def remove_tree(self, path: str) -> None:
        self._mutate()
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for other in [other for other in self._directories if other == path or other.startswith(path + "/")]:
            del self._directories[other]

    def sync_directory(self, path: str) -> None:
        path = "" if path == "." else path.rstrip("/")
        self._mutate()
        if self._sync_fails(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._directories[path].sync()
        for other, directory in self._directories.items():
            parent, _, name = other.rpartition("/")
            if other and parent == path:
                directory.durable_name = name

    def read_file(self, path: str) -> bytes:
        self._check_readable(path)
        return bytes(self._inode(path).bytes)

    def replace_file(self, path: str, data: bytes) -> None:
        self._mutate()
        if self._sync_fails(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        directory, name = self._split(path)
        if len(data) > self.free_bytes(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        directory.change(None, name, _Inode(data))
        self.sync_directory(path.rpartition("/")[0])

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes

    def free_bytes(self, path: str) -> int:
        return (
            max(self.capacity_bytes - self.used_bytes, 0) if self.capacity_bytes < UNLIMITED_BYTES else UNLIMITED_BYTES
        )

    def allocate(self, path: str, size: int) -> None:
        self._mutate()
        if size > self.free_bytes(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        directory, name = self._split(path)
        directory.change(None, name, _Inode(bytes(size)))

    def lock(self, path: str) -> DirectoryLock:
        if path in self._locks:
            raise BlockingIOError("another node")
        self._locks.add(path)
        if not self.exists(path):
            self.open(path, create=True)
        return _SimulatedLock(self, path)
