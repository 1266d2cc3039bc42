"""What is to be expected of a metric: moving averages and usual deviations. Pure.

A baseline is asked before it learns. While an anomaly lasts it learns nothing but that time goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WARM_UP_WINDOWS = 8
# Phases of the days before that are averaged, on either side.
NEIGHBOURS = 3
# Weights of the newest value in the moving averages.
_LEVEL, _SLOPE, _DEVIATION, _TODAY, _DAY_BEFORE = 0.25, 0.04, 0.05, 0.01, 0.5
# While it warms up.
_FIRST_LEVEL, _FIRST_SLOPE = 0.4, 0.1
# A single value far off is no reason to take all deviations for larger.
_DEVIATIONS_LEARNT_MAX = 3.0
_MEAN_TO_DEVIATION = 1.25  # of a normal distribution
LEAST_DEVIATION = 0.05  # five per cent


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value in a window; `phase` is the window's number within the day."""

    window: int
    phase: int
    value: float
    requests: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a value is compared with."""

    value: float
    deviations: float  # so far off is the reading, counted in usual deviations
    basis: str
    is_seasonal: bool = False


@dataclass(slots=True)
class SeasonalBaseline:
    """A metric with a rhythm, by its logarithm.

    On the first day: a moving average with a slope. Then: the same phase of the days before, averaged with its
    neighbours, and how today differs from it.
    """

    before: list[float | None]  # by phase: the average of the days before, without their anomalies
    yesterday: list[float | None]  # by phase: the newest value as it was
    samples_spread: float  # by how much a value of one request would deviate
    level: float = 0.0
    slope: float = 0.0
    today: float = 0.0
    deviation: float = 0.0
    seen: int = 0

    @classmethod
    def empty(cls, phases: int, samples_spread: float) -> SeasonalBaseline:
        return cls([None] * phases, [None] * phases, samples_spread)

    def expect(self, reading: Reading) -> Expected | None:
        seasonal = self._seasonal(reading.phase)
        if seasonal is None and self.seen < WARM_UP_WINDOWS:
            return None
        centre = seasonal if seasonal is not None else self.level + self.slope
        value = math.exp(centre) - 1
        # What chance alone makes of so few requests; of those that were expected, where requests are what is counted.
        samples = max(value if reading.value == reading.requests else float(reading.requests), 1.0)
        spread = max(self.deviation, math.hypot(self.samples_spread / math.sqrt(samples), LEAST_DEVIATION))
        off = (math.log1p(reading.value) - centre) / spread
        basis = "the moving average" if seasonal is None else "the days before at this time"
        return Expected(max(value, 0.0), off, basis, seasonal is not None)

    def learn(self, reading: Reading, expected: Expected | None, *, is_anomalous: bool) -> None:
        value = math.log1p(reading.value)
        self.yesterday[reading.phase] = reading.value
        if is_anomalous and expected is not None:
            value = math.log1p(expected.value)
        elif expected is not None:
            off = value - math.log1p(expected.value)
            most = _DEVIATIONS_LEARNT_MAX * max(self.deviation, LEAST_DEVIATION)
            self.deviation += _DEVIATION * (_MEAN_TO_DEVIATION * min(abs(off), most) - self.deviation)
            if expected.is_seasonal:
                self.today += _TODAY * off
        # Without what today is off, so that a level that has shifted for good is not counted twice tomorrow.
        known, rhythm = self.before[reading.phase], value - self.today
        self.before[reading.phase] = rhythm if known is None else known + _DAY_BEFORE * (rhythm - known)
        self._follow(value)

    def accept(self, reading: Reading, expected: Expected) -> None:
        """What has lasted for so long is what is usual."""
        value = math.log1p(reading.value)
        if expected.is_seasonal:
            self.today += value - math.log1p(expected.value)
        self.level, self.slope = value, 0.0

    def pause(self) -> None:
        """Windows are missing: what is moving has to begin again."""
        self.level = self.slope = 0.0
        self.seen = 0

    def _seasonal(self, phase: int) -> float | None:
        count = len(self.before)
        reach = range(phase - NEIGHBOURS, phase + NEIGHBOURS + 1)
        near = [one for other in reach if (one := self.before[other % count]) is not None]
        return sum(near) / len(near) + self.today if len(near) == len(reach) else None

    def _follow(self, value: float) -> None:
        if self.seen == 0:
            self.level = value
        else:
            is_warm = self.seen >= WARM_UP_WINDOWS
            rest = value - self.level - self.slope
            self.level += self.slope + (_LEVEL if is_warm else _FIRST_LEVEL) * rest
            self.slope += (_SLOPE if is_warm else _FIRST_SLOPE) * rest
        self.seen += 1


@dataclass(slots=True)
class ShareBaseline:
    """Errors among requests. The root of a count deviates by a half, however large the count."""

    share: float = 0.0
    seen: int = 0
    yesterday: list[float | None] = field(default_factory=list)

    @classmethod
    def empty(cls, phases: int) -> ShareBaseline:
        return cls(yesterday=[None] * phases)

    def expect(self, reading: Reading) -> Expected | None:
        if self.seen < WARM_UP_WINDOWS:
            return None
        value = self.share * reading.requests
        off = 2 * (math.sqrt(reading.value + 0.375) - math.sqrt(value + 0.375))
        return Expected(value, off, "the moving average")

    def learn(self, reading: Reading, expected: Expected | None, *, is_anomalous: bool) -> None:
        self.yesterday[reading.phase] = reading.value
        if not is_anomalous and reading.requests:
            self.seen += 1
            # A plain average first, a moving one then.
            weight = max(_DEVIATION, 1 / self.seen)
            self.share += weight * (min(reading.value / reading.requests, 1.0) - self.share)

    def accept(self, reading: Reading, expected: Expected) -> None:
        self.share = reading.value / max(reading.requests, 1)

    def pause(self) -> None:
        """A share has no rhythm that goes on meanwhile."""
