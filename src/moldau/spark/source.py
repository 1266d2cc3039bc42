"""The readers that Spark calls: thin, for what they decide is in `offsets` and what they ask is in `offset_reader`.

Spark runs a stream's reader in one Python process of its own on the driver, and pickles a copy of it into the tasks,
where only `read` is called.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.client import ClusterClient
from moldau.kernel import TopicPartition
from moldau.spark import clients, several_sources
from moldau.spark.clients import ClientTimes
from moldau.spark.errors import OptionError, data_loss, told_in_one_line
from moldau.spark.offset_reader import OffsetReader
from moldau.spark.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    count_new,
    group_ranges,
    limit_offsets,
    offsets_from_json,
    offsets_to_json,
    plan_batch,
    split_ranges,
)
from moldau.spark.options import LONG_POLL_MS_MAX, OFFSETS_PER_TRIGGER_MAX, SourceOptions, batch_options, stream_options
from moldau.spark.range_reader import ReadSettings, read_ranges

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FIELDS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def topic_schema(with_headers: bool) -> StructType:
    return StructType([*_FIELDS, StructField("headers", ArrayType(_HEADER))] if with_headers else _FIELDS)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one Spark task reads."""

    ranges: tuple[OffsetRange, ...]
    settings: ReadSettings


def _settings(options: SourceOptions, topic_ids: Mapping[str, bytes]) -> ReadSettings:
    return ReadSettings(
        options.bootstrap,
        ClientTimes.of(options.consumer),
        options.consumer.isolation_level,
        options.fetch_bytes_max,
        options.consumer.fetch_max_wait_ms,
        options.consumer.fetch_min_bytes,
        options.poll_timeout_ms,
        options.fail_on_data_loss,
        options.include_headers,
        topic_ids,
    )


def _is_split(options: SourceOptions) -> bool:
    return options.partitions_min is not None or options.records_per_partition_max is not None


class TopicReader(DataSourceReader):
    """`spark.read.format("moldau")`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        with told_in_one_line():
            self._options = batch_options(given)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with told_in_one_line():
            groups, topic_ids = clients.run(options.bootstrap, self._plan, times=ClientTimes.of(options.consumer))
        # Spark makes a partition of None out of no partitions at all.
        return [ReadTask(group, _settings(options, topic_ids)) for group in groups or [()]]

    async def _plan(self, client: ClusterClient) -> tuple[list[tuple[OffsetRange, ...]], Mapping[str, bytes]]:
        options = self._options
        reader = OffsetReader(client, options)
        partitions = await reader.partitions()
        starts = await reader.unresolved(options.start, partitions, is_start=True)
        ends = await reader.unresolved(options.end, partitions, is_start=False)
        known_starts, known_ends = await reader.resolved(starts), await reader.resolved(ends)
        ranges = [OffsetRange(where, known_starts[where], known_ends[where]) for where in sorted(partitions)]
        for one in ranges:
            if one.size < 0:
                raise OptionError(f"{one.where} starts at offset {one.start}, after its end {one.end}")
        if _is_split(options):
            ranges = split_ranges(ranges, options.partitions_min, options.records_per_partition_max)
            return group_ranges(ranges, is_split=True), reader.topic_ids
        # Spark keeps this plan for as long as the DataFrame lives, and its own connector looks up open ends each time
        # that it is read. So do our tasks.
        return [
            tuple(
                OffsetRange(
                    one.where,
                    EARLIEST if starts[one.where] == EARLIEST else one.start,
                    LATEST if ends[one.where] == LATEST else one.end,
                )
                for one in group
            )
            for group in group_ranges(ranges, is_split=False)
        ], reader.topic_ids

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadTask)
        with told_in_one_line():
            yield from read_ranges(partition.ranges, partition.settings)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("moldau")`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._offset_reader: OffsetReader | None = None
        # Where the query starts, asked once: Spark asks again when it plans the first batch, and ends move.
        self._initial: Offsets | None = None
        # Partitions that start where they end; the first batch puts down where that is.
        self._starting_at_end: frozenset[TopicPartition] = frozenset()
        self._is_begun = False
        self._is_available_now = False
        # Where everything ended when an available-now run began.
        self._available: Offsets | None = None
        self._latest: Offsets = {}
        # The start offsets at which there was nothing new.
        self._idle_at: Offsets | None = None
        self._watch: Future[bool] | None = None
        self._triggered_at = float("-inf")
        self._topic_ids: dict[str, bytes] = {}

    @cached_property
    def _options(self) -> SourceOptions:
        """Parsed when first needed: an error of making a reader is lost behind one of pyspark's own."""
        return stream_options(self._given)

    # -- how far -------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with told_in_one_line():
            if self._initial is None:
                self._initial, self._starting_at_end = self._ask(lambda reader: reader.starts(self._options.start))
            return offsets_to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        with told_in_one_line():
            return ReadMaxRows(self._options.offsets_per_trigger_max or OFFSETS_PER_TRIGGER_MAX)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = offsets_from_json(start)
        with told_in_one_line():
            self._latest = self._find_latest(begin)
            return offsets_to_json(self._limited(begin, self._latest, isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_to_json(self._latest) if self._latest else None

    def _find_latest(self, start: Offsets) -> Offsets:
        is_first, self._is_begun = not self._is_begun, True
        if is_first and self._starting_at_end and start == self._initial:
            # An empty batch, whose end in the query's log says from then on where the query started.
            self._idle_at = start
            return start
        if self._is_available_now:
            if self._available is None:
                self._available = self._ask(lambda reader: reader.latest(start, fresh=True))
            return self._available
        if self._idle_at == start and not self._has_news(start):
            return start
        latest = self._ask(lambda reader: reader.latest(start))
        self._idle_at = start if latest == start else None
        return latest

    def _has_news(self, start: Offsets) -> bool:
        """Wait at the broker; where nobody may, leave someone there and look whether he is back."""
        poll_ms = self._options.long_poll_ms_max
        wait_ms = 0 if several_sources.is_any_running(os.getppid()) else poll_ms
        if self._watch is None:
            self._watch = self._begin(lambda reader: reader.wait_news(start, poll_ms or LONG_POLL_MS_MAX))
        try:
            news = self._watch.result(2 * wait_ms / 1000)
        except TimeoutError:
            return False
        self._watch = None
        return news

    def _limited(self, start: Offsets, latest: Offsets, is_everything: bool) -> Offsets:
        options = self._options
        if is_everything:
            return latest
        now = time.monotonic()
        if (
            options.offsets_per_trigger_min is not None
            # An available-now run ends when nothing is left, and must come there.
            and not self._is_available_now
            and (now - self._triggered_at) * 1000 < options.trigger_delay_ms_max
            and count_new(start, latest) < options.offsets_per_trigger_min
        ):
            return start
        self._triggered_at = now
        offsets_max = options.offsets_per_trigger_max or OFFSETS_PER_TRIGGER_MAX
        return limit_offsets(start, latest, self._earliest_of_new(start, latest), offsets_max)

    def _earliest_of_new(self, start: Offsets, end: Offsets) -> Offsets:
        new = end.keys() - start.keys()
        return self._ask(lambda reader: reader.earliest(new)) if new else {}

    # -- what is read --------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with told_in_one_line():
            return self._plan(start, end)

    def _plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        options = self._options
        begin, until = offsets_from_json(start), offsets_from_json(end)
        if begin == self._initial:
            # The first batch is empty there. One that is done again has its end in the log; its start is asked anew.
            begin |= {where: min(begin[where], until[where]) for where in self._starting_at_end if where in until}
        plan = plan_batch(begin, until, self._earliest_of_new(begin, until))
        topic_ids = self._ask(_topic_ids_of)
        for loss in (*plan.losses, *self._remade_topics(topic_ids)):
            if options.fail_on_data_loss:
                raise data_loss(loss)
            logger.warning("data_lost reason=%r", loss)
        ranges = split_ranges(plan.ranges, options.partitions_min, options.records_per_partition_max)
        settings = _settings(options, topic_ids)
        return [ReadTask(group, settings) for group in group_ranges(ranges, _is_split(options))]

    def _remade_topics(self, topic_ids: Mapping[str, bytes]) -> list[str]:
        remade = [topic for topic, known in self._topic_ids.items() if topic_ids.get(topic, known) != known]
        self._topic_ids.update(topic_ids)
        return [f"topic {topic!r} was deleted and made again" for topic in remade]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadTask)
        with told_in_one_line():
            yield from read_ranges(partition.ranges, partition.settings)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[OffsetReader], Coroutine[Any, Any, T]]) -> T:
        return self._begin(work).result()

    def _begin(self, work: Callable[[OffsetReader], Coroutine[Any, Any, T]]) -> Future[T]:
        async def with_reader(client: ClusterClient) -> T:
            if self._offset_reader is None:
                self._offset_reader = OffsetReader(client, self._options)
            return await work(self._offset_reader)

        return clients.begin(self._options.bootstrap, with_reader, times=ClientTimes.of(self._options.consumer))


async def _topic_ids_of(reader: OffsetReader) -> dict[str, bytes]:
    await reader.partitions(fresh=False)
    return reader.topic_ids
