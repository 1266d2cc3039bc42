"""Whether a query with several sources runs in this Spark: then nobody may wait at a broker.

Spark asks the sources of a query one after the other, so one that waits holds up the records of the others. A source is
not told what it is a part of; the listener (`progress`) sees the query's plan and leaves a file for the time that the
query runs, where the sources, processes started by the same JVM, look.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def note_started(jvm_pid: int, run_id: str) -> None:
    directory = _directory(jvm_pid)
    directory.mkdir(exist_ok=True)
    (directory / run_id).touch()


def note_ended(jvm_pid: int, run_id: str) -> None:
    directory = _directory(jvm_pid)
    (directory / run_id).unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        # There are others, or it was never made.
        pass


def is_any_running(jvm_pid: int) -> bool:
    try:
        return bool(os.listdir(_directory(jvm_pid)))
    except OSError:
        return False


def _directory(jvm_pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"moldau-spark-{jvm_pid}"
