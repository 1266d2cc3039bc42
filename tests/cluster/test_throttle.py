"""A throttle keeps its rate over any while, but for one fetch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster import Throttle, is_listed


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=50), st.integers(1, 1_000_000))
def test_the_rate_is_exceeded_by_one_fetch_at_most(sizes: list[int], rate: int) -> None:
    throttle, now_ms, sent = Throttle(), 0, 0
    for size in sizes:
        now_ms += throttle.wait_ms(rate, now_ms)
        assert throttle.wait_ms(rate, now_ms) == 0
        assert sent <= rate * now_ms / 1000 + 1e-6
        throttle.note(size, rate, now_ms)
        sent += size


def test_a_pause_saves_nothing_up() -> None:
    throttle = Throttle()
    throttle.note(1000, 1000, 0)
    assert throttle.wait_ms(1000, 60_000) == 0
    throttle.note(1000, 1000, 60_000)
    assert throttle.wait_ms(1000, 60_000) == 1001


def test_replicas_are_listed_by_partition_and_broker() -> None:
    assert is_listed(("*",), 7, 1)
    assert is_listed(("0:1", "7:1"), 7, 1)
    assert not is_listed(("7:2", "1:7"), 7, 1)
    assert not is_listed((), 0, 0)
