"""SIGKILL in the middle of load: nothing that was acknowledged is lost, nothing idempotent is doubled."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import BrokerProcess

KILLS = 20
PARTITIONS = 3
SECONDS_MAX = 60


def read_everything(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, f"no end after {SECONDS_MAX} s"
        if message.error() is None:
            found[message.partition()].append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def test_nothing_acknowledged_is_lost_and_nothing_is_doubled_over_20_kills() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    broker = BrokerProcess().start()
    acknowledged: list[bytes] = []
    stop = threading.Event()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic("load", PARTITIONS, 1)]).values():
            future.result()
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 50,
                "queue.buffering.max.messages": 5000,
            },
            logger=logging.getLogger("librdkafka"),
        )
        failures: list[str] = []

        def on_delivery(error: KafkaError | None, message: object) -> None:
            if error is None:
                acknowledged.append(message.value())  # type: ignore[attr-defined]
            else:
                failures.append(str(error))

        def load() -> None:
            number = 0
            while not stop.is_set():
                try:
                    producer.produce("load", b"%d" % number, on_delivery=on_delivery, partition=number % PARTITIONS)
                    number += 1
                except BufferError:
                    producer.poll(0.01)
                producer.poll(0)

        loading = threading.Thread(target=load)
        loading.start()
        for _ in range(KILLS):
            enough = len(acknowledged) + 200
            deadline = time.monotonic() + SECONDS_MAX
            while len(acknowledged) < enough:
                assert time.monotonic() < deadline, "the producer makes no progress"
                stop.wait(dice.uniform(0.0, 0.02))
            broker.kill()
            broker.start()
        stop.set()
        loading.join()
        assert producer.flush(SECONDS_MAX) == 0
        assert failures == []
        found = read_everything(broker.bootstrap, "load")
        values = [value for partition in found.values() for value in partition]
        missing = set(acknowledged) - set(values)
        assert not missing, f"{len(missing)} acknowledged records are lost, seed {seed}"
        doubled = [value for value, count in Counter(values).items() if count > 1]
        assert not doubled, f"{len(doubled)} records are doubled, seed {seed}"
        for partition in found.values():
            numbers = [int(value) for value in partition]
            assert numbers == sorted(numbers), f"records are out of order, seed {seed}"
        assert "handler_failed" not in broker.log
    finally:
        stop.set()
        broker.close()
