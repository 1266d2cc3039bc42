"""Records of `__consumer_offsets`, in Kafka's formats: a key and a value, each a version and a message.

A key's version tells the kinds apart. A value's version is the one that Kafka 4.3.1 writes, so that its tools and its
brokers read what is here.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from moldau.coordination.prefixed import VERSION_BYTES, encode_value, version_of
from moldau.kernel import ZERO_UUID
from moldau.protocol.messages.coordinator.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.wire import ProtocolError, write_uvarint

_VERSION = struct.Struct(">h")
_OFFSET = struct.Struct(">hq")
_OFFSET_AND_EPOCH = struct.Struct(">hqi")
_KIND_AND_LENGTH = struct.Struct(">hh")
_PARTITION = struct.Struct(">i")
_WITHOUT_METADATA = struct.Struct(">hqiBq3s16s")
_TIME = struct.Struct(">q")
_TOPIC_ID_TAG = bytes((1, 0, 16))  # one tagged field, the first, of 16 bytes
_TOPIC_ID, _TOPIC_ID_MARK = slice(-16, None), slice(-19, -16)  # where a value has them, if it does
KEYS_REMEMBERED_MAX = 4096
# Plain, and the one that still knows an expiry of its own (OffsetCommit versions 2 to 4).
OFFSET_VALUE_VERSION, OFFSET_VALUE_WITH_EXPIRY_VERSION = 4, 1


# -- offsets, which are many -------------------------------------------------------------------------------------------


@lru_cache(maxsize=KEYS_REMEMBERED_MAX)
def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Packed directly, as is `pack_offset`: a commit makes one of each, and the next one has the same key."""
    group_bytes, topic_bytes = group.encode(), topic.encode()
    return b"".join(
        (
            _KIND_AND_LENGTH.pack(OffsetCommitKey.API_KEY, len(group_bytes)),
            group_bytes,
            _VERSION.pack(len(topic_bytes)),
            topic_bytes,
            _PARTITION.pack(partition),
        )
    )


def pack_offset(offset: int, leader_epoch: int, metadata: str, commit_ms: int, topic_id: bytes) -> bytes:
    """The value of a commit without an expiry of its own."""
    if not metadata and topic_id != ZERO_UUID:
        return _WITHOUT_METADATA.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, 1, commit_ms, _TOPIC_ID_TAG, topic_id)
    text = metadata.encode()
    out = bytearray(_OFFSET_AND_EPOCH.pack(OFFSET_VALUE_VERSION, offset, leader_epoch))
    write_uvarint(out, len(text) + 1)
    out += text
    out += _TIME.pack(commit_ms)
    out += b"\0" if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id
    return bytes(out)


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """(group, topic, partition) without building a message: a load reads a million of these."""
    try:
        group_end = 4 + (key[2] << 8 | key[3])
        topic_end = group_end + 2 + (key[group_end] << 8 | key[group_end + 1])
        partition: int = int.from_bytes(key[topic_end : topic_end + 4], "big", signed=True)
        if len(key) != topic_end + 4:
            raise ProtocolError("an offset's key has another length than its names")
        return key[4:group_end].decode(), key[group_end + 2 : topic_end].decode(), partition
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an offset's key does not read: {error}") from None


def encode_expiring_offset(offset: int, metadata: str, commit_ms: int, expires_ms: int) -> bytes:
    """In the one version that has an expiry, which has no place for leader epochs and topic ids."""
    value = OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=commit_ms, expire_timestamp=expires_ms)
    return encode_value(value, OFFSET_VALUE_WITH_EXPIRY_VERSION)


def require_offset(value: bytes) -> None:
    """ProtocolError for a value that is too short to have an offset. All of it is read when somebody wants it."""
    if len(value) < _OFFSET.size:
        raise ProtocolError(f"an offset's value has {len(value)} bytes")


def decode_offset(value: bytes) -> OffsetCommitValue | None:
    """None for what does not read: anybody who may write to the topic may have written it."""
    try:
        return OffsetCommitValue.decode(value[VERSION_BYTES:], version_of(value))
    except ProtocolError:
        return None


def is_of_topic(value: bytes, topic_id: bytes) -> bool:
    """Whether an offset is the topic's, and not that of an older one of its name. Without an id it may be."""
    if (
        version_of(value) < OFFSET_VALUE_VERSION
        or value[_TOPIC_ID] == topic_id
        or value[_TOPIC_ID_MARK] != _TOPIC_ID_TAG
    ):
        return True
    stored = decode_offset(value)  # to be sure: metadata may look like anything
    return stored is None or stored.topic_id in (topic_id, ZERO_UUID)


def committed_offset(value: bytes) -> int:
    """The offset alone: it comes first in every version."""
    offset: int = _OFFSET.unpack_from(value)[1]
    return offset
