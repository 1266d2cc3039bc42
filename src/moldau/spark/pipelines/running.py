"""That a pipeline runs, told to other processes: a lock that ends with its process, and what the run says of itself.

A file alone outlives a process that was killed, and by then its pid may be that of another one.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from moldau.spark.pipelines.errors import PipelineError

_FILE, _LOCK = "running.json", "running.lock"


class Running:
    """The side of whoever runs the pipeline in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = _place(folder) / _FILE
        self._name = name
        self._lock: IO[bytes] | None = None

    def begin(self) -> None:
        """PipelineError when another process runs it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = (self._path.parent / _LOCK).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise PipelineError(f"pipeline {self._name} runs already") from None
        self._lock = lock

    def tell(self, queries: list[dict[str, Any]]) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"pid": os.getpid(), "name": self._name, "queries": queries}), encoding="utf-8")
        fresh.replace(self._path)

    def end(self) -> None:
        if self._lock is None:
            return
        with suppress(OSError):
            self._path.unlink()
        self._lock.close()
        self._lock = None


def read_running(folder: Path) -> dict[str, Any] | None:
    """What a run says of itself; None when there is none, or it was killed."""
    try:
        with (_place(folder) / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        pass
    except OSError:
        return None
    try:
        told: dict[str, Any] = json.loads((_place(folder) / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told


def _place(folder: Path) -> Path:
    return folder / ".moldau"
