"""The requests of one minute, and the records that a generator sends for them: late ones, twice, or broken. Pure.

Each minute follows from the seed and its number alone, so that traffic can begin anywhere and be made again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from moldau.demo.world import World

RATE_DEFAULT = 1000
LATE_SHARE = 0.02
DUPLICATE_SHARE = 0.01
BAD_SHARE = 0.002
_LATENCY_SPREAD = 0.35  # of its logarithm
_PATHS = ("/", "/search", "/item", "/cart", "/checkout", "/login", "/profile", "/help")
_PATH_SHARES = (0.22, 0.2, 0.24, 0.1, 0.06, 0.08, 0.06, 0.04)
_FAILURES = (500, 502, 503)


@dataclass(frozen=True, slots=True)
class Requests:
    """What happened in one minute, column by column, in order of time."""

    minute: int
    at_ms: Any  # float64
    site: Any  # the site's index
    user: Any
    latency_ms: Any
    failed: Any  # bool

    def __len__(self) -> int:
        return len(self.at_ms)


@dataclass(frozen=True, slots=True)
class Sending:
    """A record, and when it leaves."""

    at_ms: float
    key: bytes
    value: bytes


def requests_of_minute(world: World, rate: float, minute: int) -> Requests:
    """All requests of a minute; `rate` is how many there are a second, on average over the day."""
    dice = np.random.default_rng([world.seed, 2, minute])
    begin, length = minute * world.scale.minute_ms, world.scale.minute_ms
    middle = begin + length / 2
    columns: list[list[Any]] = [[], [], [], [], []]
    for index, site in enumerate(world.sites):
        activity = world.activity(site, middle) * world.factor(index, "requests", middle)
        count = int(dice.poisson(rate * length / 1000 * site.share * activity))
        error_share = min(0.9, site.error_share * world.factor(index, "errors", middle))
        median = site.latency_ms * world.factor(index, "latency", middle)
        columns[0].append(begin + dice.random(count) * length)
        columns[1].append(np.full(count, index))
        # Some users do much, most of them little.
        columns[2].append((site.users * dice.random(count) ** 1.5).astype(np.int64))
        columns[3].append(median * np.exp(_LATENCY_SPREAD * dice.standard_normal(count)))
        columns[4].append(dice.random(count) < error_share)
    at_ms, sites, users, latencies, failed = (np.concatenate(one) for one in columns)
    order = np.argsort(at_ms, kind="stable")
    return Requests(minute, at_ms[order], sites[order], users[order], latencies[order], failed[order])


def sendings_of_minute(world: World, requests: Requests) -> list[Sending]:
    """The records of a minute in the order in which they leave, some of them when the minute is over."""
    dice = np.random.default_rng([world.seed, 3, requests.minute])
    count = len(requests)
    paths = dice.choice(len(_PATHS), count, p=_PATH_SHARES).tolist()
    failures = dice.choice(_FAILURES, count).tolist()
    late = np.where(dice.random(count) < LATE_SHARE, dice.uniform(0.1, 0.9, count), 0.0)
    leaves = (requests.at_ms + late * world.scale.lateness_ms).tolist()
    again = dice.random(count) < DUPLICATE_SHARE
    bad = dice.random(count) < BAD_SHARE
    wrong = dice.integers(0, 4, count).tolist()
    prefix = f"{world.start_ms // world.scale.minute_ms:x}-{requests.minute:x}"
    sendings = []
    rows = zip(
        requests.at_ms.tolist(),
        requests.site.tolist(),
        requests.user.tolist(),
        requests.latency_ms.tolist(),
        requests.failed.tolist(),
        strict=True,
    )
    for number, (at_ms, site_index, user_number, latency_ms, failed) in enumerate(rows):
        site = world.sites[site_index].name
        user = f"{site}-{user_number}"
        event = {
            "id": f"{prefix}-{number:x}",
            "site": site,
            "user": user,
            "path": _PATHS[paths[number]],
            "status": failures[number] if failed else 200,
            "latency_ms": round(latency_ms, 2),
            "at": time_text(at_ms),
        }
        value = json.dumps(event, separators=(",", ":")).encode()
        sending = Sending(leaves[number], user.encode(), value)
        sendings.append(sending)
        if again[number]:
            sendings.append(Sending(sending.at_ms + 0.3 * world.scale.lateness_ms, sending.key, value))
        if bad[number]:
            sendings.append(Sending(sending.at_ms, sending.key, _broken(event, wrong[number])))
    sendings.sort(key=lambda one: one.at_ms)
    return sendings


def time_text(at_ms: float) -> str:
    return datetime.fromtimestamp(int(at_ms) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _broken(event: dict[str, Any], how: int) -> bytes:
    """One of the ways in which a record can be bad."""
    if how == 0:
        return json.dumps(event).encode()[:40]
    if how == 1:
        return json.dumps(event | {"status": "oops"}).encode()
    if how == 2:
        return json.dumps({name: value for name, value in event.items() if name != "site"}).encode()
    return b"\xff\xfe" + str(event["id"]).encode()
