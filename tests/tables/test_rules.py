"""When a view goes on and when it is read anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.tables.rules import Found, GoOn, ReadAnew, Stored, decide_start

STORED = Stored("id-1", {0: 10, 1: 20}, current_at_ms=1_000)
FOUND = Found("id-1", {0: 0, 1: 5}, {0: 12, 1: 20}, delete_retention_ms=500)


def test_a_view_goes_on_where_it_was() -> None:
    assert decide_start(STORED, FOUND, 1_499) == GoOn({0: 10, 1: 20})


def test_a_new_partition_begins_where_its_log_begins() -> None:
    grown = replace(FOUND, log_starts={0: 0, 1: 5, 2: 3}, log_ends={0: 12, 1: 20, 2: 9})
    assert decide_start(STORED, grown, 1_000) == GoOn({0: 10, 1: 20, 2: 3})


@pytest.mark.parametrize(
    ("stored", "found", "why"),
    [
        (None, FOUND, "not seen it"),
        (replace(STORED, topic_id="id-0"), FOUND, "made again"),
        (replace(STORED, positions={0: 10, 2: 1}), FOUND, "partition 2 is gone"),
        (replace(STORED, positions={0: 13}), FOUND, "partition 0 ends at 12, before the view's 13"),
        (replace(STORED, positions={1: 4}), FOUND, "partition 1 begins at 5, behind the view's 4"),
    ],
)
def test_a_view_that_is_of_another_log_is_read_anew(stored: Stored | None, found: Found, why: str) -> None:
    decision = decide_start(stored, found, 1_000)
    assert isinstance(decision, ReadAnew) and why in decision.why


def test_a_view_that_was_away_for_longer_than_tombstones_are_kept_is_read_anew() -> None:
    assert isinstance(decide_start(STORED, FOUND, 1_500), ReadAnew)
    # Nothing came meanwhile, or nothing is ever compacted away: then nothing was missed.
    assert isinstance(decide_start(STORED, replace(FOUND, log_ends={0: 10, 1: 20}), 9_999), GoOn)
    assert isinstance(decide_start(STORED, replace(FOUND, delete_retention_ms=None), 9_999), GoOn)
