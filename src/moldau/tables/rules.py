"""When a view may go on from where it was, and when its topic must be read from the beginning: decided without files,
brokers or clock.

A view is a function of the log up to its positions. That stays true only as long as the view has seen everything that
has since been taken out of the log: records below the log's start, and tombstones, which compaction removes
`delete.retention.ms` after it first met them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """What a view remembers of a topic."""

    topic_id: str
    positions: Mapping[int, int]  # by partition: the offset behind the last one that is reflected
    current_at_ms: int  # when the view last was at the end of the log, or began to read it


@dataclass(frozen=True, slots=True)
class Found:
    """The topic as its brokers have it. `delete_retention_ms` is None when nothing is compacted away."""

    topic_id: str
    log_starts: Mapping[int, int]
    log_ends: Mapping[int, int]
    delete_retention_ms: int | None


@dataclass(frozen=True, slots=True)
class GoOn:
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ReadAnew:
    why: str


def decide_start(stored: Stored | None, found: Found, now_ms: int) -> GoOn | ReadAnew:
    if stored is None:
        return ReadAnew("the view has not seen it before")
    if stored.topic_id != found.topic_id:
        return ReadAnew("the topic was deleted and made again")
    for partition, position in stored.positions.items():
        if partition not in found.log_ends:
            return ReadAnew(f"partition {partition} is gone")
        start, end = found.log_starts[partition], found.log_ends[partition]
        if position > end:
            return ReadAnew(f"partition {partition} ends at {end}, before the view's {position}")
        if position < start:
            return ReadAnew(f"partition {partition} begins at {start}, behind the view's {position}")
    away_ms = now_ms - stored.current_at_ms
    is_behind = any(stored.positions.get(partition, 0) < end for partition, end in found.log_ends.items())
    kept_ms = found.delete_retention_ms
    if kept_ms is not None and is_behind and away_ms >= kept_ms:
        return ReadAnew(f"tombstones are kept for {kept_ms} ms, and the view was away for {away_ms} ms")
    return GoOn({partition: stored.positions.get(partition, start) for partition, start in found.log_starts.items()})
