"""Durations as ISO 8601 writes them, as far as its units have one length: `PT1H30M`, `P2D`, `PT0.5S`."""

from __future__ import annotations

import re

_DURATION = (
    r"P(?=.)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
DURATION_MS_MAX = 2**62


def parse_duration_ms(text: str) -> int | None:
    """None when it is no such duration, or longer than any clock can tell."""
    found = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        return None
    milliseconds = sum(float(found[unit] or 0) * seconds for unit, seconds in _SECONDS.items()) * 1000
    return round(milliseconds) if milliseconds <= DURATION_MS_MAX else None
