"""A tiny log with transactions in memory, clients that use it at random and write down what they saw, and the same log
with one bug planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from moldau.testing import History, Operation, Outcome
from moldau.testing.history import Partition, Value

PARTITIONS: tuple[Partition, ...] = (("orders", 0), ("orders", 1), ("invoices", 0))
GROUP = "workers"


@dataclass
class Entry:
    value: Value | None  # None is a control record
    transaction: int | None = None


class Log:
    """Records up to the last stable offset are visible, without those of aborted transactions."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.entries: dict[Partition, list[Entry]] = {partition: [] for partition in PARTITIONS}
        self.states: dict[int, str] = {}
        self.pending: dict[int, dict[Partition, int]] = {}
        self.group_offsets: dict[Partition, int] = {}

    def begin(self) -> int:
        transaction = len(self.states)
        self.states[transaction] = "open"
        self.pending[transaction] = {}
        return transaction

    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        self.entries[partition].append(Entry(value, transaction))
        return len(self.entries[partition]) - 1

    def commit_offset(self, transaction: int, partition: Partition, offset: int) -> None:
        self.pending[transaction][partition] = offset

    def end(self, transaction: int, state: str) -> None:
        self.states[transaction] = state
        for partition, entries in self.entries.items():
            if any(entry.transaction == transaction for entry in entries):
                entries.append(Entry(None, transaction))
                assert self.entries[partition] is entries
        if state == "committed":
            self.group_offsets.update(self.pending[transaction])

    def is_visible(self, entry: Entry) -> bool:
        return entry.value is not None and (entry.transaction is None or self.states[entry.transaction] == "committed")

    def stable(self, partition: Partition) -> int:
        """The last stable offset."""
        entries = self.entries[partition]
        for offset, entry in enumerate(entries):
            if entry.transaction is not None and self.states[entry.transaction] == "open":
                return offset
        return len(entries)

    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        """Visible records from a position; `reader` is the transaction that asks."""
        entries = self.entries[partition]
        for offset in range(position, self.stable(partition)):
            if self.is_visible(entries[offset]):
                value = entries[offset].value
                assert value is not None
                yield offset, value

    def group_offset(self, partition: Partition) -> int | None:
        return self.group_offsets.get(partition)


@dataclass
class Client:
    """A consume-transform-produce application: reads one partition, writes to all, in transactions or without."""

    name: str
    source: Partition
    position: int = 0
    transaction: int | None = None
    under_way: AbstractContextManager[Operation] | None = None
    operation: Operation | None = None
    sent: int = 0


@dataclass
class World:
    """Clients and readers, one of whom does something at each step."""

    log: Log
    dice: random.Random
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.clients = [Client(f"client {number}", source) for number, source in enumerate(PARTITIONS)]
        self.readers = {f"reader {number}": dict.fromkeys(PARTITIONS, 0) for number in range(2)}
        for name, positions in self.readers.items():
            self.history.assign(name, positions)
        for client in self.clients:
            self.history.assign(client.name, {client.source: 0})

    def run(self, steps: int) -> History:
        for _ in range(steps):
            if self.dice.random() < 0.25:
                self._read(self.dice.choice(list(self.readers)))
            else:
                self._work(self.dice.choice(self.clients))
        for client in self.clients:
            if client.transaction is not None:
                self._end(client, "abort")
        self.history.final_read("fresh", {each: list(self.log.read(each, 0)) for each in PARTITIONS})
        for partition in PARTITIONS:
            self.history.read_offset("fresh", GROUP, partition, self.log.group_offset(partition))
        return self.history

    def _read(self, name: str) -> None:
        positions = self.readers[name]
        partition = self.dice.choice(PARTITIONS)
        if self.dice.random() < 0.05:
            positions[partition] = self.dice.randrange(len(self.log.entries[partition]) + 1)
            self.history.assign(name, {partition: positions[partition]})
        found = list(self.log.read(partition, positions[partition]))[: self.dice.randrange(6)]
        self.history.poll(name, partition, *found)
        if found:
            positions[partition] = found[-1][0] + 1

    def _work(self, client: Client) -> None:
        if client.transaction is not None:
            step = self.dice.choices(["send", "consume", "commit", "abort", "lose"], [6, 3, 3, 1, 1])[0]
            getattr(self, f"_{step}", lambda one: self._end(one, step))(client)
        elif self.dice.random() < 0.7:
            client.transaction = self.log.begin()
            client.under_way = self.history.transaction(client.name)
            client.operation = client.under_way.__enter__()
        else:
            self._send_alone(client)

    def _send_alone(self, client: Client) -> None:
        partition, value = self.dice.choice(PARTITIONS), self._value(client)
        fate = self.dice.choices(["ok", "refused", "unanswered", "undelivered"], [8, 1, 1, 1])[0]
        with self.history.plain(client.name) as operation:
            offset = self.log.append(partition, value) if fate in ("ok", "unanswered") else None
            operation.send(partition, value, offset if fate == "ok" else None)
            if fate == "ok":
                operation.succeeded()
            elif fate == "refused":
                operation.failed()

    def _value(self, client: Client) -> str:
        client.sent += 1
        return f"{client.name.split()[1]}.{client.sent}"

    def _send(self, client: Client) -> None:
        assert client.operation is not None
        partition, value = self.dice.choice(PARTITIONS), self._value(client)
        client.operation.send(partition, value, self.log.append(partition, value, client.transaction))

    def _consume(self, client: Client) -> None:
        assert client.operation is not None and client.transaction is not None
        found = list(self.log.read(client.source, client.position, client.transaction))[:3]
        for offset, value in found:
            client.operation.poll(client.source, offset, value)
            client.position = offset + 1
        if found:
            client.operation.commit_offset(GROUP, client.source, client.position)
            self.log.commit_offset(client.transaction, client.source, client.position)

    def _lose(self, client: Client) -> None:
        """The answer to the end of the transaction is lost; a new client reads on from what is committed."""
        self._end(client, self.dice.choice(["commit", "abort"]), answered=False)

    def _end(self, client: Client, how: str, answered: bool = True) -> None:
        assert client.operation is not None and client.under_way is not None and client.transaction is not None
        self.log.end(client.transaction, "committed" if how == "commit" else "aborted")
        if answered:
            client.operation.outcome = Outcome.OK if how == "commit" else Outcome.FAIL
        client.under_way.__exit__(None, None, None)
        client.transaction = client.operation = client.under_way = None
        if how == "abort" or not answered:
            committed = self.log.group_offset(client.source)
            self.history.read_offset(client.name, GROUP, client.source, committed)
            client.position = committed or 0
            self.history.assign(client.name, {client.source: client.position})


def play(seed: int, steps: int = 300, log: Callable[[random.Random], Log] = Log) -> History:
    dice = random.Random(seed)
    return World(log(random.Random(f"bug {seed}")), dice).run(steps)


# -- planted bugs ------------------------------------------------------------------------------------------------------


class DropsAcknowledged(Log):
    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        offset = super().append(partition, value, transaction)
        if self.dice.random() < 0.1:
            self.entries[partition][offset].value = None
        return offset


class DropsTheLastOfAll(Log):
    """What was acknowledged last is gone when somebody looks, and nothing comes after it."""

    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        yield from list(super().read(partition, position, reader))[:-3]


class AppendsTwice(Log):
    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        if self.dice.random() < 0.1:
            super().append(partition, value, transaction)
        return super().append(partition, value, transaction)


class ShowsAborted(Log):
    def is_visible(self, entry: Entry) -> bool:
        return entry.value is not None


class CommitsHalf(Log):
    """The marker of one partition says abort."""

    def end(self, transaction: int, state: str) -> None:
        super().end(transaction, state)
        written = [each for each in PARTITIONS if any(e.transaction == transaction for e in self.entries[each])]
        if state == "committed" and len(written) > 1:
            for entry in self.entries[self.dice.choice(written)]:
                if entry.transaction == transaction:
                    entry.value = None


class CommitsOffsetsAlone(Log):
    """The marker of every partition is lost, the one of the offsets is not."""

    def end(self, transaction: int, state: str) -> None:
        super().end(transaction, state)
        if self.pending[transaction] and self.dice.random() < 0.5:
            self.states[transaction] = "aborted"


class SwapsTwo(Log):
    """Tells the offsets of two records the wrong way round."""

    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        offset = super().append(partition, value, transaction)
        entries = self.entries[partition]
        if self.dice.random() < 0.1 and offset and entries[offset - 1].value is not None:
            entries[offset - 1], entries[offset] = entries[offset], entries[offset - 1]
            return offset - 1
        return offset


class ChangesAValue(Log):
    """A follower that became leader holds something else at an offset."""

    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        found = list(super().read(partition, position, reader))
        for index, (offset, value) in enumerate(found):
            other = found[(index + 1) % len(found)][1]
            yield offset, other if self.dice.random() < 0.02 else value


class LosesOffsets(Log):
    def end(self, transaction: int, state: str) -> None:
        if self.dice.random() < 0.3 and not any(
            entry.transaction == transaction for entries in self.entries.values() for entry in entries
        ):
            self.pending[transaction].clear()
        super().end(transaction, state)


class LosesOffsetsOfWrites(Log):
    def end(self, transaction: int, state: str) -> None:
        if self.dice.random() < 0.3:
            self.pending[transaction].clear()
        super().end(transaction, state)


class CommitsOffsetsOfAborted(Log):
    def end(self, transaction: int, state: str) -> None:
        super().end(transaction, state)
        self.group_offsets.update(self.pending[transaction])


class InventsRecords(Log):
    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        if self.dice.random() < 0.1:
            super().append(partition, f"not {value}")
        return super().append(partition, value, transaction)


class InventsOffsets(Log):
    def group_offset(self, partition: Partition) -> int | None:
        return 1000 if self.dice.random() < 0.1 else super().group_offset(partition)


class ReadsBeyondTheStableOffset(Log):
    """A transaction sees what it wrote itself."""

    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        for offset in range(position, len(self.entries[partition])):
            entry = self.entries[partition][offset]
            if entry.value is not None and (
                (offset < self.stable(partition) and self.is_visible(entry))
                or (reader is not None and entry.transaction == reader)
            ):
                yield offset, entry.value


class SkipsOnRead(Log):
    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        found = super().read(partition, position, reader)
        return (record for record in found if position == 0 or self.dice.random() > 0.1)


class GoesBackOnRead(Log):
    def read(self, partition: Partition, position: int, reader: int | None = None) -> Iterator[tuple[int, Value]]:
        back = 2 if position and self.dice.random() < 0.2 else 0
        return super().read(partition, max(position - back, 0), reader)


class InsertsBefore(Log):
    """A record goes before what others had acknowledged; nobody had read that far."""

    def append(self, partition: Partition, value: Value, transaction: int | None = None) -> int:
        entries = self.entries[partition]
        if self.dice.random() < 0.1 and len(entries) > 4 and transaction is None:
            hole = next((at for at in range(len(entries) - 4) if entries[at].value is None), None)
            if hole is not None:
                entries[hole] = Entry(value)
                return hole
        return super().append(partition, value, transaction)
