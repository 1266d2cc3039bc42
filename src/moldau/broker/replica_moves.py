"""Moving a replica from one of this broker's directories to another while it serves.

    copy       in a thread, into `<target>/<partition>.<unique>-future`, while appends go on (logs only grow)
    hold       no flush is under way and none begins: what is durable stays as it is
    catch up   in a thread, synced: the copy now holds everything that is durable
    place      the copy gets its name, durably; until the switch the metadata log still names the old place, which wins
    switch     in one turn of the loop: the few bytes that came meanwhile, the old directory is marked deleted, the log
               goes on in the new one
    settle     the old name's end is made durable, then flushes go on: nothing was called durable that only one has

So a crash at any moment leaves the replica where the metadata log says, or in one place only. What fails before the
switch leaves the log where it is, untouched.
"""

from __future__ import annotations

import asyncio

from moldau.broker.checkpoints import STALE_MARK
from moldau.broker.partition import Partition
from moldau.kernel import Disk, ErrorCode, File, KafkaError, TopicPartition
from moldau.storage import LogDirectory

COPY_BYTES = 4 << 20
# Files that the log will remove soon, or makes again, or that concern the old place.
_LEFT_OUT = (".deleted", ".tmp", STALE_MARK)


class ReplicaMove:
    """The steps; `Replicas.move` takes them in order. Those in a thread may raise OSError, as may `place`, `switch`."""

    def __init__(
        self, disk: Disk, partition: Partition, source: LogDirectory, target: LogDirectory, unique: bytes
    ) -> None:
        self._disk = disk
        self._partition = partition
        self._name = TopicPartition(partition.topic, partition.index)
        self._unique = unique
        self._source = source
        self.target = target
        self._copy_path = target.future_path(self._name, unique)
        self._is_placed = False
        self._is_switched = False
        # Set by the loop, seen by the thread that copies.
        self.is_cancelled = False
        self.is_over = asyncio.Event()

    def check(self) -> None:
        """After every wait: does it still make sense to go on?"""
        if self._partition.why_removed is not None:
            raise self._partition.why_removed
        if self._partition.log.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._partition.log.failure)

    def copy(self) -> None:
        """In a thread."""
        self._disk.make_directories(self._copy_path)
        for name in self._names():
            self._copy_file(name).sync()
        self._disk.sync_directory(self._copy_path)

    def place(self) -> None:
        target = self.target.partition_path(self._name)
        self._disk.rename(self._copy_path, target)
        self._copy_path = target
        self._is_placed = True

    def switch(self) -> str:
        """The path of the old directory, to be removed."""
        names = self._names()
        for name in self._disk.list(self._copy_path):
            if name not in names:
                self._disk.remove(f"{self._copy_path}/{name}")
        for name in names:
            # Files other than logs are written once; a flush of the log in its new place writes the epochs again.
            if name.endswith(".log") or not self._disk.exists(f"{self._copy_path}/{name}"):
                self._copy_file(name)
        deleted = self._source.rename_for_deletion(self._name, self._unique)
        self._partition.log.rehome(self._copy_path)
        self._is_switched = True
        return deleted

    def give_up(self) -> str | None:
        """On the loop, before the switch: the path of the copy, to be removed, if there is one. Twice is harmless."""
        self.is_cancelled = True
        if self._is_switched:
            return None
        if self._is_placed:
            self._copy_path = self.target.rename_for_deletion(self._name, self._unique)
            self._is_placed = False
        return self._copy_path if self._disk.exists(self._copy_path) else None

    def _names(self) -> list[str]:
        return [name for name in self._disk.list(self._partition.log.directory) if not name.endswith(_LEFT_OUT)]

    def _copy_file(self, name: str) -> File:
        target = self._disk.open(f"{self._copy_path}/{name}", create=True)
        try:
            source = self._disk.open(f"{self._partition.log.directory}/{name}")
        except FileNotFoundError:
            # Deleted since it was listed; `switch` looks again.
            return target
        size = source.size()
        # Logs only grow, so what is there stays; everything else is small and may have changed anywhere.
        position = target.size() if name.endswith(".log") else 0
        if position > size or not position:
            position = 0
            target.truncate(0)
        while position < size:
            if self.is_cancelled:
                raise OSError(f"the move of {self._name} was cancelled")
            data = source.read(position, min(COPY_BYTES, size - position))
            if not data:
                break
            target.write(position, [data])
            position += len(data)
        return target
