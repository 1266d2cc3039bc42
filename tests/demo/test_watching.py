"""Windows wait until they are complete, in order; silence is a window with nothing, a jump of time is not."""

from __future__ import annotations

from moldau.demo.detector import Detector, Measured
from moldau.demo.watching import SILENT_WINDOWS_MAX, Windows

DAY = 120
FIRST = 5_000 * DAY


def measured(window: int, requests: int = 300) -> Measured:
    return Measured(window, requests, 5, 100.0)


def completed(windows: Windows, last: int) -> list[tuple[int, float]]:
    return [(trend.window, trend.value) for trend, _ in windows.complete(last) if trend.metric == "requests"]


def test_windows_go_by_in_order_once_they_are_complete() -> None:
    windows = Windows(DAY, None)
    assert windows.next is None
    for window in (FIRST + 2, FIRST, FIRST + 1, FIRST + 3):
        windows.take(measured(window))
    assert windows.next == FIRST
    assert completed(windows, FIRST + 1) == [(FIRST, 300), (FIRST + 1, 300)]
    assert windows.next == FIRST + 2
    assert completed(windows, FIRST + 1) == []


def test_of_several_rows_of_a_window_that_with_the_most_requests_is_the_newest() -> None:
    windows = Windows(DAY, None)
    for requests in (120, 300, 250):
        windows.take(measured(FIRST, requests))
    assert completed(windows, FIRST) == [(FIRST, 300)]
    windows.take(measured(FIRST, 999))
    assert completed(windows, FIRST + 1) == [(FIRST + 1, 0)]


def test_a_window_without_a_row_is_silent() -> None:
    windows = Windows(DAY, None)
    windows.take(measured(FIRST))
    windows.take(measured(FIRST + 3))
    assert completed(windows, FIRST + 4) == [
        (FIRST, 300),
        (FIRST + 1, 0),
        (FIRST + 2, 0),
        (FIRST + 3, 300),
        (FIRST + 4, 0),
    ]


def test_when_time_jumps_what_lies_between_was_not_looked_at() -> None:
    windows = Windows(DAY, None)
    windows.take(measured(FIRST))
    assert completed(windows, FIRST) == [(FIRST, 300)]
    behind = FIRST + SILENT_WINDOWS_MAX + 2
    assert completed(windows, behind - 1) == []
    windows.take(measured(behind))
    assert completed(windows, behind) == [(behind, 300)]


def test_a_site_that_falls_silent_is_an_anomaly() -> None:
    windows = Windows(DAY, None)
    found = []
    for window in range(FIRST, FIRST + 60):
        if window < FIRST + 50:
            windows.take(measured(window))
        found += [one for _, anomalies in windows.complete(window) for one in anomalies if one.metric == "requests"]
    assert {(one.first, one.kind) for one in found} >= {(FIRST + 50, "drop")}


def test_windows_go_on_from_their_text() -> None:
    windows, whole = Windows(DAY, None), Windows(DAY, None)
    for window in range(FIRST, FIRST + 30):
        windows = Windows(DAY, windows.to_json())
        for one in (windows, whole):
            one.take(measured(window, 300 if window < FIRST + 25 else 900))
            one.take(measured(window + 1, 5))
        assert list(windows.complete(window)) == list(whole.complete(window))


def test_the_state_of_a_site_stays_small() -> None:
    """It is read and written for each site in each batch."""
    detector = Detector(1440)
    for window in range(FIRST, FIRST + 1440):
        detector.step(measured(window))
    assert len(detector.to_json()) < 150_000
