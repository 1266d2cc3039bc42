"""Where to begin reading a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first record whose timestamp is at least this; at the end when there is none."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LastOf:
    """Start with the records of the last so many milliseconds, counted when the place is looked for (KIP-1106)."""

    duration_ms: int


Start = int | Literal["earliest", "latest"] | AtTime | LastOf
