"""What the driver asks brokers: which partitions a query reads, where they begin and end, and when there is more.

Waiting for more is a Fetch that the broker holds until a record comes: an idle query costs four requests a second and
hears of a record at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping

from moldau.client import ClusterClient, IsolationLevel, TopicInfo, admin
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.fetching import FetchLimits, fetch_from_leader, leaders_of
from moldau.spark.offsets import EARLIEST, LATEST, Offsets
from moldau.spark.options import Bound, SourceOptions

# Partitions that come while a query runs are found this soon, or sooner with kafka.metadata.max.age.ms.
NEW_PARTITIONS_MS_MAX = 5_000

_ASK_EARLIEST, _ASK_LATEST = -2, -1

logger = logging.getLogger(__name__)


class OffsetReader:
    """Offsets of the partitions of one query. Belongs to one event loop."""

    def __init__(self, client: ClusterClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._isolation: IsolationLevel = options.consumer.isolation_level
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._looked_at = float("-inf")
        # Topics that were there once: with failOnDataLoss=false the query goes on without them.
        self._met_topics: set[str] = set()
        self.topic_ids: dict[str, bytes] = {}

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def partitions(self, *, fresh: bool = True) -> frozenset[TopicPartition]:
        """The partitions that the query reads now; with `fresh` false, as they were a moment ago."""
        now = asyncio.get_running_loop().time()
        age_ms_max = min(NEW_PARTITIONS_MS_MAX, self._options.consumer.metadata_max_age_ms)
        if not fresh and (now - self._looked_at) * 1000 < age_ms_max:
            return self._partitions
        topics = await self._topics()
        found = frozenset(TopicPartition(topic.name, one.partition) for topic in topics for one in topic.partitions)
        assigned = self._options.subscription.partitions
        self._partitions = found & assigned if assigned else found
        self.topic_ids = {topic.name: topic.topic_id for topic in topics}
        self._met_topics |= self.topic_ids.keys()
        self._looked_at = now
        return self._partitions

    async def _topics(self) -> list[TopicInfo]:
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            listed = (await self._client.metadata(None)).topics.values()
            # As in Spark: a name matches when the pattern is found anywhere in it.
            return [topic for topic in listed if pattern.search(topic.name) and not topic.is_internal]
        names = subscription.topics or {where.topic for where in subscription.partitions}

        async def look() -> list[TopicInfo]:
            metadata = await self._client.metadata(names)
            for name in names:
                topic = metadata.topics.get(name)
                code = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise KafkaError(code, f"topic {name!r} does not exist at {self._options.bootstrap}")
                if code:
                    raise KafkaError(code, f"topic {name!r}: {code.name}")
            return [topic for topic in metadata.topics.values() if not topic.is_internal]

        try:
            return await self._client.retry(look)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or self._options.fail_on_data_loss:
                raise
            metadata = await self._client.metadata(names)
            gone = {name for name in names if name not in metadata.topics or metadata.topics[name].error}
            if not gone <= self._met_topics:
                raise
            logger.warning("topics_gone topics=%s", ",".join(sorted(gone)))
            return [topic for name, topic in metadata.topics.items() if name not in gone and not topic.is_internal]

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Where partitions begin; those that are gone meanwhile are left out."""
        still_here = await self.partitions()
        return await self._listed(dict.fromkeys(still_here & frozenset(partitions), _ASK_EARLIEST))

    async def latest(self, known: Mapping[TopicPartition, int], *, fresh: bool = False) -> Offsets:
        """Where partitions end. An end before a place that we have read up to is asked for again: it may be a broker
        that lags behind (KAFKA-7703)."""
        self._met_topics |= {where.topic for where in known}
        partitions = await self.partitions(fresh=fresh)
        retries = self._options.fetch_offset_retries
        while True:
            try:
                ends = await self._listed(dict.fromkeys(partitions, _ASK_LATEST))
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or retries <= 0:
                    raise
                partitions = await self.partitions()
                retries -= 1
                continue
            if retries <= 0 or all(known.get(where, 0) <= end for where, end in ends.items()):
                return ends
            retries -= 1
            await asyncio.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            partitions = await self.partitions()

    async def starts(self, bound: Bound) -> tuple[Offsets, frozenset[TopicPartition]]:
        """Where a stream starts, in exactly the partitions that it reads, and which of them start at their end."""
        unresolved = await self.unresolved(bound, await self.partitions(), is_start=True)
        at_end = frozenset(where for where, offset in unresolved.items() if offset == LATEST)
        return await self.resolved(unresolved), at_end

    async def unresolved(self, bound: Bound, partitions: frozenset[TopicPartition], *, is_start: bool) -> Offsets:
        """As `resolve`, with EARLIEST and LATEST as they stand."""
        side = "starting" if is_start else "ending"
        if bound.offsets is not None:
            _check_same(f"{side}Offsets", bound.offsets, partitions)
            return dict(bound.offsets)
        if bound.timestamps_ms is not None:
            _check_same(f"{side}OffsetsByTimestamp", bound.timestamps_ms, partitions)
            return await self._at_times(bound.timestamps_ms, is_start=is_start)
        if bound.timestamp_ms is not None:
            return await self._at_times(dict.fromkeys(partitions, bound.timestamp_ms), is_start=is_start)
        return dict.fromkeys(partitions, bound.offset)

    async def resolved(self, offsets: Offsets) -> Offsets:
        asked = {
            where: _ASK_EARLIEST if offset == EARLIEST else _ASK_LATEST
            for where, offset in offsets.items()
            if offset < 0
        }
        return {**offsets, **await self._listed(asked)}

    async def _at_times(self, times_ms: Offsets, *, is_start: bool) -> Offsets:
        # No record that young is -1 for brokers, which is LATEST: where it would come.
        found = await self._listed(times_ms)
        for where, offset in found.items():
            if offset == LATEST and is_start and self._options.late_start == "error":
                raise OptionError(
                    f"{where} has no record at or after {times_ms[where]} ms: choose an earlier time, or set "
                    "startingOffsetsByTimestampStrategy=latest"
                )
        return found

    async def _listed(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        if not timestamps:
            return {}
        listed = await admin.list_offsets(self._client, timestamps, isolation_level=self._isolation)
        return {where: found.offset for where, found in listed.items()}

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait_news(self, ends: Mapping[TopicPartition, int], wait_ms: int) -> bool:
        """Whether a record came behind `ends`, or something changed that must be looked at, within about `wait_ms`."""
        try:
            by_leader = await leaders_of(self._client, ends)
        except KafkaError:
            return True
        limits = FetchLimits(wait_ms, 1, 1, 1, self._isolation)
        polls = [
            asyncio.create_task(self._has_news(leader, {where: ends[where] for where in places}, limits))
            for leader, places in by_leader.items()
        ]
        try:
            for poll in asyncio.as_completed(polls):
                if await poll:
                    return True
        finally:
            for task in polls:
                task.cancel()
        return await self.partitions(fresh=False) != ends.keys()

    async def _has_news(self, leader: int, ends: Offsets, limits: FetchLimits) -> bool:
        # Faults and refusals are news: looking again deals with them.
        try:
            answers = await fetch_from_leader(self._client, leader, ends, limits)
        except (OSError, KafkaError):
            await asyncio.sleep(limits.wait_ms / 1000)
            return True
        committed = limits.isolation is IsolationLevel.READ_COMMITTED
        return any(
            answer.error_code or (answer.last_stable_offset if committed else answer.high_watermark) > ends[where]
            for where, answer in answers.items()
        )


def _check_same(name: str, given: Iterable[TopicPartition], assigned: frozenset[TopicPartition]) -> None:
    wanted = frozenset(given)
    if wanted == assigned:
        return
    parts = []
    if assigned - wanted:
        parts.append(f"leaves out {', '.join(map(str, sorted(assigned - wanted)))}")
    if wanted - assigned:
        parts.append(f"names {', '.join(map(str, sorted(wanted - assigned)))}, which the query does not read")
    raise OptionError(f"{name} {' and '.join(parts)}: give every partition, -2 for its beginning, -1 for its end")
