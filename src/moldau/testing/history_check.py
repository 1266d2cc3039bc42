"""The judge of histories: finds what a log with transactions must never do, from what its clients did and saw.

The model is Jepsen's for Kafka. What it rests on:

- Who reads is safe whatever becomes of its own operation: every poll counts, also in failed transactions. A send counts
  when it was acknowledged, or when anybody read something of its operation: then `INFO` has become `OK`.
- Offsets have gaps (control records, aborted records). Whether a reader skipped something is asked of the dense order
  of records that anybody saw, never of offsets.
- Readers are `read_committed`, and together they read every partition from its start.
- Allowed, as Kafka allows it: writes of several transactions that interleave, records of others between the sends of
  one transaction, the parts of a transaction becoming visible one partition after the other, jumps of a subscribed
  reader.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from moldau.testing.history import GroupOffset, History, Kind, Operation, Outcome, Partition, Value

SHOWN_MAX = 5

Write = tuple[Partition, Value]


class AnomalyKind(StrEnum):
    LOST_WRITE = "lost-write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    TORN_TRANSACTION = "torn-transaction"
    ABORTED_READ = "aborted-read"
    PHANTOM = "phantom"
    PRECOMMITTED_READ = "precommitted-read"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    NONMONOTONIC_SEND = "nonmonotonic-send"
    REALTIME_ORDER = "realtime-order"
    POLL_SKIP = "poll-skip"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    LOST_OFFSET = "lost-offset"
    CIRCULAR_FLOW = "circular-flow"


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: AnomalyKind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def check(history: History) -> list[Anomaly]:
    """Every anomaly of a history; an empty list is a clean one."""
    return list(_Judge(history).anomalies())


def report(anomalies: Iterable[Anomaly]) -> str:
    """One line per anomaly."""
    return "\n".join(str(each) for each in anomalies) or "no anomalies"


class _Judge:
    """The facts of a history, gathered in the order in which they depend on each other."""

    def __init__(self, history: History) -> None:
        self.operations = sorted(history.operations, key=lambda each: each.start)
        self.writers: dict[Write, Operation] = {}
        # The first operation that read a write; and, by writer, when first something of it was known to be committed.
        self.readers: dict[Write, Operation] = {}
        self.known_committed: dict[int, float] = {}
        self.offsets: dict[Write, set[int]] = {}
        self.values: dict[Partition, dict[int, set[Value]]] = {}
        self.finals = [each for each in self.operations if each.kind is Kind.FINAL]
        self._gather_writes()
        self._gather_reads()
        self.group_offsets = _GroupOffsets(self)
        self._place_sends()
        # Offsets that anybody read, in order: the dense index of one is its place here.
        self.read_offsets = {
            partition: sorted(
                offset
                for offset, values in found.items()
                if any((partition, value) in self.readers for value in values)
            )
            for partition, found in self.values.items()
        }

    def _gather_writes(self) -> None:
        for operation in self.operations:
            for partition, value, _ in operation.sends:
                if (partition, value) in self.writers:
                    raise ValueError(f"{_at(partition)}: {value!r} was sent twice, so nobody can tell who wrote it")
                self.writers[partition, value] = operation

    def _gather_reads(self) -> None:
        for operation in self.operations:
            if operation.outcome is Outcome.OK:
                self.known_committed[id(operation)] = operation.end
        for operation in sorted(self.operations, key=lambda each: each.end):
            for partition, offset, value in operation.polls:
                write = (partition, value)
                self.readers.setdefault(write, operation)
                self._place(write, offset)
                writer = self.writers.get(write)
                if writer is not None and writer is not operation:
                    self.known_committed.setdefault(id(writer), operation.end)

    def _place_sends(self) -> None:
        for operation in self.operations:
            if self.is_committed(operation):
                for partition, value, offset in operation.sends:
                    if offset is not None:
                        self._place((partition, value), offset)

    def _place(self, write: Write, offset: int) -> None:
        self.offsets.setdefault(write, set()).add(offset)
        self.values.setdefault(write[0], {}).setdefault(offset, set()).add(write[1])

    def is_committed(self, operation: Operation) -> bool:
        return operation.outcome is not Outcome.FAIL and id(operation) in self.known_committed

    def anomalies(self) -> Iterator[Anomaly]:
        yield from self._wrong_reads()
        yield from self._wrong_places()
        yield from self._losses()
        yield from self.group_offsets.anomalies()
        yield from self._orders_of_sends()
        yield from self._orders_of_polls()
        yield from self._circles()

    # -- what was read, and where --------------------------------------------------------------------------------------

    def _wrong_reads(self) -> Iterator[Anomaly]:
        for (partition, value), reader in self.readers.items():
            writer = self.writers.get((partition, value))
            if writer is not None and writer.outcome is not Outcome.FAIL:
                continue
            what = f"{_at(partition)} {_offsets(self.offsets[partition, value])}: {value!r}"
            if writer is None:
                yield Anomaly(AnomalyKind.PHANTOM, f"{what} was read by {_who(reader)}, but nobody sent it")
            else:
                yield Anomaly(AnomalyKind.ABORTED_READ, f"{what} of {_who(writer)} was read by {_who(reader)}")
        for operation in self.operations:
            if operation.kind is Kind.TRANSACTION:
                for partition, offset, value in operation.polls:
                    if self.writers.get((partition, value)) is operation:
                        what = (
                            f"{_at(partition)} offset {offset}: {_who(operation)} read {value!r}, which it wrote itself"
                        )
                        yield Anomaly(AnomalyKind.PRECOMMITTED_READ, what)

    def _wrong_places(self) -> Iterator[Anomaly]:
        for partition, found in self.values.items():
            for offset, values in found.items():
                if len(values) > 1:
                    named = ", ".join(sorted(map(repr, values)))
                    what = f"{_at(partition)} offset {offset} holds {named}"
                    yield Anomaly(AnomalyKind.INCONSISTENT_OFFSETS, what)
        for (partition, value), offsets in self.offsets.items():
            if len(offsets) > 1:
                yield Anomaly(AnomalyKind.DUPLICATE, f"{_at(partition)} holds {value!r} at {_offsets(offsets)}")

    # -- what is missing -----------------------------------------------------------------------------------------------

    def _losses(self) -> Iterator[Anomaly]:
        furthest = {
            partition: max((min(self.offsets[partition, value]) for value in self._read_values(partition)), default=-1)
            for partition in self.values
        }
        missed = {id(final): {(where, value) for where, _, value in final.polls} for final in self.finals}
        for operation in self.operations:
            if not operation.sends or not self.is_committed(operation):
                continue
            missing: list[Write] = []
            for partition, value, _ in operation.sends:
                write = (partition, value)
                lost = self._loss(operation, write, furthest.get(partition, -1), missed)
                if lost is not None:
                    missing.append(write)
                    yield lost
            if not missing or operation.kind is not Kind.TRANSACTION:
                continue
            seen = [write for write in _writes(operation) if write in self.readers and write not in missing]
            offsets_seen = self.group_offsets.seen_of(operation)
            if seen or offsets_seen:
                shown = [*(_named(write) for write in seen), *(_committed(each) for each in offsets_seen)]
                yield Anomaly(
                    AnomalyKind.TORN_TRANSACTION,
                    f"{_who(operation)}: {_few(shown)} seen, {_few([_named(write) for write in missing])} not",
                )

    def _read_values(self, partition: Partition) -> Iterator[Value]:
        for values in self.values[partition].values():
            yield from (value for value in values if (partition, value) in self.readers)

    def _loss(
        self, operation: Operation, write: Write, furthest: int, found_by: dict[int, set[Write]]
    ) -> Anomaly | None:
        offsets = self.offsets.get(write)
        if write not in self.readers and offsets and max(offsets) <= furthest:
            what = f"{_placed(write, offsets)} of {_who(operation)}"
            return Anomaly(AnomalyKind.LOST_WRITE, f"{what} was never read, but offset {furthest} was")
        known = self.known_committed[id(operation)]
        for final in self.finals:
            # Seen by the final read itself, an operation of unknown outcome was committed before it, too.
            is_due = known <= final.start or known == final.end
            if write[0] in final.positions and is_due and write not in found_by[id(final)]:
                before = self.readers.get(write)
                history = "nobody ever read it" if before is None else f"{_who(before)} had read it"
                what = f"{_placed(write, offsets)} of {_who(operation)}"
                return Anomaly(AnomalyKind.UNSEEN, f"{what} is not in the final read of {final.process}; {history}")
        return None

    # -- order ---------------------------------------------------------------------------------------------------------

    def _orders_of_sends(self) -> Iterator[Anomaly]:
        last: dict[tuple[str, Partition], tuple[int, Value]] = {}
        placed: dict[Partition, list[tuple[float, float, int, Value, Operation]]] = {}
        for operation in self.operations:
            if not self.is_committed(operation):
                continue
            known = self.known_committed[id(operation)]
            for partition, value, _ in operation.sends:
                offsets = self.offsets.get((partition, value))
                if offsets is None:
                    continue
                offset = min(offsets)
                placed.setdefault(partition, []).append((operation.start, known, offset, value, operation))
                before = last.get((operation.process, partition), (-1, ""))
                if before[0] > offset:
                    yield Anomaly(
                        AnomalyKind.NONMONOTONIC_SEND,
                        f"{_at(partition)}: {operation.process} sent {before[1]!r} before {value!r}, which has offset"
                        f" {offset} and is before offset {before[0]}",
                    )
                last[operation.process, partition] = (offset, value)
        for partition, writes in placed.items():
            yield from _against_time(partition, writes)

    def _orders_of_polls(self) -> Iterator[Anomaly]:
        places = {
            partition: {offset: place for place, offset in enumerate(offsets)}
            for partition, offsets in self.read_offsets.items()
        }
        subscribed: set[str] = set()
        # The dense index that a process must read next.
        expected: dict[tuple[str, Partition], int] = {}
        for operation in self.operations:
            process = operation.process
            if operation.kind is Kind.SUBSCRIBE:
                subscribed.add(process)
            elif operation.kind is Kind.ASSIGN:
                subscribed.discard(process)
                for partition, offset in operation.positions.items():
                    expected[process, partition] = bisect.bisect_left(self.read_offsets.get(partition, []), offset)
            if operation.kind is Kind.FINAL or process in subscribed:
                for partition in {each.partition for each in operation.polls}:
                    expected.pop((process, partition), None)
            for partition, offset, value in operation.polls:
                place = places[partition][offset]
                wanted = expected.get((process, partition), place)
                expected[process, partition] = place + 1
                if place == wanted:
                    continue
                what = f"{_at(partition)}: {_who(operation)} read {value!r} at offset {offset}"
                if place > wanted:
                    # What a final read misses is `unseen`.
                    if operation.kind is not Kind.FINAL:
                        skipped = self.read_offsets[partition][wanted:place]
                        yield Anomaly(AnomalyKind.POLL_SKIP, f"{what} and skipped {_offsets(skipped)}")
                else:
                    before = self.read_offsets[partition][wanted - 1]
                    yield Anomaly(AnomalyKind.NONMONOTONIC_POLL, f"{what} when it was past offset {before}")

    def _circles(self) -> Iterator[Anomaly]:
        """Operations that read each other's writes. Only who reads and writes can be part of a circle."""
        reads_of: dict[int, set[int]] = {}
        operations = {id(each): each for each in self.operations if each.sends and each.polls}
        for name, operation in operations.items():
            writers = {id(self.writers.get((partition, value))) for partition, _, value in operation.polls}
            reads_of[name] = {writer for writer in writers if writer in operations and writer != name}
        for circle in _strongly_connected(reads_of):
            members = [_who(operations[each]) for each in circle]
            yield Anomaly(AnomalyKind.CIRCULAR_FLOW, f"{_few(members)} read each other's writes")


def _against_time(partition: Partition, writes: list[tuple[float, float, int, Value, Operation]]) -> Iterator[Anomaly]:
    """A write that begins after another one was acknowledged has a higher offset."""
    by_end = sorted(writes, key=lambda each: each[1])
    done = 0
    highest: tuple[float, float, int, Value, Operation] | None = None
    for write in sorted(writes, key=lambda each: each[0]):
        while by_end[done][1] < write[0]:
            if highest is None or by_end[done][2] > highest[2]:
                highest = by_end[done]
            done += 1
        # Of one process, it is a nonmonotonic send.
        if highest is not None and highest[2] > write[2] and highest[4].process != write[4].process:
            yield Anomaly(
                AnomalyKind.REALTIME_ORDER,
                f"{_at(partition)}: {write[3]!r} of {_who(write[4])} has offset {write[2]}, but {highest[3]!r} at"
                f" offset {highest[2]} of {_who(highest[4])} was there before it began",
            )


class _GroupOffsets:
    """Committed offsets: each read returns what a commit wrote that no later one has replaced."""

    def __init__(self, judge: _Judge) -> None:
        self._judge = judge
        self._commits: dict[tuple[str, Partition], list[tuple[Operation, int]]] = {}
        self._seen: dict[int, list[GroupOffset]] = {}
        for operation in judge.operations:
            if not operation.offset_commits:
                continue
            last = {(group, partition): offset for group, partition, offset in operation.offset_commits}
            for where, offset in last.items():
                assert offset is not None
                self._commits.setdefault(where, []).append((operation, offset))
        self._learn()

    def _learn(self) -> None:
        """An offset that one operation alone can have committed was committed by it."""
        by_offset: dict[tuple[str, Partition, int | None], list[Operation]] = {}
        for (group, partition), commits in self._commits.items():
            for operation, offset in commits:
                by_offset.setdefault((group, partition, offset), []).append(operation)
        for reader in self._judge.operations:
            for read in reader.offset_reads:
                writers = by_offset.get((read.group, read.partition, read.offset), [])
                if len(writers) == 1 and writers[0].outcome is not Outcome.FAIL:
                    self._seen.setdefault(id(writers[0]), []).append(read)
                    known = self._judge.known_committed
                    known[id(writers[0])] = min(known.get(id(writers[0]), math.inf), reader.end)

    def seen_of(self, operation: Operation) -> list[GroupOffset]:
        return self._seen.get(id(operation), [])

    def anomalies(self) -> Iterator[Anomaly]:
        reads: dict[tuple[str, Partition], list[tuple[Operation, int | None]]] = {}
        for operation in self._judge.operations:
            for group, partition, offset in operation.offset_reads:
                reads.setdefault((group, partition), []).append((operation, offset))
        for where, found in reads.items():
            yield from self._of_one(GroupOffset(*where, None), self._commits.get(where, []), found)

    def _of_one(
        self, where: GroupOffset, commits: list[tuple[Operation, int]], reads: list[tuple[Operation, int | None]]
    ) -> Iterator[Anomaly]:
        judge = self._judge
        # By the time at which they were certainly there; beside each, the one of those up to it that began last.
        certain = sorted(
            (judge.known_committed[id(each)], each.start, index)
            for index, (each, _) in enumerate(commits)
            if judge.is_committed(each)
        )
        newest: list[tuple[float, int]] = []
        for _, start, index in certain:
            newest.append(max([*newest[-1:], (start, index)]))
        ends = [end for end, _, _ in certain]
        by_offset: dict[int, list[Operation]] = {}
        for operation, committed in commits:
            by_offset.setdefault(committed, []).append(operation)
        for reader, offset in reads:
            before = bisect.bisect_left(ends, reader.start)
            begun, last = newest[before - 1] if before else (-math.inf, -1)
            writers = by_offset.get(offset, []) if offset is not None else []
            possible = [each for each in writers if each.outcome is not Outcome.FAIL and each.start <= reader.end]
            is_replaced = not any(judge.known_committed.get(id(each), math.inf) >= begun for each in possible)
            if not (is_replaced and last >= 0) and (possible or offset is None):
                continue
            what = f"{where.group} on {_at(where.partition)}: {_who(reader)} read offset {offset}"
            if offset is not None and not possible:
                if writers:
                    yield Anomaly(AnomalyKind.ABORTED_READ, f"{what} of {_who(writers[0])}")
                else:
                    yield Anomaly(AnomalyKind.PHANTOM, f"{what}, which nobody committed")
            else:
                owner, committed = commits[last]
                seen = [_named(write) for write in _writes(owner) if write in judge.readers]
                if owner.kind is Kind.TRANSACTION and seen:
                    told = f"{_who(owner)}: {_few(seen)} seen, offset {committed} not"
                    yield Anomaly(AnomalyKind.TORN_TRANSACTION, f"{told}; {what}")
                else:
                    yield Anomaly(AnomalyKind.LOST_OFFSET, f"{what}, but {_who(owner)} had committed {committed}")


def _strongly_connected(edges: dict[int, set[int]]) -> Iterator[list[int]]:
    """Tarjan's components of more than one node, without recursion."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in edges:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        path = [(root, iter(edges[root]))]
        while path:
            node, rest = path[-1]
            for following in rest:
                if following not in number:
                    number[following] = lowest[following] = len(number)
                    stack.append(following)
                    on_stack.add(following)
                    path.append((following, iter(edges[following])))
                    break
                if following in on_stack:
                    lowest[node] = min(lowest[node], number[following])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        yield component


# -- words -------------------------------------------------------------------------------------------------------------


def _writes(operation: Operation) -> Iterator[Write]:
    return ((partition, value) for partition, value, _ in operation.sends)


def _at(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _named(write: Write) -> str:
    return f"{_at(write[0])} {write[1]!r}"


def _placed(write: Write, offsets: set[int] | None) -> str:
    return f"{_named(write)} at {_offsets(offsets)}" if offsets else _named(write)


def _committed(each: GroupOffset) -> str:
    return f"{each.group}'s offset {each.offset} on {_at(each.partition)}"


def _who(operation: Operation) -> str:
    return f"{operation.process}'s {operation.kind} {operation.start:g}..{operation.end:g} ({operation.outcome})"


def _offsets(offsets: Iterable[int]) -> str:
    found = sorted(offsets)
    return f"offset{'s' if len(found) > 1 else ''} {_few([str(each) for each in found])}"


def _few(named: list[str]) -> str:
    rest = len(named) - SHOWN_MAX
    return ", ".join(named[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
