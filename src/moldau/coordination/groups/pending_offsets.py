"""Offsets committed within transactions that are still open: they count when the transaction is committed.

Of two commits of one partition the later one in the log counts, whenever its transaction ends: what a pending offset
finds in its place when its time comes may be newer than itself (KAFKA-16654's rule). Knows no log: order is the order
in which things are told here, which replay repeats.
"""

from __future__ import annotations

from collections.abc import Iterator

# Group, topic, partition.
OffsetKey = tuple[str, str, int]


class PendingOffsets:
    def __init__(self) -> None:
        # Producer id -> what it committed, with its place in the order; no value where a later commit counts already.
        self._by_producer: dict[int, dict[OffsetKey, tuple[int, bytes | None]]] = {}
        self._holders: dict[OffsetKey, set[int]] = {}
        self._place = 0

    def __bool__(self) -> bool:
        return bool(self._holders)

    def __contains__(self, key: OffsetKey) -> bool:
        return key in self._holders

    def has_group(self, group: str) -> bool:
        return any(key[0] == group for key in self._holders)

    def of_group(self, group: str) -> list[OffsetKey]:
        return [key for key in self._holders if key[0] == group]

    def of_topics(self, topics: frozenset[str]) -> list[OffsetKey]:
        return [key for key in self._holders if key[1] in topics]

    def topics(self) -> set[str]:
        return {key[1] for key in self._holders}

    def add(self, producer_id: int, key: OffsetKey, value: bytes) -> None:
        self._place += 1
        self._by_producer.setdefault(producer_id, {})[key] = (self._place, value)
        self._holders.setdefault(key, set()).add(producer_id)

    def supersede(self, key: OffsetKey) -> None:
        """A plain commit came later."""
        self._supersede(key, self._place + 1)

    def _supersede(self, key: OffsetKey, place: int) -> None:
        for producer_id in self._holders.get(key, ()):
            held = self._by_producer[producer_id]
            if held[key][0] < place:
                held[key] = (held[key][0], None)

    def forget(self, key: OffsetKey) -> None:
        """The offset is deleted: nothing that is pending brings it back."""
        for producer_id in self._holders.pop(key, ()):
            held = self._by_producer[producer_id]
            del held[key]
            if not held:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, committed: bool) -> Iterator[tuple[OffsetKey, bytes]]:
        """The transaction is over: what counts now."""
        for key, (place, value) in self._by_producer.pop(producer_id, {}).items():
            holders = self._holders[key]
            holders.discard(producer_id)
            if not holders:
                del self._holders[key]
            if committed and value is not None:
                self._supersede(key, place)
                yield key, value
