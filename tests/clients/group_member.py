"""A member of a group as a process of its own, so that it can be killed: `python -m tests.clients.group_member`.

Arguments: library, bootstrap, group, topic, and settings as JSON in librdkafka's names. Every change of the assignment
is a line of JSON on standard output, as is the number of records seen so far; a closed standard input ends it in good
order. Offsets are committed after every record that was seen, and confluent-kafka's at the end once more until the
broker has them: an earlier commit may have met one that was down. The setting `ledger` names a file to which members
of confluent-kafka append what they gain and lose, before the broker hears of a loss: its order is the order of events.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

POLL_SECONDS = 0.05
DEFAULTS = {"auto.offset.reset": "earliest"}
# Of the classic protocol: in the consumer protocol (KIP-848) they are the broker's.
CLASSIC_DEFAULTS = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


class Stop:
    """Set when standard input is closed."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


class Seen:
    """Records by (partition, offset): one that comes again after a rebalance is the same record."""

    def __init__(self) -> None:
        self._records: set[tuple[int, int]] = set()

    def add(self, partition: int, offset: int) -> None:
        self._records.add((partition, offset))
        say(seen=len(self._records), partition=partition, offset=offset)


class Ledger:
    """A file of lines that were each appended at once, whichever process wrote them."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, partitions: list[Any]) -> None:
        owned = [(each.topic, each.partition) for each in partitions]
        os.write(self._file, json.dumps({"pid": os.getpid(), what: owned}).encode() + b"\n")


def confluent(bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    ledger = Ledger(settings.pop("ledger", os.devnull))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0, **settings}
    )
    stop, seen, last = Stop(), Seen(), None
    positions: dict[tuple[str, int], int] = {}
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: ledger.write("gained", partitions),
        on_revoke=lambda _, partitions: ledger.write("lost", partitions),
    )
    while not stop:
        message = consumer.poll(POLL_SECONDS)
        assigned = sorted(each.partition for each in consumer.assignment())
        if assigned != last:
            last = assigned
            say(assigned=assigned)
        if message is not None and message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            seen.add(partition, offset)
            positions[message.topic(), partition] = offset + 1
            consumer.commit(message, asynchronous=True)
    while True:
        held = [(each.topic, each.partition) for each in consumer.assignment()]
        mine = [TopicPartition(*each, positions[each]) for each in held if each in positions]
        try:
            if mine:
                consumer.commit(offsets=mine, asynchronous=False)
            break
        except KafkaException:
            consumer.poll(POLL_SECONDS)  # rejoins; what it reads meanwhile nobody has seen
    consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=settings["session.timeout.ms"],
        heartbeat_interval_ms=settings["heartbeat.interval.ms"],
        max_poll_records=10,
        partition_assignment_strategy=[assignors[settings.get("partition.assignment.strategy", "range")]],
        group_instance_id=settings.get("group.instance.id"),
    )
    stop, seen, last = Stop(), Seen(), None
    while not stop:
        polled = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
        assigned = sorted(each.partition for each in consumer.assignment())
        if assigned != last:
            last = assigned
            say(assigned=assigned)
        for records in polled.values():
            for record in records:
                seen.add(record.partition, record.offset)
        if polled:
            consumer.commit_async()
    consumer.close()


def aiokafka(bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
    asyncio.run(_aiokafka(bootstrap, group, topic, settings))


async def _aiokafka(bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=settings["session.timeout.ms"],
        heartbeat_interval_ms=settings["heartbeat.interval.ms"],
        max_poll_records=10,
        partition_assignment_strategy=[assignors[settings.get("partition.assignment.strategy", "range")]],
        group_instance_id=settings.get("group.instance.id"),
    )
    await consumer.start()
    stop, seen, last = Stop(), Seen(), None
    try:
        while not stop:
            polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
            assigned = sorted(each.partition for each in consumer.assignment())
            if assigned != last:
                last = assigned
                say(assigned=assigned)
            for records in polled.values():
                for record in records:
                    seen.add(record.partition, record.offset)
            if polled:
                try:
                    await consumer.commit()
                except Exception as error:  # a rebalance came between: the next owner reads it again
                    say(commit=type(error).__name__)
    finally:
        await consumer.stop()


LIBRARIES = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}

if __name__ == "__main__":
    library, bootstrap, group, topic, given = sys.argv[1:]
    settings = {**DEFAULTS, **json.loads(given)}
    if settings.get("group.protocol", "classic") == "classic":
        settings = {**CLASSIC_DEFAULTS, **settings}
    LIBRARIES[library](bootstrap, group, topic, settings)
