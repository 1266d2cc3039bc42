"""OffsetCommit of one offset, read and answered by hand: a consumer that commits as it goes sends nothing else.

Equal to `handlers/k08_offset_commit` where it answers at all: the group's machine gets the request that the handler
would have given it. Whatever is not plain (several topics or partitions, metadata, long names, tags, any refusal at
once) is left to that handler before anything has been done. `test_a_plain_commit_answers_what_the_handler_answers`
holds the two together.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moldau.broker.connection import Connection, Parked
from moldau.coordination.groups import Asked, Caller
from moldau.kernel import KafkaError
from moldau.protocol.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from moldau.broker.node import Node

# From this version on the request is flexible; 10 names the topic by id.
PLAIN_COMMIT_VERSION_MIN = 8
PLAIN_COMMIT_VERSION_MAX = 10
_TOPIC_IDS_VERSION_MIN = 10
_UUID_BYTES = 16
_ONE = 2  # a compact array of one
_NO_METADATA_NO_TAGS = b"\x01\x00\x00\x00"
# Consumers whose names are remembered as they were read.
NAMES_REMEMBERED_MAX = 4096

_unpack_generation = struct.Struct(">i").unpack_from
_unpack_partition = struct.Struct(">Biqi").unpack_from
# One partition (of an array), its metadata, and the tags of partition, topic and request.
_TAIL_BYTES = 21
_pack_head = struct.Struct(">iiBiB").pack
_TAIL = struct.Struct(">BihBBB")
_pack_tail = _TAIL.pack
# What the frame's length counts besides the topic: correlation id, tags, throttle time, array length, and the tail.
_FIXED_BYTES = 10 + _TAIL.size

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


class CommitReply(Parked):
    """Holds the request's place in the line, and packs its answer when the group's coordinator gives it."""

    __slots__ = ("_connection", "_correlation_id", "_index", "_topic", "early")

    def __init__(self, connection: Connection, correlation_id: int, topic: bytes, index: int) -> None:
        super().__init__()
        self._connection = connection
        self._correlation_id = correlation_id
        self._topic = topic
        self._index = index
        # Bytes that came before there was a place in the line.
        self.early: bytes | None = None

    def give(self, response: Any) -> None:
        if isinstance(response, KafkaError):
            code: int = response.code
        else:
            code = response.topics[0].partitions[0].error_code
        topic = self._topic
        packed = (
            _pack_head(_FIXED_BYTES + len(topic), self._correlation_id, 0, 0, _ONE)
            + topic
            + _pack_tail(_ONE, self._index, code, 0, 0, 0)
        )
        if self.is_lined_up:
            self._connection.on_answered(self.answer, (packed,))
        else:
            self.early = packed


def answer_plain_commit(
    node: Node,
    connection: Connection,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
) -> CommitReply | bytes | None:
    """A place in the line, seldom the answer itself, or None when the request is for the handler."""
    end = len(frame) - _TAIL_BYTES
    if end <= position or frame[-len(_NO_METADATA_NO_TAGS) :] != _NO_METADATA_NO_TAGS:
        return None
    named = _read_names(bytes(frame[position:end]), version)
    if named is None:
        return None
    group_id, generation, member_id, instance_id, wire_topic, name = named
    partition_count, index, offset, leader_epoch = _unpack_partition(frame, end)
    if name is None:
        name = node.image.topic_names.get(wire_topic, "")
    if partition_count != _ONE:
        return None
    topic = node.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return None
    request = OffsetCommitRequest(
        group_id,
        generation,
        member_id,
        instance_id,
        -1,
        [Topic(name, topic.id, [Partition(index, offset, leader_epoch)])],
    )
    reply = CommitReply(connection, correlation_id, wire_topic, index)
    caller = Caller(client_id or "", f"/{connection.peer.rpartition(':')[0]}", version)
    try:
        node.groups.coordinator.submit(group_id, Asked(request, reply, caller))
    except KafkaError:
        return None  # nothing was changed: the handler finds the same and says why
    return reply if reply.early is None else reply.early


@lru_cache(maxsize=NAMES_REMEMBERED_MAX)
def _read_names(data: bytes, version: int) -> tuple[str, int, str, str | None, bytes, str | None] | None:
    """What stands before the partition: group, generation, member, instance, topic as it came, and its name if told.

    A consumer sends the same with each of its commits. None when it is not plain, or not all there is.
    """
    try:
        group_id, position = _read_text(data, 0)
        (generation,) = _unpack_generation(data, position)
        member_id, position = _read_text(data, position + 4)
        if data[position]:
            instance_id, position = _read_text(data, position)
        else:
            instance_id, position = None, position + 1
        topic_count, topic = data[position], data[position + 1 :]
        if version >= _TOPIC_IDS_VERSION_MIN:
            name, end = None, _UUID_BYTES
        else:
            name, end = _read_text(topic, 0)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if topic_count != _ONE or end != len(topic):
        return None
    return group_id, generation, member_id, instance_id, topic, name


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    """A compact string that is neither absent nor long, and where it ends."""
    size = data[position]
    if not 0 < size < 0x80:
        raise IndexError
    end = position + size
    return data[position + 1 : end].decode(), end
