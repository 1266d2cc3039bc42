"""What the page shows, read from the views of the tables: the newest minutes and hours of each, in few bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moldau.demo.scale import Scale
from moldau.demo.topics import ACTIVE, ANOMALIES, APPROXIMATE, SITES, TREND
from moldau.demo.traffic import time_text
from moldau.tables.view import ViewReader

MINUTES_SHOWN = 144
HOURS_SHOWN = 48
ANOMALIES_SHOWN = 40
_SITES_MAX = 50
_ROWS_MAX = 2000
_TREND_METRICS = ("requests", "errors", "latency")


class PageState:
    """Belongs to one thread at a time, as its reader does."""

    def __init__(self, reader: ViewReader, scale: Scale, folders: Sequence[Path]) -> None:
        self._reader = reader
        self._scale = scale
        self._folders = folders
        self._newest = 0

    def read(self, now_ms: int, dead_letters: Mapping[str, Any]) -> dict[str, Any]:
        newest = self._newest_minute(now_ms)
        minutes_from = newest - MINUTES_SHOWN * self._scale.minute_ms
        hours_from = newest - HOURS_SHOWN * self._scale.hour_ms
        names = list(self._sites())
        return {
            "now": now_ms,
            "scale": {"day": self._scale.day_ms, "hour": self._scale.hour_ms, "minute": self._scale.minute_ms},
            "sites": {name: self._site(name, minutes_from) for name in names},
            "trend": {name: self._trends(name, minutes_from) for name in names},
            "active": {
                "minute": self._active("minute", minutes_from),
                "hour": self._active("hour", hours_from),
            },
            "anomalies": self._anomalies(names, newest - self._scale.day_ms * 2),
            "dead_letters": dead_letters,
            "queries": [query for folder in self._folders for query in queries_of(folder)],
        }

    def _newest_minute(self, now_ms: int) -> int:
        """A demo that stands still goes on showing what it showed last."""
        while rows := self._rows(ACTIVE, ("minute",), self._newest + 1):
            self._newest = _ms(rows[-1]["window_start"])
        return self._newest or now_ms

    def _sites(self) -> Iterator[str]:
        """By the first key of each."""
        after = b""
        for _ in range(_SITES_MAX):
            page = self._reader.scan(SITES, after=after, limit=1)
            if not page.rows:
                return
            site = str(json.loads(page.rows[0].key)[0])
            yield site
            after = _prefix((site,)).encode() + b"\xff"

    def _site(self, name: str, since_ms: int) -> list[list[Any]]:
        columns = ("requests", "errors", "p50", "p95", "p99", "users")
        return [
            [_ms(row["window_start"]), *(row[column] for column in columns)]
            for row in self._rows(SITES, (name,), since_ms)
        ]

    def _trends(self, name: str, since_ms: int) -> dict[str, list[list[Any]]]:
        columns = ("value", "expected", "yesterday")
        return {
            metric: [
                [_ms(row["window_start"]), *(_short(row[column]) for column in columns)]
                for row in self._rows(TREND, (name, metric), since_ms)
            ]
            for metric in _TREND_METRICS
        }

    def _active(self, span: str, since_ms: int) -> list[list[Any]]:
        estimates = {row["window_start"]: row["users"] for row in self._rows(APPROXIMATE, (span,), since_ms)}
        return [
            [_ms(row["window_start"]), row["users"], row["sites"], estimates.get(row["window_start"])]
            for row in self._rows(ACTIVE, (span,), since_ms)
        ]

    def _anomalies(self, names: Sequence[str], since_ms: int) -> list[dict[str, Any]]:
        found = [
            {**row, "start": _ms(row["window_start"]), "end": _ms(row["window_end"])}
            for name in names
            for metric in _TREND_METRICS
            for row in self._rows(ANOMALIES, (name, metric), since_ms)
        ]
        found.sort(key=lambda one: one["start"], reverse=True)
        return found[:ANOMALIES_SHOWN]

    def _rows(self, topic: str, begin: Sequence[str], since_ms: int) -> list[dict[str, Any]]:
        """The rows whose keys begin so, from that time on."""
        prefix = _prefix(begin)
        after = prefix + f'"{time_text(since_ms)}'
        page = self._reader.scan(topic, prefix=prefix.encode(), after=after.encode(), limit=_ROWS_MAX)
        return [json.loads(row.value) for row in page.rows]


def has_points(state: Mapping[str, Any]) -> bool:
    """The chart of requests shows a line: two minutes that are complete, before the two that may not be."""
    return any(len(minutes) >= 4 for minutes in state["sites"].values())


def queries_of(folder: Path) -> list[dict[str, Any]]:
    """What a pipeline that runs says of its queries."""
    try:
        told: dict[str, Any] = json.loads((folder / ".moldau" / "running.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [{"pipeline": told["name"], **query} for query in told["queries"]]


def _prefix(parts: Sequence[str]) -> str:
    """How the key of a row with a window begins."""
    return json.dumps([*parts], ensure_ascii=False, separators=(",", ":"))[:-1] + ","


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _short(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value
