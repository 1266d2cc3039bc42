"""Why a group was rebalanced lately, for whoever asks. Not kept over a restart."""

from __future__ import annotations

import json
from collections import deque
from typing import NamedTuple

REBALANCES_KEPT = 10
# Reasons name members and carry what clients say; both are as long as clients please.
REASON_CHARACTERS_MAX = 300
# A tagged field that no version of Kafka has, of a described group: for our own clients, others skip it.
HISTORY_TAG = 10_001


class Rebalance(NamedTuple):
    began_ms: int
    duration_ms: int
    # Of the generation, or the group epoch, that it led to.
    generation: int
    members: int
    reason: str


class History:
    __slots__ = ("_began", "completed", "last", "total_ms")

    def __init__(self) -> None:
        self._began: tuple[int, str] | None = None
        self.last: deque[Rebalance] = deque(maxlen=REBALANCES_KEPT)
        self.completed = 0
        self.total_ms = 0

    def tagged(self) -> tuple[tuple[int, bytes], ...]:
        """The last rebalances as JSON, oldest first."""
        if not self.last:
            return ()
        return ((HISTORY_TAG, json.dumps([rebalance._asdict() for rebalance in self.last]).encode()),)

    def begin(self, wall_ms: int, reason: str) -> None:
        """A rebalance that begins before the last one ended is part of it: the first reason counts."""
        if self._began is None:
            self._began = (wall_ms, shortened(reason))

    def end(self, wall_ms: int, generation: int, members: int) -> None:
        if self._began is None:
            return
        began_ms, reason = self._began
        duration_ms = max(wall_ms - began_ms, 0)
        self.last.append(Rebalance(began_ms, duration_ms, generation, members, reason))
        self.completed += 1
        self.total_ms += duration_ms
        self._began = None


def shortened(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + "..."
