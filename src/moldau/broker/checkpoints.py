"""The checkpoints of every log directory: recovery points, start offsets, high watermarks.

What they say is gathered on the loop, where the logs are; writing, which syncs, is done in a thread, one at a time.
Files whose content did not change are left alone, so an idle broker writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from moldau.kernel import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.replicas import Replicas

Offsets = Mapping[TopicPartition, int]


class _Change(NamedTuple):
    key: tuple[str, str]
    offsets: Offsets
    write: Callable[[Offsets], None]


class Checkpoints:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._written: dict[tuple[str, str], Offsets] = {}
        self._turn = asyncio.Lock()

    async def write(self) -> None:
        """Write what changed, off the loop; what changes meanwhile is for the next time."""
        async with self._turn:
            changes = self._changes()
            if changes:
                await self._replicas.run_in_thread(lambda: self._write(changes))

    def write_now(self) -> None:
        """The same on the spot, when nothing else runs any more."""
        self._write(self._changes())

    def _write(self, changes: list[_Change]) -> None:
        for change in changes:
            change.write(change.offsets)
            self._written[change.key] = change.offsets

    def _changes(self) -> list[_Change]:
        changes = []
        for directory in self._replicas.directories:
            recovery, starts, high = {}, {}, {}
            for partition in self._replicas.in_directory(directory):
                name = TopicPartition(partition.topic, partition.index)
                recovery[name] = partition.log.recovery_point
                high[name] = partition.high_watermark
                if partition.log.start_offset:
                    starts[name] = partition.log.start_offset
            for kind, offsets, write in (
                ("recovery", recovery, directory.write_recovery_points),
                ("starts", starts, directory.write_log_start_offsets),
                ("high", high, directory.write_high_watermarks),
            ):
                key = (kind, directory.path)
                if self._written.get(key) != offsets:
                    changes.append(_Change(key, offsets, write))
        return changes
