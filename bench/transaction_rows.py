"""Transactions: how many, how long a commit takes, what readers of committed records and a restart cost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.group_rows import Raw
from bench.report import Row
from bench.rows import ON_LOAD_CORE, both, create, run, values_of
from bench.servers import LOAD_CORE, Moldau, Server, resident_mb
from moldau.protocol.batches import Record, build_batch
from moldau.protocol.messages.produce import ProduceRequest
from tests.java import java_command

SECONDS = 5.0
WARM_SECONDS = 3.0
JAVA_WARM_SECONDS, JAVA_SECONDS = 6.0, 8.0
JAVA_TRIES_MAX = 4
RECORDS_READ, RECORD_BYTES, RECORDS_EACH, ABORTED_OF = 300_000, 1024, 1000, 10
END_TO_END = 300
PRODUCER_IDS = 100_000
CLOSE_SECONDS = 60


def transactions(rows: list[Row], rounds: int) -> None:
    with both() as servers:
        small(rows, servers, rounds)
        java(rows, servers, rounds)
        read_committed(rows, servers, rounds)
        idempotence(rows, servers, rounds)
    producer_states(rows, rounds)


# -- librdkafka --------------------------------------------------------------------------------------------------------


def _producer(server: Server, name: str) -> Producer:
    settings = {"bootstrap.servers": server.bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(CLOSE_SECONDS)
    return producer


def _commits(producer: Producer, fill: Callable[[], None], seconds: float) -> tuple[float, list[float]]:
    """Transactions a second, and how long each commit took."""
    took: list[float] = []
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        producer.begin_transaction()
        fill()
        before = time.monotonic()
        producer.commit_transaction(CLOSE_SECONDS)
        took.append(time.monotonic() - before)
    return len(took) / (now - began), took


def small(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    plain = Row("transactions of 1 record, librdkafka", "txn/s", "higher", at_least=3)
    with_offsets = Row("transactions of 10 records and offsets, librdkafka", "txn/s", "higher", at_least=3)
    middle = Row("commit, librdkafka: p50", "ms", "lower", at_least=2)
    tail = Row("commit, librdkafka: p99", "ms", "lower", at_least=1)
    seen_middle = Row("begin to read_committed consume: p50", "ms", "lower", at_least=2)
    seen_tail = Row("begin to read_committed consume: p99", "ms", "lower", at_least=1)
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    for number in range(rounds):
        for server in servers:
            (topic,) = create(server, 1, 1, f"small-{number}-")
            producer = _producer(server, topic)

            def one(producer: Producer = producer, topic: str = topic) -> None:
                producer.produce(topic, b"x" * 100)

            _commits(producer, one, WARM_SECONDS)
            rate, took = _commits(producer, one, SECONDS)
            values_of(plain, server).append(rate)
            cuts = quantiles(took, n=100)
            values_of(middle, server).append(cuts[49] * 1000)
            values_of(tail, server).append(cuts[98] * 1000)
            consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": topic, "log_level": 0})
            position = TopicPartition(topic, 0)

            def ten(
                producer: Producer = producer,
                topic: str = topic,
                consumer: Consumer = consumer,
                position: TopicPartition = position,
            ) -> None:
                for _ in range(10):
                    producer.produce(topic, b"x" * 100)
                position.offset = max(position.offset, 0) + 1
                producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), CLOSE_SECONDS)

            _commits(producer, ten, WARM_SECONDS)
            values_of(with_offsets, server).append(_commits(producer, ten, SECONDS)[0])
            consumer.close()
            cuts = quantiles(_end_to_end(server, producer, topic), n=100)
            values_of(seen_middle, server).append(cuts[49] * 1000)
            values_of(seen_tail, server).append(cuts[98] * 1000)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    rows += [plain, with_offsets, middle, tail, seen_middle, seen_tail]


def _end_to_end(server: Server, producer: Producer, topic: str) -> list[float]:
    """From the record's production, through the commit, until a reader of committed records has it."""
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": f"{topic}-reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 500,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), CLOSE_SECONDS)
    consumer.assign([TopicPartition(topic, 0, end)])
    took = []
    for number in range(END_TO_END):
        wanted = f"{number}".encode()
        began = time.monotonic()
        producer.begin_transaction()
        producer.produce(topic, wanted)
        producer.commit_transaction(CLOSE_SECONDS)
        while True:
            message = consumer.poll(CLOSE_SECONDS)
            assert message is not None, "the record never came"
            if message.error() is None and message.value() == wanted:
                break
        took.append(time.monotonic() - began)
    consumer.close()
    return took


# -- Java --------------------------------------------------------------------------------------------------------------


def java(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    source = str(Path(__file__).parent / "TransactionLoad.java")
    for producers in (1, 16):
        many = f"{producers} producer{'s' * (producers > 1)}"
        row = Row(f"transactions of 1 record, Java, {many}", "txn/s", "higher", at_least=1.2)
        middle = Row(f"commit, Java, {many}: p50", "ms", "lower", at_least=2 if producers == 1 else 1)
        tail = Row(f"commit, Java, {many}: p99", "ms", "lower", at_least=1)
        for number in range(rounds):
            for server in servers:
                (topic,) = create(server, 1, 1, f"java-{producers}-{number}-")
                arguments = (server.bootstrap, topic, str(producers), str(JAVA_WARM_SECONDS), str(JAVA_SECONDS))
                command = [*ON_LOAD_CORE, *java_command(source, *arguments)]
                answer = _java_load(command)
                values_of(row, server).append(answer["transactions_per_second"])
                values_of(middle, server).append(answer["p50_ms"])
                values_of(tail, server).append(answer["p99_ms"])
        rows += [row, middle, tail]


def _java_load(command: list[str]) -> dict[str, float]:
    for _ in range(JAVA_TRIES_MAX):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        # Once in some hundred thousand transactions Java's producer ends one before it has sent its record, at either
        # broker: the others are measured with one less.
        if "InvalidTxnStateException" in result.stderr:
            continue
        if not result.stdout:
            break
        answer: dict[str, float] = json.loads(result.stdout)
        return answer
    raise RuntimeError(f"TransactionLoad failed: {result.stderr[-500:]}")


# -- readers and idempotence -------------------------------------------------------------------------------------------


def read_committed(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    row = Row("read_committed consume, 1 KiB, 10 % aborted", "MB/s", "higher", at_least=1.0)
    topics = {}
    for server in servers:
        (topic,) = create(server, 1, 1, "aborted-")
        topics[server] = topic
        producer = _producer(server, topic)
        payload = os.urandom(RECORD_BYTES)
        for number in range(RECORDS_READ // RECORDS_EACH):
            producer.begin_transaction()
            for _ in range(RECORDS_EACH):
                while True:
                    try:
                        producer.produce(topic, payload)
                        break
                    except BufferError:
                        producer.poll(0.1)
            end = producer.abort_transaction if number % ABORTED_OF == 0 else producer.commit_transaction
            producer.flush(CLOSE_SECONDS)
            end(CLOSE_SECONDS)
    visible = RECORDS_READ - RECORDS_READ // ABORTED_OF
    for _ in range(rounds + 1):
        for server in servers:
            answer = run(
                "rdload", "consume", server.bootstrap, topics[server], str(visible), "isolation.level=read_committed"
            )
            values_of(row, server).append(answer["mb_per_second"])
    del row.moldau[0], row.kafka[0]  # the first warms up
    rows.append(row)


def idempotence(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    row = Row("produce 100 B: idempotence on against off", "of off", "higher", limit=0.9)
    for number in range(rounds):
        for server in servers:
            rates = []
            for setting in ("true", "false"):
                (topic,) = create(server, 1, 1, f"idempotence-{setting}-{number}-")
                option = f"enable.idempotence={setting}"
                answer = run("rdload", "produce", server.bootstrap, topic, "2000000", "100", option)
                rates.append(answer["mb_per_second"])
            values_of(row, server).append(rates[0] / rates[1])
    rows.append(row)


# -- recovery ----------------------------------------------------------------------------------------------------------


def producer_states(rows: list[Row], rounds: int) -> None:
    taken = Row(f"SIGKILL restart with {PRODUCER_IDS:,} producer ids", "s", "lower", limit=5)
    memory = Row(f"resident memory with {PRODUCER_IDS:,} producer ids", "MB", "lower", limit=200)
    for _ in range(rounds):
        server = Moldau().start()
        try:
            (topic,) = create(server, 1, 1, "ids-")
            asyncio.run(_write_ids(server, topic))
            server.kill()
            began = time.monotonic()
            server.start()
            taken.moldau.append(time.monotonic() - began)
            memory.moldau.append(resident_mb(server.pid))
        finally:
            server.remove()
    rows += [taken, memory]


async def _write_ids(server: Moldau, topic: str) -> None:
    raw = await Raw.connect(server.port)
    now_ms = int(time.time() * 1000)
    waiting: list[asyncio.Future[Any]] = []
    for producer_id in range(PRODUCER_IDS):
        batch = build_batch([Record(0, now_ms, None, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        partition = ProduceRequest.PartitionProduceData(0, bytes(batch))
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
        waiting.append(raw.ask(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), 9))
        if len(waiting) == 100:
            for answer in await asyncio.gather(*waiting):
                assert answer.responses[0].partition_responses[0].error_code == 0, answer
            waiting.clear()
    await raw.close()
