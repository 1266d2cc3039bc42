"""The detector on lists: what it takes for an anomaly, of which kind, until when, and what it leaves alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from moldau.demo.detector import Anomaly, Detector, Measured

DAY = 120
FIRST = 5_000 * DAY
SEED = 11


def usual(window: int, dice: random.Random) -> Measured:
    """A site's day with its rhythm, and chance."""
    requests = 300 * (1 + 0.5 * math.cos(2 * math.pi * window / DAY))
    count = max(0, round(dice.gauss(requests, math.sqrt(requests))))
    errors = sum(dice.random() < 0.02 for _ in range(count))
    return Measured(window, count, errors, 100 * math.exp(dice.gauss(0, 0.05)))


Change = Callable[[int, Measured], Measured]


def watched(windows: int, change: Change, detector: Detector | None = None, begin: int = FIRST) -> list[Anomaly]:
    """The anomalies of so many windows, as they are known in the end."""
    dice = random.Random(SEED)
    found: dict[tuple[str, int], Anomaly] = {}
    detector = detector or Detector(DAY)
    for window in range(begin, begin + windows):
        for one in detector.step(change(window - begin, usual(window, dice))).anomalies:
            found[one.metric, one.first] = one
    return list(found.values())


def times(factor: float, begin: int, end: int, metric: str = "requests") -> Change:
    def change(at: int, was: Measured) -> Measured:
        if not begin <= at < end:
            return was
        if metric == "requests":
            return Measured(was.window, round(was.requests * factor), was.errors, was.latency_ms)
        if metric == "errors":
            return Measured(was.window, was.requests, round((was.errors + 1) * factor), was.latency_ms)
        assert was.latency_ms is not None
        return Measured(was.window, was.requests, was.errors, was.latency_ms * factor)

    return change


def test_days_as_usual_have_no_anomaly() -> None:
    assert watched(4 * DAY, lambda at, was: was) == []


@pytest.mark.parametrize(
    ("change", "metric", "kind"),
    [
        (times(2.5, 40, 43), "requests", "spike"),
        (times(0.3, 70, 74), "requests", "drop"),
        (times(0.0, 70, 73), "requests", "drop"),
        (times(3, 50, 52, "latency"), "latency", "spike"),
        (times(10, 50, 54, "errors"), "errors", "spike"),
        (times(1.8, DAY + 40, DAY + 65), "requests", "level_shift"),
        (times(1.8, 2 * DAY + 40, 2 * DAY + 65, "latency"), "latency", "level_shift"),
    ],
)
def test_what_is_put_in_is_found_once_with_its_kind_and_its_windows(change: Change, metric: str, kind: str) -> None:
    found = watched(3 * DAY, change)
    assert [(one.metric, one.kind) for one in found] == [(metric, kind)]
    changed = [at for at in range(3 * DAY) if change(at, Measured(0, 100, 10, 10.0)) != Measured(0, 100, 10, 10.0)]
    assert found[0].first - FIRST in range(changed[0] - 1, changed[0] + 2)
    assert found[0].last - FIRST in range(changed[-1] - 1, changed[-1] + 2)
    assert found[0].is_over


def test_what_changes_little_by_little_is_a_drift() -> None:
    def change(at: int, was: Measured) -> Measured:
        return times(2.2 ** ((at - 2 * DAY - 30) / 40), 2 * DAY + 30, 2 * DAY + 70)(at, was)

    (found,) = watched(3 * DAY, change)
    assert (found.metric, found.kind) == ("requests", "drift")
    assert 2 * DAY + 25 <= found.first - FIRST <= 2 * DAY + 50


def test_a_new_level_that_stays_becomes_what_is_usual() -> None:
    found = watched(4 * DAY, times(1.8, DAY + 40, 4 * DAY))
    assert [one.kind for one in found] == ["level_shift"]
    assert found[0].is_over and found[0].last - found[0].first <= DAY // 2 + 2


def test_an_anomaly_is_told_while_it_lasts_and_severity_grows_with_it() -> None:
    detector, dice = Detector(DAY), random.Random(SEED)
    told = []
    for at in range(DAY):
        was = usual(FIRST + at, dice)
        change = times(1.6 + 1.5 * (at - 60), 60, 64)
        told += [one for one in detector.step(change(at, was)).anomalies if one.metric == "requests"]
    assert [one.is_over for one in told] == [False] * (len(told) - 1) + [True]
    assert abs(told[-1].deviations) >= abs(told[0].deviations)
    assert (told[0].severity, told[-1].severity) == ("major", "critical")
    assert {one.first for one in told} == {told[0].first}


def test_the_explanation_says_what_was_and_what_was_expected() -> None:
    (found,) = watched(DAY, times(2.5, 40, 43))
    assert found.explanation.startswith("requests jumped up: ")
    assert f"{found.value:.0f} where the moving average gave {found.expected:.0f}" in found.explanation
    assert "usual deviations off, for 3 windows" in found.explanation


def test_a_pause_is_no_drop_and_ends_what_lasted() -> None:
    detector = Detector(DAY)
    (before,) = watched(60, times(3.0, 58, 60), detector)
    assert not before.is_over
    after = watched(30, lambda at, was: was, detector, begin=FIRST + 80)
    assert [(one.first, one.is_over) for one in after] == [(before.first, True)]


def test_after_a_pause_what_is_usual_is_learned_anew() -> None:
    """It went on half a day later, when there is three times as much."""
    detector = Detector(DAY)
    assert watched(60, lambda at, was: was, detector) == []
    assert watched(50, lambda at, was: was, detector, begin=FIRST + DAY - 20) == []


def test_a_detector_goes_on_from_its_text_as_if_nothing_had_been() -> None:
    one, dice = Detector(DAY), random.Random(SEED)
    other = Detector(DAY)
    for at in range(2 * DAY + 50):
        measured = times(2.0, 2 * DAY + 40, 2 * DAY + 60)(at, usual(FIRST + at, dice))
        assert one.step(measured) == other.step(measured)
        other = Detector.from_json(other.to_json())


def test_trends_have_yesterday_and_what_was_expected() -> None:
    detector, dice = Detector(DAY), random.Random(SEED)
    seen = [detector.step(usual(FIRST + at, dice)).trends for at in range(DAY + 1)]
    first, last = seen[0][0], seen[-1][0]
    assert (first.metric, first.expected, first.yesterday) == ("requests", None, None)
    assert last.yesterday == first.value
    assert last.expected == pytest.approx(last.value, rel=0.3)
    assert {one.metric for one in seen[-1]} == {"requests", "errors", "latency"}
