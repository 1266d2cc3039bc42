"""What a task does: offset ranges in, Arrow batches out, in pieces that do not grow with the range.

The next Fetch is under way while the present one is decoded, so memory holds two answers and one piece of columns. A
leader that moves or a broker that restarts is followed until nothing came for `poll_timeout_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.client import ClusterClient, IsolationLevel, admin
from moldau.kernel import ZERO_UUID, Buffer, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import CorruptBatchError
from moldau.protocol.columnar import decode_fetched, utc_timestamps
from moldau.protocol.readable import readable_batches
from moldau.spark import clients
from moldau.spark.clients import ClientTimes
from moldau.spark.errors import SourceError, data_loss
from moldau.spark.fetching import FetchLimits, fetch_from_leader, leaders_of
from moldau.spark.offsets import EARLIEST, LATEST, OffsetRange

# Before the first answer nobody knows how large records are. Little is asked for when little is wanted: what a Fetch
# brings beyond the range is thrown away.
BYTES_PER_OFFSET_GUESS = 1024
FETCH_BYTES_MIN = 64 << 10
RETRY_MS = 100
# A broker that has just started may not know a topic yet; who says for longer that there is none is believed.
UNKNOWN_TOPIC_GRACE_MS = 2_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to know beside its ranges."""

    bootstrap: str
    times: ClientTimes
    isolation: IsolationLevel
    fetch_bytes_max: int
    fetch_wait_ms_max: int
    fetch_bytes_min: int
    poll_timeout_ms: int
    fail_on_data_loss: bool
    with_headers: bool
    topic_ids: Mapping[str, bytes]


class _Fetched(NamedTuple):
    """One partition's part of an answer."""

    where: TopicPartition
    first_offset: int
    end_offset: int
    records: Buffer
    aborted: list[tuple[int, int]] | None


class _Position:
    __slots__ = ("bytes_per_offset", "end", "next_offset", "where")

    def __init__(self, where: TopicPartition, start: int, end: int) -> None:
        self.where = where
        self.next_offset = start
        self.end = end
        self.bytes_per_offset = float(BYTES_PER_OFFSET_GUESS)

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.end


def read_ranges(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Iterator[Any]:
    """RecordBatches in Spark's schema of a topic, the records of each partition in order."""
    reader = _RangeReader(ranges, settings)

    def begin() -> Future[list[_Fetched]]:
        return clients.begin(settings.bootstrap, reader.fetch, times=settings.times)

    coming = begin()
    try:
        while fetched := coming.result():
            coming = begin()
            while fetched:
                # Dropped as soon as it is decoded: the answer's buffer goes with its last part.
                yield from _columns_of(fetched.pop(0), settings)
    finally:
        coming.cancel()


class _RangeReader:
    def __init__(self, ranges: Sequence[OffsetRange], settings: ReadSettings) -> None:
        self._ranges = ranges
        self._settings = settings
        self._positions: list[_Position] | None = None
        self._warned_topics: set[str] = set()

    async def fetch(self, client: ClusterClient) -> list[_Fetched]:
        """The next records of all ranges that have some left; empty when all are read."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while True:
            try:
                if self._positions is None:
                    self._positions = await self._resolve(client)
                left = [position for position in self._positions if not position.is_done]
                if not left:
                    return []
                fetched = await self._attempt(client, left)
                if fetched:
                    return fetched
                failure: Exception | None = None
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and not _may_repeat(error.code):
                    raise SourceError(str(error)) from None
                failure = error
                await asyncio.sleep(RETRY_MS / 1000)
                if _is_unknown(error) and (loop.time() - began_at) * 1000 > UNKNOWN_TOPIC_GRACE_MS:
                    await self._give_up_deleted(client)
            if (loop.time() - began_at) * 1000 > self._settings.poll_timeout_ms:
                raise SourceError(self._timeout_text(failure)) from None

    def _timeout_text(self, failure: Exception | None) -> str:
        waited = f"within kafkaConsumer.pollTimeoutMs={self._settings.poll_timeout_ms}"
        left = [position for position in self._positions or () if not position.is_done]
        places = ", ".join(f"{position.where} from offset {position.next_offset}" for position in left) or "partitions"
        return f"{places}: nothing came {waited}" + (f"; the last failure: {failure}" if failure else "")

    async def _resolve(self, client: ClusterClient) -> list[_Position]:
        """Look up the ends that were left open, and leave out ranges with nothing in them."""
        asked: dict[int, dict[TopicPartition, int]] = {EARLIEST: {}, LATEST: {}}
        for one in self._ranges:
            if one.start == EARLIEST:
                asked[EARLIEST][one.where] = admin.EARLIEST
            if one.end == LATEST:
                asked[LATEST][one.where] = admin.LATEST
        found = {
            kind: await admin.list_offsets(client, places, isolation_level=self._settings.isolation) if places else {}
            for kind, places in asked.items()
        }
        return [
            _Position(
                one.where,
                found[EARLIEST][one.where].offset if one.start == EARLIEST else one.start,
                found[LATEST][one.where].offset if one.end == LATEST else one.end,
            )
            for one in self._ranges
        ]

    async def _attempt(self, client: ClusterClient, left: list[_Position]) -> list[_Fetched]:
        await self._check_topics(client, left)
        positions = {position.where: position for position in left}
        by_leader = await leaders_of(client, positions)
        answers = await asyncio.gather(
            *(
                fetch_from_leader(client, leader, {where: positions[where].next_offset for where in places}, limits)
                for leader, places in by_leader.items()
                if (limits := self._limits([positions[where] for where in places]))
            ),
            return_exceptions=True,
        )
        fetched: list[_Fetched] = []
        failure: BaseException | None = None
        for answer in answers:
            if isinstance(answer, BaseException):
                failure = answer
                continue
            for where, partition in answer.items():
                if partition.error_code:
                    failure = await self._on_error(client, positions[where], ErrorCode(partition.error_code))
                elif partition.records:
                    fetched.append(self._take(positions[where], partition))
        if failure is not None and not fetched:
            await client.metadata({position.where.topic for position in left})
            raise failure
        return fetched

    async def _check_topics(self, client: ClusterClient, left: list[_Position]) -> None:
        """A topic that was deleted and made again has another id: its offsets are not those that were planned."""
        for topic in {position.where.topic for position in left}:
            planned = self._settings.topic_ids.get(topic, ZERO_UUID)
            now = (await client.topic(topic)).topic_id
            if ZERO_UUID in (planned, now) or planned == now or topic in self._warned_topics:
                continue
            loss = f"topic {topic!r} was deleted and made again while it was read"
            if self._settings.fail_on_data_loss:
                raise data_loss(loss)
            self._warned_topics.add(topic)
            logger.warning("data_lost topic=%s reason=%r", topic, loss)

    async def _give_up_deleted(self, client: ClusterClient) -> None:
        """What is left of topics that do not exist any more is lost."""
        left = [position for position in self._positions or () if not position.is_done]
        found = (await client.metadata({position.where.topic for position in left})).topics if left else {}
        for position in left:
            where = position.where
            topic = found.get(where.topic)
            if topic is not None and topic.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            loss = f"{where}: offset {position.next_offset} is gone, the topic was deleted"
            if self._settings.fail_on_data_loss:
                raise data_loss(loss)
            logger.warning("data_lost topic=%s partition=%d reason=%r", where.topic, where.partition, loss)
            position.next_offset = position.end

    def _limits(self, positions: list[_Position]) -> FetchLimits:
        settings = self._settings
        wanted = max((position.end - position.next_offset) * position.bytes_per_offset for position in positions)
        # A batch is not cut, and the last one may reach beyond the range: half as much again.
        partition_bytes = int(min(max(wanted * 1.5, FETCH_BYTES_MIN), settings.fetch_bytes_max))
        return FetchLimits(
            settings.fetch_wait_ms_max,
            settings.fetch_bytes_min,
            settings.fetch_bytes_max,
            partition_bytes,
            settings.isolation,
        )

    def _take(self, position: _Position, partition: Any) -> _Fetched:
        first_offset = position.next_offset
        last = None
        try:
            for header, _ in readable_batches(partition.records, None):
                last = header
        except CorruptBatchError as error:
            raise SourceError(f"{position.where}: {error}") from None
        if last is None:
            raise SourceError(f"{position.where}: the batch at offset {first_offset} is not whole")
        position.next_offset = max(first_offset, min(last.next_offset, position.end))
        offset_count = max(last.next_offset - first_offset, 1)
        position.bytes_per_offset = len(partition.records) / offset_count
        aborted = None
        if self._settings.isolation is IsolationLevel.READ_COMMITTED:
            aborted = [(one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()]
        return _Fetched(position.where, first_offset, position.end, partition.records, aborted)

    async def _on_error(self, client: ClusterClient, position: _Position, code: ErrorCode) -> Exception | None:
        """Deal with a partition's error; what to raise if nothing else was fetched."""
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return KafkaError(code, f"{position.where}: {code.name} at offset {position.next_offset}")
        where, offset = position.where, position.next_offset
        isolation = self._settings.isolation
        first = (await admin.list_offsets(client, {where: admin.EARLIEST}, isolation_level=isolation))[where].offset
        last = (await admin.list_offsets(client, {where: admin.LATEST}, isolation_level=isolation))[where].offset
        loss = f"{where}: offset {offset} is gone, the log holds offsets {first} to {last}"
        if self._settings.fail_on_data_loss:
            raise data_loss(loss)
        logger.warning("data_lost topic=%s partition=%d reason=%r", where.topic, where.partition, loss)
        if offset >= last or first >= position.end:
            position.next_offset = position.end
        elif offset < first:
            position.next_offset = first
        return None


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def _may_repeat(code: ErrorCode) -> bool:
    # A broker that left the cluster is replaced by another leader soon.
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE


# -- columns -----------------------------------------------------------------------------------------------------------

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
_SCHEMA = pa.schema(_FIELDS)
_SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, ("headers", _HEADERS)])


def schema_of_topic(*, with_headers: bool) -> Any:
    """The Arrow schema of what `read_ranges` gives."""
    return _SCHEMA_WITH_HEADERS if with_headers else _SCHEMA


def _columns_of(fetched: _Fetched, settings: ReadSettings) -> Iterator[Any]:
    where = fetched.where
    topic, partition = pa.scalar(where.topic), pa.scalar(where.partition, pa.int32())
    try:
        for columns, _ in decode_fetched(
            fetched.records,
            fetched.first_offset,
            fetched.end_offset,
            aborted=fetched.aborted,
            with_headers=settings.with_headers,
        ):
            count = columns.num_rows
            if not count:
                continue
            arrays = [
                columns.column("key"),
                columns.column("value"),
                pa.repeat(topic, count),
                pa.repeat(partition, count),
                columns.column("offset"),
                utc_timestamps(columns.column("timestamp")),
                columns.column("timestampType"),
            ]
            if settings.with_headers:
                arrays.append(_headers(columns.column("headers")))
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA_WITH_HEADERS if settings.with_headers else _SCHEMA)
    except CorruptBatchError as error:
        raise SourceError(f"{where}: {error}") from None


def _headers(column: Any) -> Any:
    """Null for a record without headers, as Spark's connector has it."""
    offsets = column.offsets
    pairs = column.values
    names, values = pairs.flatten()
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADERS.value_type))
    starts = np.asarray(offsets)
    return pa.ListArray.from_arrays(offsets, pairs, type=_HEADERS, mask=pa.array(starts[1:] == starts[:-1]))
