"""Moving a replica from one of this broker's directories to another while it serves.

Files are copied in a thread while appends go on (logs only grow); then, in one turn of the loop, the log is closed,
what grew meanwhile is copied too, and the partition goes on from the copy. A crash before the last step leaves a
directory with the suffix `-future`, which the next start removes.
"""

from __future__ import annotations

from moldau.broker.partition import Partition
from moldau.kernel import Disk, TopicPartition
from moldau.storage import LogDirectory, PartitionLog

COPY_BYTES = 4 << 20


class ReplicaMove:
    def __init__(self, disk: Disk, partition: Partition, source: LogDirectory, target: LogDirectory, mark: str) -> None:
        self._disk = disk
        self._partition = partition
        self._name = TopicPartition(partition.topic, partition.index)
        self._source = source.partition_path(self._name)
        self._target = target.partition_path(self._name)
        self._target_parent = target.path
        self._future = f"{target.path}/{self._name}.{mark}-future"

    def copy(self) -> None:
        """The bulk; runs in a thread and may see the log grow."""
        self._disk.make_directories(self._future)
        self._bring_up_to_date()

    def switch(self, now_ms: int) -> PartitionLog:
        """The rest, with the log closed; the log in its new place."""
        old = self._partition.log
        old.close(clean=True, now_ms=now_ms)
        self._bring_up_to_date()
        self._disk.rename(self._future, self._target)
        self._disk.sync_directory(self._target_parent)
        return PartitionLog.open(
            self._disk,
            self._target,
            old.config,
            now_ms=now_ms,
            recovery_point=old.recovery_point,
            start_offset=old.start_offset,
            clean=True,
            topic_id=old.topic_id,
        )

    def abandon(self) -> None:
        if self._disk.exists(self._future):
            self._disk.remove_tree(self._future)

    def _bring_up_to_date(self) -> None:
        names = self._disk.list(self._source)
        for name in self._disk.list(self._future):
            if name not in names:
                self._disk.remove(f"{self._future}/{name}")
        for name in names:
            self._copy_file(name)

    def _copy_file(self, name: str) -> None:
        source = self._disk.open(f"{self._source}/{name}")
        target = self._disk.open(f"{self._future}/{name}", create=True)
        try:
            # Logs only grow, so what is there stays; everything else is small and may have changed anywhere.
            position = target.size() if name.endswith(".log") else 0
            size = source.size()
            if position > size or not name.endswith(".log"):
                position = 0
                target.truncate(0)
            while position < size:
                data = source.read(position, min(COPY_BYTES, size - position))
                if not data:
                    break
                target.write(position, [data])
                position += len(data)
            target.sync()
        finally:
            source.close()
            target.close()
