"""Producer snapshots beside the segments: `<offset>.snapshot` is the producers' state before that offset.

One is written at every roll and at a clean close. Two newest are kept, and one from which recovery could start. They
are a short cut only: when none can be read, the batches tell the same.
"""

from __future__ import annotations

from moldau.kernel import Disk
from moldau.storage.producer_state import CorruptSnapshotError, ProducerStates
from moldau.storage.segment import SNAPSHOT_SUFFIX, write_whole

SNAPSHOTS_KEPT = 2


class Snapshots:
    """The offsets rise."""

    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = offsets

    @property
    def newest(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    def rehome(self, directory: str) -> None:
        self._directory = directory

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def write(self, offset: int, producers: ProducerStates, durable_base: int) -> list[str]:
        """Not yet durable; the path that was written, if the state at that offset was not there already."""
        if self.newest >= offset:
            return []
        path = self.path(offset)
        write_whole(self._disk, path, producers.to_snapshot())
        self.offsets.append(offset)
        self._prune(durable_base)
        return [path]

    def _prune(self, durable_base: int) -> None:
        needed = max((offset for offset in self.offsets if offset <= durable_base), default=-1)
        for offset in self.offsets[:-SNAPSHOTS_KEPT]:
            if offset != needed:
                self._remove(offset)

    def drop_above(self, offset: int) -> None:
        while self.newest > offset:
            self._remove(self.offsets[-1])

    def load_newest(self) -> tuple[ProducerStates, int, list[str]]:
        """The state in the newest snapshot that reads, its offset (0 when there is none), and complaints about others.

        Those that do not read are removed.
        """
        producers = ProducerStates()
        complaints: list[str] = []
        while self.offsets:
            offset = self.newest
            try:
                producers.load_snapshot(self._disk.read_file(self.path(offset)))
                return producers, offset, complaints
            except (CorruptSnapshotError, FileNotFoundError) as error:
                complaints.append(f"offset={offset} reason={str(error).replace(' ', '_')}")
                self._remove(offset)
        return producers, 0, complaints

    def _remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        try:
            self._disk.remove(self.path(offset))
        except FileNotFoundError:
            pass
