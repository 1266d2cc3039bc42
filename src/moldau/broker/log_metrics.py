"""Logs and the disks that they are on, as metric families; Kafka's names where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.broker.node import Node


def log_families(node: Node, gauge: Any, counter: Any) -> Iterator[Any]:
    yield from _logs(node, gauge)
    yield from _directories(node, gauge)
    cleaner = node.cleaner
    yield counter("moldau_cleaner_runs", "Logs that were cleaned.", value=cleaner.runs)
    yield counter("moldau_cleaner_read_bytes", "Bytes that the cleaner read.", value=cleaner.bytes_read)
    yield counter("moldau_cleaner_written_bytes", "Bytes that the cleaner kept of them.", value=cleaner.bytes_written)
    yield gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions whose cleaning fails on damage.",
        value=len(cleaner.uncleanable),
    )


def _logs(node: Node, gauge: Any) -> Iterator[Any]:
    where = ["topic", "partition"]
    segments = gauge("kafka_log_log_numlogsegments", "Segments of a partition's log.", labels=where)
    oldest = gauge("moldau_log_oldest_record_timestamp_seconds", "Time of the log's first batch.", labels=where)
    newest = gauge("moldau_log_newest_record_timestamp_seconds", "Largest time in the last segment.", labels=where)
    dirty = gauge("moldau_log_dirty_ratio", "Share of a compacted log that is not cleaned.", labels=where)
    now_ms = node.clock.now_ms()
    for partition in node.replicas:
        labels, log = [partition.topic, str(partition.index)], partition.log
        segments.add_metric(labels, log.segment_count)
        for family, timestamp in zip((oldest, newest), log.timestamps(), strict=True):
            if timestamp >= 0:
                family.add_metric(labels, timestamp / 1000)
        if log.config.compact:
            dirt = log.dirt(partition.cleaned_to, partition.last_stable_offset, now_ms)
            dirty.add_metric(labels, dirt.ratio)
    yield from (segments, oldest, newest, dirty)


def _directories(node: Node, gauge: Any) -> Iterator[Any]:
    replicas = node.replicas
    offline = replicas.offline_directories
    yield gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories out of service.", value=len(offline))
    states = gauge("kafka_log_logmanager_logdirectoryoffline", "1 if out of service.", labels=["logdirectory"])
    full = gauge("moldau_log_directory_full", "1 while produce is refused for lack of room.", labels=["logdirectory"])
    free = gauge("moldau_log_directory_free_bytes", "Room on the disk.", labels=["logdirectory"])
    total = gauge("moldau_log_directory_total_bytes", "Size of the disk.", labels=["logdirectory"])
    lasts = gauge(
        "moldau_log_directory_seconds_until_full",
        "How long the room lasts at the rate of the last five minutes.",
        labels=["logdirectory"],
    )
    for directory in offline:
        states.add_metric([directory.path], 1)
    for directory in replicas.directories:
        label = [directory.path]
        states.add_metric(label, 0)
        full.add_metric(label, directory.path in replicas.disk_faults.full)
        total_bytes, free_bytes = node.directories.space(directory.path)
        free.add_metric(label, free_bytes)
        total.add_metric(label, total_bytes)
        lasts.add_metric(label, replicas.disk_faults.seconds_until_full(directory, node.clock.monotonic_ms()))
    yield from (states, full, free, total, lasts)
