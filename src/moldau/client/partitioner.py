"""Which partition a record goes to.

With a key: `(murmur2(key) & 0x7fffffff) % partitions`, bit for bit as Java's client, so that records of one key from
clients of any language meet. Without: the sticky partitioner of `accumulator.TopicLanes`, which fills one batch after
the other instead of all of them a little (KIP-480, KIP-794).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

# (topic, key, value, partition count) -> partition
Partitioner = Callable[[str, bytes | None, bytes | None, int], int]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_words_of = struct.Struct("<I").iter_unpack


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Java's client, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in _words_of(data[:whole] if whole != length else data):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


# Keys come again: remember the hashes of short ones.
_REMEMBERED_KEYS_MAX = 8192
_REMEMBERED_KEY_BYTES_MAX = 64
_remembered_hash = lru_cache(maxsize=_REMEMBERED_KEYS_MAX)(murmur2)


def partition_of_key(key: bytes, partition_count: int) -> int:
    hashed = _remembered_hash(key) if len(key) <= _REMEMBERED_KEY_BYTES_MAX else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partition_count


class RoundRobin:
    """Every topic's partitions in turn, keys or not."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partition_count
