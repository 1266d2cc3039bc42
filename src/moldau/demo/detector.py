"""Anomalies of one site, found window by window by moving averages and deviations from them. Pure Python.

    detector = Detector(windows_per_day=120)
    seen = detector.step(Measured(window=4711, requests=312, errors=5, latency_ms=148.0))
    seen.trends, seen.anomalies

`baselines` say what is expected, `episodes` when that is missed by so much that it is an anomaly. While one lasts,
nothing is learned from it. It ends when values are as expected again, or, when it has lasted for very long, by becoming
what is usual. Spark keeps a detector's state between windows (`to_json`, `from_json`); tests give it lists.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from moldau.demo.baselines import Expected, Reading, SeasonalBaseline, ShareBaseline
from moldau.demo.episodes import CALM_WINDOWS, HELD_WINDOWS_MAX, Episode, Kind, Severity, Watch, watch_from

# The spread of the logarithm of a count of 1, and of the 95th percentile of one latency.
_COUNT_SPREAD, _PERCENTILE_SPREAD = 1.0, 0.7
# Of a handful of requests no percentile can be told.
_REQUESTS_FOR_LATENCY = 10
_UNITS = {"latency": " ms"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a site did in a window. `window` counts windows from 1970."""

    window: int
    requests: int
    errors: int = 0
    latency_ms: float | None = None  # the 95th percentile


@dataclass(frozen=True, slots=True)
class Trend:
    """A metric's value beside what was expected, and what it was in the same phase of the day before."""

    metric: str
    window: int
    value: float
    expected: float | None
    yesterday: float | None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An anomaly as it is known by now. Its metric and its first window name it."""

    metric: str
    first: int
    last: int
    kind: Kind
    severity: Severity
    value: float  # where it was farthest off
    expected: float
    deviations: float
    is_over: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a window brought."""

    trends: list[Trend]
    anomalies: list[Anomaly]


@dataclass(slots=True)
class _Metric:
    name: str
    baseline: SeasonalBaseline | ShareBaseline
    watch: Watch


class Detector:
    """The metrics of one site."""

    def __init__(self, windows_per_day: int) -> None:
        self.windows_per_day = windows_per_day
        self.last: int | None = None
        phases = windows_per_day
        self._requests = _Metric("requests", SeasonalBaseline.empty(phases, _COUNT_SPREAD), Watch())
        self._latency = _Metric("latency", SeasonalBaseline.empty(phases, _PERCENTILE_SPREAD), Watch())
        self._errors = _Metric("errors", ShareBaseline.empty(phases), Watch())

    def step(self, measured: Measured) -> Seen:
        """A window that is complete and later than all before. Windows left out are a pause, not silence."""
        seen = Seen([], [])
        if self.last is not None and measured.window != self.last + 1:
            self._pause(seen)
        self.last = measured.window
        self._step(self._requests, measured, float(measured.requests), seen)
        self._step(self._errors, measured, float(measured.errors), seen)
        if measured.latency_ms is not None and measured.requests >= _REQUESTS_FOR_LATENCY:
            self._step(self._latency, measured, measured.latency_ms, seen)
        return seen

    def _step(self, metric: _Metric, measured: Measured, value: float, seen: Seen) -> None:
        phase = measured.window % self.windows_per_day
        reading = Reading(measured.window, phase, value, measured.requests)
        expected = metric.baseline.expect(reading)
        yesterday = metric.baseline.yesterday[phase]
        known = None if expected is None else expected.value
        seen.trends.append(Trend(metric.name, measured.window, value, known, yesterday))
        episode = None if expected is None else metric.watch.step(reading, expected)
        metric.baseline.learn(reading, expected, is_anomalous=episode is not None)
        if episode is None or expected is None:
            return
        is_usual_now = reading.window - episode.first >= self._held_max(expected)
        is_over = is_usual_now or episode.calm >= CALM_WINDOWS
        seen.anomalies.append(_anomaly(metric.name, episode, is_over=is_over))
        if is_usual_now:
            metric.baseline.accept(reading, expected)
        if is_over:
            metric.watch.end()

    def _held_max(self, expected: Expected) -> int:
        return self.windows_per_day // 2 if expected.is_seasonal else HELD_WINDOWS_MAX

    def _pause(self, seen: Seen) -> None:
        for metric in (self._requests, self._errors, self._latency):
            if metric.watch.episode is not None:
                seen.anomalies.append(_anomaly(metric.name, metric.watch.episode, is_over=True))
            metric.watch.end()
            metric.baseline.pause()

    # -- between windows -----------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        metrics = {one.name: [asdict(one.baseline), asdict(one.watch)] for one in self._metrics()}
        return json.dumps({"day": self.windows_per_day, "last": self.last, **metrics}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Detector:
        told: dict[str, Any] = json.loads(text)
        found = cls(told["day"])
        found.last = told["last"]
        for metric in found._metrics():
            baseline, watch = told[metric.name]
            metric.baseline = type(metric.baseline)(**baseline)
            metric.watch = watch_from(watch)
        return found

    def _metrics(self) -> tuple[_Metric, ...]:
        return self._requests, self._errors, self._latency


def _anomaly(metric: str, episode: Episode, *, is_over: bool) -> Anomaly:
    return Anomaly(
        metric,
        episode.first,
        episode.last,
        episode.kind,
        episode.severity,
        round(episode.value, 1),
        round(episode.expected, 1),
        round(episode.deviations, 1),
        is_over,
        _explanation(metric, episode),
    )


def _explanation(metric: str, episode: Episode) -> str:
    """One sentence for people."""
    change = (episode.value / episode.expected - 1) * 100 if episode.expected > 0 else None
    by = "" if change is None else f" ({change:+.0f} %)"
    unit = _UNITS.get(metric, "")
    windows = "1 window" if episode.length == 1 else f"{episode.length} windows"
    how = {
        "spike": "jumped up",
        "drop": "fell",
        "level_shift": "went to another level",
        "drift": "moved away little by little",
    }[episode.kind]
    return (
        f"{metric} {how}: {episode.value:.0f}{unit} where {episode.basis} gave {episode.expected:.0f}{by}, "
        f"{abs(episode.deviations):.1f} usual deviations off, for {windows}"
    )
