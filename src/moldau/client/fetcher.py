"""Fetching ahead: partitions come, go, jump and rest while one fetcher per leader keeps some answers ready.

One fetcher per leader asks for all of its partitions at once and stays `PREFETCHED_RESPONSES_MAX` answers ahead of
whoever takes records, so memory is bounded by leaders x answers x `max_bytes` (a single larger batch is still returned,
as Fetch does), plus one decompressed batch at a time, plus what partitions had ready when they were paused.

A `Position` is one stay at one place: seeking makes a new one, and whatever belongs to an old one is dropped wherever
it turns up. Knows nothing of groups: see `reader` and `consumer`, who also say which topics are kept fresh.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moldau.client import admin
from moldau.client.admin import IsolationLevel
from moldau.client.cluster import FAULTS, LEADER_ERRORS, ClusterClient, backoff_ms
from moldau.client.records import ConsumedRecord, decode_records
from moldau.client.starts import AtTime, LastOf, Start
from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.readable import readable_batches

PREFETCHED_RESPONSES_MAX = 2
NO_EPOCH = -1
_FETCH_VERSION_BY_NAME_MAX = 12

logger = logging.getLogger(__name__)


OutOfRange = Literal["error", "earliest", "latest"] | LastOf


@dataclass(frozen=True, slots=True)
class FetchLimits:
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 16 << 20
    partition_max_bytes: int = 1 << 20


class Position:
    """Where one partition is: handed out up to `next_offset`, fetched up to `fetch_offset`."""

    __slots__ = (
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "has_failed",
        "high_watermark",
        "next_epoch",
        "next_offset",
        "resting",
        "retry_at",
        "stop",
        "where",
    )

    def __init__(self, where: TopicPartition, offset: int, leader_epoch: int, stop: int | None) -> None:
        self.where = where
        self.next_offset = offset
        self.next_epoch = leader_epoch  # of the record before `next_offset`
        self.fetch_offset = offset
        self.fetch_epoch = leader_epoch
        self.stop = stop
        self.high_watermark = -1
        self.failures = 0
        self.retry_at = 0.0
        self.has_failed = False
        self.resting: list[_Item] | None = None  # while paused: what was ready before

    @property
    def is_fetched(self) -> bool:
        return self.stop is not None and self.fetch_offset >= self.stop

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.next_offset >= self.stop

    @property
    def is_wanted(self) -> bool:
        return self.resting is None and not self.has_failed and not self.is_fetched


class _Slot:
    """A place for one answer of one leader."""

    __slots__ = ("free", "shares")

    def __init__(self, free: asyncio.Semaphore) -> None:
        self.free = free
        self.shares = 0

    def release_share(self) -> None:
        self.shares -= 1
        if self.shares == 0:
            self.free.release()


class Share:
    """One partition's part of an answer; its records are opened batch by batch as they are taken."""

    __slots__ = ("_at", "_batches", "_end", "_opened", "_slot", "position", "records")

    def __init__(
        self, position: Position, records: Any, aborted: list[tuple[int, int]] | None, slot: _Slot | None
    ) -> None:
        self.position = position
        self.records = records
        self._slot = slot
        self._batches = readable_batches(records, aborted)
        self._opened: list[ConsumedRecord] = []
        self._at = 0
        self._end = (0, NO_EPOCH)

    def take(self, records_max: int) -> list[ConsumedRecord]:
        """Hand out up to so many records, and move the position behind them; empty when all are taken."""
        taken: list[ConsumedRecord] = []
        while len(taken) < records_max and not self.position.is_done:
            if self._at == len(self._opened) and not self._open_next():
                break
            until = min(len(self._opened), self._at + records_max - len(taken))
            taken += self._opened[self._at : until]
            self._at = until
            if until == len(self._opened):
                self.position.next_offset, self.position.next_epoch = self._end
            else:
                self.position.next_offset = self._opened[until].offset
                self.position.next_epoch = self._end[1]
        return taken

    def _open_next(self) -> bool:
        position = self.position
        self._opened, self._at = [], 0
        for header, batch in self._batches:
            if header.next_offset <= position.next_offset:
                continue
            self._end = (header.next_offset, header.leader_epoch)
            if batch is not None:
                records = decode_records(*_place(position), header, batch, position.next_offset)
                if position.stop is not None and header.next_offset > position.stop:
                    records = [record for record in records if record.offset < position.stop]
                self._opened = records
            if self._opened:
                return True
            position.next_offset, position.next_epoch = self._end
        return False

    def release(self) -> None:
        """Give the answer's place back."""
        if self._slot is not None:
            self._slot.release_share()
            self._slot = None


class _Moved:
    """The fetcher went to another place in the log; the position follows once what came before is taken."""

    __slots__ = ("offset", "position")

    def __init__(self, position: Position, offset: int) -> None:
        self.position = position
        self.offset = offset

    def release(self) -> None:
        """Nothing is held."""


class _Failed:
    """The partition cannot be read on. It says so again and again until someone seeks."""

    __slots__ = ("error", "position")

    def __init__(self, position: Position, error: Exception) -> None:
        self.position = position
        self.error = error

    def release(self) -> None:
        """Nothing is held."""


_Item = Share | _Moved | _Failed


class Fetcher:
    """Keeps records of its partitions ready. Belongs to one event loop; `close` it."""

    def __init__(
        self,
        client: ClusterClient,
        limits: FetchLimits,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        out_of_range: OutOfRange = "error",
        on_ready: Callable[[], None],
        on_unknown_topic: Callable[[KafkaError], None] | None = None,
    ) -> None:
        """`on_ready` is called when `take` may have something. Lost topics are told, and waited for."""
        self.positions: dict[TopicPartition, Position] = {}
        self.buffer: deque[_Item] = deque()
        self._client = client
        self._limits = limits
        self._isolation_level = isolation_level
        self._out_of_range = out_of_range
        self._on_ready = on_ready
        self._on_unknown_topic = on_unknown_topic
        self._changed = asyncio.Event()
        self._fetchers: dict[int, asyncio.Task[None]] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._failure: Exception | None = None

    async def close(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
        tasks = [*self._fetchers.values(), *([self._supervisor] if self._supervisor is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetchers.clear()
        for where in list(self.positions):
            self.remove(where)

    # -- the taker's side ----------------------------------------------------------------------------------------------

    def add(self, where: TopicPartition, offset: int, *, leader_epoch: int = NO_EPOCH, stop: int | None = None) -> None:
        """Begin at an offset, or go there. `leader_epoch` is that of the record before, if it is known (KIP-320)."""
        before = self.positions.get(where)
        position = self.positions[where] = Position(where, offset, leader_epoch, stop)
        if before is not None and before.resting is not None:
            position.resting = []
        self._drop_old()
        if self._supervisor is None:
            self._stop_listening = self._client.on_metadata(self._changed.set)
            self._supervisor = asyncio.create_task(self._supervise())
        self._changed.set()

    def remove(self, where: TopicPartition) -> None:
        if self.positions.pop(where, None) is not None:
            self._drop_old()

    def pause(self, where: TopicPartition) -> None:
        position = self.positions[where]
        if position.resting is not None:
            return
        position.resting = [item for item in self.buffer if item.position is position]
        self.buffer = deque(item for item in self.buffer if item.position is not position)
        for item in position.resting:
            item.release()

    def resume(self, where: TopicPartition) -> None:
        position = self.positions[where]
        if position.resting is None:
            return
        self.buffer.extendleft(reversed(position.resting))
        position.resting = None
        self._changed.set()
        self._on_ready()

    def take(self, records_max: int) -> list[ConsumedRecord]:
        """Up to so many records of one partition, at once; empty when none is ready. Raises what keeps one from going
        on."""
        if self._failure is not None:
            raise self._failure
        while self.buffer:
            item = self.buffer[0]
            if isinstance(item, _Failed):
                raise item.error
            if isinstance(item, _Moved):
                item.position.next_offset, item.position.next_epoch = item.offset, NO_EPOCH
            else:
                try:
                    records = item.take(records_max)
                except Exception as error:
                    item.release()
                    item.position.has_failed = True
                    self.buffer[0] = _Failed(item.position, error)
                    raise
                if records:
                    return records
                item.release()
            self.buffer.popleft()
        return []

    def _drop_old(self) -> None:
        for item in self.buffer:
            if not self._is_current(item.position):
                item.release()
        self.buffer = deque(item for item in self.buffer if self._is_current(item.position))

    def _is_current(self, position: Position) -> bool:
        return self.positions.get(position.where) is position

    # -- the fetchers' side --------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """One fetcher per leader that has something to read; again whenever partitions came or leaders moved."""
        try:
            while True:
                self._changed.clear()
                for leader in await self._leaders():
                    fetcher = self._fetchers.get(leader)
                    if fetcher is None or fetcher.done():
                        self._fetchers[leader] = asyncio.create_task(self._fetch_from(leader))
                await self._changed.wait()
        except Exception as error:
            self._fail(error)

    async def _leaders(self) -> set[int]:
        leaders: set[int] = set()
        for topic in {where.topic for where in self.positions}:
            try:
                await self._client.retry(lambda topic=topic: self._client.topic(topic))  # type: ignore[misc]
            except KafkaError as error:
                if self._on_unknown_topic is not None:
                    self._on_unknown_topic(error)
                logger.warning("topic_unknown topic=%s error=%s", topic, error)
        for position in self.positions.values():
            leader = self._leader_of(position)
            if leader != NO_LEADER:
                leaders.add(leader)
            elif position.is_wanted:
                self._client.invalidate([position.where.topic])
        return leaders

    def _leader_of(self, position: Position) -> int:
        topic = self._client.topics.get(position.where.topic)
        if topic is None or position.where.partition >= len(topic.partitions):
            return NO_LEADER
        return topic.partitions[position.where.partition].leader

    async def _fetch_from(self, leader: int) -> None:
        """Until this leader leads nothing any more that we want."""
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(PREFETCHED_RESPONSES_MAX)
        failures = 0
        try:
            while True:
                await free.acquire()
                wanted = [
                    position
                    for position in self.positions.values()
                    if position.is_wanted and self._leader_of(position) == leader
                ]
                if not wanted:
                    return
                now = loop.time()
                due = [position for position in wanted if position.retry_at <= now]
                if not due:
                    free.release()
                    await asyncio.sleep(max(0.0, min(position.retry_at for position in wanted) - now))
                    continue
                try:
                    response = await self._fetch(leader, due)
                except (*FAULTS, KafkaError) as error:
                    if isinstance(error, KafkaError) and not _may_repeat(error.code):
                        raise
                    failures += 1
                    free.release()
                    logger.info("fetch_failed broker=%d error=%s", leader, error)
                    self._client.invalidate({position.where.topic for position in due})
                    await self._back_off(failures)
                    continue
                failures = 0
                await self._receive(due, response, _Slot(free))
        except Exception as error:
            self._fail(error)

    async def _back_off(self, failures: int) -> None:
        delay = backoff_ms(failures, self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
        await asyncio.sleep(delay / 1000)

    async def _fetch(self, leader: int, positions: list[Position]) -> Any:
        version_max: int | None = None
        by_topic: dict[str, list[Position]] = defaultdict(list)
        for position in positions:
            by_topic[position.where.topic].append(position)
        infos = {name: self._client.topics[name] for name in by_topic}
        if any(info.topic_id == ZERO_UUID for info in infos.values()):
            version_max = _FETCH_VERSION_BY_NAME_MAX
        connection = await self._client.connection_to(leader, "polls")
        version = connection.version_for(FetchRequest.API_KEY, version_max=version_max)
        by_id = version > _FETCH_VERSION_BY_NAME_MAX
        topics = [
            FetchRequest.FetchTopic(
                topic="" if by_id else name,
                topic_id=infos[name].topic_id if by_id else ZERO_UUID,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=position.where.partition,
                        current_leader_epoch=infos[name].partitions[position.where.partition].leader_epoch
                        if version >= 9
                        else NO_EPOCH,
                        fetch_offset=position.fetch_offset,
                        # KIP-595: a leader whose log has another history says where ours parted from it.
                        last_fetched_epoch=position.fetch_epoch if version >= 12 else NO_EPOCH,
                        partition_max_bytes=self._limits.partition_max_bytes,
                    )
                    for position in group
                ],
            )
            for name, group in by_topic.items()
        ]
        request = FetchRequest(
            max_wait_ms=self._limits.max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            isolation_level=int(self._isolation_level),
            topics=topics,
        )
        response = await connection.request(
            request, version=version, timeout_ms=self._client.request_timeout_ms + self._limits.max_wait_ms
        )
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KafkaError(code, f"broker {leader} refused to fetch: {code.name}")
        if by_id:
            names = {info.topic_id: name for name, info in infos.items()}
            for topic in response.responses:
                topic.topic = names.get(topic.topic_id, "")
        return response

    async def _receive(self, asked: list[Position], response: Any, slot: _Slot) -> None:
        positions = {position.where: position for position in asked}
        stale: set[str] = set()
        shares: list[Share] = []
        for topic in response.responses:
            for partition in topic.partitions:
                position = positions.get(TopicPartition(topic.topic, partition.partition_index))
                if position is None or not self._is_current(position):
                    continue
                try:
                    share = await self._read_answer(position, partition, response, slot, stale)
                except Exception as error:
                    self._fail_partition(position, error)
                    continue
                if share is not None:
                    shares.append(share)
        # Counted before the first is handed out: whoever takes them releases them.
        slot.shares = len(shares)
        if not shares:
            slot.free.release()
        for share in shares:
            self._put(share)
        if stale:
            self._client.invalidate(stale)

    async def _read_answer(
        self, position: Position, partition: Any, response: Any, slot: _Slot, stale: set[str]
    ) -> Share | None:
        if partition.error_code:
            if await self._on_error(position, ErrorCode(partition.error_code), partition, response):
                stale.add(position.where.topic)
            return None
        if partition.diverging_epoch is not None and partition.diverging_epoch.end_offset >= 0:
            self._on_truncation(position, partition.diverging_epoch.end_offset)
            return None
        position.failures = 0
        position.high_watermark = partition.high_watermark
        return self._share(position, partition, slot)

    def _share(self, position: Position, partition: Any, slot: _Slot) -> Share | None:
        if not partition.records:
            return None
        aborted: list[tuple[int, int]] | None = None
        if self._isolation_level is IsolationLevel.READ_COMMITTED:
            aborted = [(one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()]
        last = None
        for header, _ in readable_batches(partition.records, None):
            last = header
        if last is None:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{position.where}: the batch at offset {position.fetch_offset} is not whole"
            )
        if last.next_offset > position.fetch_offset:
            position.fetch_offset = last.next_offset
            position.fetch_epoch = last.leader_epoch
        return Share(position, partition.records, aborted, slot)

    async def _on_error(self, position: Position, code: ErrorCode, partition: Any, response: Any) -> bool:
        """Deal with a partition's error; True when its topic should be asked for again."""
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._on_out_of_range(position)
            return False
        if not code.retriable:
            raise KafkaError(code, f"{position.where}: {code.name} at offset {position.fetch_offset}")
        position.failures += 1
        delay = backoff_ms(position.failures, self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
        position.retry_at = asyncio.get_running_loop().time() + delay / 1000
        hint = partition.current_leader
        if hint is not None and hint.leader_id >= 0:
            where = position.where
            self._client.note_leader(
                where.topic, where.partition, hint.leader_id, hint.leader_epoch, response.node_endpoints
            )
            return False
        return code in LEADER_ERRORS

    async def _on_out_of_range(self, position: Position) -> None:
        if self._out_of_range == "error":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{position.where}: offset {position.fetch_offset} is not in the log "
                "(deleted meanwhile, or never written)",
            )
        offsets = await resolve_offsets(self._client, {position.where: self._out_of_range}, self._isolation_level)
        logger.warning(
            "position_reset topic=%s partition=%d from=%d to=%d",
            position.where.topic,
            position.where.partition,
            position.fetch_offset,
            offsets[position.where],
        )
        self._move(position, offsets[position.where])

    def _move(self, position: Position, offset: int) -> None:
        position.fetch_offset = offset
        position.fetch_epoch = NO_EPOCH
        self._put(_Moved(position, offset))

    def _on_truncation(self, position: Position, end_offset: int) -> None:
        """The log lost records that we read (an unclean election): go on where the histories part, or say so."""
        where = position.where
        if self._out_of_range == "error":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{where}: the log was truncated to offset {end_offset}, behind the reader",
            )
        logger.warning("log_truncated topic=%s partition=%d end_offset=%d", where.topic, where.partition, end_offset)
        self._move(position, min(position.fetch_offset, end_offset))

    def _fail_partition(self, position: Position, error: Exception) -> None:
        position.has_failed = True
        self._put(_Failed(position, error))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._on_ready()

    def _put(self, item: _Item) -> None:
        """Line up what belongs to a partition that is still here; it may have gone or been paused meanwhile."""
        position = item.position
        if not self._is_current(position):
            item.release()
        elif position.resting is not None:
            item.release()
            position.resting.append(item)
        else:
            self.buffer.append(item)
            self._on_ready()


def _place(position: Position) -> tuple[str, int]:
    return position.where.topic, position.where.partition


def _may_repeat(code: ErrorCode) -> bool:
    # A broker that left the cluster is replaced by another leader soon.
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE


async def resolve_offsets(
    client: ClusterClient, start: Mapping[TopicPartition, Start], isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    """Offsets for all kinds of starts."""
    offsets = {where: begin for where, begin in start.items() if isinstance(begin, int)}
    timestamps: dict[TopicPartition, int] = {}
    for where, begin in start.items():
        if isinstance(begin, AtTime):
            timestamps[where] = begin.timestamp_ms
        elif isinstance(begin, LastOf):
            timestamps[where] = max(time.time_ns() // 1_000_000 - begin.duration_ms, 0)
        elif begin == "earliest":
            timestamps[where] = admin.EARLIEST
        elif begin == "latest":
            timestamps[where] = admin.LATEST
        elif not isinstance(begin, int):
            raise ValueError(f"{where}: {begin!r} is no start: give an offset, 'earliest', 'latest' or AtTime(ms)")
    if timestamps:
        listed = await admin.list_offsets(client, timestamps, isolation_level=isolation_level)
        late = {where: admin.LATEST for where, found in listed.items() if found.offset < 0}
        if late:
            listed |= await admin.list_offsets(client, late, isolation_level=isolation_level)
        offsets |= {where: found.offset for where, found in listed.items()}
    return offsets
