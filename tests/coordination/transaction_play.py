"""A transaction coordinator without a broker: events in, answers and orders out, time by hand."""

from __future__ import annotations

from typing import Any

from moldau.coordination import Logged, Moment, Shard
from moldau.coordination.transactions import (
    AddPartitions,
    EndTransaction,
    InitializeProducer,
    MarkersWritten,
    Transaction,
    TransactionMachine,
    TransactionState,
    WriteMarkers,
)
from moldau.coordination.transactions.records import transaction_key, transaction_value
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition

WALL_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
ID = "orders"
A, B = TopicPartition("a", 0), TopicPartition("b", 3)
SETTINGS = {
    "transaction.max.timeout.ms": 900_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transactional.id.expiration.ms": 604_800_000,
}


class Settings:
    def __init__(self, transaction_version: int) -> None:
        self.transaction_version = transaction_version

    def integer(self, name: str) -> int:
        return SETTINGS[name]


class Ids:
    """Counts up from 1000; `is_empty` is a source that has none at hand."""

    def __init__(self) -> None:
        self.next = 1000
        self.is_empty = False

    def take(self) -> int | None:
        if self.is_empty:
            return None
        self.next += 1
        return self.next - 1


class TransactionPlay:
    def __init__(self, transaction_version: int = 2) -> None:
        self.settings = Settings(transaction_version)
        self.ids = Ids()
        self.now_ms = 0
        self.wall_shift_ms = 0
        self.log: list[Logged] = []
        self.lines: list[str] = []
        self.answers: dict[int, Any] = {}
        # Markers that were ordered and are not reported as written yet.
        self.orders: list[WriteMarkers] = []
        self.writes_markers_at_once = True
        self.commits = self.aborts = 0
        self.largest_turn_bytes = 0
        self._tokens = 0
        self._start()

    def _start(self) -> None:
        machine = TransactionMachine(self.settings, self.ids, "outbox", self.lines.append)
        self.shard: Shard[TransactionMachine] = Shard(0, machine, self.lines.append)
        for key, value in self.log:
            machine.replay(key, value)
        self.shard.activate(len(self.log), self.moment)
        self._finish_turns()

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms, WALL_MS + self.now_ms + self.wall_shift_ms)

    @property
    def transaction(self) -> Transaction:
        return self.shard.machine.transactions[ID]

    @property
    def state(self) -> TransactionState:
        return self.transaction.state

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.transaction.producer_id, self.transaction.epoch)

    def put(self, transaction: Transaction) -> None:
        """As if the log had held it from the start."""
        key = transaction_key(transaction.transactional_id)
        self.log = [Logged(key, transaction_value(transaction, self.settings.transaction_version))]
        self.orders.clear()
        self._start()

    def restart(self) -> None:
        """Who waits gets no answer; the log comes back."""
        self.orders.clear()
        self._start()

    # -- events --------------------------------------------------------------------------------------------------------

    def submit(self, event: Any, token: int) -> None:
        try:
            self.shard.submit(event, self.moment)
        except KafkaError as refusal:
            self.answers[token] = ErrorCode(refusal.code)
        self._finish_turns()

    def ask(self, event_type: Any, *fields: Any) -> int:
        """The token of a request; its answer, or the code of its refusal, is in `answers` once it is there."""
        self._tokens += 1
        self.submit(event_type(self._tokens, ID, *fields), self._tokens)
        return self._tokens

    def answer(self, event_type: Any, *fields: Any) -> Any:
        return self.answers.get(self.ask(event_type, *fields), "held")

    def initialize(self, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = TIMEOUT_MS) -> Any:
        return self.answer(InitializeProducer, timeout_ms, expected)

    def add(self, *partitions: TopicPartition, producer: ProducerIdAndEpoch | None = None, version: int = 2) -> Any:
        answer = self.answer(AddPartitions, producer or self.producer, frozenset(partitions), version)
        return _only(answer)

    def verify(self, *partitions: TopicPartition, producer: ProducerIdAndEpoch | None = None) -> Any:
        answer = self.answer(AddPartitions, producer or self.producer, frozenset(partitions), 0, True)
        return _only(answer)

    def end(self, committed: bool, producer: ProducerIdAndEpoch | None = None, version: int = 2) -> Any:
        return self.answer(EndTransaction, producer or self.producer, committed, version)

    def answer_plain(self, event_type: Any, *fields: Any) -> Any:
        """Of a question that names no transactional id."""
        self._tokens += 1
        self.submit(event_type(self._tokens, *fields), self._tokens)
        return self.answers[self._tokens]

    def _finish_turns(self) -> None:
        while self.shard.has_turn or self.shard.is_waiting:
            if self.shard.has_turn:
                turn: list[Any] = self.shard.take()
                turn_bytes = sum(len(each.key) + len(each.value or b"") for each in turn)
                self.largest_turn_bytes = max(self.largest_turn_bytes, turn_bytes)
                self.log += turn
                self.shard.appended(len(self.log))
            for token, response in self.shard.commit(len(self.log)):
                if token == "outbox":
                    self.orders.append(response)
                else:
                    assert token not in self.answers, f"request {token} was answered twice"
                    self.answers[token] = response.code if isinstance(response, KafkaError) else response
            if self.writes_markers_at_once:
                self.report_markers()

    def report_markers(self) -> None:
        """Every marker that was ordered is written."""
        orders, self.orders = self.orders, []
        for order in orders:
            self.commits += order.committed
            self.aborts += not order.committed
            self.shard.submit(MarkersWritten(order.transactional_id, order.producer), self.moment)
        if orders:
            self._finish_turns()

    def pass_time(self, ms: int) -> None:
        until = self.now_ms + ms
        while True:
            due = self.shard.machine.next_deadline_ms
            if due is None or due > until:
                break
            self.now_ms = max(self.now_ms, due)
            self.shard.tick(self.moment)
            self._finish_turns()
        self.now_ms = until


def _only(answer: Any) -> Any:
    """One code where all partitions have the same."""
    if isinstance(answer, dict):
        codes = set(answer.values())
        return codes.pop() if len(codes) == 1 else answer
    return answer
