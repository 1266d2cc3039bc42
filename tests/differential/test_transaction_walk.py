"""Instances of one transactional id that do whatever comes to mind: each step is answered as Kafka answers it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.differential.deliberate import PRODUCE_MESSAGES
from tests.differential.pair import Side
from tests.differential.test_groups import ready as group_ready
from tests.differential.test_transactions import HASHED, describe, describe_producers
from tests.differential.transactions import (
    TIMEOUT_MS,
    Producer,
    Transactions,
    add_offsets,
    add_partitions,
    codes,
    commit_offsets,
    end,
    ready,
    settled,
    transactional,
)

pytestmark = pytest.mark.oracle

# In 34 a batch that was refused must not be overtaken by the one after it.
SEEDS = (*range(5), 34)
PREPARED = ("PrepareCommit", "PrepareAbort")


class Walk:
    STEPS = 30

    def __init__(self, transactions: Transactions, seed: int) -> None:
        self._all = transactions
        self._dice = random.Random(seed)
        self._id, self._group = transactions.topic("id"), transactions.topic("group")
        self._topic = transactions.create("t", 2)
        # Instances by number: what each was last told is in each side's notes.
        self._instances = 0
        # By instance, epoch and partition: the next sequence.
        self._sequences: dict[tuple[int, int, int, int], int] = {}
        for side in transactions.sides:
            ready(side, self._id)
            group_ready(side, self._group)

    def run(self) -> None:
        self._starts("first")
        steps = [self._starts] + [self._recovers] + [self._adds] * 3 + [self._adds_offsets] + [self._commits_offsets]
        steps += [self._verifies] + [self._sends] * 4 + [self._ends] * 4
        for number in range(self.STEPS):
            self._dice.choice(steps)(f"step {number}")
            self._settle()
            describe(self._all, self._id, f"after step {number}")
        describe_producers(self._all, self._topic, "in the end")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _starts(self, say: str) -> None:
        self._instances += 1
        self._init(say + ": starts", self._instances, lambda side: InitProducerIdRequest(self._id, TIMEOUT_MS), 4)

    def _recovers(self, say: str) -> None:
        number, shift = self._some()

        def build(side: Side) -> InitProducerIdRequest:
            one = self._producer(side, number, shift)
            return InitProducerIdRequest(self._id, TIMEOUT_MS, one.producer_id, max(one.epoch, 0))

        self._init(f"{say}: {number} recovers, epoch {shift:+}", number, build, 4)

    def _init(self, say: str, number: int, build: Any, version: int) -> None:
        answers = self._all.ask(build, version, until=settled, masks=("producer_id",), say=say)
        for side, answer in zip(self._all.sides, answers, strict=True):
            if not answer.error_code:
                self._learn(side, number, answer)

    def _adds(self, say: str) -> None:
        number, shift = self._some()
        partitions = self._dice.choice([[0], [1], [0, 1]])
        self._ask(
            f"{say}: {number} adds, epoch {shift:+}",
            number,
            shift,
            lambda one: add_partitions(3, one, {self._topic: partitions}),
            3,
        )

    def _verifies(self, say: str) -> None:
        number, shift = self._some()
        self._ask(
            f"{say}: {number} verified, epoch {shift:+}",
            number,
            shift,
            lambda one: add_partitions(5, one, {self._topic: [0, 1]}, verify_only=True),
            5,
        )

    def _adds_offsets(self, say: str) -> None:
        number, shift = self._some()
        self._ask(
            f"{say}: {number} adds offsets, epoch {shift:+}",
            number,
            shift,
            lambda one: add_offsets(one, self._group),
            4,
        )

    def _commits_offsets(self, say: str) -> None:
        number, shift = self._some()
        version = self._version(5, 4)
        self._ask(
            f"{say}: {number} commits offsets, epoch {shift:+}",
            number,
            shift,
            lambda one: commit_offsets(version, one, self._group, {self._topic: {0: 3}}),
            version,
        )

    def _sends(self, say: str) -> None:
        number, shift = self._some()
        # A batch of an epoch to come makes Kafka refuse the present one's, until the transaction ends.
        shift = min(shift, 0)
        # Kafka goes by the version of the first batch that was refused, for as long as it remembers that.
        partition, version = self._dice.choice([0, 1]), 12 if self._all.level >= 2 else 11
        one = self._producer(self._all.moldau, number, shift)
        key = (number, one.producer_id, one.epoch, partition)
        sequence = self._sequences.get(key, 0) + self._dice.choice([0, 0, 0, 0, 1])
        answers = self._ask(
            f"{say}: {number} sends to {partition}, epoch {shift:+}, sequence {sequence}",
            number,
            shift,
            lambda each: transactional(each, self._topic, sequence, b"v", partition=partition),
            version,
            deliberate=[PRODUCE_MESSAGES],
        )
        if not any(codes(answers[0])):
            self._sequences[key] = sequence + 1

    def _ends(self, say: str) -> None:
        number, shift = self._some()
        commit, version = self._dice.random() < 0.6, self._version(5, 4)
        answers = self._ask(
            f"{say}: {number} {'commits' if commit else 'aborts'}, epoch {shift:+}",
            number,
            shift,
            lambda one: end(one, commit=commit),
            version,
            masks=("producer_id",),
        )
        for side, answer in zip(self._all.sides, answers, strict=True):
            if not answer.error_code and version >= 5:
                self._learn(side, number, answer)

    # -- who asks ------------------------------------------------------------------------------------------------------

    def _some(self) -> tuple[int, int]:
        """The newest instance more often than not, and mostly with its own epoch."""
        number = self._instances if self._dice.random() < 0.8 else self._dice.randint(1, self._instances)
        return number, self._dice.choice([0] * 8 + [-1, 1])

    def _version(self, new: int, old: int) -> int:
        return self._dice.choice([new, new, new, old]) if self._all.level >= 2 else old

    def _producer(self, side: Side, number: int, shift: int) -> Producer:
        one: Producer = side.notes[f"instance {number}"]
        return one.changed(epoch=one.epoch + shift)

    def _learn(self, side: Side, number: int, answer: Any) -> None:
        side.notes[f"instance {number}"] = Producer(self._id, answer.producer_id, answer.producer_epoch)
        known = sum(self._id in name for name in side.producer_names.values())
        side.producer_names.setdefault(answer.producer_id, f"<producer {known} of {self._id}>")

    def _ask(self, say: str, number: int, shift: int, build: Any, version: int, **more: Any) -> tuple[Any, Any]:
        return self._all.ask(
            lambda side: build(self._producer(side, number, shift)),
            version,
            until=settled,
            unordered=HASHED,
            say=say,
            **more,
        )

    def _settle(self) -> None:
        """The markers are written."""
        for side in self._all.sides:
            side.ask_until(
                DescribeTransactionsRequest([self._id]),
                0,
                lambda answer: answer.transaction_states[0].transaction_state not in PREPARED,
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_walk(transactions: Transactions, seed: int) -> None:
    Walk(transactions, seed).run()
