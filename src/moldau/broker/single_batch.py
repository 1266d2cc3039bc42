"""Produce with one batch for one partition, answered without building a message: the hottest way through the broker.

Equal to `handlers/k00_produce` where it answers at all; whatever is not plain (several topics or partitions, acks 0,
transactions, tags, a topic that flushes, any refusal at once) is left to that handler before anything has been done.
Where followers must have it first the answer waits for them, and a refusal then is a message after all.
`test_single_batch_answers_what_the_handler_answers` holds the two together, with followers
`test_a_single_batch_that_waits_for_followers_answers_what_the_handler_answers`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.broker.connection import Connection, Parked, Part
from moldau.broker.partition import Partition
from moldau.broker.reply import Reply
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC
from moldau.protocol.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from moldau.broker.dispatch import Dispatcher
    from moldau.broker.node import Node

# From this version on the request is flexible; 13 names the topic by id.
FAST_PRODUCE_VERSION_MIN = 9
FAST_PRODUCE_VERSION_MAX = 13
# From this one on a refusal says who leads (KIP-951).
LEADER_HINTS_VERSION_MIN = 10
_TOPIC_IDS_VERSION_MIN = 13
_UUID_BYTES = 16
_ONE = 2  # a compact array of one
_NO_TAGS = b"\x00\x00\x00"
_TRANSACTIONAL = 0x10

_unpack_acks = struct.Struct(">BhiB").unpack_from
_unpack_index = struct.Struct(">Bi").unpack_from
_unpack_batch = struct.Struct(">8xi4xB4xxB").unpack_from
_pack_head = struct.Struct(">iiBB").pack
_TAIL = struct.Struct(">BihqqqBBBBiB")
_pack_tail = _TAIL.pack
# What the frame's length counts besides the topic: correlation id, tags, array length, and the tail.
_FIXED_BYTES = 6 + _TAIL.size


class WaitingBatch(Parked):
    """An accepted batch, its answer ready, until every replica in sync has it or somebody gives up."""

    __slots__ = ("_committed", "_connection", "_dispatcher", "_packed", "_partition", "_request", "_timer")

    def __init__(
        self,
        dispatcher: Dispatcher,
        connection: Connection,
        request: tuple[int, int],
        partition: Partition,
        packed: bytes,
        committed: Reply,
        timeout_ms: int,
    ) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._connection = connection
        # Its version and correlation id.
        self._request = request
        self._partition = partition
        self._packed = packed
        self._committed = committed
        self._timer = dispatcher.node.clock.call_later(max(timeout_ms, 0), self._give_up)
        committed.add_done_callback(self._on_done)

    def _give_up(self) -> None:
        if not self._committed.is_done:
            self._committed.give(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def _on_done(self, committed: Reply) -> None:
        self._timer.cancel()
        refusal = committed.error
        if refusal is None:
            self._connection.on_answered(self.answer, (self._packed,))
        else:
            version, correlation_id = self._request
            response = _refused(self._partition, refusal, version)
            parts = self._dispatcher.encode_refused_batch(self._connection, response, version, correlation_id)
            self._connection.on_answered(self.answer, parts)


def _refused(partition: Partition, refusal: KafkaError, version: int) -> ProduceResponse:
    answer = ProduceResponse.PartitionProduceResponse(
        index=partition.index, error_code=refusal.code, base_offset=-1, error_message=refusal.message
    )
    answer.log_start_offset = -1
    if refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= LEADER_HINTS_VERSION_MIN:
        answer.current_leader = ProduceResponse.LeaderIdAndEpoch(partition.leader_id, partition.leader_epoch)
    if version >= _TOPIC_IDS_VERSION_MIN:
        topic = ProduceResponse.TopicProduceResponse(topic_id=partition.topic_id, partition_responses=[answer])
    else:
        topic = ProduceResponse.TopicProduceResponse(partition.topic, partition_responses=[answer])
    return ProduceResponse([topic])


def answer_single_batch(
    dispatcher: Dispatcher,
    connection: Connection,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
) -> bytes | Sequence[Part] | WaitingBatch | None:
    """The whole answer with its frame prefix, its place in the line, or None when the request is for the handler."""
    node: Node = dispatcher.node
    try:
        no_transaction, acks, timeout_ms, topic_count = _unpack_acks(frame, position)
        if no_transaction or topic_count != _ONE or (acks != 1 and acks != -1):
            return None
        position += 8
        if version >= _TOPIC_IDS_VERSION_MIN:
            topic = bytes(frame[position : position + _UUID_BYTES])
            partitions = node.replicas.by_id(topic)
        else:
            topic = bytes(frame[position : position + frame[position]])
            partitions = node.replicas.by_wire_name.get(topic)
        if partitions is None:
            return None
        position += len(topic)
        partition_count, index = _unpack_index(frame, position)
        position += 5
        size = frame[position] - 1
        position += 1
        if size > 0x7E:
            size, position = _long_size(frame, position, size + 1)
        end = position + size
        if partition_count != _ONE or not 0 <= index < len(partitions) or frame[end:] != _NO_TAGS:
            return None
        partition = partitions[index]
        if partition is None or partition.flushes or partition.is_internal or size < HEADER_BYTES:
            return None
        batch = frame[position:end]
        length, magic, attributes = _unpack_batch(batch)
        if length + LENGTH_OVERHEAD_BYTES != size or magic != MAGIC or attributes & _TRANSACTIONAL:
            return None
    except (struct.error, IndexError):
        return None
    try:
        result = partition.append(batch, acks, node.clock.now_ms())
    except KafkaError:
        return None  # nothing was written: the handler finds the same and says why
    node.metrics.produce_requests += 1
    base_offset, last_offset, append_time_ms, start_offset, _ = result
    packed = (
        _pack_head(_FIXED_BYTES + len(topic), correlation_id, 0, _ONE)
        + topic
        + _pack_tail(_ONE, index, 0, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, 0, 0)
    )
    if acks == -1 and partition.has_followers:
        committed = partition.when_committed(last_offset + 1)
        if not committed.is_done:
            request = version, correlation_id
            return WaitingBatch(dispatcher, connection, request, partition, packed, committed, timeout_ms)
        if committed.error is not None:
            refused = _refused(partition, committed.error, version)
            return dispatcher.encode_refused_batch(connection, refused, version, correlation_id)
    return packed


def _long_size(frame: memoryview, position: int, low: int) -> tuple[int, int]:
    """The rest of a compact length of several bytes, less one."""
    value = low & 0x7F
    shift = 7
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 1, position
        shift += 7
        if shift > 28:
            raise IndexError
