"""A transactional producer's tests: where they take place, and what they ask about it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, ParamSpec

from moldau.client import (
    ClusterClient,
    ConsumedRecord,
    Delivery,
    IsolationLevel,
    PartitionReader,
    Producer,
    admin,
    group_admin,
)
from moldau.kernel import KafkaError, TopicPartition

P = ParamSpec("P")

SECONDS_MAX = 60
READ_COMMITTED = IsolationLevel.READ_COMMITTED


class Place(NamedTuple):
    """A topic of one partition that no other test uses."""

    bootstrap: str
    topic: str


def bounded(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test, for so long at most."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), SECONDS_MAX))

    return run


async def read(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    isolation_level: IsolationLevel = READ_COMMITTED,
) -> list[ConsumedRecord]:
    """Everything from the beginning to the end as it is now, also what is open or aborted if the level says so."""
    await wait_markers(bootstrap, topic, partitions)
    return await read_now(bootstrap, topic, partitions, isolation_level)


async def wait_markers(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Until no transaction is open there: Kafka answers a commit before it has written the markers."""
    wheres = [TopicPartition(topic, number) for number in range(partitions)]
    async with ClusterClient(bootstrap) as client:
        while True:
            stable = await admin.list_offsets(
                client, dict.fromkeys(wheres, admin.LATEST), isolation_level=READ_COMMITTED
            )
            ends = await admin.list_offsets(client, dict.fromkeys(wheres, admin.LATEST))
            if all(stable[where].offset == ends[where].offset for where in wheres):
                return
            await asyncio.sleep(0.01)


async def read_now(
    bootstrap: str, topic: str, partitions: int, isolation_level: IsolationLevel
) -> list[ConsumedRecord]:
    records: list[ConsumedRecord] = []
    async with ClusterClient(bootstrap) as client:
        wheres = [TopicPartition(topic, number) for number in range(partitions)]
        ends = await admin.list_offsets(client, dict.fromkeys(wheres, admin.LATEST), isolation_level=isolation_level)
        stop = {where: end.offset for where, end in ends.items()}
        start = dict.fromkeys(wheres, "earliest")
        async with PartitionReader(client, start, stop=stop, isolation_level=isolation_level) as reader:  # type: ignore[arg-type]
            async for some in reader:
                records += some
    return records


async def values(bootstrap: str, topic: str, partitions: int = 1) -> list[bytes | None]:
    return [record.value for record in await read(bootstrap, topic, partitions)]


async def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, topic, partitions=partitions)


async def settled(deliveries: Sequence[Delivery]) -> list[Any]:
    async def outcome(delivery: Delivery) -> Any:
        return await delivery

    return await asyncio.gather(*(outcome(one) for one in deliveries), return_exceptions=True)


def transactional(bootstrap: str, transactional_id: str, **more: object) -> Producer:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "retry.backoff.ms": 20, **settings}
    )


async def wait_stable(bootstrap: str, topic: str, offset: int) -> None:
    """Until readers of committed records may go up to there."""
    where = TopicPartition(topic, 0)
    async with ClusterClient(bootstrap) as client:
        while True:
            ends = await admin.list_offsets(client, {where: admin.LATEST}, isolation_level=READ_COMMITTED)
            if ends[where].offset >= offset:
                return
            await asyncio.sleep(0.02)


async def committed(bootstrap: str, group: str, where: TopicPartition) -> int | None:
    async with ClusterClient(bootstrap) as client:
        offsets = (await group_admin.group_offsets(client, [group]))[group]
        assert not isinstance(offsets, KafkaError)
        return offsets[where].offset if where in offsets else None


async def wait_committed(bootstrap: str, group: str, where: TopicPartition, offset: int) -> None:
    """Until the marker has reached the offsets too."""
    while await committed(bootstrap, group, where) != offset:
        await asyncio.sleep(0.01)
