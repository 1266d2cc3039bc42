"""A shortened day: 24 hours, minutes that are long enough to show something, windows where Spark has them."""

from __future__ import annotations

import pytest

from moldau.demo.scale import Scale, scale_from


@pytest.mark.parametrize(
    ("day", "hour_ms", "minute_ms", "minutes"),
    [
        ("24h", 3_600_000, 60_000, 1440),
        ("5m", 12_500, 2_500, 120),
        ("2m", 5_000, 2_500, 48),
        ("1h", 150_000, 2_500, 1440),
    ],
)
def test_an_hour_has_sixty_minutes_or_as_many_as_are_two_seconds_long(
    day: str, hour_ms: int, minute_ms: int, minutes: int
) -> None:
    scale = scale_from(day)
    assert (scale.hour_ms, scale.minute_ms, scale.minutes_per_day) == (hour_ms, minute_ms, minutes)


def test_minutes_and_hours_always_fit_into_a_day() -> None:
    for minutes in range(2, 24 * 60 + 1):
        scale = scale_from(f"{minutes}m")
        assert scale.hour_ms * 24 == scale.day_ms
        assert scale.hour_ms % scale.minute_ms == 0 and scale.minute_ms >= 2000


@pytest.mark.parametrize("day", ["", "5", "90s", "1m", "25h", "-5m", "5m5"])
def test_what_is_no_day_is_told_in_one_line(day: str) -> None:
    with pytest.raises(ValueError, match=r"5m|2m") as told:
        scale_from(day)
    assert "\n" not in str(told.value)


def test_a_minute_is_counted_from_1970() -> None:
    assert Scale(300_000, 12_500, 2_500).minute_of(7_499) == 2
