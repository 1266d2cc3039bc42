"""Which partition of an internal topic a group or transaction belongs to: Java's String.hashCode, as Kafka's tools."""

from __future__ import annotations

from functools import lru_cache

_INT32 = 0xFFFFFFFF
KEYS_REMEMBERED_MAX = 1 << 16  # every request of a group asks again


def java_string_hash(text: str) -> int:
    """As Java computes it: over UTF-16 code units, in 32 bits with sign."""
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & _INT32
    return result - (1 << 32) if result >> 31 else result


@lru_cache(maxsize=KEYS_REMEMBERED_MAX)
def partition_of(key: str, partitions: int) -> int:
    """Kafka's `Utils.abs`: the smallest integer has no opposite and counts as 0."""
    code = java_string_hash(key)
    return (0 if code == -(1 << 31) else abs(code)) % partitions
