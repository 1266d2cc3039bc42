"""Precision and recall of the anomalies that were found, against those that the generator put in. Pure.

An anomaly that was found is right when one was put in at that site, into that metric, at that time: a window more
before, for sums begin before they alarm, and two more behind, for an end is seen when it is over. One that was put in
counts as met when one that was found is right about it. Kinds may differ; how often they do is told beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BEFORE_WINDOWS, BEHIND_WINDOWS = 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """An anomaly, put in or found: a time at a site's metric."""

    site: str
    metric: str
    kind: str
    start_ms: int
    end_ms: int  # before this


@dataclass(frozen=True, slots=True)
class Score:
    """What came of a comparison."""

    put_in: int
    found: int
    right: int  # of those that were found
    met: int  # of those that were put in
    named: int  # of those that were met: whose kind was told as well
    missed: tuple[Span, ...]
    wrong: tuple[Span, ...]

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.met / self.put_in if self.put_in else 0.0


def score(put_in: Sequence[Span], found: Sequence[Span], minute_ms: int, also: Sequence[Span] = ()) -> Score:
    """`also` are such as were put in too, and are not asked for: they were cut short, or are not over yet."""
    right = [one for one in found if any(_meet(truth, one, minute_ms) for truth in (*put_in, *also))]
    met = {truth: [one for one in found if _meet(truth, one, minute_ms)] for truth in put_in}
    return Score(
        len(put_in),
        len(found),
        len(right),
        sum(1 for ones in met.values() if ones),
        sum(1 for truth, ones in met.items() if any(one.kind == truth.kind for one in ones)),
        tuple(truth for truth, ones in met.items() if not ones),
        tuple(one for one in found if one not in right),
    )


def visible(spans: Iterable[Span], from_ms: int, until_ms: int) -> list[Span]:
    """Those that lie in a time that was looked at."""
    return [one for one in spans if from_ms <= one.start_ms and one.end_ms <= until_ms]


def _meet(truth: Span, found: Span, minute_ms: int) -> bool:
    begin, end = truth.start_ms - BEFORE_WINDOWS * minute_ms, truth.end_ms + BEHIND_WINDOWS * minute_ms
    return truth.site == found.site and truth.metric == found.metric and found.start_ms < end and begin < found.end_ms
