"""Traffic follows from its seed, has what real traffic has, and shows the anomalies that are put in."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from moldau.demo.scale import scale_from
from moldau.demo.traffic import Requests, requests_of_minute, sendings_of_minute
from moldau.demo.world import World

SCALE = scale_from("5m")
START_MS = 1_790_000_100_000
SEED = 8
MINUTES = range(START_MS // SCALE.minute_ms, START_MS // SCALE.minute_ms + SCALE.minutes_per_day)


@pytest.fixture(scope="module")
def world() -> World:
    return World(SEED, SCALE, START_MS, sites=4)


@pytest.fixture(scope="module")
def day(world: World) -> list[Requests]:
    return [requests_of_minute(world, 200, minute) for minute in MINUTES]


def test_a_minute_follows_from_the_seed_and_its_number(world: World, day: list[Requests]) -> None:
    again = World(SEED, SCALE, START_MS, sites=4)
    first = sendings_of_minute(world, day[3])
    assert first == sendings_of_minute(again, requests_of_minute(again, 200, MINUTES[3]))
    other = World(SEED + 1, SCALE, START_MS, sites=4)
    assert first != sendings_of_minute(other, requests_of_minute(other, 200, MINUTES[3]))


def test_the_rate_is_that_of_the_day_and_follows_its_rhythm(world: World, day: list[Requests]) -> None:
    counts = [len(requests) for requests in day]
    assert sum(counts) == pytest.approx(200 * SCALE.day_ms / 1000, rel=0.1)
    quarter = SCALE.minutes_per_day // 4
    by_quarter = [sum(counts[begin : begin + quarter]) for begin in range(0, len(counts), quarter)]
    assert max(by_quarter) > 1.8 * min(by_quarter)


def test_some_events_are_late_some_come_twice_some_are_broken(world: World, day: list[Requests]) -> None:
    events: Counter[str] = Counter()
    late = broken = 0
    for requests in day:
        begin = requests.minute * SCALE.minute_ms
        sendings = sendings_of_minute(world, requests)
        assert [one.at_ms for one in sendings] == sorted(one.at_ms for one in sendings)
        assert all(begin <= one.at_ms < begin + SCALE.minute_ms + 1.3 * SCALE.lateness_ms for one in sendings)
        late += sum(one.at_ms >= begin + SCALE.minute_ms for one in sendings)
        for one in sendings:
            try:
                event = json.loads(one.value)
                assert isinstance(event["status"], int)
                events[event["id"] + event["site"]] += 1
            except (ValueError, KeyError, AssertionError):
                broken += 1
    total = sum(len(requests) for requests in day)
    assert len(events) == total
    assert 0.005 * total < sum(count - 1 for count in events.values()) < 0.02 * total
    assert 0.001 * total < broken < 0.004 * total
    assert late > 0.005 * total


def test_users_belong_to_their_site_and_some_do_much(world: World, day: list[Requests]) -> None:
    users = Counter(json.loads(one.value)["user"] for one in sendings_of_minute(world, day[60])[:20])
    assert all(user.split("-")[0] in {site.name for site in world.sites} for user in users)
    busy = Counter(user for requests in day for user in requests.user[requests.site == 0].tolist())
    assert busy.most_common(1)[0][1] > 5 * sorted(busy.values())[len(busy) // 2]


def test_anomalies_of_the_first_day_are_short_ones_and_never_overlap_at_a_site() -> None:
    world = World(SEED, SCALE, START_MS)
    everything = world.anomalies(START_MS + 4 * SCALE.day_ms)
    assert {one.kind for one in everything} == {"spike", "drop", "level_shift", "drift"}
    assert {one.metric for one in everything} == {"requests", "errors", "latency"}
    first = world.anomalies(START_MS + SCALE.day_ms)
    assert first and {one.kind for one in first} <= {"spike", "drop"}
    for site in world.sites:
        own = [one for one in everything if one.site == site.name]
        assert all(one.end_ms + 10 * SCALE.minute_ms <= other.start_ms for one, other in pairwise(own))


def test_an_anomaly_shows_in_the_traffic(world: World, day: list[Requests]) -> None:
    spikes = [
        one for one in world.anomalies(START_MS + SCALE.day_ms) if (one.metric, one.kind) == ("requests", "spike")
    ]
    assert spikes
    for spike in spikes:
        index = [site.name for site in world.sites].index(spike.site)
        first = spike.start_ms // SCALE.minute_ms - MINUTES[0]
        inside, before = (int((day[number].site == index).sum()) for number in (first, first - 1))
        assert inside > 1.5 * before
