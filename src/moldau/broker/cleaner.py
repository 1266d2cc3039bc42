"""The cleaner: compacted topics stay as small as their keys, without anybody's waiting for it.

It looks for the log with the largest share of uncleaned bytes, has a job carried out for it outside of the event loop,
and puts each cleaned segment into its place when it is there (`storage.cleaning.swap` says why in these steps). One log
at a time. A log whose cleaning fails on damage is left alone and named; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from moldau.broker.partition import Partition
from moldau.broker.replicas import Replicas
from moldau.broker.settings import Settings
from moldau.kernel import Clock, Disk, KafkaError
from moldau.protocol.batches import CorruptBatchError
from moldau.storage.cleaning import Cleaned, CleanedGroup, CleaningJob, announce, give_up, retire, run
from moldau.storage.config import INT64_MAX

# Of the wait after a failure.
DOUBLINGS_MAX = 5

# Runs a job at no more than so many bytes a second, and gives what it comes to.
RunCleaning = Callable[[CleaningJob, float], AsyncIterator[CleanedGroup | Cleaned]]


def clean_in_thread(replicas: Replicas, disk: Disk) -> RunCleaning:
    """For disks that no other process can see."""

    async def clean(job: CleaningJob, _rate: float) -> AsyncIterator[CleanedGroup | Cleaned]:
        steps = run(job, disk)
        while (step := await replicas.run_slow(lambda: next(steps, None))) is not None:
            yield step

    return clean


class _Candidate(NamedTuple):
    is_overdue: bool
    ratio: float
    partition: Partition


class Cleaner:
    def __init__(
        self,
        replicas: Replicas,
        settings: Settings,
        clock: Clock,
        disk: Disk,
        run_cleaning: RunCleaning,
        say: Callable[[str], None],
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._run_cleaning = run_cleaning
        self._say = say
        self._next_ms = 0
        # What the last look found, by partition: one that has rolled since is looked at before the others' time.
        self._seen: dict[Partition, int] = {}
        self._uncleanable: dict[Partition, str] = {}
        # Those whose cleaning failed in a way that passes, how often in succession, and when they are tried again: the
        # others have their turns meanwhile.
        self._put_off: dict[Partition, tuple[int, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self.bytes_read = self.bytes_written = self.runs = 0

    @property
    def uncleanable(self) -> dict[Partition, str]:
        """Why a partition is not cleaned any more."""
        return {partition: why for partition, why in self._uncleanable.items() if not partition.is_removed}

    def look_if_due(self) -> None:
        is_busy = self._task is not None and not self._task.done()
        if is_busy or not self._settings.flag("log.cleaner.enable"):
            return
        now_ms = self._clock.monotonic_ms()
        compacted = [partition for partition in self._replicas if partition.log.config.compact]
        if now_ms < self._next_ms and all(
            self._seen.get(partition) == partition.log.segment_count for partition in compacted
        ):
            return
        self._next_ms = now_ms + self._settings.integer("log.cleaner.backoff.ms")
        self._seen = {partition: partition.log.segment_count for partition in compacted}
        chosen = self._filthiest(compacted)
        if chosen is not None:
            self._next_ms = now_ms  # there may be more
            self._task = self._replicas.loop.create_task(self._clean(chosen))

    async def stop(self) -> None:
        """A job under way is given up; a swap is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _filthiest(self, compacted: list[Partition]) -> Partition | None:
        candidates = []
        for partition in compacted:
            if partition in self._uncleanable or partition.move is not None or partition.log.failure is not None:
                continue
            if partition in self._put_off and self._clock.monotonic_ms() < self._put_off[partition][1]:
                continue
            try:
                candidate = self._judge(partition)
            except (OSError, KafkaError) as error:
                self._say(f"cleaning_put_off partition={partition} reason={str(error)!r}")
                continue
            if candidate is not None:
                candidates.append(candidate)
        best = max(candidates, key=lambda each: (each.is_overdue, each.ratio), default=None)
        return None if best is None else best.partition

    def _judge(self, partition: Partition) -> _Candidate | None:
        log, now_ms = partition.log, self._clock.now_ms()
        if log.config.max_compaction_lag_ms < INT64_MAX:
            log.roll_if_older(log.config.max_compaction_lag_ms, now_ms)
        dirt = log.dirt(partition.cleaned_to, partition.last_stable_offset, now_ms)
        return _Candidate(dirt.is_overdue, dirt.ratio, partition) if dirt.is_worth_it(log.config) else None

    # -- cleaning ------------------------------------------------------------------------------------------------------

    async def _clean(self, partition: Partition) -> None:
        log, began_ms = partition.log, self._clock.monotonic_ms()
        now_ms = self._clock.now_ms()
        dirt = log.dirt(partition.cleaned_to, partition.last_stable_offset, now_ms)
        job = log.cleaning_job(dirt, now_ms, self._settings.integer("log.cleaner.dedupe.buffer.size"))
        rate = self._settings.number("log.cleaner.io.max.bytes.per.second")
        read = kept = size_before = size_after = 0
        generation = log.generation
        partition.is_cleaned = asyncio.Event()
        try:
            async for done in self._run_cleaning(job, rate):
                if partition.is_removed or partition.move is not None or log.generation != generation:
                    return
                if isinstance(done, Cleaned):
                    partition.cleaned_to = done.cleaned_to
                    break
                if not done.is_same and not await asyncio.shield(self._put_in_place(partition, done, generation)):
                    return
                read, kept = read + done.records_read, kept + done.records_kept
                size_before, size_after = size_before + done.bytes_read, size_after + done.size
            self.bytes_read += size_before
            self.bytes_written += size_after
            self.runs += 1
            self._put_off.pop(partition, None)
            await self._replicas.checkpoints.write()
        except CorruptBatchError as error:
            if log.generation != generation:
                return  # the log was cut while it was read
            self._uncleanable[partition] = str(error)
            self._say(f"partition_uncleanable partition={partition} reason={str(error)!r} hint='moldau log verify'")
            return
        except (OSError, KafkaError) as error:
            if not partition.is_removed:
                self._say(f"cleaning_failed partition={partition} reason={str(error)!r}")
                self._try_later(partition)
            return
        finally:
            partition.is_cleaned.set()
            partition.is_cleaned = None
        self._say(
            f"log_cleaned partition={partition} cleaned_to={partition.cleaned_to} records={read} kept={kept}"
            f" bytes={size_before} left={size_after} ms={self._clock.monotonic_ms() - began_ms}"
        )

    def _try_later(self, partition: Partition) -> None:
        """A full disk, say: each time twice as late."""
        self._put_off = {each: when for each, when in self._put_off.items() if not each.is_removed}
        failures = self._put_off.get(partition, (0, 0))[0]
        delay_ms = self._settings.integer("log.cleaner.backoff.ms") << min(failures, DOUBLINGS_MAX)
        self._put_off[partition] = failures + 1, self._clock.monotonic_ms() + delay_ms

    async def _put_in_place(self, partition: Partition, done: CleanedGroup, generation: int) -> bool:
        """Whether the old segments were still there, as they were, to be replaced."""
        if partition.is_removed or partition.log.generation != generation:
            return False  # what was cut must not come back
        partition.is_switched = asyncio.Event()
        try:
            return await self._switch(partition, done)
        finally:
            partition.is_switched.set()
            partition.is_switched = None

    async def _switch(self, partition: Partition, done: CleanedGroup) -> bool:
        log, base_offset = partition.log, done.old_bases[0]
        await self._replicas.run_slow(lambda: announce(self._disk, log.directory, base_offset))
        switched = (
            None if partition.is_removed else log.switch_to_cleaned(done.old_bases, done.size, self._clock.now_ms())
        )
        if switched is None:
            # Retention or DeleteRecords was faster.
            await self._replicas.run_slow(lambda: give_up(self._disk, log.directory, base_offset))
            return False
        marked = await self._replicas.run_slow(lambda: retire(self._disk, log.directory, switched.old))
        if not partition.is_removed:
            log.settle_cleaned(switched, marked)
        return True
