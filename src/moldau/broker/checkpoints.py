"""The checkpoints of every log directory: recovery points, start offsets, high watermarks, how far logs are clean.

What they say is gathered on the loop, where the logs are; writing, which syncs, is done in a thread, one at a time.
Files whose content did not change are left alone, so an idle broker writes nothing.

Kafka's checkpoints know topics by name only, and those of a deleted topic stay on disk until the next write. A topic
made again under that name before then must not inherit them
(`test_a_topic_made_again_keeps_its_records_after_a_crash`): its directory holds the file `STALE_MARK` for so long,
which tells the next start to look away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from moldau.kernel import Disk, TopicPartition
from moldau.storage import LogDirectory, is_passing

if TYPE_CHECKING:
    from moldau.broker.replicas import Replicas

STALE_MARK = "checkpoints-are-stale"

Offsets = Mapping[TopicPartition, int]


class _Change(NamedTuple):
    directory: LogDirectory
    key: tuple[str, str]
    offsets: Offsets
    write: Callable[[Offsets], None]


class Checkpoints:
    def __init__(self, replicas: Replicas, disk: Disk) -> None:
        self._replicas = replicas
        self._disk = disk
        self._written: dict[tuple[str, str], Offsets] = {}
        self._turn = asyncio.Lock()
        self._writing = threading.Lock()
        # Names under which the files may still speak of a topic that is gone, and directories that bear the mark.
        self._stale: set[TopicPartition] = set()
        self._being_dropped: set[TopicPartition] = set()
        self._marked: set[str] = set()

    # -- topics of the same name ---------------------------------------------------------------------------------------

    def forget(self, names: Iterable[TopicPartition]) -> None:
        """What the files say of these is about replicas that are gone."""
        self._stale.update(names)

    def prepare_directory(self, name: TopicPartition, path: str) -> None:
        """Before the first log of a new topic is made in `path`."""
        if name in self._stale or name in self._being_dropped:
            self._disk.make_directories(path)
            self._disk.open(f"{path}/{STALE_MARK}", create=True).close()
            self._marked.add(path)

    def are_stale(self, path: str) -> bool:
        """Whether the files say nothing about the log in `path`."""
        if not self._disk.exists(f"{path}/{STALE_MARK}"):
            return False
        self._marked.add(path)
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write what changed, off the loop; what changes meanwhile is for the next time. OSError when there is no room.

        A directory that fails is out of service when this returns, and the others have their checkpoints.
        """
        async with self._turn:
            changes = self._changes()
            marked, self._marked = self._marked, set()
            # Until the write is over the files may still say it; who is forgotten meanwhile is for the next one.
            self._being_dropped, self._stale = self._stale, set()
            try:
                if changes or marked:
                    failed = await self._replicas.run_in_thread(lambda: self._write(changes, marked))
                    for directory, error in failed:
                        self._replicas.disk_faults.take_offline(directory, f"a checkpoint was not written: {error}")
            except OSError:
                self._stale |= self._being_dropped
                self._marked |= marked
                raise
            finally:
                self._being_dropped = set()

    def write_now(self) -> None:
        """The same on the spot, when nothing else runs any more."""
        for directory, error in self._write(self._changes(), self._marked):
            self._replicas.disk_faults.take_offline(directory, f"a checkpoint was not written: {error}")
        self._stale.clear()
        self._marked.clear()

    def _write(self, changes: list[_Change], marked: set[str]) -> list[tuple[LogDirectory, OSError]]:
        failed: dict[str, tuple[LogDirectory, OSError]] = {}
        with self._writing:
            for change in changes:
                if change.directory.path in failed:
                    continue
                try:
                    change.write(change.offsets)
                except OSError as error:
                    if is_passing(error):
                        raise
                    failed[change.directory.path] = change.directory, error
                    continue
                self._written[change.key] = change.offsets
            for path in sorted(marked):
                if path.rpartition("/")[0] not in failed:
                    self._remove_mark(path)
        return list(failed.values())

    def _remove_mark(self, path: str) -> None:
        try:
            self._disk.remove(f"{path}/{STALE_MARK}")
            # Durably: a mark that came back would undo a later DeleteRecords.
            self._disk.sync_directory(path)
        except FileNotFoundError:
            pass  # deleted again, mark and all

    def _changes(self) -> list[_Change]:
        changes = []
        for directory in self._replicas.directories:
            # What could not be opened keeps what was known of it.
            recovery, starts = self._replicas.unopened_offsets(directory)
            high, cleaned = {}, {}
            for partition in self._replicas.in_directory(directory):
                name = TopicPartition(partition.topic, partition.index)
                recovery[name] = partition.log.recovery_point
                if partition.cleaned_to is not None:
                    cleaned[name] = partition.cleaned_to
                if partition.truncation_wanted is not None:
                    # Told before the log is cut: one that ends below its recovery point is taken for damaged, and what
                    # is written there anew is not clean.
                    for offsets in (recovery, cleaned):
                        if name in offsets:
                            offsets[name] = min(offsets[name], partition.truncation_wanted)
                high[name] = partition.high_watermark
                if partition.start_to_vouch_for:
                    starts[name] = partition.start_to_vouch_for
            for partition in self._replicas.moving_to(directory):
                # Told before the replica is there, so that no moment is without it.
                name = TopicPartition(partition.topic, partition.index)
                recovery[name] = partition.log.recovery_point
                starts[name] = max(partition.log.start_offset, partition.start_wanted)
            for kind, offsets, write in (
                ("recovery", recovery, directory.write_recovery_points),
                ("starts", starts, directory.write_log_start_offsets),
                ("high", high, directory.write_high_watermarks),
                ("cleaned", cleaned, directory.write_cleaned_offsets),
            ):
                key = (kind, directory.path)
                # A file that was never needed is not made.
                if self._written.get(key, {} if kind == "cleaned" else None) != offsets:
                    changes.append(_Change(directory, key, offsets, write))
        return changes
