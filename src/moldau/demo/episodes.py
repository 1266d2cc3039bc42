"""When an anomaly begins, what it is, and when it is over, from deviations alone. Pure.

What exceeds `ALLOWED` adds up, in either direction, and an anomaly begins when the sum exceeds `ALARM`: at once for
what is far off, after a while for what is a little off all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from moldau.demo.baselines import Expected, Reading

Kind = Literal["spike", "drop", "level_shift", "drift"]
Severity = Literal["minor", "major", "critical"]

ALLOWED = 1.2
ALARM = 6.0
DEVIATIONS_MAX = 9.0  # more in one window say nothing more
# Less than this in so many windows ends an anomaly.
CALM = 2.2
CALM_WINDOWS = 2
# Up to here it is a spike or a drop, then the level has shifted.
SHORT_WINDOWS = 8
# What took so long to add up came little by little.
GRADUAL_WINDOWS = 3
MAJOR, CRITICAL = 8.0, 14.0
# A moving average cannot be held for longer.
HELD_WINDOWS_MAX = 12


@dataclass(slots=True)
class Episode:
    """An anomaly of one metric."""

    first: int
    sign: int
    is_gradual: bool
    last: int
    calm: int = 0
    # Where it was farthest off.
    value: float = 0.0
    expected: float = 0.0
    deviations: float = 0.0
    basis: str = ""

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def kind(self) -> Kind:
        if self.is_gradual:
            return "drift"
        if self.length > SHORT_WINDOWS:
            return "level_shift"
        return "spike" if self.sign > 0 else "drop"

    @property
    def severity(self) -> Severity:
        far = abs(self.deviations)
        return "critical" if far >= CRITICAL else "major" if far >= MAJOR else "minor"

    def note(self, reading: Reading, expected: Expected) -> None:
        if expected.deviations * self.sign >= CALM:
            self.calm = 0
            self.last = reading.window
        else:
            self.calm += 1
        if abs(expected.deviations) > abs(self.deviations) and expected.deviations * self.sign > 0:
            self.value, self.expected, self.deviations = reading.value, expected.value, expected.deviations
            self.basis = expected.basis


@dataclass(slots=True)
class _Sum:
    total: float = 0.0
    first: int = 0

    def add(self, deviations: float, window: int) -> None:
        if self.total == 0.0:
            self.first = window
        self.total = max(0.0, self.total + min(deviations, DEVIATIONS_MAX) - ALLOWED)


@dataclass(slots=True)
class Watch:
    """The sums of one metric, and the anomaly at hand."""

    up: _Sum = field(default_factory=_Sum)
    down: _Sum = field(default_factory=_Sum)
    episode: Episode | None = None

    def step(self, reading: Reading, expected: Expected) -> Episode | None:
        """The anomaly at hand; with `calm` at `CALM_WINDOWS` it is over."""
        if self.episode is None:
            self._add(reading, expected)
        if self.episode is not None:
            self.episode.note(reading, expected)
        return self.episode

    def end(self) -> None:
        self.up, self.down, self.episode = _Sum(), _Sum(), None

    def _add(self, reading: Reading, expected: Expected) -> None:
        for total, sign in ((self.up, 1), (self.down, -1)):
            total.add(sign * expected.deviations, reading.window)
            if total.total > ALARM and self.episode is None:
                took = reading.window - total.first
                is_gradual = expected.is_seasonal and took >= GRADUAL_WINDOWS
                self.episode = Episode(total.first, sign, is_gradual, reading.window)


def watch_from(told: dict[str, object]) -> Watch:
    """The reverse of `dataclasses.asdict`."""
    up, down, episode = told["up"], told["down"], told["episode"]
    assert isinstance(up, dict) and isinstance(down, dict)
    return Watch(_Sum(**up), _Sum(**down), Episode(**episode) if isinstance(episode, dict) else None)
