"""How a query is, from what Spark reports of its last batch; and when one that failed begins again. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

BACKOFF_SECONDS_FIRST = 1.0
BACKOFF_SECONDS_MAX = 60.0
# A query that ran so long is sound: its next failure is a first one.
STEADY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query; numbers are those of its last batch."""

    name: str
    state: str  # running, failed, refused
    batch: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    batch_ms: int | None = None
    lag: int | None = None
    watermark: str | None = None
    state_rows: int | None = None
    failures: int = 0
    error: str | None = None


def status_of(name: str, state: str, progress: Mapping[str, Any] | None) -> QueryStatus:
    if progress is None:
        return QueryStatus(name, state)
    operators = progress.get("stateOperators") or []
    lags = [lag for one in progress.get("sources") or [] if (lag := _lag(one)) is not None]
    return QueryStatus(
        name,
        state,
        progress.get("batchId"),
        _number(progress.get("inputRowsPerSecond")),
        _number(progress.get("processedRowsPerSecond")),
        (progress.get("durationMs") or {}).get("triggerExecution"),
        sum(lags) if lags else None,
        (progress.get("eventTime") or {}).get("watermark"),
        sum(int(one.get("numRowsTotal", 0)) for one in operators) if operators else None,
    )


def _number(value: Any) -> float | None:
    """Spark writes rates that it does not know as NaN."""
    if not isinstance(value, int | float) or value != value:
        return None
    return round(float(value), 1)


def _lag(source: Mapping[str, Any]) -> int | None:
    """Offsets between where a source is and where its topics end; None for what has no such offsets."""
    try:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return sum(max(0, offset - end.get(where, offset)) for where, offset in latest.items())


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    found = json.loads(value) if isinstance(value, str) else value
    return {(topic, partition): int(at) for topic, parts in found.items() for partition, at in parts.items()}


# -- after a failure ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """A query's present run and the failures before it, without a steady run in between."""

    began_at: float
    failures: int = 0
    begin_at: float | None = None  # when it is to begin again; None while it runs


def after_failure(run: Run, now: float) -> Run:
    failures = 1 if now - run.began_at >= STEADY_SECONDS else run.failures + 1
    wait = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2 ** (failures - 1))
    return replace(run, failures=failures, begin_at=now + wait)
