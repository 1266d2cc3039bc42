"""Which segments a log need not keep: too old by `retention.ms`, or too much by `retention.bytes`; the oldest first.

Kafka's rules: whole segments, none that reaches above the high watermark, the active one too once all of it is too old.
A segment's age is that of its newest record. A record from the future would keep everything behind it for ever, so
where the newest lies ahead of the clock the file's own time counts: nothing in it was written later than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from moldau.storage.config import LogConfig
from moldau.storage.segment import LOG_SUFFIX, Segment

Reason = Literal["time", "size"]


class Outlived(NamedTuple):
    """A segment that may go, and where the log starts without it."""

    end_offset: int
    size: int
    reason: Reason


def outlived(
    segments: Sequence[Segment], end_offset: int, high_watermark: int, config: LogConfig, now_ms: int
) -> Iterator[Outlived]:
    """From the oldest on. Each step may read an index, so that whoever must not be held up stops in between."""
    if not config.delete:
        return
    excess_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    for segment in segments:
        is_active = segment is segments[-1]
        segment_end = end_offset if is_active else segment.end_offset
        if segment_end > high_watermark or (is_active and not segment.size):
            return
        reason: Reason
        if config.retention_ms >= 0 and now_ms - _newest_ms(segment, now_ms) > config.retention_ms:
            reason = "time"
        elif config.retention_bytes >= 0 and excess_bytes >= segment.size:
            reason = "size"
        else:
            return
        excess_bytes -= segment.size
        yield Outlived(segment_end, segment.size, reason)


def _newest_ms(segment: Segment, now_ms: int) -> int:
    was_open = segment.file is not None
    newest_ms = segment.largest_timestamp()
    if not was_open:
        # Only looked at in passing: thousands of old segments shall not keep their files open.
        segment.file = None
        if not segment.indexes_dirty:
            segment.forget_indexes()
    if 0 <= newest_ms <= now_ms:
        return newest_ms
    return segment.disk.modified_ms(segment.path(LOG_SUFFIX))
