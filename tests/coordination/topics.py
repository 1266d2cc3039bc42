"""A cluster's topics, made and changed by hand."""

from __future__ import annotations

from collections.abc import Iterable


class Topics:
    """A `TopicView`: partitions by name, and racks by partition where a test has them."""

    def __init__(self, **counts: int) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, bytes] = {}
        self.rack_map: dict[tuple[str, int], frozenset[str]] = {}
        self._made = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._made += 1
        self.counts[name] = count
        self.ids[name] = self._made.to_bytes(16, "big")

    def delete(self, name: str) -> None:
        del self.counts[name], self.ids[name]

    def names(self) -> Iterable[str]:
        return self.counts

    def partition_count(self, name: str) -> int | None:
        return self.counts.get(name)

    def topic_id(self, name: str) -> bytes | None:
        return self.ids.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        return self.rack_map.get((name, partition), frozenset())
