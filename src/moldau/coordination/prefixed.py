"""Keys and values of internal topics: a version, then the message. A key's version tells the kinds of records apart."""

from __future__ import annotations

import struct

from moldau.protocol.message import Message
from moldau.protocol.wire import ProtocolError

_VERSION = struct.Struct(">h")
VERSION_BYTES = _VERSION.size


def encode_key(key: Message) -> bytes:
    return _VERSION.pack(key.API_KEY) + key.encode(0)


def encode_value(value: Message, version: int) -> bytes:
    return _VERSION.pack(version) + value.encode(version)


def kind_of(key: bytes) -> int:
    """ProtocolError for a key that is too short to have a kind."""
    try:
        kind: int = _VERSION.unpack_from(key)[0]
    except struct.error:
        raise ProtocolError("a record's key has no version") from None
    return kind


def version_of(value: bytes) -> int:
    return kind_of(value)
