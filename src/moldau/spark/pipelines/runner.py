"""Runs pipelines until they are stopped: several in one Spark session, each query begun again when it failed.

`status` decides when; here is the doing. A query that exactly once refuses (another driver has taken it over, its
checkpoint is not its own) is not begun again: it would fight, or write twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moldau.spark.errors import reason
from moldau.spark.exactly_once import ExactlyOnceRefused
from moldau.spark.pipelines.loading import load_queries
from moldau.spark.pipelines.pipeline import Pipeline
from moldau.spark.pipelines.project import Project
from moldau.spark.pipelines.queries import Query
from moldau.spark.pipelines.running import Running
from moldau.spark.pipelines.status import QueryStatus, Run, after_failure, status_of

LOOK_SECONDS = 0.5
BATCH_SECONDS_MAX = 60.0  # how long a stop waits for the batch at hand

logger = logging.getLogger(__name__)


class ProjectRun:
    """One folder's queries."""

    def __init__(self, spark: SparkSession, project: Project, clock: Callable[[], float] = time.monotonic) -> None:
        self.project = project
        self._clock = clock
        self._told = Running(project.directory, project.name)
        self._pipeline = Pipeline(
            spark, project.bootstrap, name=project.name, checkpoints=project.checkpoints, options=project.options
        )
        loaded = load_queries(project, self._pipeline)
        self._queries: dict[str, Query] = {one.name: one for one in (*loaded, *self._pipeline.dead_letter_queries)}
        self._running: dict[str, StreamingQuery] = {}
        self._runs: dict[str, Run] = {}
        self._ended: dict[str, tuple[str, str]] = {}  # name -> state and why
        self._failed: dict[str, str] = {}  # name -> why it did the last time

    def start(self) -> None:
        self._told.begin()
        for query in self._queries.values():
            self._begin(query)
        self.write_status()

    def look(self) -> None:
        """Notice failures, begin again what has waited long enough."""
        now = self._clock()
        for name, query in self._queries.items():
            run, running = self._runs[name], self._running.get(name)
            if run.begin_at is not None:
                if now >= run.begin_at:
                    self._begin(query)
            elif running is not None and not running.isActive and name not in self._ended:
                self._note_failure(name, running.exception() or RuntimeError("it ended without an error"))
        self.write_status()

    @property
    def is_over(self) -> bool:
        """No query runs or will run."""
        return len(self._ended) == len(self._queries)

    def statuses(self) -> list[QueryStatus]:
        return [self._status(name) for name in self._queries]

    def stop(self) -> None:
        """Let each query finish the batch at hand, and stop."""
        deadline = self._clock() + BATCH_SECONDS_MAX
        for query in self._running.values():
            while query.isActive and query.status["isTriggerActive"] and _reads(query) and self._clock() < deadline:
                time.sleep(LOOK_SECONDS / 10)
            query.stop()
        self._told.end()

    def write_status(self) -> None:
        """For `moldau pipeline list|describe|stop`, which are other processes."""
        self._told.tell([asdict(one) for one in self.statuses()])

    def _begin(self, query: Query) -> None:
        failures = self._runs[query.name].failures if query.name in self._runs else 0
        self._runs[query.name] = Run(self._clock(), failures)
        try:
            started = self._pipeline.start(query, every=self.project.every)
        except Exception as error:  # whatever keeps it from starting may be over in a while
            self._note_failure(query.name, error)
            return
        for one in started:
            name = (one.name or "").removeprefix(f"{self.project.name}.")
            self._running[name] = one
            self._runs.setdefault(name, Run(self._clock()))

    def _note_failure(self, name: str, error: BaseException) -> None:
        why = reason(error)
        if isinstance(error, ExactlyOnceRefused) or ExactlyOnceRefused.__name__ in str(error):
            self._ended[name] = ("refused", why)
            logger.error("query_refused pipeline=%s query=%s error=%r", self.project.name, name, why)
            return
        self._failed[name] = why
        self._runs[name] = after_failure(self._runs[name], self._clock())
        logger.warning("query_failed pipeline=%s query=%s error=%r", self.project.name, name, why)

    def _status(self, name: str) -> QueryStatus:
        running = self._running.get(name)
        progress = None if running is None else running.lastProgress
        told: dict[str, Any] | None = None if progress is None else json.loads(progress.json)
        if name in self._ended:
            state, refusal = self._ended[name]
            return replace(status_of(name, state, told), error=refusal)
        run = self._runs.get(name)
        failures = 0 if run is None else run.failures
        if running is not None and running.isActive:
            return replace(status_of(name, "running", told), failures=failures)
        return replace(status_of(name, "failed", told), failures=failures, error=self._failed.get(name))


def _reads(query: StreamingQuery) -> bool:
    """A batch is at hand; a query that only looks whether there is something may be stopped at once."""
    return bool(query.status["isDataAvailable"])


def run_all(
    runs: Sequence[ProjectRun], is_stopped: Callable[[], bool], show: Callable[[Sequence[ProjectRun]], None]
) -> bool:
    """Run until stopped, or until nothing can run; whether all of it was well."""
    try:
        for one in runs:
            one.start()
        while not is_stopped() and not all(one.is_over for one in runs):
            for one in runs:
                one.look()
            show(runs)
            time.sleep(LOOK_SECONDS)
        return not any(status.state == "refused" for one in runs for status in one.statuses())
    finally:
        for one in runs:
            one.stop()
