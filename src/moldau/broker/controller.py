"""The metadata quorum's shell on this node: decide, append, make durable, apply, publish, answer.

`change(decide)` runs a pure decision against the newest image (records that are appended but not yet committed
included), appends its records as one batch and answers once the quorum has them on disk and this broker has acted on
them: who has an answer sees its own change. Decisions that meet in one turn share a flush.
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
)
from moldau.consensus import AdvanceHighWatermark, AppendLeaderChange, Effect, PersistState, Quorum
from moldau.kernel import Clock, ErrorCode, KafkaError

Response = TypeVar("Response")
Publisher = Callable[[MetadataDelta, MetadataImage], None]


class _Pending(NamedTuple):
    """A batch that is appended and waits for the quorum."""

    end_offset: int
    image: MetadataImage
    delta: MetadataDelta
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
        snapshot_after_bytes: Callable[[], int],
        say: Callable[[str], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self.quorum = quorum
        self._clock = clock
        self._loop = loop
        self._publish = publish
        self._snapshot_after_bytes = snapshot_after_bytes
        self._snapshotting: asyncio.Task[None] | None = None
        self._say = say
        self._on_fault = on_fault
        # Newest image, for decisions; `committed` is what the quorum agreed on and the broker acts by.
        self.latest = image
        self.committed = image
        self._pending: deque[_Pending] = deque()
        self._flushing = False

    @property
    def log(self) -> MetadataLog:
        return self._log

    def start(self) -> None:
        """Take the lead of a quorum of one; synchronous, as nothing else runs yet."""
        self._carry_out(self.quorum.elect())
        assert self.quorum.is_leader, "clusters come later"
        self._flush_now()

    async def change(self, decide: Callable[[MetadataImage], Decision[Response]]) -> Response:
        decision = decide(self.latest)
        if decision.records:
            await self._append(decision.records)
        elif self._pending:
            # Decided from records that are not committed yet: the answer must not be ahead of them.
            await self._pending[-1].done
        return decision.response

    def change_now(self, records: Sequence[Any]) -> int:
        """Append and flush on the spot, for the node's own start and stop; the first offset of the batch."""
        first = self._enqueue(records)
        self._flush_now()
        return first

    @property
    def next_offset(self) -> int:
        return self._log.log.end_offset

    async def _append(self, records: Sequence[Any]) -> None:
        if len(records) > RECORDS_PER_DECISION_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The request makes {len(records)} metadata records; {RECORDS_PER_DECISION_MAX} are allowed at once.",
            )
        try:
            self._enqueue(records)
        except KafkaError:
            if self._log.log.failure is not None:
                self._fail_pending()
            raise
        done = self._pending[-1].done
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._start_flush)
        # Shielded: a client that leaves does not undo what is decided.
        await done

    def _enqueue(self, records: Sequence[Any]) -> int:
        delta = MetadataDelta(self.latest)
        delta.replay_all(records)
        level = delta.features if delta.features is not None else self.latest.features
        epoch = self.quorum.epoch
        first, last = self._log.append(records, level.get(METADATA_VERSION, 0), epoch, self._clock.now_ms())
        self.latest = delta.image(last, epoch)
        self._pending.append(_Pending(last + 1, self.latest, delta, self._loop.create_future()))
        return first

    # -- durability ----------------------------------------------------------------------------------------------------

    def _start_flush(self) -> None:
        task = self._log.log.flush_task()
        if task is None:
            self._flushing = False
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
            self._flushing = True
            self._loop.call_soon(self._start_flush)

    def _flush_now(self) -> None:
        task = self._log.log.flush_task()
        if task is not None:
            task.run()
            self._complete(task)

    def _complete(self, task: Any) -> None:
        self._log.log.complete_flush(task)
        self._carry_out(self.quorum.record_durable(self.quorum.node_id, self._log.log.recovery_point))

    def _fail_pending(self, error: BaseException | None = None) -> None:
        """Nothing is known about the log's bytes any more: nobody is told otherwise, and the node stops (fsyncgate)."""
        reason = error or OSError(self._log.log.failure)
        self._refuse_pending(reason)
        self._pending.clear()
        self._on_fault(reason)

    def _refuse_pending(self, reason: BaseException) -> None:
        for pending in self._pending:
            if not pending.done.done():
                pending.done.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(reason)))

    def give_up(self, reason: str) -> None:
        """What the log lies on is out of service: what is committed stays, nothing more is."""
        self._log.log.fail(reason)
        self._refuse_pending(OSError(reason))
        self._pending.clear()
        self.latest = self.committed

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PersistState):
                self._log.write_quorum_state(effect.state, self.quorum.voters)
            elif isinstance(effect, AppendLeaderChange):
                now_ms = self._clock.now_ms()
                offset = self._log.append_leader_change(
                    effect.epoch, effect.leader_id, effect.voters, effect.granting, now_ms
                )
                self.quorum.begin_epoch_at(offset)
            elif isinstance(effect, AdvanceHighWatermark):
                self._apply_up_to(effect.offset)

    def _apply_up_to(self, high_watermark: int) -> None:
        while self._pending and self._pending[0].end_offset <= high_watermark:
            pending = self._pending.popleft()
            self.committed = pending.image
            self._publish(pending.delta, pending.image)
            if not pending.done.done():
                pending.done.set_result(None)
        if self._log.bytes_since_snapshot > self._snapshot_after_bytes() and self._snapshotting is None:
            self._snapshotting = self._loop.create_task(self._snapshot(self.committed))

    async def _snapshot(self, image: MetadataImage) -> None:
        """Bound the next replay; encoding and writing happen in a thread, as the image never changes."""
        self._log.bytes_since_snapshot = 0
        now_ms = self._clock.now_ms()
        try:
            size = await self._loop.run_in_executor(None, self._log.write_snapshot, image, now_ms)
        except OSError as error:
            # Nothing is lost by it, the log has everything; the next one is due after as many records again.
            self._say(f"metadata_snapshot_failed reason={str(error)!r}")
        else:
            self._log.note_snapshot(image, size)
        finally:
            self._snapshotting = None

    async def wait_idle(self) -> None:
        """Until no flush and no snapshot is under way."""
        while self._flushing or self._snapshotting is not None:
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self._flush_now()
        self._log.close(self._clock.now_ms())
