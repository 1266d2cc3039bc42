"""How long a disk lasts at the rate at which it fills now. Pure: samples come in, seconds go out."""

from __future__ import annotations

import math
from collections import deque

SAMPLE_MS = 10_000
# The rate is that of the last five minutes.
SAMPLES_MAX = 31


class SpaceTrend:
    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)

    def note(self, now_ms: int, free_bytes: int) -> None:
        """As often as one likes; one in SAMPLE_MS is kept."""
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, free_bytes))

    def seconds_until_full(self, now_ms: int, free_bytes: int) -> float:
        """Infinite while it does not fill."""
        if not self._samples:
            return math.inf
        since_ms, free_then = self._samples[0]
        used, took_ms = free_then - free_bytes, now_ms - since_ms
        return free_bytes * took_ms / used / 1000 if used > 0 and took_ms > 0 else math.inf
