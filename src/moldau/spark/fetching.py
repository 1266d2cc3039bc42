"""One Fetch to one leader, for whoever needs the answer as it came: the driver that waits and the tasks that read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moldau.client import ClusterClient, IsolationLevel
from moldau.kernel import ZERO_UUID, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.fetch import FetchRequest

# From the next version on, topics are named by their ids.
_VERSION_BY_NAME_MAX = 12
_NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class FetchLimits:
    wait_ms: int
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int
    isolation: IsolationLevel


async def leaders_of(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Who leads each partition, from the cache where it is fresh. KafkaError when one has no leader now."""
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for where in partitions:
        by_leader[(await client.partition(where.topic, where.partition)).leader].append(where)
    return by_leader


async def fetch_from_leader(
    client: ClusterClient, leader: int, offsets: Mapping[TopicPartition, int], limits: FetchLimits
) -> dict[TopicPartition, Any]:
    """The answer for each partition, errors included."""
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for where in offsets:
        by_topic[where.topic].append(where)
    infos = {name: await client.topic(name) for name in by_topic}
    version_max = _VERSION_BY_NAME_MAX if any(info.topic_id == ZERO_UUID for info in infos.values()) else None
    # Its own connection: brokers answer in order, and a held Fetch would hold up what follows.
    connection = await client.connection_to(leader, "polls")
    version = connection.version_for(FetchRequest.API_KEY, version_max=version_max)
    by_id = version > _VERSION_BY_NAME_MAX
    request = FetchRequest(
        max_wait_ms=limits.wait_ms,
        min_bytes=limits.bytes_min,
        max_bytes=limits.bytes_max,
        isolation_level=int(limits.isolation),
        topics=[
            FetchRequest.FetchTopic(
                topic="" if by_id else name,
                topic_id=infos[name].topic_id if by_id else ZERO_UUID,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=where.partition,
                        current_leader_epoch=infos[name].partitions[where.partition].leader_epoch
                        if version >= 9
                        else _NO_EPOCH,
                        fetch_offset=offsets[where],
                        last_fetched_epoch=_NO_EPOCH,
                        partition_max_bytes=limits.partition_bytes_max,
                    )
                    for where in places
                ],
            )
            for name, places in by_topic.items()
        ],
    )
    response = await connection.request(request, version=version, timeout_ms=client.request_timeout_ms + limits.wait_ms)
    if response.error_code:
        code = ErrorCode(response.error_code)
        raise KafkaError(code, f"broker {leader} refused to fetch: {code.name}")
    names = {info.topic_id: name for name, info in infos.items()}
    return {
        TopicPartition(names[topic.topic_id] if by_id else topic.topic, answer.partition_index): answer
        for topic in response.responses
        for answer in topic.partitions
    }
