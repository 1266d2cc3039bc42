"""The metadata quorum's shell on this node: append, make durable, apply, publish; while it leads, decide.

`change(decide)` runs a pure decision against the newest image (records that are appended but not yet committed
included), appends its records as one batch and answers once the quorum has them on disk and this broker has acted on
them: who has an answer sees its own change. Decisions that meet in one turn share a flush. A node that does not lead
goes the same way with the records that it fetches: append, flush, apply when the high watermark covers them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from moldau.cluster import (
    METADATA_VERSION,
    RECORDS_PER_DECISION_MAX,
    Decision,
    MetadataDelta,
    MetadataImage,
    MetadataLog,
    MetadataLogError,
    Transaction,
    VoterSet,
    voters_of,
)
from moldau.cluster.snapshot import KRAFT_VOTERS
from moldau.consensus import (
    NEVER,
    AdvanceHighWatermark,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    Effect,
    EpochEnd,
    InstallSnapshot,
    PersistState,
    Quorum,
    Request,
    Send,
    TruncateTo,
    WriteSnapshot,
)
from moldau.kernel import Clock, ErrorCode, KafkaError, Timer

Response = TypeVar("Response")
Publisher = Callable[[MetadataDelta, MetadataImage], None]
# A follower whose disk is full looks again so often.
FULL_RETRY_MS = 1000


class _Pending(NamedTuple):
    """A batch that is in the log and waits for the quorum."""

    end_offset: int
    image: MetadataImage
    delta: MetadataDelta
    transaction: Transaction
    done: asyncio.Future[None]


class Controller:
    def __init__(
        self,
        log: MetadataLog,
        quorum: Quorum,
        image: MetadataImage,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        publish: Publisher,
        send: Callable[[int, Request], None],
        on_leadership: Callable[[], None],
        snapshot_after_bytes: Callable[[], int],
        say: Callable[[str], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`image` is the newest snapshot's; `on_leadership` is told when this node begins or ceases to lead."""
        self._log = log
        self.quorum = quorum
        self._clock = clock
        self._loop = loop
        self._publish = publish
        self._send = send
        self._on_leadership = on_leadership
        self._snapshot_after_bytes = snapshot_after_bytes
        self._snapshotting: asyncio.Task[None] | None = None
        self._say = say
        self._on_fault = on_fault
        # What the quorum agreed on and the broker acts by.
        self.committed = image
        self._transaction: Transaction = None
        self._pending: deque[_Pending] = deque()
        self._flushing = False
        self._led_epoch: int | None = None
        self._known_leader = (-1, -1)
        self._loaded = bytearray()
        self._alarm: Timer | None = None
        self._alarm_ms = NEVER
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False
        self._told: tuple[int | bool, ...] = ()

    @property
    def log(self) -> MetadataLog:
        return self._log

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_active(self) -> bool:
        return self.quorum.is_leader

    @property
    def latest(self) -> MetadataImage:
        """The newest image, for decisions: what is in the log, agreed or not."""
        return self._pending[-1].image if self._pending else self.committed

    @property
    def is_transaction_open(self) -> bool:
        """A metadata transaction was begun and never ended: a new leader must abort it, or it swallows what follows."""
        return (self._pending[-1].transaction if self._pending else self._transaction) is not None

    def start(self) -> None:
        """Take up what is on disk. The only voter leads when this returns; synchronous, as nothing else runs yet."""
        self._replay_rest()
        self._carry_out(self.quorum.start(self._clock.monotonic_ms()))
        if self.is_active:
            self._flush_now()
        self._look_ahead()

    def _replay_rest(self) -> None:
        """What is in the log beyond the newest image waits until it is agreed."""
        transaction = self._pending[-1].transaction if self._pending else self._transaction
        replayed = self._log.replay_log(self.latest, transaction)
        if replayed is not None:
            for offset, voters in replayed.voters:
                self.quorum.note_voters(offset, voters)
            self._wait_for_quorum(replayed.image, replayed.delta, replayed.transaction)

    def _wait_for_quorum(self, image: MetadataImage, delta: MetadataDelta, transaction: Transaction) -> _Pending:
        pending = _Pending(image.offset + 1, image, delta, transaction, self._loop.create_future())
        pending.done.add_done_callback(_seen)
        self._pending.append(pending)
        return pending

    # -- decisions -----------------------------------------------------------------------------------------------------

    async def change(self, decide: Callable[[MetadataImage], Decision[Response]]) -> Response:
        self.check_active()
        decision = decide(self.latest)
        if decision.records:
            await self._append(decision.records)
        elif self._pending:
            # Decided from records that are not committed yet: the answer must not be ahead of them.
            await asyncio.shield(self._pending[-1].done)
        return decision.response

    def check_active(self) -> None:
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")

    def change_now(self, records: Sequence[Any]) -> int:
        """Append and flush on the spot, for the node's own start and stop; the first offset of the batch."""
        first = self._enqueue(records)
        self._flush_now()
        return first

    @property
    def next_offset(self) -> int:
        return self._log.log.end_offset

    def propose(self, records: Sequence[Any]) -> asyncio.Future[None]:
        """Append what this node decided on its own; done when it is agreed, and nobody needs to wait for it."""
        self._enqueue(records)
        done = self._pending[-1].done
        self._flush_soon()
        self._tell_waiting()
        return done

    async def _append(self, records: Sequence[Any]) -> None:
        if len(records) > RECORDS_PER_DECISION_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The request makes {len(records)} metadata records; {RECORDS_PER_DECISION_MAX} are allowed at once.",
            )
        try:
            done = self.propose(records)
        except KafkaError:
            if self._log.log.failure is not None:
                self._fail_pending()
            raise
        # Shielded: a client that leaves does not undo what is decided.
        await asyncio.shield(done)

    def _enqueue(self, records: Sequence[Any]) -> int:
        self.check_active()
        before = self.latest
        delta = MetadataDelta(before)
        delta.replay_all(records)
        level = delta.features if delta.features is not None else before.features
        epoch = self.quorum.epoch
        first, last = self._log.append(records, level.get(METADATA_VERSION, 0), epoch, self._clock.now_ms())
        self._wait_for_quorum(delta.image(last, epoch), delta, None)
        return first

    def change_voters(self, decide: Callable[[], Sequence[Effect]]) -> asyncio.Future[None]:
        """Add, remove or update a voter; done when the quorum agrees."""
        self.check_active()
        effects = decide()
        self._step(effects)
        if not effects or not self._pending:
            done: asyncio.Future[None] = self._loop.create_future()
            done.set_result(None)
            return done
        return asyncio.shield(self._pending[-1].done)

    # -- durability ----------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flushing and not self._is_closed:
            self._flushing = True
            self._loop.call_soon(self._start_flush)

    def _start_flush(self) -> None:
        task = None if self._is_closed or self._log.log.failure is not None else self._log.log.flush_task()
        if task is None:
            self._flushing = False
            self._note_flushed()
            return
        future = self._loop.run_in_executor(None, task.run)
        future.add_done_callback(lambda finished: self._finish_flush(task, finished))

    def _finish_flush(self, task: Any, finished: asyncio.Future[None]) -> None:
        self._flushing = False
        try:
            finished.result()
            self._complete(task)
        except (OSError, KafkaError) as error:
            if self._log.log.failure is None:
                # No room: nothing is broken, and the next change takes these with it.
                self._refuse_pending(error)
            else:
                self._fail_pending(error)
            return
        if self._log.log.end_offset > self._log.log.recovery_point:
            self._flush_soon()

    def _flush_now(self) -> None:
        task = self._log.log.flush_task()
        if task is not None:
            task.run()
            self._complete(task)

    def _complete(self, task: Any) -> None:
        self._log.log.complete_flush(task)
        self._note_flushed()

    def _note_flushed(self) -> None:
        if not self._is_closed:
            self._step(self.quorum.flushed(self._log.log.recovery_point, self._clock.monotonic_ms()))

    def _fail_pending(self, error: BaseException | None = None) -> None:
        """Nothing is known about the log's bytes any more: nobody is told otherwise, and the node stops (fsyncgate)."""
        reason = error or OSError(self._log.log.failure)
        self._refuse_pending(reason)
        self._pending.clear()
        self._on_fault(reason)

    def _refuse_pending(self, reason: BaseException) -> None:
        self._refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(reason)))

    def _refuse(self, refusal: KafkaError) -> None:
        for pending in self._pending:
            if not pending.done.done():
                pending.done.set_exception(refusal)

    def give_up(self, reason: str) -> None:
        """What the log lies on is out of service: what is committed stays, nothing more is."""
        self._log.log.fail(reason)
        self._refuse_pending(OSError(reason))
        self._pending.clear()

    # -- effects -------------------------------------------------------------------------------------------------------

    def step(self, effects: Sequence[Effect]) -> None:
        """Carry out what an event of the quorum asks for, and whatever follows from that.

        Raises when it cannot: nobody is told of a vote that is not on disk.
        """
        if self._is_closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata log is closed.")
        self._step(effects)

    def _step(self, effects: Sequence[Effect]) -> None:
        if self._is_closed:
            return
        self._carry_out(effects)
        self._carry_out(self.quorum.poll(self._clock.monotonic_ms()))
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Notice a change of leadership; set the alarm for what is due next."""
        led_epoch = self.quorum.epoch if self.is_active else None
        if led_epoch != self._led_epoch:
            self._led_epoch = led_epoch
            if led_epoch is None:
                self._refuse(KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller any more."))
        known_leader = (self.quorum.epoch, self.quorum.leader_id)
        if known_leader != self._known_leader:
            self._known_leader = known_leader
            self._on_leadership()
        self._tell_waiting()
        due_ms = self.quorum.due_ms
        if due_ms != self._alarm_ms:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._alarm_ms = None, due_ms
            if due_ms < NEVER:
                delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
                self._alarm = self._clock.call_later(delay_ms, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_ms = None, NEVER
        try:
            self._step(())
        except KafkaError as error:
            self._say(f"quorum_stopped reason={error.message!r}")

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.to, effect.request)
            elif isinstance(effect, AdvanceHighWatermark):
                self._apply_up_to(effect.offset)
            elif isinstance(effect, AppendFetched):
                self._append_fetched(effect.records)
            elif isinstance(effect, PersistState):
                self._persist(effect)
            elif isinstance(effect, AppendLeaderChange):
                now_ms = self._clock.now_ms()
                voters = self.quorum.voters
                named_at = self._log.append_leader_change(
                    effect.epoch, effect.leader_id, voters, effect.granting, now_ms
                )
                if named_at is not None:
                    self.quorum.note_voters(named_at, voters)
                self._follow_control_batch()
            elif isinstance(effect, AppendVoters):
                offset = self._log.append_voters(effect.voters, self.quorum.epoch, self._clock.now_ms())
                self.quorum.note_voters(offset, effect.voters)
                self._follow_control_batch()
            elif isinstance(effect, TruncateTo):
                self._truncate(effect.offset)
            elif isinstance(effect, WriteSnapshot):
                del self._loaded[effect.position :]
                self._loaded += effect.data
            elif isinstance(effect, InstallSnapshot):
                self._install(effect.snapshot)

    def _persist(self, effect: PersistState) -> None:
        try:
            self._log.write_quorum_state(effect.state, self.quorum.voters.ids)
        except OSError as error:
            # The machine believes that it voted, and the disk does not know: this life has no say any more.
            self._is_closed = True
            self._on_fault(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"quorum-state could not be written: {error}") from error

    def _follow_control_batch(self) -> None:
        """A batch of our own with no metadata in it."""
        delta = MetadataDelta(self.latest)
        transaction = self._pending[-1].transaction if self._pending else self._transaction
        self._wait_for_quorum(delta.image(self._log.end_offset - 1, self.quorum.epoch), delta, transaction)
        self._flush_soon()

    def _append_fetched(self, batches: Any) -> None:
        try:
            for last_offset, epoch, records, controls in self._log.append_fetched(batches):
                before = self._pending[-1].transaction if self._pending else self._transaction
                delta = MetadataDelta(self.latest)
                transaction = self._log.replay_records(delta, records, before)
                self._wait_for_quorum(delta.image(last_offset, epoch), delta, transaction)
                for kind, message in controls:
                    if kind == KRAFT_VOTERS:
                        self.quorum.note_voters(last_offset, voters_of(message))
        except (MetadataLogError, ValueError) as error:
            self._on_fault(error)
            return
        except (OSError, KafkaError) as error:
            if self._log.log.failure is not None:
                self._fail_pending(error)
                return
            self._say(f"metadata_not_appended reason={str(error)!r}")
            self._clock.call_later(FULL_RETRY_MS, self._flush_soon)
            return
        self._carry_out(self.quorum.note_log_end())
        self._flush_soon()

    def _truncate(self, offset: int) -> None:
        self._say(f"metadata_truncated offset={offset} end_offset={self._log.end_offset}")
        self._log.truncate_to(offset, self.quorum.voters)
        while self._pending and self._pending[-1].end_offset > offset:
            dropped = self._pending.pop()
            if not dropped.done.done():
                dropped.done.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER, "The change was not agreed on."))
        self._replay_rest()

    def _install(self, snapshot: EpochEnd) -> None:
        self._refuse(KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller any more."))
        self._pending.clear()
        try:
            image = self._log.install_snapshot(snapshot, bytes(self._loaded))
        except (ValueError, OSError, KafkaError) as error:
            self._on_fault(error)
            return
        finally:
            self._loaded.clear()
        record = self._log.voters.record
        if record is not None:
            self.quorum.begin_with_voters(voters_of(record))
        self._say(f"metadata_snapshot_loaded end_offset={snapshot.end_offset} epoch={snapshot.epoch}")
        delta = MetadataDelta.between(self.committed, image)
        self.committed, self._transaction = image, None
        self._publish(delta, image)

    def _apply_up_to(self, high_watermark: int) -> None:
        while self._pending and self._pending[0].end_offset <= high_watermark:
            pending = self._pending.popleft()
            self.committed, self._transaction = pending.image, pending.transaction
            self._publish(pending.delta, pending.image)
            if not pending.done.done():
                pending.done.set_result(None)
        is_due = self._log.bytes_since_snapshot > self._snapshot_after_bytes() and self._transaction is None
        if is_due and self._snapshotting is None and self.quorum.are_voters_agreed and not self._is_closed:
            self._snapshotting = self._loop.create_task(self._snapshot(self.committed, self._log.voters))

    async def _snapshot(self, image: MetadataImage, voters: VoterSet) -> None:
        """Bound the next replay; encoding and writing happen in a thread, as the image never changes."""
        self._log.bytes_since_snapshot = 0
        now_ms = self._clock.now_ms()
        try:
            size = await self._loop.run_in_executor(None, self._log.write_snapshot, image, voters, now_ms)
        except OSError as error:
            # Nothing is lost by it, the log has everything; the next one is due after as many records again.
            self._say(f"metadata_snapshot_failed reason={str(error)!r}")
        else:
            self._log.note_snapshot(image, size)
        finally:
            self._snapshotting = None

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait_news(self, timeout_ms: int) -> None:
        """Until something about the log or its leader may have changed, at most so long."""
        news: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(news)
        timer = self._clock.call_later(timeout_ms, lambda: None if news.done() else news.set_result(None))
        try:
            await news
        finally:
            timer.cancel()

    def _tell_waiting(self) -> None:
        # A fetch that is looked at again is no news itself: two of them would wake each other for ever.
        quorum = self.quorum
        news_of = (self._log.end_offset, quorum.high_watermark, quorum.epoch, quorum.leader_id, self._is_closed)
        if news_of == self._told:
            return
        self._told = news_of
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    async def wait_idle(self) -> None:
        """Until no flush and no snapshot is under way."""
        while self._flushing or self._snapshotting is not None:
            await asyncio.sleep(0.001)

    def resign(self) -> None:
        """Hand the lead to those who have the longest log; they stand at once."""
        if self.is_active and len(self.quorum.voters.all) > 1:
            self._step(self.quorum.resign(self._clock.monotonic_ms()))

    def close(self) -> None:
        if self._log.log.failure is None:
            self._flush_now()
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._tell_waiting()
        self._log.close(self._clock.now_ms())


def _seen(done: asyncio.Future[None]) -> None:
    """Nobody may be waiting for a batch; that it was refused is no news then."""
    if not done.cancelled():
        done.exception()
