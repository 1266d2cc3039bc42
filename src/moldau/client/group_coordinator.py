"""The broker that keeps a group: found, followed when it moves, and asked for offsets.

A consumer has connections of its own to it, for brokers answer a connection's requests in order and a JoinGroup waits
for the other members: two members on one connection would wait for each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moldau.client.cluster import FAULTS, ClusterClient
from moldau.client.connection import Connection
from moldau.client.group_protocol import by_topic
from moldau.kernel import ZERO_UUID, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.message import Message

NO_EPOCH = -1
_KEY_TYPE_GROUP = 0
_FIND_BATCHED_FROM = 4
_OFFSET_FETCH_BATCHED_FROM = 8
_REQUIRE_STABLE_FROM = 7
# From the next version on topics have ids instead of names, so that a topic that was made anew is not mistaken for
# the one that was read; both need the ids of all topics.
_OFFSETS_BY_NAME_MAX, _OFFSETS_BY_ID_MAX = 9, 10

Lane = Literal["join", "other"]
MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: that of the next record to read, with the epoch of the one before and a text of one's own."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Who commits. Without a member, as one outside the group."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class GroupCoordinator:
    def __init__(self, client: ClusterClient, group_id: str) -> None:
        self._client = client
        self.group_id = group_id
        self._address: tuple[str, int] | None = None
        self._connections: dict[Lane, Connection] = {}
        self._opening: dict[Lane, asyncio.Lock] = {"join": asyncio.Lock(), "other": asyncio.Lock()}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget(self) -> None:
        """It moved or does not answer: look for it again next time."""
        if self._address is not None:
            logger.info("coordinator_forgotten group=%s address=%s:%d", self.group_id, *self._address)
        self._address = None
        self.close()

    def check(self, code: int, what: str) -> None:
        """Raise what a coordinator answered, and forget one that says it is none."""
        if not code:
            return
        known = ErrorCode(code)
        if known in MOVED:
            self.forget()
        raise KafkaError(known, f"group {self.group_id!r}: {what}: {known.name}")

    async def connection(self, lane: Lane = "other") -> Connection:
        async with self._opening[lane]:
            known = self._connections.get(lane)
            if known is not None and not known.closed:
                return known
            if self._address is None:
                self._address = await self._find()
            try:
                opened = await Connection.connect(
                    *self._address,
                    client_id=self._client.client_id,
                    connect_timeout_ms=self._client.connect_timeout_ms,
                    request_timeout_ms=self._client.request_timeout_ms,
                )
            except FAULTS:
                self.forget()
                raise
            self._connections[lane] = opened
            return opened

    async def request(
        self, message: Message, *, lane: Lane = "other", version_max: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """One attempt; after a fault the coordinator is looked for again."""
        connection = await self.connection(lane)
        try:
            return await connection.request(message, version_max=version_max, timeout_ms=timeout_ms)
        except FAULTS:
            self.forget()
            raise

    async def _find(self) -> tuple[str, int]:
        from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest

        connection = await self._client.any_connection()
        if connection.version_for(FindCoordinatorRequest.API_KEY) >= _FIND_BATCHED_FROM:
            request = FindCoordinatorRequest(key_type=_KEY_TYPE_GROUP, coordinator_keys=[self.group_id])
            found = (await connection.request(request)).coordinators[0]
        else:
            found = await connection.request(FindCoordinatorRequest(key=self.group_id, key_type=_KEY_TYPE_GROUP))
        if found.error_code:
            code = ErrorCode(found.error_code)
            raise KafkaError(code, f"group {self.group_id!r} has no coordinator: {found.error_message or code.name}")
        logger.info("coordinator_found group=%s broker=%d", self.group_id, found.node_id)
        return found.host, found.port

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], who: GroupMetadata) -> None:
        """One attempt to commit; KafkaError with the first refusal."""
        from moldau.protocol.messages.offset_commit import OffsetCommitRequest

        wanted = by_topic(offsets)
        ids = self._ids(wanted)
        connection = await self.connection()
        version = connection.version_for(OffsetCommitRequest.API_KEY, version_max=_version_max(ids))
        by_id = version > _OFFSETS_BY_NAME_MAX
        topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="" if by_id else topic,
                topic_id=ids[topic] if by_id else ZERO_UUID,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        number,
                        offsets[TopicPartition(topic, number)].offset,
                        offsets[TopicPartition(topic, number)].leader_epoch if version >= 6 else NO_EPOCH,
                        offsets[TopicPartition(topic, number)].metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in wanted.items()
        ]
        request = OffsetCommitRequest(
            self.group_id,
            who.generation,
            who.member_id,
            who.instance_id if version >= 7 else None,
            topics=topics,
        )
        response = await self.request(request, version_max=version)
        names = {topic_id: name for name, topic_id in ids.items()}
        for topic in response.topics:
            name = names[topic.topic_id] if by_id else topic.name
            for partition in topic.partitions:
                await self._check_id(partition.error_code, name)
                self.check(partition.error_code, f"committing {name}-{partition.partition_index}")

    def _ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The ids of these topics if all are known, else none."""
        known = self._client.topics
        ids = {topic: known[topic].topic_id for topic in topics if topic in known and not known[topic].error}
        return ids if ZERO_UUID not in ids.values() and all(topic in ids for topic in topics) else {}

    async def _check_id(self, code: int, topic: str) -> None:
        """A topic that was deleted, or made anew: the next attempt shall know."""
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            await self._client.metadata([topic])

    async def committed(
        self, partitions: Iterable[TopicPartition], who: GroupMetadata | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """One attempt to ask; partitions without a committed offset are left out. `who`: a member of KIP-848."""
        from moldau.protocol.messages.offset_fetch import OffsetFetchRequest

        topics = by_topic(partitions)
        ids = self._ids(topics)
        connection = await self.connection()
        version = connection.version_for(OffsetFetchRequest.API_KEY, version_max=_version_max(ids))
        by_id = version > _OFFSETS_BY_NAME_MAX
        request = OffsetFetchRequest(require_stable=version >= _REQUIRE_STABLE_FROM)
        if version >= _OFFSET_FETCH_BATCHED_FROM:
            group = OffsetFetchRequest.OffsetFetchRequestGroup(
                self.group_id,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(
                        "" if by_id else topic, ids[topic] if by_id else ZERO_UUID, numbers
                    )
                    for topic, numbers in topics.items()
                ],
            )
            if who is not None:
                group.member_id, group.member_epoch = who.member_id, who.generation
            request.groups = [group]
        else:
            request.group_id = self.group_id
            request.topics = [
                OffsetFetchRequest.OffsetFetchRequestTopic(topic, numbers) for topic, numbers in topics.items()
            ]
        response = await self.request(request, version_max=version)
        answer = response.groups[0] if version >= _OFFSET_FETCH_BATCHED_FROM else response
        self.check(answer.error_code, "reading committed offsets")
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        names = {topic_id: name for name, topic_id in ids.items()}
        for topic in answer.topics:
            name = names[topic.topic_id] if by_id else topic.name
            for one in topic.partitions:
                where = TopicPartition(name, one.partition_index)
                await self._check_id(one.error_code, name)
                self.check(one.error_code, f"reading the committed offset of {where}")
                if one.committed_offset >= 0:
                    found[where] = OffsetAndMetadata(
                        one.committed_offset, one.metadata or "", one.committed_leader_epoch
                    )
        return found


def _version_max(ids: Mapping[str, bytes]) -> int:
    return _OFFSETS_BY_ID_MAX if ids else _OFFSETS_BY_NAME_MAX
