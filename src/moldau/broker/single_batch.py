"""Produce with one batch for one partition, answered without building a message: the hottest way through the broker.

Equal to `handlers/k00_produce` where it answers at all; whatever is not plain (several topics or partitions, acks 0,
acks=all where followers must have it first, transactions, tags, a topic that flushes, any refusal) is left to that
handler before anything has been done.
`test_single_batch_answers_what_the_handler_answers` holds the two together.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.kernel import KafkaError
from moldau.protocol.batches import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC

if TYPE_CHECKING:
    from moldau.broker.node import Node

# From this version on the request is flexible; 13 names the topic by id.
FAST_PRODUCE_VERSION_MIN = 9
FAST_PRODUCE_VERSION_MAX = 13
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


def answer_single_batch(
    node: Node, frame: memoryview, position: int, version: int, correlation_id: int
) -> bytes | None:
    """The whole answer with its frame prefix, or None when the request is for the handler."""
    try:
        no_transaction, acks, _, topic_count = _unpack_acks(frame, position)
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
        if acks == -1 and partition.has_followers:
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
    base_offset, _, append_time_ms, start_offset, _ = result
    return (
        _pack_head(_FIXED_BYTES + len(topic), correlation_id, 0, _ONE)
        + topic
        + _pack_tail(_ONE, index, 0, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, 0, 0)
    )


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
