"""Reading partitions without a group: start anywhere, follow leaders, stop where told, hold little in memory.

    async with PartitionReader(client, {TopicPartition("orders", 0): "earliest"}) as reader:
        async for records in reader:          # lists of ConsumedRecord, each of one partition
            ...

One fetcher per leader asks for all of its partitions at once and stays `PREFETCHED_RESPONSES_MAX` answers ahead of the
reader, so memory is bounded by leaders x answers x `max_bytes` (a single larger batch is still returned, as Fetch
does), plus one decompressed batch at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from moldau.client import admin
from moldau.client.admin import IsolationLevel
from moldau.client.cluster import FAULTS, LEADER_ERRORS, ClusterClient, backoff_ms
from moldau.client.records import ConsumedRecord, decode_records, readable_batches
from moldau.kernel import NO_LEADER, ZERO_UUID, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.fetch import FetchRequest

MAX_WAIT_MS = 500
MIN_BYTES = 1
MAX_BYTES = 16 << 20
PARTITION_MAX_BYTES = 1 << 20
PREFETCHED_RESPONSES_MAX = 2
# Small batches are handed out together up to this many records.
RECORDS_PER_YIELD = 500
_FETCH_VERSION_BY_NAME_MAX = 12
_NO_EPOCH = -1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first record whose timestamp is at least this; at the end when there is none."""

    timestamp_ms: int


Start = int | Literal["earliest", "latest"] | AtTime
OutOfRange = Literal["error", "earliest", "latest"]


class _Position:
    """Where one partition is: handed out up to `next_offset`, fetched up to `fetch_offset`."""

    __slots__ = ("failures", "fetch_offset", "high_watermark", "last_epoch", "next_offset", "retry_at", "stop", "where")

    def __init__(self, where: TopicPartition, offset: int, stop: int | None) -> None:
        self.where = where
        self.next_offset = offset
        self.fetch_offset = offset
        self.stop = stop
        self.high_watermark = -1
        self.last_epoch = _NO_EPOCH
        self.failures = 0
        self.retry_at = 0.0

    @property
    def is_fetched(self) -> bool:
        return self.stop is not None and self.fetch_offset >= self.stop

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.next_offset >= self.stop


class _Fetched:
    """One partition's share of an answer; `release` gives the answer's place back when all shares are read."""

    __slots__ = ("aborted", "position", "records", "response")

    def __init__(
        self, position: _Position, records: Any, aborted: list[tuple[int, int]] | None, response: _Slot
    ) -> None:
        self.position = position
        self.records = records
        self.aborted = aborted
        self.response = response


class _Moved:
    """The fetcher went to another place in the log; the reader follows once it has read what came before."""

    __slots__ = ("offset", "position")

    def __init__(self, position: _Position, offset: int) -> None:
        self.position = position
        self.offset = offset


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


class PartitionReader:
    """Iterate over records of given partitions. Iteration ends when every partition has reached its `stop` offset."""

    def __init__(
        self,
        client: ClusterClient,
        start: Mapping[TopicPartition, Start],
        *,
        stop: Mapping[TopicPartition, int] | None = None,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        out_of_range: OutOfRange = "error",
        max_wait_ms: int = MAX_WAIT_MS,
        min_bytes: int = MIN_BYTES,
        max_bytes: int = MAX_BYTES,
        partition_max_bytes: int = PARTITION_MAX_BYTES,
    ) -> None:
        if not start:
            raise ValueError("nothing to read: give at least one partition")
        self._client = client
        self._start = dict(start)
        self._stop = dict(stop or {})
        self._isolation_level = isolation_level
        self._out_of_range = out_of_range
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._positions: dict[TopicPartition, _Position] = {}
        self._buffer: deque[_Fetched | _Moved | Exception] = deque()
        self._buffered = asyncio.Event()
        self._metadata_changed = asyncio.Event()
        self._fetchers: dict[int, asyncio.Task[None]] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._records: AsyncIterator[list[ConsumedRecord]] | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        if self._supervisor is None:
            await self._open()
        if self._records is None:
            self._records = self._read()
        return await anext(self._records)

    def position(self, where: TopicPartition) -> int:
        """The offset of the next record that will be handed out."""
        return self._positions[where].next_offset

    def high_watermark(self, where: TopicPartition) -> int:
        """As the last answer showed it; -1 before the first."""
        return self._positions[where].high_watermark

    async def close(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
        tasks = [*self._fetchers.values(), *([self._supervisor] if self._supervisor is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetchers.clear()
        self._buffer.clear()
        for topic in {where.topic for where in self._start}:
            self._client.unwatch(topic)

    # -- the reader's side ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        offsets = await _resolve(self._client, self._start, self._isolation_level)
        for where, offset in offsets.items():
            self._positions[where] = _Position(where, offset, self._stop.get(where))
        for topic in {where.topic for where in self._start}:
            self._client.watch(topic)
        self._stop_listening = self._client.on_metadata(self._metadata_changed.set)
        self._supervisor = asyncio.create_task(self._supervise())

    async def _read(self) -> AsyncIterator[list[ConsumedRecord]]:
        while not all(position.is_done for position in self._positions.values()):
            while not self._buffer:
                self._buffered.clear()
                await self._buffered.wait()
            item = self._buffer.popleft()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, _Moved):
                item.position.next_offset = item.offset
                continue
            try:
                for records in self._decode(item):
                    yield records
            finally:
                item.response.release_share()

    def _decode(self, item: _Fetched) -> Iterator[list[ConsumedRecord]]:
        position = item.position
        topic, partition = position.where.topic, position.where.partition
        gathered: list[ConsumedRecord] = []
        for header, batch in readable_batches(item.records, item.aborted):
            if position.is_done:
                break
            if header.next_offset <= position.next_offset:
                continue
            if batch is not None:
                records = decode_records(topic, partition, header, batch, position.next_offset)
                if position.stop is not None and header.next_offset > position.stop:
                    records = [record for record in records if record.offset < position.stop]
                gathered = gathered + records if gathered else records
            position.next_offset = header.next_offset
            if len(gathered) >= RECORDS_PER_YIELD:
                yield gathered
                gathered = []
        if gathered:
            yield gathered

    # -- the fetchers' side --------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """One fetcher per leader that has something to read; again whenever leaders may have moved."""
        try:
            while True:
                self._metadata_changed.clear()
                for leader in await self._leaders():
                    fetcher = self._fetchers.get(leader)
                    if fetcher is None or fetcher.done():
                        self._fetchers[leader] = asyncio.create_task(self._fetch_from(leader))
                await self._metadata_changed.wait()
        except Exception as error:
            self._put(error)

    async def _leaders(self) -> set[int]:
        leaders: set[int] = set()
        for topic in {where.topic for where in self._positions}:
            await self._client.retry(lambda topic=topic: self._client.topic(topic))  # type: ignore[misc]
        for position in self._positions.values():
            leader = self._leader_of(position)
            if leader != NO_LEADER:
                leaders.add(leader)
            elif not position.is_fetched:
                self._client.invalidate([position.where.topic])
        return leaders

    def _leader_of(self, position: _Position) -> int:
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
                    for position in self._positions.values()
                    if not position.is_fetched and self._leader_of(position) == leader
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
                await self._take(due, response, _Slot(free))
        except Exception as error:
            self._put(error)

    async def _back_off(self, failures: int) -> None:
        delay = backoff_ms(failures, self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
        await asyncio.sleep(delay / 1000)

    async def _fetch(self, leader: int, positions: list[_Position]) -> Any:
        version_max: int | None = None
        by_topic: dict[str, list[_Position]] = defaultdict(list)
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
                        else _NO_EPOCH,
                        fetch_offset=position.fetch_offset,
                        # KIP-595: a leader whose log has another history says where ours parted from it.
                        last_fetched_epoch=position.last_epoch if version >= 12 else _NO_EPOCH,
                        partition_max_bytes=self._partition_max_bytes,
                    )
                    for position in group
                ],
            )
            for name, group in by_topic.items()
        ]
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=int(self._isolation_level),
            topics=topics,
        )
        response = await connection.request(
            request, version=version, timeout_ms=self._client.request_timeout_ms + self._max_wait_ms
        )
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KafkaError(code, f"broker {leader} refused to fetch: {code.name}")
        if by_id:
            names = {info.topic_id: name for name, info in infos.items()}
            for topic in response.responses:
                topic.topic = names.get(topic.topic_id, "")
        return response

    async def _take(self, asked: list[_Position], response: Any, slot: _Slot) -> None:
        positions = {position.where: position for position in asked}
        stale: set[str] = set()
        shares: list[_Fetched] = []
        for topic in response.responses:
            for partition in topic.partitions:
                position = positions.get(TopicPartition(topic.topic, partition.partition_index))
                if position is None:
                    continue
                if partition.error_code:
                    if await self._on_error(position, ErrorCode(partition.error_code), partition, response):
                        stale.add(position.where.topic)
                    continue
                if partition.diverging_epoch is not None and partition.diverging_epoch.end_offset >= 0:
                    self._on_truncation(position, partition.diverging_epoch.end_offset)
                    continue
                position.failures = 0
                position.high_watermark = partition.high_watermark
                share = self._share(position, partition, slot)
                if share is not None:
                    shares.append(share)
        # Counted before the first is handed out: whoever reads them releases them.
        slot.shares = len(shares)
        if not shares:
            slot.free.release()
        for share in shares:
            self._put(share)
        if stale:
            self._client.invalidate(stale)

    def _share(self, position: _Position, partition: Any, slot: _Slot) -> _Fetched | None:
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
            position.last_epoch = last.leader_epoch
        return _Fetched(position, partition.records, aborted, slot)

    async def _on_error(self, position: _Position, code: ErrorCode, partition: Any, response: Any) -> bool:
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

    async def _on_out_of_range(self, position: _Position) -> None:
        if self._out_of_range == "error":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{position.where}: offset {position.fetch_offset} is not in the log "
                "(deleted meanwhile, or never written)",
            )
        offsets = await _resolve(self._client, {position.where: self._out_of_range}, self._isolation_level)
        logger.warning(
            "position_reset topic=%s partition=%d from=%d to=%d",
            position.where.topic,
            position.where.partition,
            position.fetch_offset,
            offsets[position.where],
        )
        self._move(position, offsets[position.where])

    def _move(self, position: _Position, offset: int) -> None:
        position.fetch_offset = offset
        position.last_epoch = _NO_EPOCH
        self._put(_Moved(position, offset))

    def _on_truncation(self, position: _Position, end_offset: int) -> None:
        """The log lost records that we read (an unclean election): go on where the histories part, or say so."""
        where = position.where
        if self._out_of_range == "error":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{where}: the log was truncated to offset {end_offset}, behind the reader",
            )
        logger.warning("log_truncated topic=%s partition=%d end_offset=%d", where.topic, where.partition, end_offset)
        self._move(position, min(position.fetch_offset, end_offset))

    def _put(self, item: _Fetched | _Moved | Exception) -> None:
        self._buffer.append(item)
        self._buffered.set()


def _may_repeat(code: ErrorCode) -> bool:
    # A broker that left the cluster is replaced by another leader soon.
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE


async def read_partition(
    client: ClusterClient, topic: str, partition: int, *, start: Start = "earliest", stop: int | None = None
) -> AsyncIterator[ConsumedRecord]:
    """Every record of one partition from `start`, up to the end as it is now unless `stop` says otherwise."""
    where = TopicPartition(topic, partition)
    if stop is None:
        stop = (await admin.list_offsets(client, {where: admin.LATEST}))[where].offset
    async with PartitionReader(client, {where: start}, stop={where: stop}) as reader:
        async for records in reader:
            for record in records:
                yield record


async def _resolve(
    client: ClusterClient, start: Mapping[TopicPartition, Start], isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    """Offsets for all kinds of starts."""
    offsets = {where: begin for where, begin in start.items() if isinstance(begin, int)}
    timestamps: dict[TopicPartition, int] = {}
    for where, begin in start.items():
        if isinstance(begin, AtTime):
            timestamps[where] = begin.timestamp_ms
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
