"""What Spark reads: topics filled with columns, and a steady stream of records that say when they were sent."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.client import Producer as ColumnProducer
from moldau.client.column_writer import ColumnWriter

# Between the 16 KiB of Java's producer and the megabyte of librdkafka's.
LOG_BATCH_BYTES = 64 << 10
PIECE_ROWS = 50_000
USERS = 1000
CONSUME_SECONDS_MAX = 30


def fill(bootstrap: str, topic: str, row_count: int, value_bytes: int) -> None:
    """Keyed JSON of exactly so many bytes."""
    asyncio.run(_fill(bootstrap, topic, row_count, value_bytes))


async def _fill(bootstrap: str, topic: str, row_count: int, value_bytes: int) -> None:
    dice = random.Random(value_bytes)
    keys, values = [], []
    for _ in range(PIECE_ROWS):
        user = f"user-{dice.randrange(USERS):05d}"
        text = json.dumps({"user": user, "amount": dice.randrange(10_000), "note": ""})
        values.append(text[:-2].encode() + b"x" * (value_bytes - len(text)) + b'"}')
        keys.append(user.encode())
    columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    producer = ColumnProducer(bootstrap, {"batch.size": LOG_BATCH_BYTES, "linger.ms": 0})
    writer = ColumnWriter(producer)
    for start in range(0, row_count, PIECE_ROWS):
        count = min(PIECE_ROWS, row_count - start)
        # By turns, so that all partitions hold as much.
        partitions = pa.array([number * 4 // count for number in range(count)], pa.int32())
        await writer.write(topic, columns[0][:count], columns[1][:count], None, partitions)
    await writer.finish()
    await producer.close()


class SteadyLoad:
    """So many records a second, each with the time it was sent at in front; `sent_ns` has all of them in order."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self.sent_ns: list[int] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic = topic
        self._rate = rate
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.is_set():
            wait = began + len(self.sent_ns) / self._rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            now = time.time_ns()
            key = b"%d" % (len(self.sent_ns) % USERS)
            self._producer.produce(self._topic, b"%d" % now + b"x" * 81, key)
            self._producer.poll(0)
            self.sent_ns.append(now)
        self._producer.flush(CONSUME_SECONDS_MAX)


class Arrivals:
    """When each record came out of a topic: pairs of the times it was sent and received at."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.times_ns: list[tuple[int, int]] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partition_count)])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.times_ns.append((int(message.value()[:19]), time.time_ns()))
