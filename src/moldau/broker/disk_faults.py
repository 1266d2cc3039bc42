"""What happens when a disk is full, or fails.

Full (ENOSPC, EDQUOT): the batch that found no room is refused. Once less is free than the directory's reserve, or the
reserve itself is spent, all logs of the directory are held: they refuse appends, and reads go on. Every append that
is refused, and every housekeeping, looks whether there is room again; then the reserve is filled first, and the logs
go on.

Failed (any other error of a write, any error of a sync, EIO from a read): nothing that the disk says is believed any
more, and nothing is tried again. The directory is out of service until the next start; its partitions answer
KAFKA_STORAGE_ERROR, those of other directories go on. After the last directory the process ends.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.space_trend import SpaceTrend
from moldau.kernel import Disk
from moldau.storage import LogDirectory, is_passing

if TYPE_CHECKING:
    from moldau.broker.partition import Partition
    from moldau.broker.replicas import Replicas

# Room that must be free before a full directory goes on, where it keeps no reserve of its own.
ROOM_BYTES_MIN = 1 << 20


class DiskFaults:
    def __init__(
        self,
        replicas: Replicas,
        disk: Disk,
        *,
        on_offline: Callable[[LogDirectory], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._on_offline = on_offline
        self._on_fault = on_fault
        self._full: set[str] = set()
        self._trends: dict[str, SpaceTrend] = {}
        for directory in replicas.directories:
            directory.reserve.on_spent = lambda each=directory: self._soon(lambda: self._look_at(each))

    @property
    def full(self) -> list[str]:
        """Paths of the directories whose logs are held."""
        return sorted(self._full)

    def watch(self, partition: Partition, directory: LogDirectory) -> None:
        """From now on the partition's log tells what happens to it."""
        log = partition.log
        log.on_failed = lambda reason: self._soon(lambda: self.take_offline(directory, reason))
        log.on_full = lambda: self._soon(lambda: self._look_at(directory))
        if directory.path in self._full:
            log.hold(lambda: self._why_held(directory))

    def _soon(self, work: Callable[[], None]) -> None:
        """Not in the middle of an append, and in the loop's own thread."""
        self._replicas.loop.call_soon_threadsafe(work)

    # -- full ----------------------------------------------------------------------------------------------------------

    def seconds_until_full(self, directory: LogDirectory, now_ms: int) -> float:
        trend = self._trends.setdefault(directory.path, SpaceTrend())
        return trend.seconds_until_full(now_ms, self._disk.free_bytes(directory.path))

    def look_at_space(self, now_ms: int) -> None:
        """The timer's part: a full directory goes on by itself when there is room."""
        for directory in self._replicas.directories:
            self._note_space(directory, now_ms)
            if directory.path in self._full or directory.reserve.is_spent:
                self._look_at(directory)

    def _note_space(self, directory: LogDirectory, now_ms: int) -> None:
        try:
            free = self._disk.free_bytes(directory.path)
        except OSError as error:
            self.note_error(directory, error)
            return
        self._trends.setdefault(directory.path, SpaceTrend()).note(now_ms, free)

    def _look_at(self, directory: LogDirectory) -> None:
        if self._replicas.is_offline(directory):
            return
        reserve = directory.reserve
        needed = (reserve.size or ROOM_BYTES_MIN) + (reserve.size if reserve.is_spent else 0)
        free = 0
        try:
            free = self._disk.free_bytes(directory.path)
            has_room = free >= needed
            if has_room and reserve.is_spent:
                reserve.fill()
        except OSError as error:
            if not is_passing(error):
                self.take_offline(directory, str(error))
                return
            has_room = False
        if has_room and directory.path in self._full:
            self._full.discard(directory.path)
            for partition in self._replicas.in_directory(directory):
                partition.log.release()
            self._replicas.say(f"log_directory_has_room path={directory.path} free_bytes={free}")
        elif not has_room and directory.path not in self._full:
            self._full.add(directory.path)
            for partition in self._replicas.in_directory(directory):
                partition.log.hold(lambda: self._why_held(directory))
            self._replicas.say(
                f"log_directory_full path={directory.path} free_bytes={free}"
                " hint='produce is refused until there is room; reads go on'"
            )

    def _why_held(self, directory: LogDirectory) -> str | None:
        """Asked by every append meanwhile, so that the first one after there is room succeeds."""
        self._look_at(directory)
        if self._replicas.is_offline(directory):
            return f"log directory {directory.path} failed"
        if directory.path not in self._full:
            return None
        return f"the disk of {directory.path} is full; produce goes on when there is room again"

    # -- failed --------------------------------------------------------------------------------------------------------

    def note_error(self, directory: LogDirectory, error: OSError) -> None:
        """Something of the directory itself could not be written, such as a checkpoint."""
        if not is_passing(error):
            self.take_offline(directory, str(error))

    def note_read_error(self, partition: Partition, error: OSError) -> None:
        """Only EIO is the disk's word; a file that is missing, or a lack of descriptors, costs the one answer."""
        if error.errno != errno.EIO:
            return
        path = partition.log.directory.rpartition("/")[0]
        directory = next((each for each in self._replicas.directories if each.path == path), None)
        if directory is not None:
            self._soon(lambda: self.take_offline(directory, f"reading failed: {error}"))

    def take_offline(self, directory: LogDirectory, reason: str) -> None:
        if self._replicas.is_offline(directory):
            return
        self._full.discard(directory.path)
        count = self._replicas.drop_directory(directory, reason)
        self._replicas.say(
            f"log_directory_offline path={directory.path} partitions={count} reason={reason!r}"
            " hint='look at the disk, then restart the broker'"
        )
        if not self._replicas.directories:
            self._on_fault(OSError(f"{directory.path}: {reason}; no log directory is left"))
            return
        self._on_offline(directory)
