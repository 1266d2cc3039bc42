"""A detector for each site, inside Spark: windows wait in its state until they are complete, and go by in order.

A window without a row was a silent one, and silence is an anomaly if anything is. But when time jumps, because the
pipeline or everything before it stood still, the windows in between were not silent: nobody looked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from moldau.demo.detector import Anomaly, Detector, Measured
from moldau.demo.scale import Scale

# More windows without a row than these, all at once, are a jump of time.
SILENT_WINDOWS_MAX = 6
_ANOMALY = (
    "first: BIGINT, last: BIGINT, kind: STRING, severity: STRING, value: DOUBLE, expected: DOUBLE, "
    "deviations: DOUBLE, is_over: BOOLEAN, explanation: STRING"
)
# Windows by their numbers: times would go through the session's time zone.
_OUT = (
    "site STRING, metric STRING, window BIGINT, value DOUBLE, expected DOUBLE, yesterday DOUBLE, "
    f"anomalies ARRAY<STRUCT<{_ANOMALY}>>"
)


def watch(minutes: DataFrame, scale: Scale) -> DataFrame:
    """The trends of each site's minutes, each with its anomalies; of minutes that nothing can change any more."""
    window = F.floor(F.unix_millis("window_start") / scale.minute_ms).alias("window")
    rows = minutes.select("site", "window_start", window, "requests", "errors", "p95").groupBy("site")
    trends = rows.transformWithState(WatchedSite(scale), _OUT, "append", "EventTime")
    start = F.timestamp_millis(F.col("window") * scale.minute_ms).alias("window_start")
    return trends.select("site", "metric", start, "value", "expected", "yesterday", "anomalies")


class Windows:
    """The windows of a site that are not complete, and the detector of those that were. Without Spark."""

    def __init__(self, windows_per_day: int, told: str | None) -> None:
        state = None if told is None else json.loads(told)
        self._detector = Detector(windows_per_day) if state is None else Detector.from_json(state["detector"])
        self._open: dict[int, Measured] = (
            {} if state is None else {one["window"]: Measured(**one) for one in state["open"]}
        )

    def to_json(self) -> str:
        return json.dumps({"detector": self._detector.to_json(), "open": [asdict(one) for one in self._open.values()]})

    def take(self, measured: Measured) -> None:
        """A row of the table. Of several of a window that with the most requests is the newest."""
        known = self._open.get(measured.window)
        if self._detector.last is not None and measured.window <= self._detector.last:
            return
        if known is None or measured.requests >= known.requests:
            self._open[measured.window] = measured

    @property
    def next(self) -> int | None:
        """The window that is to be completed next."""
        if self._detector.last is not None:
            return self._detector.last + 1
        return min(self._open, default=None)

    def complete(self, last: int) -> Iterator[tuple[Any, list[Anomaly]]]:
        """The trends of all windows up to `last`, with the anomalies of each."""
        window = self.next
        while window is not None and window <= last:
            measured = self._open.pop(window, None)
            if measured is None:
                behind = min((one for one in self._open if one <= last), default=last + 1)
                if behind - window > SILENT_WINDOWS_MAX:
                    if behind > last:
                        return
                    window = behind
                    continue
                measured = Measured(window, 0)
            seen = self._detector.step(measured)
            for trend in seen.trends:
                yield trend, [one for one in seen.anomalies if one.metric == trend.metric]
            window += 1


class WatchedSite(StatefulProcessor):
    """What Spark calls for each site."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("windows", "told STRING, timer BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        windows, timer = self._restored()
        for row in rows:
            windows.take(Measured(row["window"], row["requests"], row["errors"], row["p95"]))
        self._keep(windows, timer)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        windows, _ = self._restored()
        last = self._scale.minute_of(timerValues.getCurrentWatermarkInMs())
        for trend, anomalies in windows.complete(last):
            yield Row(
                site=key[0],
                metric=trend.metric,
                window=trend.window,
                value=trend.value,
                expected=trend.expected,
                yesterday=trend.yesterday,
                anomalies=[_row(one) for one in anomalies],
            )
        self._keep(windows, None)

    def close(self) -> None:
        """Spark's state closes itself."""

    def _restored(self) -> tuple[Windows, int | None]:
        told = self._state.get()
        text, timer = (None, None) if told is None else told
        return Windows(self._scale.minutes_per_day, text), timer

    def _keep(self, windows: Windows, timer: int | None) -> None:
        """There is one timer, for the window that is to be completed next."""
        if timer is None and windows.next is not None:
            timer = windows.next * self._scale.minute_ms
            self._handle.registerTimer(timer)
        self._state.update((windows.to_json(), timer))


def _row(anomaly: Anomaly) -> Row:
    return Row(
        first=anomaly.first,
        last=anomaly.last,
        kind=anomaly.kind,
        severity=anomaly.severity,
        value=anomaly.value,
        expected=anomaly.expected,
        deviations=anomaly.deviations,
        is_over=anomaly.is_over,
        explanation=anomaly.explanation,
    )
