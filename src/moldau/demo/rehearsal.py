"""Days of traffic in seconds: generator, windows and detector without broker, Spark or clock, to score the detector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moldau.demo.detector import Anomaly, Detector, Measured
from moldau.demo.scale import Scale
from moldau.demo.scoring import Score, Span, score
from moldau.demo.traffic import RATE_DEFAULT, Requests, requests_of_minute
from moldau.demo.world import SITES_DEFAULT, World

START_MS = 1_789_999_800_000


def rehearse(seed: int, scale: Scale, days: int, rate: float = RATE_DEFAULT, sites: int = SITES_DEFAULT) -> Score:
    """The score of so many days of a seed."""
    world = World(seed, scale, START_MS, sites)
    detectors = [Detector(scale.minutes_per_day) for _ in world.sites]
    found: dict[tuple[str, str, int], Anomaly] = {}
    first = world.start_ms // scale.minute_ms
    for minute in range(first, first + days * scale.minutes_per_day):
        for index, measured in enumerate(measures(world, requests_of_minute(world, rate, minute))):
            for anomaly in detectors[index].step(measured).anomalies:
                found[world.sites[index].name, anomaly.metric, anomaly.first] = anomaly
    until = world.start_ms + days * scale.day_ms
    put_in = [Span(one.site, one.metric, one.kind, one.start_ms, one.end_ms) for one in world.anomalies(until)]
    return score(put_in, [span_of(site, one, scale) for (site, *_), one in found.items()], scale.minute_ms)


def measures(world: World, requests: Requests) -> Iterator[Measured]:
    """What each site did in a minute."""
    for index in range(len(world.sites)):
        own = requests.site == index
        count = int(own.sum())
        latency = float(np.percentile(requests.latency_ms[own], 95)) if count else None
        yield Measured(requests.minute, count, int(requests.failed[own].sum()), latency)


def span_of(site: str, anomaly: Anomaly, scale: Scale) -> Span:
    begin, end = anomaly.first * scale.minute_ms, (anomaly.last + 1) * scale.minute_ms
    return Span(site, anomaly.metric, anomaly.kind, begin, end)
