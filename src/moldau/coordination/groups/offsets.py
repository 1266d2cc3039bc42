"""Committed offsets: group, topic, partition -> the encoded value, as it is in the log.

Values are decoded when somebody reads them: loading a million of them, and remembering them, costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moldau.coordination.groups.pending_offsets import PendingOffsets
from moldau.coordination.groups.records import (
    committed_offset,
    decode_offset,
    encode_expiring_offset,
    is_of_topic,
    offset_key,
    pack_offset,
    read_offset_key,
    require_offset,
)
from moldau.coordination.shard import InTransaction, Logged, Step
from moldau.kernel import ZERO_UUID, ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

NO_OFFSET, NO_EPOCH = -1, -1
PartitionOffsets = dict[int, bytes]
TopicOffsets = dict[str, PartitionOffsets]


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, TopicOffsets] = {}
        self.pending = PendingOffsets()

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

    def replay_in_transaction(self, producer_id: int, key: bytes, value: bytes | None) -> str:
        """The group that the record is about."""
        where = read_offset_key(key)
        if value is not None:
            self.pending.add(producer_id, where, value)
        return where[0]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for (group, topic, partition), value in self.pending.end(producer_id, committed):
            self._store(group, topic, partition, value)

    def _put(self, group: str, topic: str, partition: int, value: bytes) -> None:
        if self.pending:
            self.pending.supersede((group, topic, partition))
        self._store(group, topic, partition, value)

    def _store(self, group: str, topic: str, partition: int, value: bytes) -> None:
        topics = self._groups.get(group)
        if topics is None:
            topics = self._groups[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def _remove(self, group: str, topic: str, partition: int) -> None:
        if self.pending:
            self.pending.forget((group, topic, partition))
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

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, metadata_bytes_max: int, step: Step
    ) -> TxnOffsetCommitResponse:
        """The same for offsets that count when the producer's transaction is committed."""
        topics, records = [], []
        for topic in request.topics:
            answers = []
            for partition in topic.partitions:
                metadata, index = partition.committed_metadata or "", partition.partition_index
                code = ErrorCode.NONE
                if len(metadata) > metadata_bytes_max:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    offset, epoch = partition.committed_offset, partition.committed_leader_epoch
                    value = pack_offset(offset, epoch, metadata, step.wall_ms, ZERO_UUID)
                    self.pending.add(request.producer_id, (request.group_id, topic.name, index), value)
                    records.append(Logged(offset_key(request.group_id, topic.name, index), value))
                answers.append(TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(index, code))
            topics.append(TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(topic.name, answers))
        if records:
            step.log_apart(InTransaction(request.producer_id, request.producer_epoch, records))
        return TxnOffsetCommitResponse(topics=topics)

    def delete(self, group: str, topic: str, partition: int, step: Step) -> None:
        if self.get(group, topic, partition) is not None or (group, topic, partition) in self.pending:
            self._remove(group, topic, partition)
            step.log(offset_key(group, topic, partition), None)

    def delete_group(self, group: str, step: Step) -> None:
        for topic, partition, _ in list(self.of_group(group)):
            self.delete(group, topic, partition, step)
        for key in self.pending.of_group(group):
            self.delete(*key, step)

    def delete_topics(self, topics: frozenset[str], step: Step) -> None:
        for group, known in list(self._groups.items()):
            for topic in [topic for topic in known if topic in topics]:
                for partition in list(known[topic]):
                    self.delete(group, topic, partition, step)
        for key in self.pending.of_topics(topics):
            self.delete(*key, step)

    def delete_strays(self, topic_id: Callable[[str], bytes | None], step: Step) -> None:
        """What topics left that were deleted while nobody here heard of it: one that has the name now is another."""
        for group, known in list(self._groups.items()):
            for topic, partitions in list(known.items()):
                present_id = topic_id(topic)
                for partition, value in list(partitions.items()):
                    if present_id is None or not is_of_topic(value, present_id):
                        self.delete(group, topic, partition, step)
        gone = frozenset(topic for topic in self.pending.topics() if topic_id(topic) is None)
        for key in self.pending.of_topics(gone):
            self.delete(*key, step)

    # -- looking -------------------------------------------------------------------------------------------------------

    def get(self, group: str, topic: str, partition: int) -> bytes | None:
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def has_group(self, group: str) -> bool:
        return group in self._groups or self.pending.has_group(group)

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
        self, wanted: OffsetFetchRequest.OffsetFetchRequestGroup, *, is_known: bool, require_stable: bool
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        """What a group committed: for the topics it names, or everything when it names none (null).

        With `require_stable`, an offset that an open transaction may yet change is not told (trap 29).
        """
        group = wanted.group_id

        def fetched(topic: str, index: int, value: bytes | None) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
            if require_stable and (group, topic, index) in self.pending:
                return _not_fetched(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return _fetched(index, value) if value is not None and is_known else _not_fetched(index)

        if wanted.topics is None:
            topics = [
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    topic, ZERO_UUID, [fetched(topic, index, value) for index, value in partitions.items()]
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
                        fetched(topic.name, index, self.get(group, topic.name, index))
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
            if (group, topic, partition) in self.pending:
                continue
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


def _not_fetched(index: int, code: int = ErrorCode.NONE) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    return OffsetFetchResponse.OffsetFetchResponsePartitions(index, NO_OFFSET, NO_EPOCH, "", code)


def _fetched(index: int, value: bytes) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    stored = decode_offset(value)
    if stored is None:
        return _not_fetched(index)
    return OffsetFetchResponse.OffsetFetchResponsePartitions(index, stored.offset, stored.leader_epoch, stored.metadata)
