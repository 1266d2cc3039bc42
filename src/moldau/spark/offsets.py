"""Offsets of partitions and what is decided from them: how far a batch goes, which ranges its tasks read, what is lost.

Pure: nothing here asks a broker or the time. The rules are those of Spark's own connector for Kafka, so that a query
moves between the two with its checkpoint; `tests/spark/test_offsets.py` holds them, `test_source.py`
compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moldau.kernel import TopicPartition

LATEST = -1
EARLIEST = -2

# Spark's tasks cost some 50 ms each: one is worth it for so much. What one task reads, exactly-once sinks need not
# shuffle.
TASK_OFFSETS_MIN = 100_000

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of a partition. Who reads looks up a start EARLIEST and an end LATEST."""

    where: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class OffsetsFormatError(ValueError):
    """A text that is no JSON of offsets."""


def offsets_from_json(value: Any) -> Offsets:
    """`{"topic": {"0": 23}}`, as Spark's connector writes it into checkpoints."""
    found: Offsets = {}
    try:
        for topic, partitions in value.items():
            for partition, offset in partitions.items():
                if isinstance(offset, bool) or not isinstance(offset, int):
                    raise ValueError(offset)
                found[TopicPartition(topic, int(partition))] = offset
    except (AttributeError, ValueError) as error:
        raise OffsetsFormatError(str(error)) from None
    return found


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In order, so that equal offsets are equal texts."""
    shaped: dict[str, dict[str, int]] = {}
    for where in sorted(offsets):
        shaped.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return shaped


# -- how far a batch goes ----------------------------------------------------------------------------------------------


def count_new(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Offsets that wait to be read; all of a partition that was not there before."""
    return sum(end - start.get(where, 0) for where, end in latest.items())


def limit_offsets(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    earliest_of_new: Mapping[TopicPartition, int],
    offsets_max: int,
) -> Offsets:
    """End a batch after about `offsets_max` offsets, each partition in proportion to what waits in it.

    A partition with little is not starved: it gets one at least, so the sum may be larger by a few.
    """
    begins = {**earliest_of_new, **start}
    waiting = {
        where: latest[where] - begins[where] for where in latest if where in begins and latest[where] > begins[where]
    }
    total = sum(waiting.values())
    limited = dict(latest)
    for where, size in waiting.items():
        share = offsets_max * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        limited[where] = min(latest[where], begins[where] + whole)
    return limited


# -- which ranges are read, by which task ------------------------------------------------------------------------------


def split_ranges(
    ranges: Iterable[OffsetRange], partitions_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Ranges with something in them, cut for `minPartitions` and `maxRecordsPerPartition`."""
    whole = [one for one in ranges if one.size > 0]
    if records_max is not None:
        whole = [piece for one in whole for piece in _cut(one, math.ceil(one.size / records_max))]
    if partitions_min is None or partitions_min <= len(whole):
        return whole
    total = sum(one.size for one in whole)
    small = [one for one in whole if _piece_count(one.size, total, partitions_min) == 1]
    small_places = {one.where for one in small}
    large_total = total - sum(one.size for one in small)
    large_count = max(partitions_min - len(small), 1)
    pieces: list[OffsetRange] = []
    for one in whole:
        count = 1 if one.where in small_places else _piece_count(one.size, large_total, large_count)
        pieces += _cut(one, count)
    return pieces


def _piece_count(size: int, total: int, pieces_min: int) -> int:
    # Half up, as Java rounds.
    return max(math.floor(size / total * pieces_min + 0.5), 1)


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    pieces = []
    start, left = one.start, one.size
    for index in range(count):
        size = left // (count - index)
        left -= size
        if size:
            pieces.append(replace(one, start=start, end=start + size))
        start += size
    return pieces


def group_ranges(ranges: Sequence[OffsetRange], is_split: bool) -> list[tuple[OffsetRange, ...]]:
    """One group per task: as few as there is work for, unless the user asked for tasks."""
    if is_split:
        return [(one,) for one in ranges]
    groups: list[list[OffsetRange]] = [[] for _ in range(math.ceil(sum(one.size for one in ranges) / TASK_OFFSETS_MIN))]
    if len(groups) >= len(ranges):
        return [(one,) for one in ranges]
    # The largest first, each to whom has least: no group is much larger than another.
    for one in sorted(ranges, key=lambda one: -one.size):
        min(groups, key=lambda group: sum(other.size for other in group)).append(one)
    return [tuple(group) for group in groups if group]


# -- what is lost ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch reads, and what of it cannot be read any more, a line each."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_batch(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest_of_new: Mapping[TopicPartition, int],
) -> BatchPlan:
    """The ranges between two offsets of a stream. `earliest_of_new` are the partitions that only `end` knows.

    A partition that ends before it began was deleted and made again: the new one is read from its beginning, where
    Spark's connector would leave out what it has so far.
    """
    losses = [f"partition {where} is gone: it was read up to offset {start[where]}" for where in _gone(start, end)]
    ranges = []
    for where, until in sorted(end.items()):
        if where not in start and where not in earliest_of_new:
            losses.append(f"partition {where} came and went before its records were read")
            continue
        begin = start[where] if where in start else earliest_of_new[where]
        if where not in start and begin != 0:
            losses.append(f"partition {where} is new and starts at offset {begin}: records before it are gone")
        if until < begin:
            losses.append(
                f"partition {where} ends at offset {until}, before offset {begin} up to which it was read: "
                "the topic was deleted and made again, or startingOffsets is beyond its end"
            )
            begin = 0
        ranges.append(OffsetRange(where, begin, until))
    return BatchPlan(tuple(ranges), tuple(losses))


def _gone(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return sorted(where for where in start if where not in end)
