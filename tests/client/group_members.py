"""Members of groups for tests of administration: real consumers, of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import confluent_kafka

SECONDS_MAX = 60.0


class Members:
    """Consumers of one group that share a topic; inside, they have all its partitions, and librdkafka keeps them in."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        partition_count: int,
        *,
        client_ids: Sequence[str] = ("reader",),
        protocol: str = "classic",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._partition_count = partition_count
        self.consumers = [
            confluent_kafka.Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": group,
                    "client.id": client_id,
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    **(settings or {}),
                }
            )
            for client_id in client_ids
        ]
        for consumer in self.consumers:
            consumer.subscribe([topic])
        self.topic = topic

    def __enter__(self) -> Self:
        deadline = time.monotonic() + SECONDS_MAX
        while not self._is_shared_out():
            assert time.monotonic() < deadline, [consumer.assignment() for consumer in self.consumers]
            for consumer in self.consumers:
                consumer.poll(0.05)
        return self

    def _is_shared_out(self) -> bool:
        counts = [len(consumer.assignment()) for consumer in self.consumers]
        return all(counts) and sum(counts) == self._partition_count

    def commit(self, offsets: Mapping[int, int]) -> None:
        """The offsets of partitions, each by the member that has it."""
        for consumer in self.consumers:
            own = {one.partition for one in consumer.assignment()}
            places = [
                confluent_kafka.TopicPartition(self.topic, partition, offset)
                for partition, offset in offsets.items()
                if partition in own
            ]
            if places:
                consumer.commit(offsets=places, asynchronous=False)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for consumer in self.consumers:
            consumer.close()
