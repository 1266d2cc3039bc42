"""How groups, their members and partitions are written and read on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moldau.cli.errors import usage

if TYPE_CHECKING:
    from moldau.client.group_admin import GroupDescription
    from moldau.kernel import TopicPartition

# A message names this many members, then counts.
MEMBERS_NAMED_MAX = 5
# A typing error must not become a list of a billion numbers.
PARTITION_NUMBER_MAX = 999_999

# A topic, and some of its partitions or all.
Scope = tuple[str, list[int] | None]


def parse_scope(text: str) -> Scope:
    """`orders`, or `orders:0,2-4`."""
    topic, colon, partitions = text.partition(":")
    if not colon:
        return topic, None
    chosen: list[int] = []
    for part in partitions.split(","):
        span = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if span is None or not topic:
            raise usage(f"{text}: write it as orders, or with partitions as in orders:0,2-4")
        first, last = int(span[1]), int(span[2] or span[1])
        if first > last:
            raise usage(f"{text}: {first}-{last} runs backwards; write {last}-{first}")
        if last > PARTITION_NUMBER_MAX:
            raise usage(f"{text}: there is no partition {last}; `moldau topic describe {topic}` shows those there are")
        chosen += range(first, last + 1)
    return topic, chosen


def partitions_text(partitions: Iterable[int]) -> str:
    """The other way round: 0, 2, 3 and 4 are `0,2-4`."""
    spans: list[list[int]] = []
    for partition in sorted(partitions):
        if spans and partition == spans[-1][-1] + 1:
            spans[-1][1:] = [partition]
        else:
            spans.append([partition])
    return ",".join("-".join(map(str, span)) for span in spans)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for where in sorted(partitions):
        topics.setdefault(where.topic, []).append(where.partition)
    return topics


def members_text(group: GroupDescription) -> str:
    named = [f"{member.client_id} at {member.client_host.removeprefix('/')}" for member in group.members]
    rest = len(named) - MEMBERS_NAMED_MAX
    if rest > 0:
        named = [*named[:MEMBERS_NAMED_MAX], f"{rest} more"]
    count = len(group.members)
    return f"{count} {'member' if count == 1 else 'members'} ({', '.join(named)})"


def not_found(group: str) -> str:
    return f"group {group!r} does not exist; `moldau group list` shows the groups"
