"""The load of transactions as a process of its own, and the judgement on what it did and saw."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException, Producer, TopicPartition

from moldau.testing import History, Outcome, check, report
from tests.faults.transactional_load import (
    GROUP,
    NUMBERS,
    PARTITIONS,
    SQUARES,
    new_consumer,
    quiet,
    transactional_ids,
)

SECONDS_MAX = 60.0
EVERYTHING = [(topic, index) for topic in (NUMBERS, SQUARES) for index in range(PARTITIONS)]
END = "end"


class RunningLoad:
    """The load as a process, and the history that it writes."""

    def __init__(self, bootstrap: str, directory: Path, seed: int) -> None:
        self._path = directory / "history.jsonl"
        self._path.touch()
        self._read = 0
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "tests.faults.transactional_load",
                bootstrap,
                str(self._path),
                str(seed),
            ],
            stdin=subprocess.PIPE,
        )

    def commits(self) -> int:
        """Transactions that were committed so far."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
            self.lines += whole.decode().split("\n")
        return sum('"kind": "transaction", "outcome": "ok"' in line for line in self.lines)

    def wait_for_commits(self, count: int, dice: random.Random) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while self.commits() < count:
            assert self._process.poll() is None, "the load died"
            assert time.monotonic() < deadline, "the load makes no progress"
            time.sleep(dice.uniform(0.0, 0.02))

    def finish(self) -> History:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(SECONDS_MAX) == 0
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # it prints where each thread is
            self._process.wait()
            raise
        self.commits()
        history = History(time.monotonic)
        history.read(self.lines)
        return history

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def heal(bootstrap: str, history: History) -> None:
    """Fence what anybody left open, and mark the end of every partition."""
    for name in transactional_ids():
        Producer(quiet({"bootstrap.servers": bootstrap, "transactional.id": name})).init_transactions(SECONDS_MAX)
    producer = Producer(quiet({"bootstrap.servers": bootstrap}))
    for topic, index in EVERYTHING:
        with history.plain("healer") as operation:
            operation.send((topic, index), END)
            producer.produce(topic, END.encode(), partition=index)
            assert producer.flush(SECONDS_MAX) == 0
            operation.succeeded()


def final_read(bootstrap: str, history: History) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Everything, by a client that has seen nothing yet."""
    consumer = new_consumer(bootstrap, group_id="fresh")
    consumer.assign([TopicPartition(*each, 0) for each in EVERYTHING])
    found: dict[tuple[str, int], list[tuple[int, str]]] = {each: [] for each in EVERYTHING}
    open_ones = set(EVERYTHING)
    deadline = time.monotonic() + SECONDS_MAX
    while open_ones:
        assert time.monotonic() < deadline, f"no end of {sorted(open_ones)}"
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                where = (message.topic(), message.partition())
                found[where].append((message.offset(), message.value().decode()))
                if found[where][-1][1] == END:
                    open_ones.discard(where)
    consumer.close()
    history.final_read("fresh", found)
    return found


def committed_offsets(bootstrap: str, history: History) -> list[int]:
    consumer = new_consumer(bootstrap)
    wanted = [TopicPartition(NUMBERS, index) for index in range(PARTITIONS)]
    offsets: list[int] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not offsets:
        assert time.monotonic() < deadline, "no committed offsets"
        with suppress(KafkaException), history.plain("fresh") as operation:
            for each in consumer.committed(wanted, timeout=5):
                operation.read_offset(GROUP, (NUMBERS, each.partition), each.offset if each.offset >= 0 else None)
                offsets.append(max(each.offset, 0))
            operation.succeeded()
    consumer.close()
    return offsets


def judge(bootstrap: str, history: History) -> Counter[Outcome]:
    """Heal, read everything, and hold it against what was said while it happened; how transactions ended."""
    heal(bootstrap, history)
    found = final_read(bootstrap, history)
    offsets = committed_offsets(bootstrap, history)
    assert report(check(history)) == "no anomalies"
    # Exactly once: every number below a committed offset has one square, and no other has any.
    squared = Counter(value.split()[0] for at in range(PARTITIONS) for _, value in found[SQUARES, at] if value != END)
    below = [
        value
        for at in range(PARTITIONS)
        for offset, value in found[NUMBERS, at]
        if offset < offsets[at] and value != END
    ]
    assert squared == Counter(below)
    return Counter(each.outcome for each in history.operations if each.kind == "transaction")
