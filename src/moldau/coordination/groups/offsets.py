"""Committed offsets: group, topic, partition -> the encoded value, as it is in the log.

Values are decoded when somebody reads them: loading a million of them, and remembering them, costs little.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.coordination.groups.records import (
    committed_offset,
    decode_offset,
    encode_expiring_offset,
    offset_key,
    pack_offset,
    read_offset_key,
    require_offset,
)
from moldau.coordination.shard import Step
from moldau.kernel import ZERO_UUID, ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

NO_OFFSET, NO_EPOCH = -1, -1
PartitionOffsets = dict[int, bytes]
TopicOffsets = dict[str, PartitionOffsets]


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, TopicOffsets] = {}

    # -- changes -------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> str:
        """The group that the record is about."""
        group, topic, partition = read_offset_key(key)
        if value is None:
            self._remove(group, topic, partition)
        else:
            require_offset(value)
            self._put(group, topic, partition, value)
        return group

    def _put(self, group: str, topic: str, partition: int, value: bytes) -> None:
        topics = self._groups.get(group)
        if topics is None:
            topics = self._groups[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def _remove(self, group: str, topic: str, partition: int) -> None:
        topics = self._groups.get(group, {})
        partitions = topics.get(topic, {})
        partitions.pop(partition, None)
        if not partitions:
            topics.pop(topic, None)
        if not topics:
            self._groups.pop(group, None)

    def commit(self, request: OffsetCommitRequest, metadata_bytes_max: int, step: Step) -> OffsetCommitResponse:
        """The request was checked against its group; what is wrong with a partition is said per partition."""
        topics = []
        for topic in request.topics:
            answers = []
            for partition in topic.partitions:
                metadata = partition.committed_metadata or ""
                code = ErrorCode.NONE
                if len(metadata) > metadata_bytes_max:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    offset, now_ms = partition.committed_offset, step.wall_ms
                    if request.retention_time_ms < 0:
                        value = pack_offset(offset, partition.committed_leader_epoch, metadata, now_ms, topic.topic_id)
                    else:
                        expires_ms = now_ms + request.retention_time_ms
                        value = encode_expiring_offset(offset, metadata, now_ms, expires_ms)
                    self._put(request.group_id, topic.name, partition.partition_index, value)
                    step.log(offset_key(request.group_id, topic.name, partition.partition_index), value)
                answers.append(OffsetCommitResponse.OffsetCommitResponsePartition(partition.partition_index, code))
            topics.append(OffsetCommitResponse.OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        return OffsetCommitResponse(topics=topics)

    def delete(self, group: str, topic: str, partition: int, step: Step) -> None:
        if self.get(group, topic, partition) is not None:
            self._remove(group, topic, partition)
            step.log(offset_key(group, topic, partition), None)

    def delete_group(self, group: str, step: Step) -> None:
        for topic, partition, _ in list(self.of_group(group)):
            self.delete(group, topic, partition, step)

    def delete_topics(self, topics: frozenset[str], step: Step) -> None:
        for group, known in list(self._groups.items()):
            for topic in [topic for topic in known if topic in topics]:
                for partition in list(known[topic]):
                    self.delete(group, topic, partition, step)

    # -- looking -------------------------------------------------------------------------------------------------------

    def get(self, group: str, topic: str, partition: int) -> bytes | None:
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def has_group(self, group: str) -> bool:
        return group in self._groups

    def of_group(self, group: str) -> Iterator[tuple[str, int, bytes]]:
        for topic, partitions in self._groups.get(group, {}).items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, offset) of everything, for metrics."""
        for group in self._groups:
            for topic, partition, value in self.of_group(group):
                yield group, topic, partition, committed_offset(value)

    def fetch(
        self, wanted: OffsetFetchRequest.OffsetFetchRequestGroup, *, is_known: bool
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        """What a group committed: for the topics it names, or everything when it names none (null)."""
        group = wanted.group_id
        if wanted.topics is None:
            topics = [
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    topic, ZERO_UUID, [_fetched(index, value) for index, value in partitions.items()]
                )
                for topic, partitions in self._groups.get(group, {}).items()
                if is_known
            ]
        else:
            topics = [
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    topic.name,
                    topic.topic_id,
                    [
                        _fetched(index, self.get(group, topic.name, index) if is_known else None)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in wanted.topics
            ]
        return OffsetFetchResponse.OffsetFetchResponseGroup(group, topics)

    # -- expiry --------------------------------------------------------------------------------------------------------

    def expire(self, group: str, topic: str, since_ms: int | None, retention_ms: int, step: Step) -> None:
        """Offsets of a topic that nobody reads any more, counted from `since_ms`, else from their commit."""
        for partition, value in list(self._groups.get(group, {}).get(topic, {}).items()):
            stored = decode_offset(value)
            if stored is None:
                is_over = True  # nobody can read it
            elif stored.expire_timestamp >= 0:
                is_over = step.wall_ms >= stored.expire_timestamp
            else:
                begun_ms = stored.commit_timestamp if since_ms is None else since_ms
                is_over = step.wall_ms - begun_ms >= retention_ms
            if is_over:
                self.delete(group, topic, partition, step)

    def topics_of(self, group: str) -> list[str]:
        return list(self._groups.get(group, ()))


def _fetched(index: int, value: bytes | None) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    stored = None if value is None else decode_offset(value)
    if stored is None:
        return OffsetFetchResponse.OffsetFetchResponsePartitions(index, NO_OFFSET, NO_EPOCH, "")
    return OffsetFetchResponse.OffsetFetchResponsePartitions(index, stored.offset, stored.leader_epoch, stored.metadata)
