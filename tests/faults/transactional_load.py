"""A load of transactions that writes down what it did and saw: a `moldau.testing.History`, one line per operation.

    python -m tests.faults.transactional_load BOOTSTRAP FILE SEED

Three writers put numbers into several partitions at once and commit or abort at random. One transformer for each
partition of the numbers reads it, writes a square for every number, and commits its offset, in one transaction. Readers
read everything that is committed. It goes on until its standard input ends; then everyone finishes what is under way.

What a client says decides the outcome: a commit that was answered happened, what was never asked to be committed or was
answered to be aborted did not, and everything else is unknown.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from moldau.testing import History, Operation, line_of

NUMBERS, SQUARES, GROUP = "numbers", "squares", "transformers"
PARTITIONS = 3
WRITERS = 3
READERS = 2
SENDS_MAX = 4
ABORT_PERCENT = 20
ANSWER_SECONDS_MAX = 30.0
# librdkafka can lose this call when the coordinator dies under it: it never returns, whatever its own timeout.
SEND_OFFSETS_SECONDS_MAX = 3.0
TRANSACTION_TIMEOUT_MS = 30_000
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    # An answer of a coordinator that died is waited for so long, whatever the call's own timeout.
    "socket.timeout.ms": 2000,
}


def transactional_ids() -> list[str]:
    return [*(f"writer-{number}" for number in range(WRITERS)), *(f"transformer-{at}" for at in range(PARTITIONS))]


def quiet(settings: dict[str, Any]) -> dict[str, Any]:
    return {"log_level": 0, "logger": logging.getLogger("librdkafka"), **settings}


def new_consumer(bootstrap: str, **settings: Any) -> Consumer:
    return Consumer(
        quiet(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # Nothing is ever deleted: an offset out of range is the broker's fault.
                "auto.offset.reset": "error",
                "fetch.error.backoff.ms": 20,
                **QUICK,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
    )


class Fatal(Exception):
    """The producer is of no use any more."""


def bounded(call: Callable[[], None]) -> None:
    """Wait for a call that may never return for so long only, and leave it behind."""
    problems: list[KafkaException] = []

    def work() -> None:
        try:
            call()
        except KafkaException as error:
            problems.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SEND_OFFSETS_SECONDS_MAX)
    if thread.is_alive():
        raise Fatal("no answer")
    if problems:
        raise problems[0]


class Transactor:
    """A producer with a transactional id, and the verdict on each of its transactions."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._offsets: dict[tuple[str, int, str], int] = {}
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        while True:
            producer = Producer(
                quiet(
                    {
                        "bootstrap.servers": self._bootstrap,
                        "transactional.id": self._name,
                        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                        "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                        "linger.ms": 1,
                        **QUICK,
                    }
                )
            )
            with suppress(KafkaException):
                producer.init_transactions(ANSWER_SECONDS_MAX)
                return producer

    def run(self, operation: Operation, work: Callable[[Producer], None], *, commit: bool) -> None:
        """Do the work in a transaction, end it and note the outcome."""
        asked_to_commit = False
        try:
            self._producer.begin_transaction()
            work(self._producer)
            if commit:
                asked_to_commit = True
                self._insist(self._producer.commit_transaction)
                operation.succeeded()
            else:
                self._insist(self._producer.abort_transaction)
                operation.failed()
        except (Fatal, KafkaException) as error:
            if not asked_to_commit:
                operation.failed()
            if not self._aborts(error):
                self._producer = self._new_producer()
            elif asked_to_commit:
                operation.failed()
        operation.sends[:] = [
            each._replace(offset=self._offsets.pop((*each.partition, str(each.value)), None))
            for each in operation.sends
        ]

    def _aborts(self, error: Fatal | KafkaException) -> bool:
        """After an error that leaves nothing else: whether the transaction is now aborted for certain."""
        if isinstance(error, Fatal) or not error.args[0].txn_requires_abort():
            return False
        try:
            self._insist(self._producer.abort_transaction)
        except KafkaException:
            return False
        return True

    def send(self, operation: Operation, topic: str, partition: int, value: str) -> None:
        operation.send((topic, partition), value)
        self._producer.produce(topic, value.encode(), partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None and message.offset() >= 0:
            self._offsets[message.topic(), message.partition(), message.value().decode()] = message.offset()

    def _insist(self, end: Callable[[float], None]) -> None:
        """The same call again for as long as the client says that it may be repeated."""
        while True:
            try:
                return end(ANSWER_SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


class Load:
    def __init__(self, bootstrap: str, file: IO[str], seed: int) -> None:
        self._bootstrap = bootstrap
        self._file = file
        self._seed = seed
        self._writing = threading.Lock()
        self.over = threading.Event()

    def _note(self, history: History) -> None:
        """Write down what is over, and forget it."""
        lines = [line_of(each) for each in history.operations]
        history.operations.clear()
        with self._writing:
            self._file.write("".join(f"{line}\n" for line in lines))
            self._file.flush()

    def write(self, number: int) -> None:
        name = f"writer-{number}"
        dice, history, transactor = (
            random.Random(f"{self._seed} {name}"),
            History(time.monotonic),
            self._transactor(name),
        )
        count = 0
        while not self.over.is_set():
            with history.transaction(name) as operation:

                def work(_: Producer, operation: Operation = operation) -> None:
                    nonlocal count
                    for _each in range(dice.randint(1, SENDS_MAX)):
                        count += 1
                        transactor.send(operation, NUMBERS, dice.randrange(PARTITIONS), f"{number}.{count}")

                transactor.run(operation, work, commit=dice.randrange(100) >= ABORT_PERCENT)
            self._note(history)

    def transform(self, partition: int) -> None:
        name, source = f"transformer-{partition}", (NUMBERS, partition)
        dice, history, transactor = (
            random.Random(f"{self._seed} {name}"),
            History(time.monotonic),
            self._transactor(name),
        )
        consumer = new_consumer(self._bootstrap)
        attempt = 0
        self._resume(consumer, history, name, partition)
        while not self.over.is_set():
            found = [each for each in consumer.consume(10, 0.1) if each.error() is None]
            if not found:
                continue
            with history.transaction(name) as operation:
                for message in found:
                    operation.poll(source, message.offset(), message.value().decode())
                attempt += 1
                squares = [f"{message.value().decode()} squared in {attempt}" for message in found]
                offsets = [TopicPartition(NUMBERS, partition, found[-1].offset() + 1)]

                def work(
                    producer: Producer,
                    operation: Operation = operation,
                    squares: list[str] = squares,
                    offsets: list[TopicPartition] = offsets,
                ) -> None:
                    for square in squares:
                        transactor.send(operation, SQUARES, dice.randrange(PARTITIONS), square)
                    operation.commit_offset(GROUP, source, offsets[0].offset)
                    metadata = consumer.consumer_group_metadata()
                    bounded(lambda: producer.send_offsets_to_transaction(offsets, metadata, SEND_OFFSETS_SECONDS_MAX))

                transactor.run(operation, work, commit=dice.randrange(100) >= ABORT_PERCENT)
            if operation.outcome != "ok":
                self._resume(consumer, history, name, partition)
            self._note(history)
        consumer.close()

    def _resume(self, consumer: Consumer, history: History, name: str, partition: int) -> None:
        """Read on from what is committed."""
        source = (NUMBERS, partition)
        while True:
            with suppress(KafkaException), history.plain(name) as operation:
                (found,) = consumer.committed([TopicPartition(NUMBERS, partition)], timeout=5)
                if found.error is None:
                    operation.read_offset(GROUP, source, found.offset if found.offset >= 0 else None)
                    operation.succeeded()
                    break
        position = max(found.offset, 0)
        history.assign(name, {source: position})
        consumer.assign([TopicPartition(NUMBERS, partition, position)])

    def read(self, number: int) -> None:
        name, history = f"reader-{number}", History(time.monotonic)
        consumer = new_consumer(self._bootstrap, group_id=name)
        everything = [(topic, index) for topic in (NUMBERS, SQUARES) for index in range(PARTITIONS)]
        history.assign(name, dict.fromkeys(everything, 0))
        consumer.assign([TopicPartition(*each, 0) for each in everything])
        while not self.over.is_set():
            with history.plain(name) as operation:
                for message in consumer.consume(100, 0.1):
                    if message.error() is None:
                        where = (message.topic(), message.partition())
                        operation.poll(where, message.offset(), message.value().decode())
                operation.succeeded()
            self._note(history)
        consumer.close()

    def _transactor(self, name: str) -> Transactor:
        return Transactor(self._bootstrap, name)


def main() -> None:
    bootstrap, path, seed = sys.argv[1:]
    with open(path, "a", encoding="utf-8") as file:
        load = Load(bootstrap, file, int(seed))
        roles = [
            *((load.write, number) for number in range(WRITERS)),
            *((load.transform, partition) for partition in range(PARTITIONS)),
            *((load.read, number) for number in range(READERS)),
        ]
        threads = [threading.Thread(target=role, args=(number,)) for role, number in roles]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        load.over.set()
        for thread in threads:
            thread.join()
    os._exit(0)  # without waiting for calls that were left behind


if __name__ == "__main__":
    main()
