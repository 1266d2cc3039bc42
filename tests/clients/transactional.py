"""Transactions of every client behind the same few verbs. A producer has a name, so that two can claim one
transactional id; each peer has one consumer at a time, a member of a group, whose positions go into transactions."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.clients.groups import java_program
from tests.clients.needs import JS_DIR, require_kafkajs, require_module

SECONDS_MAX = 40.0
FENCED = re.compile("fenced|invalid_?producer_?epoch|newer producer|producer epoch", re.IGNORECASE)


class Refused(Exception):
    """The client's own words for what the broker did not do."""


class TransactionalPeer(Protocol):
    def open(self, name: str, transactional_id: str) -> None: ...
    def begin(self, name: str) -> None: ...
    def send(self, name: str, topic: str, partition: int, value: str) -> None: ...
    def commit(self, name: str) -> None: ...
    def abort(self, name: str) -> None: ...
    def consume(self, group: str, topic: str, count: int) -> list[str]:
        """The next records that a member of the group reads; it stays a member."""
        ...

    def send_offsets(self, name: str) -> None:
        """What was consumed becomes part of the transaction."""
        ...

    def leave(self) -> None:
        """The consumer goes; the next one reads on from what is committed."""
        ...

    def committed(self, topic: str, partition: int) -> list[str]:
        """What a reader with `read_committed` finds before the record `end`."""
        ...

    def close(self) -> None: ...


class ConfluentTransactions:
    """librdkafka through confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("confluent_kafka")
        self._bootstrap = bootstrap
        self._producers: dict[str, Any] = {}
        self._consumer: Any = None

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._kafka.KafkaException as error:
            raise Refused(str(error)) from error

    def open(self, name: str, transactional_id: str) -> None:
        producer = self._kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": transactional_id, "log_level": 0}
        )
        self._try(producer.init_transactions, SECONDS_MAX)
        self._producers[name] = producer

    def begin(self, name: str) -> None:
        self._try(self._producers[name].begin_transaction)

    def send(self, name: str, topic: str, partition: int, value: str) -> None:
        self._try(lambda: self._producers[name].produce(topic, value.encode(), partition=partition))
        self._try(self._producers[name].flush, SECONDS_MAX)

    def commit(self, name: str) -> None:
        self._try(self._producers[name].commit_transaction, SECONDS_MAX)

    def abort(self, name: str) -> None:
        self._try(self._producers[name].abort_transaction, SECONDS_MAX)

    def consume(self, group: str, topic: str, count: int) -> list[str]:
        if self._consumer is None:
            self._consumer = self._kafka.Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
            self._consumer.subscribe([topic])
        found: list[str] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        return found

    def send_offsets(self, name: str) -> None:
        positions = self._consumer.position(self._consumer.assignment())
        known = [each for each in positions if each.offset >= 0]
        self._try(
            self._producers[name].send_offsets_to_transaction,
            known,
            self._consumer.consumer_group_metadata(),
            SECONDS_MAX,
        )

    def leave(self) -> None:
        self._consumer.close()
        self._consumer = None

    def committed(self, topic: str, partition: int) -> list[str]:
        consumer = self._kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
        )
        consumer.assign([self._kafka.TopicPartition(topic, partition, 0)])
        found: list[str] = []
        deadline = time.monotonic() + SECONDS_MAX
        while found[-1:] != ["end"] and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        consumer.close()
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self.leave()


class AiokafkaTransactions:
    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("aiokafka")
        self._errors = require_module("aiokafka.errors")
        self._bootstrap = bootstrap
        self._producers: dict[str, Any] = {}
        self._consumer: Any = None
        self._group = ""
        self._loop = asyncio.new_event_loop()

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(SECONDS_MAX):
                return await work

        try:
            return self._loop.run_until_complete(bounded())
        except self._errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def open(self, name: str, transactional_id: str) -> None:
        async def work() -> Any:
            producer = self._kafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, transactional_id=transactional_id
            )
            self._producers[name] = producer
            await producer.start()

        self._run(work())

    def begin(self, name: str) -> None:
        self._run(self._producers[name].begin_transaction())

    def send(self, name: str, topic: str, partition: int, value: str) -> None:
        self._run(self._producers[name].send_and_wait(topic, value.encode(), partition=partition))

    def commit(self, name: str) -> None:
        self._run(self._producers[name].commit_transaction())

    def abort(self, name: str) -> None:
        self._run(self._producers[name].abort_transaction())

    def consume(self, group: str, topic: str, count: int) -> list[str]:
        async def work() -> list[str]:
            if self._consumer is None:
                self._group = group
                self._consumer = self._kafka.AIOKafkaConsumer(
                    topic,
                    bootstrap_servers=self._bootstrap,
                    group_id=group,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                )
                await self._consumer.start()
            return [(await self._consumer.getone()).value.decode() for _ in range(count)]

        found: list[str] = self._run(work())
        return found

    def send_offsets(self, name: str) -> None:
        async def work() -> None:
            offsets = {where: await self._consumer.position(where) for where in self._consumer.assignment()}
            await self._producers[name].send_offsets_to_transaction(offsets, self._group)

        self._run(work())

    def leave(self) -> None:
        self._run(self._consumer.stop())
        self._consumer = None

    def committed(self, topic: str, partition: int) -> list[str]:
        async def work() -> list[str]:
            consumer = self._kafka.AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap, enable_auto_commit=False, isolation_level="read_committed"
            )
            where = self._kafka.TopicPartition(topic, partition)
            found: list[str] = []
            async with consumer:
                consumer.assign([where])
                await consumer.seek_to_beginning(where)
                while found[-1:] != ["end"]:
                    found.append((await consumer.getone()).value.decode())
            return found

        result: list[str] = self._run(work())
        return result

    def close(self) -> None:
        async def work() -> None:
            if self._consumer is not None:
                await self._consumer.stop()
            for producer in self._producers.values():
                try:
                    await producer.stop()
                except self._errors.KafkaError:
                    pass  # a fenced one says so once more

        self._run(work())
        self._loop.close()


class KafkaPythonTransactions:
    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("kafka")
        self._errors = require_module("kafka.errors")
        self._bootstrap = bootstrap
        self._producers: dict[str, Any] = {}
        self._consumer: Any = None

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def open(self, name: str, transactional_id: str) -> None:
        producer = self._kafka.KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=transactional_id)
        self._producers[name] = producer
        self._try(producer.init_transactions)

    def begin(self, name: str) -> None:
        self._try(self._producers[name].begin_transaction)

    def send(self, name: str, topic: str, partition: int, value: str) -> None:
        sent = self._try(lambda: self._producers[name].send(topic, value.encode(), partition=partition))
        self._try(lambda: sent.get(timeout=SECONDS_MAX))

    def commit(self, name: str) -> None:
        self._try(self._producers[name].commit_transaction)

    def abort(self, name: str) -> None:
        self._try(self._producers[name].abort_transaction)

    def consume(self, group: str, topic: str, count: int) -> list[str]:
        if self._consumer is None:
            self._consumer = self._kafka.KafkaConsumer(
                topic,
                bootstrap_servers=self._bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                max_poll_records=1,
            )
        found: list[str] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            for messages in self._consumer.poll(timeout_ms=100).values():
                found += [message.value.decode() for message in messages]
        return found

    def send_offsets(self, name: str) -> None:
        structs = require_module("kafka.structs")
        offsets = {
            where: structs.OffsetAndMetadata(self._consumer.position(where), "", -1)
            for where in self._consumer.assignment()
        }
        self._try(self._producers[name].send_offsets_to_transaction, offsets, self._consumer.group_metadata())

    def leave(self) -> None:
        self._consumer.close()
        self._consumer = None

    def committed(self, topic: str, partition: int) -> list[str]:
        consumer = self._kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        consumer.assign([self._kafka.TopicPartition(topic, partition)])
        found: list[str] = []
        deadline = time.monotonic() + SECONDS_MAX
        while found[-1:] != ["end"] and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=100).values():
                found += [message.value.decode() for message in messages]
        consumer.close()
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self.leave()
        for producer in self._producers.values():
            producer.close(timeout=1)


class _Piped:
    """A program that obeys the verbs as lines of JSON."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )

    def _ask(self, do: str, **order: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended with {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def open(self, name: str, transactional_id: str) -> None:
        self._ask("open", name=name, transactionalId=transactional_id)

    def begin(self, name: str) -> None:
        self._ask("begin", name=name)

    def send(self, name: str, topic: str, partition: int, value: str) -> None:
        self._ask("send", name=name, topic=topic, partition=partition, value=value)

    def commit(self, name: str) -> None:
        self._ask("commit", name=name)

    def abort(self, name: str) -> None:
        self._ask("abort", name=name)

    def consume(self, group: str, topic: str, count: int) -> list[str]:
        found: list[str] = self._ask("consume", group=group, topic=topic, count=count)
        return found

    def send_offsets(self, name: str) -> None:
        self._ask("sendOffsets", name=name)

    def leave(self) -> None:
        self._ask("leave")

    def committed(self, topic: str, partition: int) -> list[str]:
        found: list[str] = self._ask("committed", topic=topic, partition=partition)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(SECONDS_MAX)
        finally:
            self._process.kill()
            self._process.wait()


class JavaTransactions(_Piped):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(java_program("Transactions", bootstrap))


class KafkajsTransactions(_Piped):
    def __init__(self, bootstrap: str) -> None:
        node = require_kafkajs()
        source = str(Path(__file__).parent / "js" / "transactions.js")
        environment = {"NODE_PATH": str(JS_DIR / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        super().__init__([node, "--no-deprecation", source, bootstrap], environment)


TRANSACTIONAL_PEERS: dict[str, Callable[[str], TransactionalPeer]] = {
    "confluent-kafka": ConfluentTransactions,
    "aiokafka": AiokafkaTransactions,
    "kafka-python": KafkaPythonTransactions,
    "kafkajs": KafkajsTransactions,
    "java": JavaTransactions,
}
