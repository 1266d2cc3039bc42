"""How far queries are, told to the brokers as a consumer group, so that lag tools and autoscalers see Spark.

A listener hears of every batch, also of the last one of an available-now run, which a source's own `commit` never does.
Spark tells a listener offsets but no options: those are in the query's plan, which is looked at when it starts.

A group in which an exactly-once sink keeps its marks has the offsets from the sink's transactions already, and
publishing them again would wipe out the marks: it is left alone.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from moldau.client import ClusterClient, group_admin
from moldau.kernel import KafkaError
from moldau.spark import clients, several_sources
from moldau.spark.clients import ClientTimes
from moldau.spark.errors import OptionError
from moldau.spark.exactly_once import mark_from
from moldau.spark.offsets import Offsets, OffsetsFormatError, offsets_from_json
from moldau.spark.options import SourceOptions, stream_options

COMMIT_SECONDS_MAX = 30.0
_NO_EPOCH = -1

logger = logging.getLogger(__name__)

_published: dict[str, ProgressPublisher] = {}


def publish_progress(spark: SparkSession) -> ProgressPublisher:
    """Commit what queries of this session have read for the `groupId` of their moldau sources. Once per session."""
    application = spark.sparkContext.applicationId
    publisher = _published.get(application)
    if publisher is None:
        publisher = _published[application] = ProgressPublisher(spark)
        spark.streams.addListener(publisher)
    return publisher


class ProgressPublisher(StreamingQueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm_pid = int(spark._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
        # By run of a query: its sources in Spark's order, None for those that publish nothing. Not by query: that the
        # last run ended is told late, and may come after the next one's start.
        self._sources: dict[str, list[SourceOptions | None]] = {}
        self._committed: dict[tuple[str, int], Offsets] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        query = self._spark.streams.get(str(event.id))
        if query is None:
            return
        sources = [_publishing(options) for options in _source_options(query._jsq)]
        if len(sources) > 1:
            several_sources.note_started(self._jvm_pid, str(event.runId))
        if any(source is not None for source in sources):
            self._sources[str(event.runId)] = sources

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        run_id = str(event.progress.runId)
        sources = self._sources.get(run_id, [])
        for index, (source, told) in enumerate(zip(sources, event.progress.sources, strict=False)):
            if source is None:
                continue
            try:
                offsets = offsets_from_json(json.loads(told.endOffset))
            except (OffsetsFormatError, ValueError, TypeError):
                continue
            if offsets and self._committed.get((run_id, index)) != offsets:
                self._commit(str(event.progress.id), source, offsets)
                self._committed[run_id, index] = offsets

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run_id = str(event.runId)
        several_sources.note_ended(self._jvm_pid, run_id)
        for index in range(len(self._sources.pop(run_id, []))):
            self._committed.pop((run_id, index), None)

    def _commit(self, query_id: str, source: SourceOptions, offsets: Offsets) -> None:
        group_id = source.group_id
        assert group_id is not None
        committed = {
            where: group_admin.CommittedOffset(offset, _NO_EPOCH, f"spark query {query_id}")
            for where, offset in offsets.items()
        }

        async def commit(client: ClusterClient) -> None:
            # The sink's mark is there before Spark tells anyone of the batch.
            held = await group_admin.stable_group_offsets(client, group_id)
            if mark_from(one.metadata for one in held.values()) is None:
                await group_admin.alter_group_offsets(client, group_id, committed)

        try:
            clients.run(source.bootstrap, commit, COMMIT_SECONDS_MAX, times=ClientTimes.of(source.consumer))
        except (OSError, KafkaError) as error:
            # The query's checkpoint holds its place: the next batch publishes this one's, too.
            logger.warning("progress_not_published query=%s group=%s error=%r", query_id, group_id, str(error))


def _publishing(options: dict[str, str] | None) -> SourceOptions | None:
    if options is None or not options.get("groupid"):
        return None
    try:
        return stream_options(options)
    except OptionError:
        # The query fails of it, and says so.
        return None


def _source_options(java_query: Any) -> list[dict[str, str] | None]:
    """The options of a query's sources in Spark's order, each source once; None for those of other formats."""
    execution = java_query.streamingQuery() if hasattr(java_query, "streamingQuery") else java_query
    leaves = execution.analyzedPlan().collectLeaves()
    found: list[dict[str, str] | None] = []
    seen: list[Any] = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming() or any(leaf.equals(other) for other in seen):
            continue
        seen.append(leaf)
        is_ours = leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == "moldau"
        found.append(_java_map(leaf.extraOptions().asCaseSensitiveMap()) if is_ours else None)
    return found


def _java_map(options: Any) -> dict[str, str]:
    entries = options.entrySet().toArray()
    return {str(entry.getKey()).lower(): str(entry.getValue()) for entry in entries}
