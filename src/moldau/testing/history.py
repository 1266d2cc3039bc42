"""Histories: what clients did to a log and what they saw of it, written down so that `check` can judge it.

A history is a list of operations. Each has a process (one client, which does one thing after the other), a start, an
end and an outcome: `OK`, `FAIL` (it certainly did not happen) or `INFO` (nobody knows: a timeout, a lost connection).
Every value is written once to a partition at most, so that who reads it knows who wrote it.

Times are those of any clock that all processes share. Without one, the history counts: each start and each end gets the
next number. Several processes write files of JSON lines, which are merged by reading them into one history.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

Partition = tuple[str, int]
Value = str | int


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Kind(StrEnum):
    PLAIN = "plain"
    TRANSACTION = "transaction"
    # The process reads on from named offsets; from here its polls must follow one another.
    ASSIGN = "assign"
    # The process takes what its group gives it: polls follow one another within an operation only.
    SUBSCRIBE = "subscribe"
    # Whole partitions, from their start to their end, when everything is over.
    FINAL = "final"


class Sent(NamedTuple):
    partition: Partition
    value: Value
    offset: int | None


class Polled(NamedTuple):
    partition: Partition
    offset: int
    value: Value


class GroupOffset(NamedTuple):
    """The offset from which a group reads on; None where nothing is committed."""

    group: str
    partition: Partition
    offset: int | None


@dataclass(slots=True)
class Operation:
    process: str
    kind: Kind
    start: float
    end: float = math.inf
    outcome: Outcome = Outcome.INFO
    sends: list[Sent] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)
    offset_commits: list[GroupOffset] = field(default_factory=list)
    offset_reads: list[GroupOffset] = field(default_factory=list)
    positions: dict[Partition, int] = field(default_factory=dict)

    def send(self, partition: Partition, value: Value, offset: int | None = None) -> None:
        """A record, and its offset where the broker told it (clients say -1 and the like where it did not)."""
        self.sends.append(Sent(partition, value, offset if offset is not None and offset >= 0 else None))

    def poll(self, partition: Partition, offset: int, value: Value) -> None:
        self.polls.append(Polled(partition, offset, value))

    def commit_offset(self, group: str, partition: Partition, offset: int) -> None:
        self.offset_commits.append(GroupOffset(group, partition, offset))

    def read_offset(self, group: str, partition: Partition, offset: int | None) -> None:
        """A committed offset as a reader that waits for pending transactions (`require_stable`) got it."""
        self.offset_reads.append(GroupOffset(group, partition, offset))

    def succeeded(self) -> None:
        self.outcome = Outcome.OK

    def failed(self) -> None:
        """Nothing of it happened: aborted, or refused before anything was written."""
        self.outcome = Outcome.FAIL


class History:
    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self.operations: list[Operation] = []
        self._now: Callable[[], float] = now or itertools.count().__next__

    # -- operations that take a while ----------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, process: str) -> Iterator[Operation]:
        """A transaction: call `succeeded()` when its commit was answered, `failed()` when its abort was."""
        with self._under_way(process, Kind.TRANSACTION) as operation:
            yield operation

    @contextmanager
    def plain(self, process: str) -> Iterator[Operation]:
        """Anything without a transaction: sends, polls, offsets."""
        with self._under_way(process, Kind.PLAIN) as operation:
            yield operation

    @contextmanager
    def _under_way(self, process: str, kind: Kind) -> Iterator[Operation]:
        operation = Operation(process, kind, self._now())
        self.operations.append(operation)
        yield operation
        operation.end = self._now()

    # -- operations that are over --------------------------------------------------------------------------------------

    def send(
        self, process: str, partition: Partition, value: Value, offset: int | None = None, outcome: Outcome = Outcome.OK
    ) -> None:
        with self.plain(process) as operation:
            operation.send(partition, value, offset)
            operation.outcome = outcome

    def poll(self, process: str, partition: Partition, *records: tuple[int, Value]) -> None:
        """Offsets and values that one poll brought."""
        with self.plain(process) as operation:
            operation.polls += [Polled(partition, *record) for record in records]
            operation.succeeded()

    def assign(self, process: str, positions: Mapping[Partition, int]) -> None:
        """The process reads on from these offsets: an assignment, or a seek."""
        with self._under_way(process, Kind.ASSIGN) as operation:
            operation.positions.update(positions)
            operation.succeeded()

    def subscribe(self, process: str) -> None:
        with self._under_way(process, Kind.SUBSCRIBE) as operation:
            operation.succeeded()

    def read_offset(self, process: str, group: str, partition: Partition, offset: int | None) -> None:
        with self.plain(process) as operation:
            operation.read_offset(group, partition, offset)
            operation.succeeded()

    def final_read(self, process: str, found: Mapping[Partition, Sequence[tuple[int, Value]]]) -> None:
        """All that a fresh client found in these partitions when everything was over."""
        with self._under_way(process, Kind.FINAL) as operation:
            for partition, records in found.items():
                operation.positions[partition] = 0
                operation.polls += [Polled(partition, *record) for record in records]
            operation.succeeded()

    # -- files ---------------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """One line of JSON per operation."""
        for operation in self.operations:
            yield line_of(operation)

    def read(self, lines: Iterable[str]) -> None:
        """Add the operations of a file."""
        for line in lines:
            self.operations.append(_operation(json.loads(line)))


def line_of(operation: Operation) -> str:
    found: dict[str, Any] = {
        "process": operation.process,
        "kind": operation.kind,
        "outcome": operation.outcome,
        "start": operation.start,
        "end": None if operation.end == math.inf else operation.end,
    }
    for name in ("sends", "polls", "offset_commits", "offset_reads"):
        if getattr(operation, name):
            found[name] = getattr(operation, name)
    if operation.positions:
        found["positions"] = [[partition, offset] for partition, offset in operation.positions.items()]
    return json.dumps(found)


def _operation(found: dict[str, Any]) -> Operation:
    return Operation(
        found["process"],
        Kind(found["kind"]),
        found["start"],
        math.inf if found["end"] is None else found["end"],
        Outcome(found["outcome"]),
        [Sent(_partition(where), value, offset) for where, value, offset in found.get("sends", ())],
        [Polled(_partition(where), offset, value) for where, offset, value in found.get("polls", ())],
        [GroupOffset(group, _partition(where), at) for group, where, at in found.get("offset_commits", ())],
        [GroupOffset(group, _partition(where), at) for group, where, at in found.get("offset_reads", ())],
        {_partition(where): offset for where, offset in found.get("positions", ())},
    )


def _partition(found: Sequence[Any]) -> Partition:
    topic, index = found
    return topic, index
