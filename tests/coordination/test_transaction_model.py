"""Any request at any time, restarts and timeouts: the coordinator does what a model of sixty lines says."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.coordination.transactions import TransactionState
from moldau.kernel import ErrorCode, ProducerIdAndEpoch, TopicPartition
from tests.coordination.transaction_play import TIMEOUT_MS, TransactionPlay

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
FENCED, INVALID = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE


class Ledger:
    """What must be true of one transactional id whose markers are written at once. No states: only what is owed."""

    def __init__(self, bumps: bool) -> None:
        self.bumps = bumps
        self.epoch = -1
        self.open: set[TopicPartition] | None = None
        # How the last transaction of this epoch, or of the one before, ended; None after `init`.
        self.last: bool | None = None
        self.outcomes: list[tuple[bool, frozenset[TopicPartition]]] = []

    def init(self) -> int:
        if self.open is not None:
            self._close(False)
            self.epoch += 1
        self.epoch += 1
        self.last = None
        return self.epoch

    def add(self, epoch: int, partitions: set[TopicPartition]) -> ErrorCode:
        if epoch != self.epoch:
            return FENCED
        self.open = (self.open or set()) | partitions
        return ErrorCode.NONE

    def end(self, epoch: int, committed: bool) -> ErrorCode | int:
        """The epoch to go on with."""
        if self.bumps and epoch == self.epoch - 1 and self.open is None and self.last is not None:
            return self.epoch if committed == self.last else INVALID
        if epoch != self.epoch:
            return FENCED
        if self.open is None:
            if not self.bumps and self.last is not None:
                return self.epoch if committed == self.last else INVALID
            if committed or not self.bumps:
                return INVALID
            self.open = set()
        self._close(committed)
        self.epoch += self.bumps
        return self.epoch

    def time_out(self) -> None:
        if self.open is not None:
            self._close(False)
            self.epoch += 1

    def _close(self, committed: bool) -> None:
        self.outcomes.append((committed, frozenset(self.open or ())))
        self.open, self.last = None, committed


class TransactionsAreLikeTheLedger(RuleBasedStateMachine):
    @initialize(bumps=st.booleans())
    def begin(self, bumps: bool) -> None:
        self.version = 2 if bumps else 0
        self.play = TransactionPlay(2 if bumps else 1)
        self.ledger = Ledger(bumps)
        self.orders: list[tuple[bool, frozenset[TopicPartition]]] = []
        report = self.play.report_markers

        def noted() -> None:
            self.orders += [(order.committed, order.partitions) for order in self.play.orders]
            report()

        self.play.report_markers = noted  # type: ignore[method-assign]
        assert self.play.initialize().epoch == self.ledger.init()

    def _who(self, age: int) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(1000, self.ledger.epoch + age)

    @rule()
    def another_instance_comes(self) -> None:
        assert self.play.initialize().epoch == self.ledger.init()

    @rule(age=st.sampled_from([0, 0, 0, 0, -1, -2, 1]), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def partitions_are_added(self, age: int, partitions: set[TopicPartition]) -> None:
        who = self._who(age)
        assert self.play.add(*partitions, producer=who, version=self.version) == self.ledger.add(who.epoch, partitions)

    @rule(age=st.sampled_from([0, 0, 0, 0, -1, -1, -2, 1]), committed=st.booleans())
    def it_ends(self, age: int, committed: bool) -> None:
        who = self._who(age)
        answer: Any = self.play.end(committed, who, self.version)
        expected = self.ledger.end(who.epoch, committed)
        assert answer is expected if isinstance(expected, ErrorCode) else answer == (1000, expected)

    @rule()
    def time_passes(self) -> None:
        self.play.pass_time(TIMEOUT_MS)
        self.ledger.time_out()

    @rule()
    def the_broker_dies(self) -> None:
        self.play.restart()

    @invariant()
    def it_is_open_or_it_is_not(self) -> None:
        if not hasattr(self, "ledger"):
            return
        transaction = self.play.transaction
        assert (transaction.state is TransactionState.ONGOING) == (self.ledger.open is not None)
        assert transaction.partitions == (self.ledger.open or set())
        assert transaction.epoch == self.ledger.epoch

    @invariant()
    def every_end_was_ordered_once(self) -> None:
        if hasattr(self, "ledger"):
            assert self.orders == self.ledger.outcomes


TestModel = TransactionsAreLikeTheLedger.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
