"""The shell of coordinators: shards on the partitions of an internal topic that this broker leads.

Follows leadership (load, unload), gives each shard its turns, appends what they log, answers when the high watermark
covers it, and wakes them when a timer is due. What a coordinator decides is in `moldau.coordination`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from moldau.broker.partition import INT64_MAX, Partition
from moldau.broker.reply import Reply
from moldau.coordination import (
    TURN_BYTES_MAX,
    Answer,
    InTransaction,
    Logged,
    Machine,
    Moment,
    Shard,
    ShardState,
    partition_of,
)
from moldau.kernel import ErrorCode, KafkaError, Timer
from moldau.protocol.batches import (
    BatchHeader,
    CorruptBatchError,
    Record,
    build_batch,
    build_plain_batch,
    iterate_batches,
    keys_and_values,
)
from moldau.protocol.compression import Compression
from moldau.protocol.markers import read_marker
from moldau.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from moldau.broker.node import Node

LOAD_BYTES = 1 << 20
PROGRESS_MS = 1000
# A load that failed, on a bad disk, is tried again after so long, and after twice as long each time.
LOAD_RETRY_MS_MIN, LOAD_RETRY_MS_MAX, LOAD_FAILURES_COUNTED_MAX = 500, 60_000, 10
# The log refused an append: the shard is loaded anew, first at once, then after so long, and after twice as long
# each time until an append succeeds.
RELOAD_MS_MIN, RELOAD_MS_MAX, REFUSED_APPENDS_COUNTED_MAX = 100, 3_000, 10
# What the requester is told when the log below refuses, by what the log said.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

AnyMachine = TypeVar("AnyMachine", bound=Machine)


class _Hosted(Generic[AnyMachine]):
    """A shard, its partition, and its timer: the machine's next, or that of the next try to load."""

    __slots__ = (
        "failed_loads",
        "leader_epoch",
        "partition",
        "refused_appends",
        "shard",
        "task",
        "timer",
        "timer_ms",
        "waits_for_sync",
    )

    def __init__(self, shard: Shard[AnyMachine], partition: Partition, failed_loads: int, refused_appends: int) -> None:
        self.shard = shard
        self.partition = partition
        # Of which leadership it is: between two of ours another broker may have written.
        self.leader_epoch = partition.leader_epoch
        self.failed_loads = failed_loads
        # In succession.
        self.refused_appends = refused_appends
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.timer_ms = 0
        self.waits_for_sync = False


class Coordinator(Generic[AnyMachine]):
    def __init__(
        self,
        node: Node,
        topic: str,
        make_machine: Callable[[Partition], AnyMachine],
        compression: Callable[[], Compression] = lambda: Compression.NONE,
    ) -> None:
        self._node = node
        self._compression = compression
        self.topic = topic
        self._make_machine = make_machine
        self._hosted: dict[int, _Hosted[AnyMachine]] = {}
        # Shards whose records leave at the end of this turn of the loop, in the order in which they came.
        self._turns: dict[_Hosted[AnyMachine], None] = {}
        self._is_flush_due = False
        self._is_stopping = False

    # -- asking --------------------------------------------------------------------------------------------------------

    def index_of(self, key: str) -> int:
        """The partition that a key belongs to; KafkaError while the topic does not exist."""
        topic = self._node.image.topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return partition_of(key, len(topic.partitions))

    def ask(self, key: str, make_event: Callable[[Reply], Any]) -> Reply:
        """Give the key's shard an event; the answer comes when it is committed. KafkaError refuses at once."""
        reply = Reply()
        self.submit(key, make_event(reply))
        return reply

    def submit(self, key: str, event: Any) -> None:
        """The same for who has a token of its own: its `give` is called with the answer, perhaps before this
        returns."""
        self._submit(self._require(self.index_of(key)), event)

    def submit_at(self, index: int, event: Any) -> None:
        """The same for the shard of a partition."""
        self._submit(self._require(index), event)

    def partition_at(self, index: int) -> Partition:
        """The partition of an active shard, with everything in its log that was decided up to now."""
        hosted = self._require(index)
        if hosted.shard.has_turn:  # also one that waits behind others for the end of this turn of the loop
            self._turns.pop(hosted, None)
            self._append(hosted)
        return hosted.partition

    def ask_all(self, make_event: Callable[[Reply], Any]) -> list[Reply]:
        """The same of every shard here; KafkaError while one of them is loading."""
        replies = []
        for index in list(self._hosted):
            reply = Reply()
            self._submit(self._require(index), make_event(reply))
            replies.append(reply)
        return replies

    def tell_all(self, event: Any) -> None:
        """News for every shard that is active; what loads now reads the present state when it has."""
        for hosted in list(self._hosted.values()):  # an append that fails changes it
            if hosted.shard.state is ShardState.ACTIVE:
                self._submit(hosted, event)

    def machines(self) -> Iterator[AnyMachine]:
        """Of the active shards, to look at."""
        for hosted in self._hosted.values():
            if hosted.shard.state is ShardState.ACTIVE:
                yield hosted.shard.machine

    def _require(self, index: int) -> _Hosted[AnyMachine]:
        hosted = self._hosted.get(index)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        hosted.shard.require_active()
        return hosted

    def _submit(self, hosted: _Hosted[AnyMachine], event: Any) -> None:
        try:
            hosted.shard.submit(event, self._now())
        except KafkaError:
            raise
        except Exception:
            self._on_bug(hosted)
            raise
        self._after(hosted)

    def _on_bug(self, hosted: _Hosted[AnyMachine]) -> None:
        """A machine failed in the middle of a step: what it holds is no longer what its log says."""
        self._node.say(f"coordinator_step_failed partition={hosted.partition} hint='loaded anew from the log'")
        self._restart(hosted, KafkaError(ErrorCode.NOT_COORDINATOR))

    def _now(self) -> Moment:
        clock = self._node.clock
        return Moment(clock.monotonic_ms(), clock.now_ms())

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _after(self, hosted: _Hosted[AnyMachine]) -> None:
        """An event was handled: its records leave at the end of this turn of the loop, with all others'."""
        self._set_timer(hosted)
        shard = hosted.shard
        if not shard.has_turn:
            return
        if shard.is_full:
            self._append(hosted)
        elif hosted not in self._turns:
            self._turns[hosted] = None
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._turns and not self._is_flush_due:
            self._is_flush_due = True
            self._node.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        turns, self._turns = self._turns, {}
        left = iter(turns)
        try:
            for hosted in left:
                self._append(hosted)
        finally:
            # A bug in one shard costs the others nothing: they have their turn in the next one.
            self._turns |= dict.fromkeys(left)
            self._flush_soon()

    def _append(self, hosted: _Hosted[AnyMachine]) -> None:
        shard, partition = hosted.shard, hosted.partition
        while shard.has_turn:
            entries = shard.take()
            if entries:
                try:
                    self._write(partition, entries)
                except KafkaError as refusal:
                    self._node.say(f"coordinator_append_failed partition={partition} reason={refusal}")
                    self._restart(hosted, refusal)
                    return
                hosted.refused_appends = 0
            shard.appended(partition.log.end_offset)
            self._give_answers(hosted)

    def _write(self, partition: Partition, entries: list[Any]) -> None:
        """Plain records that are neighbours share a batch; what belongs to a transaction has one of its own."""
        now_ms = self._node.clock.now_ms()
        start = 0
        for place, entry in enumerate(entries):
            if isinstance(entry, Logged):
                continue
            self._write_plain(partition, entries[start:place], now_ms)
            start = place + 1
            if isinstance(entry, InTransaction):
                records = [Record(index, now_ms, *record) for index, record in enumerate(entry.records)]
                batch = build_batch(
                    records,
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    transactional=True,
                    compression=self._compression(),
                )
                partition.append_in_transaction(batch, now_ms)
            else:
                partition.append_marker(
                    entry.producer_id, entry.producer_epoch, entry.marker, entry.transaction_version, now_ms
                )
        self._write_plain(partition, entries[start:] if start else entries, now_ms)

    def _write_plain(self, partition: Partition, records: list[Logged], now_ms: int) -> None:
        for piece in _in_pieces(records):
            batch = build_plain_batch(piece, now_ms, self._compression())
            partition.append_own(batch, len(piece), now_ms)

    def _give_answers(self, hosted: _Hosted[AnyMachine]) -> None:
        partition = hosted.partition
        if partition.syncs_each_batch:
            self._give_synced_answers(hosted)
            return
        deliver(hosted.shard.commit(partition.high_watermark))
        if hosted.shard.is_waiting:
            partition.add_waiter(lambda: self._give_answers(hosted))

    def _give_synced_answers(self, hosted: _Hosted[AnyMachine]) -> None:
        """With `flush.messages` 1 an answer, and every order that follows from a record, waits for the disk."""
        partition = hosted.partition
        deliver(hosted.shard.commit(partition.high_watermark))
        if not hosted.shard.is_waiting or hosted.waits_for_sync:
            return
        if partition.log.recovery_point >= partition.log.end_offset:
            partition.add_waiter(lambda: self._give_answers(hosted))
        else:
            hosted.waits_for_sync = True
            partition.when_flushed(partition.log.end_offset).add_done_callback(partial(self._on_synced, hosted))

    def _on_synced(self, hosted: _Hosted[AnyMachine], synced: asyncio.Future[None]) -> None:
        hosted.waits_for_sync = False
        error = synced.exception()
        if self._hosted.get(hosted.shard.index) is not hosted:
            return  # unloaded meanwhile: whoever waited has been told
        if error is None:
            self._give_answers(hosted)
        else:
            assert isinstance(error, KafkaError)
            self._restart(hosted, error)

    def _restart(self, hosted: _Hosted[AnyMachine], refusal: KafkaError) -> None:
        """What the machine holds is more than the log does: begin again from the log."""
        code = _APPEND_ERRORS.get(refusal.code, refusal.code)
        # What is too large is its requester's fault; whoever waits besides shall ask again.
        others = KafkaError(ErrorCode.NOT_COORDINATOR) if code is ErrorCode.UNKNOWN_SERVER_ERROR else None
        self._unload(hosted, KafkaError(code, refusal.message), others)
        if hosted.partition.leader is not None and refusal.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._reload(hosted)

    def _reload(self, hosted: _Hosted[AnyMachine]) -> None:
        """At once, unless that was done before and did not help: what the shard would log is refused again."""
        refused = min(hosted.refused_appends + 1, REFUSED_APPENDS_COUNTED_MAX)
        again = self._host(hosted.partition, refused_appends=refused)
        if refused == 1:
            self._begin_load(again)
            return
        delay_ms = min(RELOAD_MS_MIN << (refused - 2), RELOAD_MS_MAX)
        self._node.say(f"coordinator_reload_delayed partition={hosted.partition} ms={delay_ms}")
        again.timer = self._node.clock.call_later(delay_ms, lambda: self._begin_load(again))

    # -- timers --------------------------------------------------------------------------------------------------------

    def _set_timer(self, hosted: _Hosted[AnyMachine]) -> None:
        next_ms = hosted.shard.machine.next_deadline_ms
        if next_ms is None or hosted.shard.state is not ShardState.ACTIVE:
            return
        if hosted.timer is not None:
            if hosted.timer_ms <= next_ms:
                return
            hosted.timer.cancel()
        hosted.timer_ms = next_ms
        delay_ms = max(next_ms - self._node.clock.monotonic_ms(), 0)
        hosted.timer = self._node.clock.call_later(delay_ms, lambda: self._on_time(hosted))

    def _on_time(self, hosted: _Hosted[AnyMachine]) -> None:
        hosted.timer = None
        try:
            hosted.shard.tick(self._now())
        except Exception:
            self._on_bug(hosted)
            raise
        self._after(hosted)

    # -- leadership ----------------------------------------------------------------------------------------------------

    def follow_metadata(self) -> None:
        """After every change of the metadata: run the shards of the partitions that we lead, and no others."""
        if self._is_stopping:
            return
        led = {
            partition.index: partition
            for partition in self._node.replicas.by_name(self.topic) or ()
            if partition is not None and partition.leader is not None
        }
        for index, hosted in list(self._hosted.items()):
            if led.get(index) is not hosted.partition or hosted.leader_epoch != hosted.partition.leader_epoch:
                self._unload(hosted, KafkaError(ErrorCode.NOT_COORDINATOR))
        for index, partition in led.items():
            if index not in self._hosted:
                self._begin_load(self._host(partition))

    def _host(self, partition: Partition, failed_loads: int = 0, refused_appends: int = 0) -> _Hosted[AnyMachine]:
        """A shard that is yet to be loaded, and says so to whoever asks."""
        shard = Shard(partition.index, self._make_machine(partition), self._node.say)
        hosted = self._hosted[partition.index] = _Hosted(shard, partition, failed_loads, refused_appends)
        return hosted

    def _begin_load(self, hosted: _Hosted[AnyMachine]) -> None:
        hosted.timer = None
        partition = hosted.partition
        if partition.log.end_offset == partition.log.start_offset:
            self._activate(hosted)
        else:
            hosted.task = self._node.loop.create_task(self._replay(hosted))

    async def _replay(self, hosted: _Hosted[AnyMachine]) -> None:
        """Piece by piece, so that others are served meanwhile."""
        partition, machine, clock = hosted.partition, hosted.shard.machine, self._node.clock
        began_ms = told_ms = clock.monotonic_ms()
        records, offset = 0, partition.log.start_offset
        try:
            while offset < partition.log.end_offset:
                piece = partition.log.read(offset, LOAD_BYTES, offset_max=INT64_MAX, at_least_one=True)
                if piece is None and partition.log.is_active_segment_empty:
                    break  # what compaction left ends before the log does
                begin = offset
                for header, batch in iterate_batches(piece.read() if piece is not None else b""):
                    # A log begins with a whole batch, so none is seen in part.
                    if header.is_control:
                        marker = read_marker(batch)
                        if marker is not None:
                            machine.replay_end(header.producer_id, marker.committed)
                    else:
                        self._replay_batch(machine, header, batch)
                        records += header.record_count
                    offset = header.last_offset + 1
                if offset == begin:
                    raise CorruptBatchError(f"the log has no whole batch at offset {offset}")
                if clock.monotonic_ms() - told_ms >= PROGRESS_MS:
                    told_ms = clock.monotonic_ms()
                    self._node.say(
                        f"coordinator_loading partition={partition} at={offset} of={partition.log.end_offset}"
                    )
                await asyncio.sleep(0)
                if hosted.shard.state is not ShardState.LOADING:
                    return
        except (OSError, CorruptBatchError, KafkaError) as error:
            self._load_later(hosted, f"offset={offset} reason={str(error)!r}")
            return
        took_ms = clock.monotonic_ms() - began_ms
        self._node.say(f"coordinator_loaded partition={partition} records={records} ms={took_ms}")
        self._activate(hosted)

    def _load_later(self, hosted: _Hosted[AnyMachine], why: str) -> None:
        delay_ms = min(LOAD_RETRY_MS_MIN << hosted.failed_loads, LOAD_RETRY_MS_MAX)
        self._node.say(f"coordinator_load_failed partition={hosted.partition} {why} retry_ms={delay_ms}")

        def again() -> None:
            # What was read so far is of no use: the next try begins with an empty machine.
            failed = min(hosted.failed_loads + 1, LOAD_FAILURES_COUNTED_MAX)
            self._begin_load(self._host(hosted.partition, failed, hosted.refused_appends))

        hosted.timer = self._node.clock.call_later(delay_ms, again)

    def _replay_batch(self, machine: AnyMachine, header: BatchHeader, batch: memoryview) -> None:
        replay = machine.replay
        if header.is_transactional:
            replay = partial(machine.replay_in_transaction, header.producer_id)
        for key, value in keys_and_values(batch):
            try:
                replay(key or b"", value)
            except ProtocolError as error:
                # One record that nobody can read must not take a whole partition's groups with it.
                self._node.say(f"coordinator_record_skipped topic={self.topic} key={key!r} reason={str(error)!r}")

    def _activate(self, hosted: _Hosted[AnyMachine]) -> None:
        hosted.shard.activate(hosted.partition.log.end_offset, self._now())
        self._after(hosted)

    def _unload(self, hosted: _Hosted[AnyMachine], error: KafkaError, others: KafkaError | None = None) -> None:
        self._hosted.pop(hosted.shard.index, None)
        if hosted.timer is not None:
            hosted.timer.cancel()
        self._turns.pop(hosted, None)
        deliver(hosted.shard.fail(error, others))

    def stop(self) -> None:
        """Requests that wait are told to look elsewhere; nothing more is logged."""
        self._flush()
        self._is_stopping = True
        for hosted in list(self._hosted.values()):
            self._unload(hosted, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def _in_pieces(records: list[Logged]) -> Iterator[list[Logged]]:
    """What shares a batch. Many deletions may be parted, as in Kafka: each is right without the others."""
    start = size = 0
    for place, record in enumerate(records):
        if size > TURN_BYTES_MAX and record.value is None and records[place - 1].value is None:
            yield records[start:place]
            start, size = place, 0
        size += len(record.key) + len(record.value or b"")
    if records:
        yield records[start:] if start else records


def deliver(answers: list[Answer]) -> None:
    for token, response in answers:
        token.give(response)
