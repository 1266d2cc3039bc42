"""How long the demo's day, hour and minute are.

A day can be shortened, so that its rhythm is seen without waiting for it. It has 24 hours always. An hour has 60
minutes, or as many as leave a minute of two seconds at least: with 1000 events a second, shorter ones would show
little but chance. So a day of 5 minutes has hours of 12.5 s and minutes of 2.5 s, 120 a day; a real day has real ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

REAL_DAY_MS = 24 * 3600 * 1000
SHORTEST_DAY_MS = 2 * 60 * 1000
SHORTEST_MINUTE_MS = 2000
_TEXT = re.compile(r"(\d+)([mh])")
_MINUTES_OF_AN_HOUR = (60, 30, 20, 15, 12, 10, 6, 5, 4, 3, 2, 1)


@dataclass(frozen=True, slots=True)
class Scale:
    """Windows begin at multiples of their length since 1970, as Spark's do."""

    day_ms: int
    hour_ms: int
    minute_ms: int

    @property
    def minutes_per_day(self) -> int:
        return self.day_ms // self.minute_ms

    @property
    def lateness_ms(self) -> int:
        """How late an event may come: one minute."""
        return self.minute_ms

    def minute_of(self, at_ms: int) -> int:
        """The number of the minute, counted from 1970."""
        return at_ms // self.minute_ms


def scale_from(text: str) -> Scale:
    """The scale of a day that is written as 5m or 24h; ValueError with one line otherwise."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no length of a day: write 5m, or 24h")
    return scale_of(int(found[1]) * (3_600_000 if found[2] == "h" else 60_000))


def scale_of(day_ms: int) -> Scale:
    """The scale of a day's length, which must be whole minutes; ValueError with one line otherwise."""
    if day_ms % 60_000 or not SHORTEST_DAY_MS <= day_ms <= REAL_DAY_MS:
        raise ValueError("a day has whole minutes, from 2m to 24h")
    hour_ms = day_ms // 24
    for minutes in _MINUTES_OF_AN_HOUR:
        if hour_ms % minutes == 0 and hour_ms // minutes >= SHORTEST_MINUTE_MS:
            return Scale(day_ms, hour_ms, hour_ms // minutes)
    raise AssertionError("an hour of the shortest day is longer than the shortest minute")
