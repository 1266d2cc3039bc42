"""The clusters that source and sink are tested on, Moldau and Apache Kafka, with the few verbs that the tests need."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from moldau.client import (
    BlockingProducer,
    ClusterClient,
    ConsumedRecord,
    IsolationLevel,
    PartitionReader,
    admin,
    group_admin,
)
from moldau.kernel import KafkaError, TopicPartition
from moldau.spark import clients

T = TypeVar("T")
TIMESTAMP_MS = 1_700_000_000_000
_numbers = itertools.count()


@dataclass(frozen=True)
class Cluster:
    name: str
    bootstrap: str
    data: str

    def topic(self, wish: str, partitions: int = 1, **configs: str) -> str:
        """A topic of this test's own."""
        name = f"{wish}-{os.getpid()}-{next(_numbers)}"
        self.create(name, partitions, **configs)
        return name

    def create_topic(self, partitions: int, prefix: str = "topic", configs: Mapping[str, str] | None = None) -> str:
        return self.topic(f"{prefix}-{self.name}", partitions, **(configs or {}))

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        # `produce` dates records back, and retention would take them away in the middle of a test.
        given = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        self.do(lambda client: admin.create_topics(client, name, partitions=partitions, configs=given))

    def delete(self, name: str) -> None:
        self.do(lambda client: admin.delete_topics(client, name))

        async def gone(client: ClusterClient) -> None:
            # Brokers hear of it a moment later.
            while not (await client.metadata([name])).topics[name].error:
                pass

        self.do(gone)

    def add_partitions(self, name: str, count: int) -> None:
        self.do(lambda client: admin.create_partitions(client, name, count))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        places = {TopicPartition(topic, partition): offset for partition, offset in before.items()}
        self.do(lambda client: admin.delete_records(client, places))

    def produce(self, topic: str, values: Iterable[bytes], partition: int = 0, **settings: Any) -> None:
        """Keys 0, 1, 2, ... with none at every third; times a second apart; headers at every second."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        with BlockingProducer(self.bootstrap, given) as producer:
            for index, value in enumerate(values):
                producer.send(
                    topic,
                    value,
                    key=b"%d" % index if index % 3 else None,
                    headers=[("h", b"%d" % index), ("n", None)] if index % 2 else None,
                    partition=partition,
                    timestamp_ms=TIMESTAMP_MS + 1000 * index,
                )

    def produce_transactions(self, topic: str, outcomes: Sequence[tuple[bytes, bool]], partition: int = 0) -> None:
        """A transaction of one record each: its value and whether it is committed."""
        with BlockingProducer(self.bootstrap, {"transactional.id": f"txn-{topic}"}) as producer:
            producer.init_transactions()
            for value, is_committed in outcomes:
                producer.begin_transaction()
                producer.send(topic, value, partition=partition).result(30)
                (producer.commit_transaction if is_committed else producer.abort_transaction)()

    def read(self, topic: str) -> list[ConsumedRecord]:
        """Every committed record of a topic; no transaction may be open, or what follows it would be left out."""

        async def read(client: ClusterClient) -> list[ConsumedRecord]:
            everything = [TopicPartition(topic, one.partition) for one in (await client.topic(topic)).partitions]
            latest = dict.fromkeys(everything, admin.LATEST)
            committed = IsolationLevel.READ_COMMITTED
            ends = {where: one.offset for where, one in (await admin.list_offsets(client, latest)).items()}
            # Brokers answer a commit when it is decided, and write its markers right behind the answer.
            deadline = time.monotonic() + 30
            while True:
                stable = await admin.list_offsets(client, latest, isolation_level=committed)
                if {where: one.offset for where, one in stable.items()} == ends:
                    break
                assert time.monotonic() < deadline, "a transaction is open"
                ends = {where: one.offset for where, one in (await admin.list_offsets(client, latest)).items()}
            found: list[ConsumedRecord] = []
            start = dict.fromkeys(everything, "earliest")
            async with PartitionReader(client, start, stop=ends, isolation_level=committed) as reader:  # type: ignore[arg-type]
                async for records in reader:
                    found += records
            return found

        found: list[ConsumedRecord] = self.do(read)
        return found

    def ends(self, topic: str) -> dict[int, int]:
        """The end offset of each partition."""

        async def ask(client: ClusterClient) -> dict[int, int]:
            partitions = (await client.topic(topic)).partitions
            asked = {TopicPartition(topic, one.partition): admin.LATEST for one in partitions}
            return {where.partition: one.offset for where, one in (await admin.list_offsets(client, asked)).items()}

        found: dict[int, int] = self.do(ask)
        return found

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        found = self.do(lambda client: group_admin.group_offsets(client, [group_id]))[group_id]
        assert not isinstance(found, KafkaError)
        return {where: one.offset for where, one in found.items()}

    def segment(self, topic: str, partition: int = 0) -> Path:
        return Path(self.data) / f"{topic}-{partition}" / "00000000000000000000.log"

    def do(self, work: Any) -> Any:
        return clients.run(self.bootstrap, work, 60)
