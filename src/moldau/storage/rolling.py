"""When a segment is full: by bytes, by age, by its indexes, or because offsets no longer fit into four bytes.

`RollLimits` holds three numbers that an append compares itself with; only beyond one of them does it look closely.
"""

from __future__ import annotations

from moldau.protocol.checksum import crc32c
from moldau.storage.config import LogConfig
from moldau.storage.indexes import RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES
from moldau.storage.segment import Segment

_LOOK_ALWAYS = -2


class RollLimits:
    """An append that stays below all three needs no closer look."""

    __slots__ = ("bytes", "offset", "timestamp")

    def __init__(self) -> None:
        self.disarm()

    def disarm(self) -> None:
        """Have the next append look closely, whatever it is."""
        self.bytes = self.timestamp = self.offset = _LOOK_ALWAYS

    def arm(self, segment: Segment, config: LogConfig, max_timestamp: int) -> None:
        """For appends to `segment`, the next of which has `max_timestamp`."""
        self.bytes = config.segment_bytes
        self.offset = segment.base_offset + RELATIVE_OFFSET_MAX
        first_timestamp = segment.first_timestamp if segment.size else max_timestamp
        if first_timestamp >= 0:
            self.timestamp = first_timestamp + roll_after_ms(segment, config)
        else:
            self.timestamp = _LOOK_ALWAYS

    def disarm_if_full(self, segment: Segment, config: LogConfig) -> None:
        """After an index entry was made. The time index has the larger entries, so it decides when to look."""
        assert segment.offsets is not None
        if len(segment.offsets) >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1:
            self.disarm()


def should_roll(
    segment: Segment, config: LogConfig, size: int, max_timestamp: int, last_offset: int, now_ms: int
) -> bool:
    """Whether a batch must go into a new segment. Age is counted in the batches' own time where they have one."""
    if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if segment.size == 0:
        return False
    if segment.first_timestamp >= 0:
        age_ms = max_timestamp - segment.first_timestamp
    else:
        age_ms = now_ms - segment.created_ms
    return (
        segment.size + size > config.segment_bytes
        or age_ms > roll_after_ms(segment, config)
        or segment.index_is_full(config.segment_index_bytes)
    )


def roll_after_ms(segment: Segment, config: LogConfig) -> int:
    """segment.ms less a jitter that spreads partitions which began together; a fixed one per segment, so no dice."""
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    return config.segment_ms - (crc32c(segment.stem.encode()) % jitter_ms if jitter_ms > 0 else 0)
