"""Real clients read a compacted topic from its beginning while the cleaner works on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import BrokerProcess

TOPIC, KEYS = "table", 40
CLEANINGS = 2
Read = Callable[[str], dict[bytes, int]]


def with_confluent(bootstrap: str) -> dict[bytes, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "error"})
    found: dict[bytes, int] = {}
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while consumer.position([TopicPartition(TOPIC, 0)])[0].offset < end:
            message = consumer.poll(10)
            assert message is not None and message.error() is None, message and message.error()
            found[message.key() or b""] = int(message.value() or b"-1")
    finally:
        consumer.close()
    return found


def with_kafka_python(bootstrap: str) -> dict[bytes, int]:
    kafka = pytest.importorskip("kafka")
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False)
    where = kafka.TopicPartition(TOPIC, 0)
    found: dict[bytes, int] = {}
    try:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        consumer.seek(where, 0)
        while consumer.position(where) < end:
            for records in consumer.poll(1000).values():
                found.update({record.key: int(record.value) for record in records})
    finally:
        consumer.close()
    return found


def with_aiokafka(bootstrap: str) -> dict[bytes, int]:
    aiokafka = pytest.importorskip("aiokafka")

    async def read() -> dict[bytes, int]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )
        where = aiokafka.TopicPartition(TOPIC, 0)
        found: dict[bytes, int] = {}
        await consumer.start()
        try:
            consumer.assign([where])
            end = (await consumer.end_offsets([where]))[where]
            consumer.seek(where, 0)
            while await consumer.position(where) < end:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found.update({record.key: int(record.value) for record in records})
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


READERS: list[Read] = [with_confluent, with_kafka_python, with_aiokafka]


class Load:
    """Writes the round's number under every key, round after round, until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        # Acknowledged for every key.
        self.done = -1
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            for key in range(KEYS):
                self._producer.produce(TOPIC, b"%d" % (self.done + 1), b"key-%d" % key, partition=0)
            assert self._producer.flush(30) == 0
            self.done += 1

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()


def test_a_table_is_read_whole_by_every_client_while_it_is_cleaned(tmp_path: Path) -> None:
    with BrokerProcess({"log.cleaner.backoff.ms": "50", "log.dirs": str(tmp_path)}) as broker:
        configs = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "16000",
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": "0",
        }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(30)
        load = Load(broker.bootstrap)
        try:
            reads = 0
            # The first cleaning waits for its process to start, so the load ends by what was cleaned, not by a number.
            while broker.log.count("log_cleaned partition=table-0") < CLEANINGS or reads < len(READERS):
                least = load.done
                found = READERS[reads % len(READERS)](broker.bootstrap)
                if least >= 0:
                    assert len(found) == KEYS and min(found.values()) >= least, "no key is missing, none is older"
                reads += 1
        finally:
            load.stop()
        for read in READERS:
            assert read(broker.bootstrap) == {b"key-%d" % key: load.done for key in range(KEYS)}
