"""The sites of the demo, how busy they are at any moment, and what goes wrong there. All of it follows from a seed.

A site has its own size, users, latency and rhythm of the day, and slow weather of a few per cent that nobody is to
take for an anomaly. Anomalies are drawn site by site and day by day: spikes and drops from the beginning, level shifts
and slow drifts from the second day on, when there is a yesterday that they stand out from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from moldau.demo.scale import Scale

Metric = Literal["requests", "errors", "latency"]
Kind = Literal["spike", "drop", "level_shift", "drift"]

_NAMES = (
    "praha", "brno", "plzen", "ostrava", "liberec", "olomouc", "budejovice", "pardubice",
    "zlin", "kladno", "opava", "jihlava", "tabor", "pisek", "melnik", "krumlov",
)  # fmt: skip
SITES_DEFAULT = 8
SITES_MAX = 200
# Minutes at a site before its first anomaly, and between two of them.
_QUIET_FIRST = 24
_QUIET = (28, 75)
_WEATHER_DAYS = (0.37, 0.83, 2.3)
_WEATHER = 0.015


@dataclass(frozen=True, slots=True)
class Site:
    """A group of tenants."""

    name: str
    share: float  # of all requests, on average
    users: int
    latency_ms: float  # median
    error_share: float
    peak: float  # when it is busiest, as a part of the day
    weather: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Injected:
    """An anomaly: from `start_ms` to before `end_ms` the metric is `factor` times what it would be; a drift gets there
    in the end."""

    site: str
    metric: Metric
    kind: Kind
    start_ms: int
    end_ms: int
    factor: float

    def factor_at(self, at_ms: float) -> float:
        if not self.start_ms <= at_ms < self.end_ms:
            return 1.0
        if self.kind != "drift":
            return self.factor
        return float(self.factor ** ((at_ms - self.start_ms) / (self.end_ms - self.start_ms)))


# What may happen, how often, for how many minutes, how strongly.
_MENU: Sequence[tuple[Metric, Kind, float, tuple[int, int], tuple[float, float]]] = (
    ("requests", "spike", 2.0, (2, 4), (2.0, 3.2)),
    ("requests", "drop", 2.0, (3, 6), (0.2, 0.45)),
    ("latency", "spike", 2.0, (2, 4), (2.0, 3.5)),
    ("errors", "spike", 2.0, (3, 6), (8.0, 14.0)),
    ("requests", "level_shift", 1.0, (16, 30), (1.6, 2.1)),
    ("latency", "level_shift", 1.0, (16, 30), (1.6, 2.2)),
    ("requests", "drift", 1.0, (30, 45), (1.9, 2.4)),
    ("latency", "drift", 1.0, (30, 45), (1.9, 2.6)),
)


class World:
    """Everything that is known of a seed, from the moment that it starts."""

    def __init__(self, seed: int, scale: Scale, start_ms: int, sites: int = SITES_DEFAULT) -> None:
        self.seed, self.scale = seed, scale
        self.start_ms = start_ms - start_ms % scale.minute_ms
        self.sites = _sites(seed, sites)
        self._anomalies: dict[tuple[int, int], tuple[Injected, ...]] = {}

    def activity(self, site: Site, at_ms: float) -> float:
        """How busy the site is, 1 on average."""
        day = at_ms / self.scale.day_ms
        turn = 2 * math.pi * (day - site.peak)
        weather = sum(
            _WEATHER * math.sin(2 * math.pi * (day / days + offset))
            for days, offset in zip(_WEATHER_DAYS, site.weather, strict=True)
        )
        return (1 + 0.5 * math.cos(turn) + 0.1 * math.cos(2 * turn)) * math.exp(weather)

    def factor(self, site_index: int, metric: Metric, at_ms: float) -> float:
        """What an anomaly makes of the metric at that moment."""
        day = int(at_ms - self.start_ms) // self.scale.day_ms
        factor = 1.0
        for one in self.anomalies_of(site_index, day):
            if one.metric == metric:
                factor *= one.factor_at(at_ms)
        return factor

    def anomalies_of(self, site_index: int, day: int) -> tuple[Injected, ...]:
        """Those of a site that begin and end within the day, which is counted from the start."""
        if (site_index, day) not in self._anomalies:
            self._anomalies[site_index, day] = tuple(self._draw(site_index, day)) if day >= 0 else ()
        return self._anomalies[site_index, day]

    def anomalies(self, until_ms: int) -> list[Injected]:
        """All that began before then, by their beginning."""
        days = max(0, until_ms - self.start_ms) // self.scale.day_ms + 1
        found = [
            one for day in range(days) for index in range(len(self.sites)) for one in self.anomalies_of(index, day)
        ]
        return sorted((one for one in found if one.start_ms < until_ms), key=lambda one: (one.start_ms, one.site))

    def _draw(self, site_index: int, day: int) -> Iterator[Injected]:
        dice = np.random.default_rng([self.seed, 1, site_index, day])
        menu = [one for one in _MENU if day > 0 or one[1] in ("spike", "drop")]
        weights = np.array([one[2] for one in menu])
        begin = self.start_ms + day * self.scale.day_ms
        minute = (_QUIET_FIRST if day == 0 else 0) + int(dice.integers(4, _QUIET[1] // 2))
        while True:
            metric, kind, _, lengths, factors = menu[int(dice.choice(len(menu), p=weights / weights.sum()))]
            length = int(dice.integers(lengths[0], lengths[1] + 1))
            factor = float(dice.uniform(*factors))
            # The next day's first one keeps its distance, too.
            if minute + length > self.scale.minutes_per_day - _QUIET[0] // 2:
                return
            start = begin + minute * self.scale.minute_ms
            end = start + length * self.scale.minute_ms
            yield Injected(self.sites[site_index].name, metric, kind, start, end, round(factor, 2))
            minute += length + int(dice.integers(*_QUIET))


def _sites(seed: int, count: int) -> tuple[Site, ...]:
    dice: Any = np.random.default_rng([seed, 0])
    sizes = dice.uniform(0.6, 1.6, count)
    sizes /= sizes.sum()
    found = []
    for index, size in enumerate(sizes):
        name = _NAMES[index % len(_NAMES)] + ("" if index < len(_NAMES) else f"-{index // len(_NAMES) + 1}")
        users = int(size * count * dice.uniform(250, 600))
        latency = float(dice.uniform(30, 110))
        errors = float(dice.uniform(0.015, 0.03))
        peak = float(dice.normal(0.6, 0.06))
        found.append(Site(name, float(size), users, latency, errors, peak, tuple(dice.uniform(0, 1, 3))))
    return tuple(found)
