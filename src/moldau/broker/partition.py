"""A replica on this broker: its log, its part (leader or follower), and who waits for more.

The produce path appends through here, the fetch path reads through here, replica fetchers append through here what a
leader elsewhere wrote; whatever becomes visible wakes the waiters. What is committed and who is in sync is decided by
the machines in `moldau.cluster`.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.metrics import TopicCounters
from moldau.broker.reply import Reply
from moldau.broker.verification import Verifications
from moldau.cluster import (
    INTERNAL_TOPICS,
    InSyncProposal,
    PartitionFollower,
    PartitionImage,
    PartitionLeader,
    truncation_offset,
)
from moldau.kernel import Buffer, ErrorCode, KafkaError
from moldau.protocol.batches import HEADER_BYTES, read_header
from moldau.protocol.markers import Marker, build_marker
from moldau.storage import AppendResult, CutTask, FlushTask, LogConfig, LogSlice, PartitionLog

if TYPE_CHECKING:
    from moldau.broker.replica_moves import ReplicaMove
    from moldau.broker.replicas import Replicas

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
INT64_MAX = 2**63 - 1


class Partition:
    __slots__ = (
        "_acks_waiters",
        "_cuts_wanted",
        "_end_waiters",
        "_flush_idle",
        "_flush_waiters",
        "_flushes_held",
        "_high_watermark",
        "_replicas",
        "_start_waiters",
        "_uncommitted_ends",
        "_waiters",
        "cleaned_to",
        "counters",
        "flushes",
        "follower",
        "has_followers",
        "index",
        "is_cleaned",
        "is_flushing",
        "is_internal",
        "is_switched",
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
        self.follower: PartitionFollower | None = None
        # Whether acks=all may have to wait for other brokers.
        self.has_followers = False
        # What was known to be committed before this broker was told its part.
        self._high_watermark = log.start_offset
        self.leader_id = -1
        self.leader_epoch = -1
        self.min_in_sync = 1
        # Called (and dropped) when more becomes visible; each fetch that waits adds one.
        self._waiters: list[Callable[[], None]] | None = None
        # The same for what is in the log, committed or not: followers' fetches.
        self._end_waiters: list[Callable[[], None]] | None = None
        # (end offset, reply) of acks=all appends, in the order of the offsets.
        self._acks_waiters: list[tuple[int, Reply]] = []
        # (offset, reply) of those who wait until every replica begins there.
        self._start_waiters: list[tuple[int, Reply]] = []
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
        # No checkpoint may speak of more than these while the log is about to be cut there.
        self._cuts_wanted: list[int] = []
        self.move: ReplicaMove | None = None
        # How far the cleaner came, as the checkpoint says; and while it works here, when it is done.
        self.cleaned_to: int | None = None
        self.is_cleaned: asyncio.Event | None = None
        # While a cleaned segment takes the place of others: when it has done so. Nothing is cut meanwhile.
        self.is_switched: asyncio.Event | None = None
        self.is_internal = topic in INTERNAL_TOPICS
        self.verifications = Verifications()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def apply_config(self, config: LogConfig, min_in_sync: int) -> None:
        self.log.apply_config(config)
        self.flushes = config.flush_messages < INT64_MAX
        self.syncs_each_batch = config.flush_messages <= 1
        self.require_in_sync(min_in_sync)

    def require_in_sync(self, replicas_min: int) -> None:
        self.min_in_sync = replicas_min
        if self.leader is not None:
            self.leader.require_in_sync(replicas_min)
            self._advance(self.leader)

    @property
    def is_removed(self) -> bool:
        return self.why_removed is not None

    def remove(self, now_ms: int, why: KafkaError) -> None:
        """The topic is deleted, or its disk failed: nobody waits here any longer."""
        self.why_removed = why
        self._end_part(why)
        self.leader_id = -1
        self._fail_flush_waiters(why)
        self.log.close(clean=False, now_ms=now_ms)

    # -- leadership ----------------------------------------------------------------------------------------------------

    def lead(self, assigned: PartitionImage, node_id: int, node_epoch: int, now_ms: int) -> None:
        """The metadata says that we lead; `now_ms` is the monotonic clock's."""
        leader = self.leader
        if leader is None or assigned.leader_epoch > self.leader_epoch:
            high_watermark = min(self.high_watermark, self.log.end_offset)
            self.leader_id, self.leader_epoch = node_id, assigned.leader_epoch
            self._end_part(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self.log.epochs.assign(assigned.leader_epoch, self.log.end_offset)
            self.log.head_missing_from = None  # what we have is what there is
            leader = self.leader = PartitionLeader(
                node_id,
                assigned.leader_epoch,
                assigned.isr,
                high_watermark,
                replicas=assigned.replicas,
                partition_epoch=assigned.partition_epoch,
                epoch_start_offset=self.log.end_offset,
                min_in_sync=self.min_in_sync,
                node_epoch=node_epoch,
                now_ms=now_ms,
            )
        else:
            before = leader.isr
            leader.follow_metadata(assigned.partition_epoch, assigned.replicas, assigned.isr, node_epoch, now_ms)
            self._replicas.note_isr(self, before, leader.isr)
        self.leader_id = node_id
        self.leader_epoch = assigned.leader_epoch
        self.has_followers = bool(leader.followers)
        self._advance(leader)

    def follow(self, assigned: PartitionImage) -> None:
        """The metadata says that another broker leads, or none."""
        if self.follower is None or assigned.leader_epoch > self.leader_epoch:
            high_watermark = self.high_watermark
            # Whoever waited is told of the new leader.
            self.leader_id, self.leader_epoch = assigned.leader, assigned.leader_epoch
            self._end_part(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self.follower = PartitionFollower(assigned.leader, assigned.leader_epoch, high_watermark)
        self.leader_id = assigned.leader
        self.leader_epoch = assigned.leader_epoch

    def _end_part(self, why: KafkaError) -> None:
        """Whoever waits for what this leader or follower was to bring about looks elsewhere."""
        self._high_watermark = self.high_watermark
        self.leader = self.follower = None
        self.has_followers = False
        self.verifications.forget()
        waiters, self._acks_waiters = self._acks_waiters, []
        for _, reply in waiters:
            if not reply.is_done:
                reply.give(why)
        self._answer_start_waiters()
        self._wake_followers()
        self.wake()

    def restore_high_watermark(self, checkpointed: int) -> None:
        """What the last run of this broker knew to be committed, before the metadata gives us a part."""
        self._high_watermark = max(self.log.start_offset, min(checkpointed, self.log.end_offset))

    def require_leader(self, epoch_of_client: int = -1) -> PartitionLeader:
        if epoch_of_client >= 0 and epoch_of_client != self.leader_epoch:
            self.require_epoch(epoch_of_client)
        if self.leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    def require_epoch(self, epoch_of_client: int) -> None:
        """Trap 20: an older epoch is fenced, a newer one is news to us."""
        if 0 <= epoch_of_client < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if epoch_of_client > self.leader_epoch:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def high_watermark(self) -> int:
        part = self.leader or self.follower
        return self._high_watermark if part is None else part.high_watermark

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

    # -- followers -----------------------------------------------------------------------------------------------------

    def note_follower_fetch(self, replica: int, broker_epoch: int, offset: int, start_offset: int) -> None:
        """A follower of ours has everything below `offset`; KafkaError when it is none."""
        leader, replicas = self.require_leader(), self._replicas
        proposal = leader.note_fetch(
            replica,
            broker_epoch,
            offset,
            start_offset,
            self.log.end_offset,
            replicas.clock.monotonic_ms(),
            lag_ms_max=replicas.lag_ms_max,
            is_eligible=replicas.is_eligible,
        )
        if proposal is not None:
            replicas.propose(self, proposal)
        self._advance(leader)
        if self._start_waiters:
            self._answer_start_waiters()

    def drop_laggards(self) -> None:
        """The time or the cluster's brokers changed: who is in sync no longer, who is not waited for any more."""
        leader, replicas = self.leader, self._replicas
        if leader is None or not self.has_followers:
            return
        proposal = leader.drop_laggards(
            self.log.end_offset,
            replicas.clock.monotonic_ms(),
            lag_ms_max=replicas.lag_ms_max,
            is_eligible=replicas.is_eligible,
        )
        if proposal is not None:
            replicas.propose(self, proposal)
        self._advance(leader)
        if self._start_waiters:
            self._answer_start_waiters()

    def on_proposal_accepted(
        self, proposal: InSyncProposal, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]
    ) -> None:
        leader = self.leader
        if leader is not None:
            before = leader.isr
            leader.on_accepted(proposal, leader_epoch, partition_epoch, isr)
            self._replicas.note_isr(self, before, leader.isr)
            self._advance(leader)

    def on_proposal_refused(self, proposal: InSyncProposal, code: ErrorCode) -> bool:
        """Whether to ask again."""
        leader = self.leader
        if leader is None:
            return False
        again = leader.on_refused(proposal, code)
        self._advance(leader)
        return again

    # -- following -----------------------------------------------------------------------------------------------------

    def append_fetched(self, batches: Buffer, leader_high_watermark: int, leader_start_offset: int) -> None:
        """What the leader answered to a fetch from our end. KafkaError when a batch is damaged or out of place."""
        follower, log = self.follower, self.log
        assert follower is not None
        if len(batches):
            begin = log.end_offset
            log.append_as_follower(batches)
            self._note_ends()
            self.counters.replication_bytes_in += len(batches)
            if log.end_offset == begin:
                # The leader always gives a whole batch; less is no answer.
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the leader's answer for {self} has no whole batch")
        moved = follower.on_fetched(leader_high_watermark, log.end_offset)
        if leader_start_offset > log.start_offset:
            self.start_wanted = max(self.start_wanted, min(leader_start_offset, follower.high_watermark))
        if moved and self._waiters:
            self.wake()

    def begins_before_us(self, batches: Buffer) -> int | None:
        """Where an empty log has to begin, when the leader's begins in the middle of a batch: we need all of it."""
        log = self.log
        if log.end_offset != log.start_offset or len(batches) < HEADER_BYTES:
            return None
        header = read_header(batches)
        return header.base_offset if header.base_offset < log.end_offset <= header.last_offset else None

    def _note_ends(self) -> None:
        """Transactions that just ended count as open until their markers are committed: they may yet be lost."""
        ended = self.log.take_ended()
        if ended and (self.syncs_each_batch or self.has_followers or self.follower is not None):
            ends = [(each.first_offset, each.last_offset) for each in ended]
            self._uncommitted_ends = [*(self._uncommitted_ends or ()), *ends]

    async def truncate(self, diverging_epoch: int, diverging_end: int) -> None:
        """Give up what the leader does not have, so far as its answer tells."""
        log = self.log
        await self.truncate_to(truncation_offset(log.epochs, log.end_offset, diverging_epoch, diverging_end))

    async def truncate_to(self, offset: int) -> None:
        """Once no checkpoint says that there is more. OSError, KafkaError: nothing, or not everything, was cut."""
        await self._cut(offset, lambda: self._begin_truncation(offset))

    async def restart_at(self, offset: int) -> None:
        """The leader has nothing of what we have any more: begin anew where it begins."""
        await self._cut(0, lambda: self._begin_restart(offset))

    async def _cut(self, keeps_to: int, begin: Callable[[], CutTask | None]) -> None:
        follower, log = self.follower, self.log
        self._cuts_wanted.append(keeps_to)
        try:
            if keeps_to < max(log.recovery_point, self.cleaned_to or 0, self.start_wanted):
                await self._replicas.checkpoints.write()
            while self.is_flushing or self.is_switched is not None:
                await self._wait_flush_idle()
                if self.is_switched is not None:
                    await self.is_switched.wait()
            if self.follower is not follower or follower is None or self.is_removed:
                return  # told another part meanwhile
            if self._flushes_held:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self} is being moved to another directory")
            task = begin()
        finally:
            self._cuts_wanted.remove(keeps_to)
        if task is not None:
            await self._run_cut(task)

    def _begin_truncation(self, offset: int) -> CutTask | None:
        follower, log = self.follower, self.log
        assert follower is not None
        task = log.begin_truncation(offset)
        follower.on_truncated(log.end_offset)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, log.end_offset)
        self._forget_start_beyond(log.end_offset)
        if self._uncommitted_ends is not None:
            self._uncommitted_ends = [each for each in self._uncommitted_ends if each[1] < log.end_offset] or None
        return task

    def _begin_restart(self, offset: int) -> CutTask:
        follower = self.follower
        assert follower is not None
        task = self.log.begin_restart(offset)
        self._uncommitted_ends = self.cleaned_to = None
        self._forget_start_beyond(offset)
        follower.on_restarted(offset)
        return task

    def _forget_start_beyond(self, end_offset: int) -> None:
        """What was to be given up is not there any more; a start above its end would give up all that comes."""
        if self.start_wanted > end_offset:
            self.start_wanted = self.log.start_offset

    def _run_cut(self, task: CutTask) -> asyncio.Future[None]:
        """In a thread. Nothing is flushed meanwhile, and the log takes no appends; whoever stops waits for it."""
        self.is_flushing = True
        done: asyncio.Future[None] = self._replicas.loop.create_future()
        future = self._replicas.run_in_thread(task.run)
        future.add_done_callback(lambda finished: self._on_cut(task, finished, done))
        return done

    def _on_cut(self, task: CutTask, finished: asyncio.Future[None], done: asyncio.Future[None]) -> None:
        self._note_flush_idle()
        try:
            finished.result()
            if not self.is_removed:
                self.log.complete_cut(task)
        except (OSError, KafkaError) as error:
            if not done.done():
                done.set_exception(error)
            return
        if not done.done():
            done.set_result(None)
        if self._flush_waiters:
            self.flush_soon()

    @property
    def truncation_wanted(self) -> int | None:
        """Where the log will end once the checkpoint says no more than that."""
        return min(self._cuts_wanted, default=None)

    @property
    def start_to_vouch_for(self) -> int:
        """Where the log starts, or will once the checkpoint says so."""
        start_offset, cut = self.log.vouched_start_offset, self.truncation_wanted
        return start_offset if cut is not None and cut < self.start_wanted else max(start_offset, self.start_wanted)

    # -- in ------------------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray | memoryview, acks: int, now_ms: int) -> AppendResult:
        """Append one batch as the leader; everything order-sensitive happens before this returns."""
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and self.min_in_sync > 1:
            leader.check_in_sync()
        log = self.log
        result = log.append_as_leader(batch, leader.leader_epoch, now_ms)
        if self.has_followers:
            self._on_appended(leader)
        elif not self.syncs_each_batch and leader.advance(log.end_offset) and self._waiters:
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
        self._on_appended(leader)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int, now_ms: int
    ) -> int:
        """End a producer's transaction here; the offset that must be committed before this may be relied on."""
        leader = self._require_in_sync()
        batch = build_marker(producer_id, producer_epoch, marker, now_ms)
        self.log.append_control(batch, leader.leader_epoch, now_ms, transaction_version=transaction_version)
        self._note_ends()
        # Batches that were verified before belong to the transaction that is over now.
        self.verifications.end(producer_id)
        self._on_appended(leader)
        return self.log.end_offset

    def _require_in_sync(self) -> PartitionLeader:
        leader = self.require_leader()
        if self.min_in_sync > 1:
            leader.check_in_sync()
        return leader

    def _on_appended(self, leader: PartitionLeader) -> None:
        """Followers fetch what is not committed, too."""
        self._wake_followers()
        self._advance(leader)

    def _advance(self, leader: PartitionLeader) -> None:
        """The log grew or was synced, a follower fetched, or a transaction ended: more may be visible."""
        leader.advance(self.log.recovery_point if self.syncs_each_batch else self.log.end_offset)
        waiting = self._acks_waiters
        while waiting and (verdict := leader.verdict(waiting[0][0])) is not None:
            _, reply = waiting.pop(0)
            if not reply.is_done:
                reply.give(None if verdict is ErrorCode.NONE else KafkaError(verdict))
        if self._waiters:
            self.wake()

    def _wake_followers(self) -> None:
        waiters, self._end_waiters = self._end_waiters, None
        for waiter in waiters or ():
            waiter()

    def when_committed(self, end_offset: int) -> Reply:
        """Done when every in-sync replica has what lies below; KafkaError when this leader will never know."""
        reply = Reply()
        leader = self.leader
        verdict = ErrorCode.NOT_LEADER_OR_FOLLOWER if leader is None else leader.verdict(end_offset)
        if verdict is not None:
            reply.give(None if verdict is ErrorCode.NONE else KafkaError(verdict))
        while self._acks_waiters and self._acks_waiters[0][1].is_done:
            self._acks_waiters.pop(0)  # its requester has given up
        if reply.is_done:
            return reply
        if self._acks_waiters and self._acks_waiters[-1][0] > end_offset:
            # A retry of what came before others that wait.
            insort(self._acks_waiters, (end_offset, reply), key=lambda each: each[0])
        else:
            self._acks_waiters.append((end_offset, reply))
        return reply

    def append_own(self, batch: bytearray, count: int, now_ms: int) -> None:
        """A coordinator's batch of `count` records of this moment, as if it came with acks of all replicas."""
        leader = self._require_in_sync()
        log = self.log
        log.append_own(batch, count, now_ms, leader.leader_epoch, now_ms)
        if self.has_followers:
            self._on_appended(leader)
        elif not self.syncs_each_batch and leader.advance(log.end_offset) and self._waiters:
            self.wake()
        counters = self.counters
        counters.bytes_in += len(batch)
        counters.messages_in += count

    @property
    def low_watermark(self) -> int:
        """Below this no replica has anything, as far as those that are alive have told us."""
        leader, replicas = self.require_leader(), self._replicas
        starts = [each.start_offset for replica, each in leader.followers.items() if replicas.is_alive(replica)]
        return min([self.log.start_offset, *starts])

    def when_start_is(self, offset: int) -> Reply:
        """Done when the low watermark is there; KafkaError when this leader will never know."""
        reply = Reply()
        self._start_waiters.append((offset, reply))
        self._answer_start_waiters()
        return reply

    def _answer_start_waiters(self) -> None:
        waiters, self._start_waiters = [each for each in self._start_waiters if not each[1].is_done], []
        for offset, reply in waiters:
            try:
                if self.low_watermark < offset:
                    self._start_waiters.append((offset, reply))
                else:
                    reply.give(None)
            except KafkaError as refusal:
                reply.give(refusal)

    def delete_records_before(self, offset: int) -> None:
        """Once the checkpoint says so."""
        if self.why_removed is not None:
            raise self.why_removed
        self._check_start_wanted(offset)
        try:
            self.log.delete_records_before(offset)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def give_up_before(self, offset: int, now_ms: int) -> None:
        """The same for what retention lets go. OSError, KafkaError: the next round tries again."""
        if not self.is_removed and self.log.failure is None:
            self._check_start_wanted(offset)
            self.log.give_up_before(offset, now_ms)

    def _check_start_wanted(self, offset: int) -> None:
        if offset > self.start_wanted:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} was cut meanwhile")

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

    def add_end_waiter(self, waiter: Callable[[], None]) -> None:
        if self._end_waiters is None:
            self._end_waiters = []
        self._end_waiters.append(waiter)

    def drop_end_waiter(self, waiter: Callable[[], None]) -> None:
        if self._end_waiters and waiter in self._end_waiters:
            self._end_waiters.remove(waiter)

    # -- out -----------------------------------------------------------------------------------------------------------

    def visible_end(self, isolation_level: int) -> int:
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    def read(self, offset: int, bytes_max: int, isolation_level: int, *, at_least_one: bool) -> LogSlice | None:
        end = self.visible_end(isolation_level)
        piece = self.log.read(offset, bytes_max, offset_max=end, at_least_one=at_least_one)
        if piece is not None:
            piece.on_read_error = self.note_read_error
        return piece

    def read_for_replica(self, offset: int, bytes_max: int, *, at_least_one: bool) -> LogSlice | None:
        """Committed or not: it becomes so by being fetched."""
        piece = self.log.read(offset, bytes_max, offset_max=INT64_MAX, at_least_one=at_least_one)
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
        self._note_flush_idle()
        if self.is_removed:
            # Its files were renamed under the flush, or its disk failed with it; whoever waited has been told.
            finished.exception()
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
        await self._wait_flush_idle()

    async def _wait_flush_idle(self) -> None:
        while self.is_flushing:
            if self._flush_idle is None:
                self._flush_idle = self._replicas.loop.create_future()
            # Others may wait for the same: who is cancelled takes nothing from them.
            await asyncio.wait([self._flush_idle])

    def _note_flush_idle(self) -> None:
        self.is_flushing = False
        if self._flush_idle is not None:
            self._flush_idle.set_result(None)
            self._flush_idle = None

    def release_flushes(self) -> None:
        self._flushes_held = False
        if self._flush_waiters:
            self.flush_soon()
