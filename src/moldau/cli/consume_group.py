"""`moldau consume -g`: records read as a member of a group, which remembers what was printed.

What is printed counts as read. It is committed every few seconds and at the end, also after Ctrl-C; not when nobody
took what was printed, as in `| head`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from moldau.cli.consume import Isolation, StartKind, Wish, copy_records
from moldau.cli.errors import usage

if TYPE_CHECKING:
    from moldau.cli.render import Renderer
    from moldau.client import ClusterClient, ConsumedRecord, Consumer
    from moldau.kernel import TopicPartition

# How often `--exit` looks whether the end is reached.
END_CHECK_SECONDS = 0.1

_RESETS = {StartKind.BEGINNING: "earliest", StartKind.END: "latest"}


def read_with_group(group: str, wish: Wish, renderer: Renderer, bootstrap: str, properties: Mapping[str, str]) -> None:
    if wish.start.kind not in _RESETS:
        raise usage(
            f"-g {group}: a group goes on where it left off, and `moldau group reset {group}` moves it; -s may be "
            "start or end, for partitions where nothing is committed"
        )
    if wish.partitions:
        raise usage(f"-g {group}: members of a group are given their partitions; leave -p out, or -g")
    if wish.count != 0:
        _read_on_cluster(_settings(group, wish, bootstrap, properties), wish, renderer, bootstrap, properties)


def read_with_group_of_ones_own(wish: Wish, renderer: Renderer, bootstrap: str, properties: Mapping[str, str]) -> None:
    """Like Kafka's console consumer: a group that nobody else has. It commits nothing, and is gone afterwards."""
    group = f"console-consumer-{random.randrange(10_000, 100_000)}"
    settings = {**_settings(group, wish, bootstrap, properties), "enable.auto.commit": False}
    _read_on_cluster(settings, wish, renderer, bootstrap, properties, then_delete=group)


def _read_on_cluster(
    settings: Mapping[str, object],
    wish: Wish,
    renderer: Renderer,
    bootstrap: str,
    properties: Mapping[str, str],
    *,
    then_delete: str | None = None,
) -> None:
    from moldau.cli.remote import CLIENT_PROPERTIES, find_topic, on_cluster_with
    from moldau.client import consumer_settings, group_admin

    consumer_settings(settings)  # a wrong one is told before anything is asked

    async def work(client: ClusterClient) -> None:
        for topic in wish.topics:
            await find_topic(client, topic)
        try:
            await _read(client, settings, wish, renderer)
        finally:
            if then_delete is not None:
                await group_admin.delete_groups(client, [then_delete])

    shared = {name: value for name, value in properties.items() if name in CLIENT_PROPERTIES}
    on_cluster_with(bootstrap, shared, work)


def _settings(group: str, wish: Wish, bootstrap: str, properties: Mapping[str, str]) -> dict[str, object]:
    """Options of the command win over -X."""
    return {
        "bootstrap.servers": bootstrap,
        **properties,
        "group.id": group,
        "auto.offset.reset": _RESETS[wish.start.kind],
        "isolation.level": "read_committed" if wish.isolation is Isolation.COMMITTED else "read_uncommitted",
        # A name that was mistyped must not become a topic.
        "allow.auto.create.topics": False,
    }


async def _read(client: ClusterClient, settings: Mapping[str, object], wish: Wish, renderer: Renderer) -> None:
    from moldau.client import Consumer

    async with Consumer(settings) as consumer:
        reading = _Reading(client, consumer, wish)
        try:
            await copy_records(reading.batches(), wish.count, None, renderer)
        except asyncio.CancelledError:
            # Ctrl-C: leave in good order.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


class _Reading:
    """What this member has to read, until it is enough."""

    def __init__(self, client: ClusterClient, consumer: Consumer, wish: Wish) -> None:
        self._client = client
        self._consumer = consumer
        self._wish = wish
        self._ends: dict[TopicPartition, int] = {}
        self._has_joined = False

    async def batches(self) -> AsyncIterator[list[ConsumedRecord]]:
        wish, consumer = self._wish, self._consumer
        consumer.subscribe(wish.topics, on_assigned=self._note_ends)
        left = wish.count
        while True:
            records = await consumer.poll(END_CHECK_SECONDS if wish.stops_at_end else None)
            if left is not None:
                await self._give_back(records[left:])
                records = records[:left]
                left -= len(records)
            if records:
                yield records
            if left == 0 or (wish.stops_at_end and await self._is_at_end()):
                return

    async def _give_back(self, records: list[ConsumedRecord]) -> None:
        """What is not printed is not read: the next one to come gets it."""
        from moldau.kernel import TopicPartition

        firsts = {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
        for where, offset in firsts.items():
            await self._consumer.seek(where, offset)

    async def _note_ends(self, partitions: set[TopicPartition]) -> None:
        from moldau.client import admin

        self._has_joined = True
        if not (self._wish.stops_at_end and partitions):
            return
        level = self._consumer.settings.isolation_level
        ends = await admin.list_offsets(self._client, dict.fromkeys(partitions, admin.LATEST), isolation_level=level)
        self._ends |= {where: found.offset for where, found in ends.items()}

    async def _is_at_end(self) -> bool:
        """All that was there when the partitions were given to this member."""
        if not self._has_joined:
            return False
        for where in self._consumer.assignment:
            if await self._consumer.position(where) < self._ends[where]:
                return False
        return True
