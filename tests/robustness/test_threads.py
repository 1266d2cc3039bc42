"""What runs on the loop that must not, and what shares threads that it should not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_produce_and_fetch import batch_of, create, produce
from tests.differential.wire import Wire
from tests.robustness.kit import (
    Gate,
    ask_in_thread,
    create_topics,
    delete_topic,
    hooked_broker,
    move,
    trim,
    wait_until,
)
from tests.robustness.test_durability import home_of, two

LOOP = "moldau-broker"
ALTER_REPLICA_LOG_DIRS = 34


def test_nothing_syncs_on_the_loop_while_it_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ARCHITECTURE.md: "Nothing syncs on the event loop while it serves." A replica move does: `switch` closes the log
    (sync), copies every index and snapshot again and syncs every file of the partition, all in one turn of the loop.
    For a partition of 100 segments that is seconds in which nobody is served."""
    settings, paths = two(tmp_path)
    seen: list[str] = []

    def watch(operation: str, path: str) -> None:
        if operation in ("sync", "sync_directory", "replace_file") and threading.current_thread().name == LOOP:
            seen.append(f"{operation} {Path(path).name}")

    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        disk.hook = watch
        create(wire, "t", **{"segment.bytes": str(1 << 20)})
        for _ in range(8):
            wire.ask(produce("t", batch_of(b"x" * 400_000)), 9)
        wire.ask(trim("t", 2), 1)
        wire.ask(create_topics("u"), 5)
        wire.ask(delete_topic("u"), 5)
        assert seen == []
        _, other = home_of(paths, "t-0")
        answer: Any = wire.ask(move("t", other), 1)
        assert answer.results[0].partitions[0].error_code == 0
        assert seen == []
        disk.hook = lambda operation, path: None


def test_slow_work_in_threads_does_not_hold_up_commits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However many replicas are being copied: what requests wait for has threads of its own."""
    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        names = [f"t{number}" for number in range(40)]
        wire.ask(create_topics(*names), 5)
        for name in names:
            wire.ask(produce(name, batch_of(b"x")), 9)
        gate = disk.hook = Gate("sync", "-future/")
        for name in names:
            ask_in_thread(Wire(broker.bootstrap), move(name, home_of(paths, f"{name}-0")[1]), 1)
        assert gate.reached.wait(5)
        assert broker.node is not None
        dispatcher = broker.node.listeners.dispatchers[0]
        assert wait_until(lambda: dispatcher.request_counts[ALTER_REPLICA_LOG_DIRS] == len(names))
        _, created = ask_in_thread(wire, create_topics("new"), 5)
        answered = wait_until(lambda: bool(created), 3)
        gate.opened.set()
        assert wait_until(lambda: not list(tmp_path.glob("*/*-future"))), "the moves go on"
        assert answered, "CreateTopics waits for other people's copies"
