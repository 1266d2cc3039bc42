"""Timers of a state machine: many, moved far more often than they end.

Moving a deadline back costs a dictionary write: the heap's entry stays and is put where it belongs when it comes up.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    __slots__ = ("_count", "_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        # When each key's entry of the heap comes up: at its deadline or before.
        self._queued: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._count = 0  # keys need no order of their own

    def set(self, key: Key, deadline_ms: int) -> None:
        self._due[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        self._due.pop(key, None)

    def get(self, key: Key) -> int | None:
        return self._due.get(key)

    def __len__(self) -> int:
        return len(self._due)

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        self._count += 1
        heapq.heappush(self._heap, (deadline_ms, self._count, key))

    @property
    def next_ms(self) -> int | None:
        """No deadline is earlier; the entry at that time may have been moved or cancelled."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> Iterator[Key]:
        """Keys whose time has come, in the order of their deadlines; each is forgotten."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # an earlier entry took its place
            del self._queued[key]
            due_ms = self._due.get(key)
            if due_ms is None:
                continue
            if due_ms > now_ms:
                self._push(key, due_ms)
                continue
            del self._due[key]
            yield key
