"""How fast replicas that are far behind may be copied: a rate, and the time until it is kept again. Pure.

Bytes fill a bucket that leaks at the rate. As long as there is something in it nothing more is let through, so that
over any while the rate is exceeded by one fetch at most.
"""

from __future__ import annotations

from collections.abc import Sequence

EVERY_REPLICA = "*"


class Throttle:
    __slots__ = ("_at_ms", "_bytes")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._at_ms = 0

    def note(self, size: int, rate: int, now_ms: int) -> None:
        """So much was let through; `rate` is bytes per second."""
        self._leak(rate, now_ms)
        self._bytes += size

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """Until more may be let through; 0 for now."""
        self._leak(rate, now_ms)
        return 0 if self._bytes <= 0 else int(self._bytes * 1000 / max(rate, 1)) + 1

    def _leak(self, rate: int, now_ms: int) -> None:
        self._bytes = max(self._bytes - rate * (now_ms - self._at_ms) / 1000, 0.0)
        self._at_ms = now_ms


def is_listed(replicas: Sequence[str], index: int, node_id: int) -> bool:
    """Whether a topic's `*.replication.throttled.replicas` name a partition's replica, as partition:broker."""
    return EVERY_REPLICA in replicas or f"{index}:{node_id}" in replicas
