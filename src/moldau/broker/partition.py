"""A replica on this broker: its log, its leadership, and who waits for more.

The produce path appends through here, the fetch path reads through here; whatever becomes visible wakes the waiters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.metrics import TopicCounters
from moldau.broker.verification import Verifications
from moldau.cluster import INTERNAL_TOPICS, PartitionLeader
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.markers import Marker, build_marker
from moldau.storage import AppendResult, FlushTask, LogConfig, LogSlice, PartitionLog

if TYPE_CHECKING:
    from moldau.broker.replica_moves import ReplicaMove
    from moldau.broker.replicas import Replicas

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
INT64_MAX = 2**63 - 1


class Partition:
    __slots__ = (
        "_flush_idle",
        "_flush_waiters",
        "_flushes_held",
        "_replicas",
        "_uncommitted_ends",
        "_waiters",
        "cleaned_to",
        "counters",
        "flushes",
        "index",
        "is_cleaned",
        "is_flushing",
        "is_internal",
        "leader",
        "leader_epoch",
        "leader_id",
        "log",
        "min_in_sync",
        "move",
        "start_wanted",
        "syncs_each_batch",
        "topic",
        "topic_id",
        "verifications",
        "why_removed",
    )

    def __init__(
        self, replicas: Replicas, topic: str, topic_id: bytes, index: int, log: PartitionLog, counters: TopicCounters
    ) -> None:
        self._replicas = replicas
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.counters = counters
        # Whether answers wait for the disk (`flush.messages`).
        self.flushes = log.config.flush_messages < INT64_MAX
        # Nothing is acknowledged, or shown to readers, before it is on disk.
        self.syncs_each_batch = log.config.flush_messages <= 1
        self.leader: PartitionLeader | None = None
        self.leader_id = -1
        self.leader_epoch = -1
        self.min_in_sync = 1
        # Called (and dropped) when more becomes visible; each fetch that waits adds one.
        self._waiters: list[Callable[[], None]] | None = None
        # (first offset of a transaction, offset of its marker) whose marker is above the high watermark.
        self._uncommitted_ends: list[tuple[int, int]] | None = None
        self._flush_waiters: list[tuple[int, asyncio.Future[None]]] | None = None
        self._flush_idle: asyncio.Future[None] | None = None
        self._flushes_held = False
        self.is_flushing = False
        # The topic is deleted, or its disk failed: whoever still holds this object stops, and says so.
        self.why_removed: KafkaError | None = None
        # Where DeleteRecords will let the log start once the checkpoint says so.
        self.start_wanted = 0
        self.move: ReplicaMove | None = None
        # How far the cleaner came, as the checkpoint says; and while it works here, when it is done.
        self.cleaned_to: int | None = None
        self.is_cleaned: asyncio.Event | None = None
        self.is_internal = topic in INTERNAL_TOPICS
        self.verifications = Verifications()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def apply_config(self, config: LogConfig, min_in_sync: int) -> None:
        self.log.apply_config(config)
        self.flushes = config.flush_messages < INT64_MAX
        self.syncs_each_batch = config.flush_messages <= 1
        self.min_in_sync = min_in_sync
        if self.leader is not None:
            self._advance(self.leader)

    @property
    def is_removed(self) -> bool:
        return self.why_removed is not None

    def remove(self, now_ms: int, why: KafkaError) -> None:
        """The topic is deleted, or its disk failed: nobody waits here any longer."""
        self.why_removed = why
        self.leader = None
        self.leader_id = -1
        self.wake()
        self._fail_flush_waiters(why)
        self.log.close(clean=False, now_ms=now_ms)

    # -- leadership ----------------------------------------------------------------------------------------------------

    def lead(self, node_id: int, leader_epoch: int, isr: tuple[int, ...]) -> None:
        if self.leader is None or leader_epoch > self.leader_epoch:
            self.log.epochs.assign(leader_epoch, self.log.end_offset)
            self.leader = PartitionLeader(node_id, leader_epoch, isr, self.log.start_offset)
        self.leader.isr = isr
        self.leader_id = node_id
        self.leader_epoch = leader_epoch
        self.leader.advance(self.log.end_offset)

    def require_leader(self, epoch_of_client: int = -1) -> PartitionLeader:
        """Trap 20: an older epoch is fenced, a newer one is news to us."""
        if epoch_of_client >= 0 and epoch_of_client != self.leader_epoch:
            if epoch_of_client < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark if self.leader is not None else self.log.start_offset

    @property
    def last_stable_offset(self) -> int:
        bound = self.log.last_stable_offset_bound
        high_watermark = self.high_watermark
        if self._uncommitted_ends is not None:
            high_watermark = self._first_without_committed_end(high_watermark)
        return high_watermark if bound is None else min(bound, high_watermark)

    def _first_without_committed_end(self, high_watermark: int) -> int:
        """A marker that is not committed yet may be lost: until then its transaction counts as open."""
        ends = [each for each in self._uncommitted_ends or () if each[1] >= high_watermark]
        self._uncommitted_ends = ends or None
        return min([high_watermark, *(first for first, _ in ends)])

    # -- in ------------------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray | memoryview, acks: int, now_ms: int) -> AppendResult:
        """Append one batch as the leader; everything order-sensitive happens before this returns."""
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and self.min_in_sync > 1:
            leader.check_in_sync(self.min_in_sync)
        log = self.log
        result = log.append_as_leader(batch, leader.leader_epoch, now_ms)
        if not self.syncs_each_batch and leader.advance(log.end_offset) and self._waiters:
            self.wake()
        if not result.duplicate:
            counters = self.counters
            counters.bytes_in += len(batch)
            counters.messages_in += result.last_offset - result.base_offset + 1
        return result

    def append_in_transaction(self, batch: bytearray, now_ms: int) -> None:
        """Offsets of a group, as a part of a producer's transaction."""
        leader = self._require_in_sync()
        producer_id = self.log.append_in_transaction(batch, leader.leader_epoch, now_ms)
        self.verifications.end(producer_id)
        self._advance(leader)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int, now_ms: int
    ) -> int:
        """End a producer's transaction here; the offset that must be committed before this may be relied on."""
        leader = self._require_in_sync()
        batch = build_marker(producer_id, producer_epoch, marker, now_ms)
        state = self.log.producers.get(producer_id)
        first_offset = -1 if state is None else state.transaction_first_offset
        self.log.append_control(batch, leader.leader_epoch, now_ms, transaction_version=transaction_version)
        # Batches that were verified before belong to the transaction that is over now.
        self.verifications.end(producer_id)
        end_offset = self.log.end_offset
        if first_offset >= 0 and (self.syncs_each_batch or len(leader.isr) > 1):
            self._uncommitted_ends = [*(self._uncommitted_ends or ()), (first_offset, end_offset - 1)]
        self._advance(leader)
        return end_offset

    def _require_in_sync(self) -> PartitionLeader:
        leader = self.require_leader()
        if self.min_in_sync > 1:
            leader.check_in_sync(self.min_in_sync)
        return leader

    def _advance(self, leader: PartitionLeader) -> None:
        """The log grew or was synced, or a transaction ended: more may be visible."""
        leader.advance(self.log.recovery_point if self.syncs_each_batch else self.log.end_offset)
        if self._waiters:
            self.wake()

    def append_own(self, batch: bytearray, count: int, now_ms: int) -> None:
        """A coordinator's batch of `count` records of this moment, as if it came with acks of all replicas."""
        leader = self._require_in_sync()
        log = self.log
        log.append_own(batch, count, now_ms, leader.leader_epoch, now_ms)
        if not self.syncs_each_batch and leader.advance(log.end_offset) and self._waiters:
            self.wake()
        counters = self.counters
        counters.bytes_in += len(batch)
        counters.messages_in += count

    def delete_records_before(self, offset: int) -> None:
        """Once the checkpoint says so."""
        if self.why_removed is not None:
            raise self.why_removed
        try:
            self.log.delete_records_before(offset)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def give_up_before(self, offset: int, now_ms: int) -> None:
        """The same for what retention lets go. OSError, KafkaError: the next round tries again."""
        if not self.is_removed and self.log.failure is None:
            self.log.give_up_before(offset, now_ms)

    def wake(self) -> None:
        """Something became visible, or will never: let every waiting fetch look again."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter()

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)

    def drop_waiter(self, waiter: Callable[[], None]) -> None:
        if self._waiters and waiter in self._waiters:
            self._waiters.remove(waiter)

    # -- out -----------------------------------------------------------------------------------------------------------

    def visible_end(self, isolation_level: int) -> int:
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    def read(self, offset: int, bytes_max: int, isolation_level: int, *, at_least_one: bool) -> LogSlice | None:
        end = self.visible_end(isolation_level)
        piece = self.log.read(offset, bytes_max, offset_max=end, at_least_one=at_least_one)
        if piece is not None:
            piece.on_read_error = self.note_read_error
        return piece

    def note_read_error(self, error: OSError) -> None:
        """What was to be read could not be: perhaps the disk failed."""
        self._replicas.disk_faults.note_read_error(self, error)

    # -- durability ----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Sync in a thread; appends that come meanwhile share the next one (group commit)."""
        if self.is_flushing or self._flushes_held:
            return
        try:
            task = self.log.flush_task()
        except OSError as error:
            # No descriptor for a rolled segment, say. Nothing was tried yet, so the next flush may do.
            self._replicas.say(f"flush_not_begun partition={self} reason={str(error)!r}")
            self._fail_flush_waiters(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        if task is None:
            self._release_flush_waiters()
            # The log failed or is closed: what is left will never be synced.
            self._fail_flush_waiters(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.log.failure))
            return
        self.is_flushing = True
        future = self._replicas.run_in_thread(task.run)
        future.add_done_callback(lambda finished: self._on_flushed(task, finished))

    def _on_flushed(self, task: FlushTask, finished: asyncio.Future[None]) -> None:
        self.is_flushing = False
        if self._flush_idle is not None:
            self._flush_idle.set_result(None)
            self._flush_idle = None
        if self.is_removed:
            # Its files were renamed under the flush; whoever waited has been told.
            return
        try:
            finished.result()
            self.log.complete_flush(task)
        except (OSError, KafkaError) as error:
            self._fail_flush_waiters(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            self._replicas.on_flush_failed(self, error)
            return
        if self.syncs_each_batch and self.leader is not None:
            self._advance(self.leader)
        self._release_flush_waiters()
        if self._flush_waiters:
            self.flush_soon()

    def _release_flush_waiters(self) -> None:
        if not self._flush_waiters:
            return
        durable = self.log.recovery_point
        for end_offset, waiter in self._flush_waiters:
            if end_offset <= durable:
                waiter.set_result(None)
        self._flush_waiters = [entry for entry in self._flush_waiters if entry[0] > durable]

    def _fail_flush_waiters(self, refusal: KafkaError) -> None:
        waiters, self._flush_waiters = self._flush_waiters, None
        for _, waiter in waiters or ():
            waiter.set_exception(refusal)

    def when_flushed(self, end_offset: int) -> asyncio.Future[None]:
        """Done when everything below `end_offset` is on disk; KafkaError when it never will be. To be awaited."""
        future: asyncio.Future[None] = self._replicas.loop.create_future()
        if self.log.recovery_point >= end_offset:
            future.set_result(None)
            return future
        if self._flush_waiters is None:
            self._flush_waiters = []
        self._flush_waiters.append((end_offset, future))
        self.flush_soon()
        return future

    async def hold_flushes(self) -> None:
        """Until `release_flushes` nothing more becomes durable; returns once no flush is under way."""
        self._flushes_held = True
        if self.is_flushing:
            self._flush_idle = self._replicas.loop.create_future()
            await self._flush_idle

    def release_flushes(self) -> None:
        self._flushes_held = False
        if self._flush_waiters:
            self.flush_soon()
