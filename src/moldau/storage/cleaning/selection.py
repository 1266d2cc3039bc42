"""How far a log may be cleaned, and whether it is worth it: Kafka's rules, functions of a log's segments.

Cleaning stops before the active segment, before the last stable offset (what is not decided cannot be judged), and
before segments with records younger than `min.compaction.lag.ms`. A log is worth it when the share of its uncleaned
bytes is above `min.cleanable.dirty.ratio`, or when a record in them is older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moldau.storage.config import INT64_MAX, LogConfig
from moldau.storage.segment import Segment


class Dirt(NamedTuple):
    """What a log has to clean: [first_dirty_offset, first_uncleanable_offset)."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_worth_it(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def dirt_of(
    segments: Sequence[Segment],
    start_offset: int,
    end_offset: int,
    cleaned_to: int | None,
    last_stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> Dirt:
    """`cleaned_to` is the checkpoint's word; one that lies outside of the log counts as none."""
    first_dirty = start_offset
    if cleaned_to is not None and start_offset <= cleaned_to <= end_offset:
        first_dirty = cleaned_to
    limit = min(last_stable_offset, segments[-1].base_offset)
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in segments[:-1]:
            if segment.end_offset > first_dirty and segment.largest_timestamp() > now_ms - lag_ms:
                limit = min(limit, segment.base_offset)
                break
    limit = max(limit, first_dirty)
    clean_bytes = sum(segment.size for segment in segments[:-1] if segment.end_offset <= first_dirty)
    # A segment that was cleaned in part, because the map was full, is counted whole.
    dirty = [
        segment
        for segment in segments[:-1]
        if segment.end_offset > first_dirty and segment.base_offset < limit and limit > first_dirty
    ]
    return Dirt(
        first_dirty, limit, clean_bytes, sum(segment.size for segment in dirty), _is_overdue(dirty, config, now_ms)
    )


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    if config.max_compaction_lag_ms >= INT64_MAX or not dirty:
        return False
    known = [first_ms for segment in dirty if (first_ms := segment.first_batch_timestamp()) >= 0]
    return bool(known) and min(known) < now_ms - config.max_compaction_lag_ms
