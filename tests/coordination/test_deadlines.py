from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordination.deadlines import Deadlines


def test_a_deadline_that_is_moved_back_fires_once_at_its_new_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 30)
    assert list(deadlines.take_due(20)) == []
    assert list(deadlines.take_due(30)) == ["a"]
    assert list(deadlines.take_due(99)) == []


def test_a_deadline_that_is_moved_forward_fires_once_at_its_new_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 30)
    deadlines.set("a", 10)
    assert deadlines.next_ms == 10
    assert list(deadlines.take_due(10)) == ["a"]
    assert list(deadlines.take_due(99)) == []


def test_a_cancelled_deadline_does_not_fire_and_may_be_set_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")
    deadlines.cancel("a")
    deadlines.set("a", 40)
    assert list(deadlines.take_due(39)) == []
    assert list(deadlines.take_due(40)) == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.sampled_from(["set", "cancel", "take"]))))
def test_it_does_what_a_plain_dictionary_would(steps: list[tuple[str, int, str]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    now = 0
    for key, number, what in steps:
        if what == "set":
            deadlines.set(key, now + number)
            model[key] = now + number
        elif what == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            now += number
            due = {name for name, at in model.items() if at <= now}
            assert set(deadlines.take_due(now)) == due
            for name in due:
                del model[name]
        assert len(deadlines) == len(model)
        if model:
            assert deadlines.next_ms is not None and deadlines.next_ms <= min(model.values())
