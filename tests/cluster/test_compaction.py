"""Compaction by either broker: the same records are left, and each goes on in the directory that the other cleaned."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from moldau.client import ClusterClient, IsolationLevel, PartitionReader, Producer, admin
from moldau.kernel import TopicPartition
from moldau.testing import BrokerProcess
from tests.cluster.test_directories import QUICK_SESSION
from tests.oracle import ApacheKafka, RunningKafka, require_oracle

pytestmark = pytest.mark.oracle

WHERE = TopicPartition("table", 0)
EAGER = {"log.cleaner.backoff.ms": "50", "file.delete.delay.ms": "0"}
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "3600000",
}
KEYS = 20
Seen = tuple[int, bytes | None, bytes | None]


async def fill(bootstrap: str, seed: int, batches: int) -> None:
    """Batches of a few records each, plain, compressed, with tombstones, in transactions of both outcomes."""
    dice = random.Random(seed)
    common = {"bootstrap.servers": bootstrap, "linger.ms": 100}
    async with (
        Producer(common) as plain,
        Producer({**common, "compression.type": "zstd"}) as packed,
        Producer({**common, "transactional.id": f"compaction-{seed}"}) as transactional,
    ):
        await transactional.init_transactions()
        for number in range(batches):
            producer = dice.choice((plain, packed, transactional))
            if producer is transactional:
                producer.begin_transaction()
            for _ in range(dice.randrange(1, 9)):
                value = None if dice.random() < 0.1 else f"{seed}-{number}".encode()
                await producer.send(WHERE.topic, value, key=b"k%d" % dice.randrange(KEYS), partition=0)
            await producer.flush()
            if producer is transactional:
                await (producer.commit_transaction if dice.random() < 0.6 else producer.abort_transaction)()


async def left(bootstrap: str) -> list[Seen]:
    """What a reader of committed records finds."""
    async with ClusterClient(bootstrap) as client:
        end = (await admin.list_offsets(client, {WHERE: admin.LATEST}))[WHERE].offset
        found: list[Seen] = []
        async with PartitionReader(
            client, {WHERE: "earliest"}, stop={WHERE: end}, isolation_level=IsolationLevel.READ_COMMITTED
        ) as reader:
            async for records in reader:
                found += [(record.offset, record.key, record.value) for record in records]
        return found


def last_values(records: list[Seen]) -> dict[bytes | None, Seen]:
    return {record[1]: record for record in records}


def until_clean(bootstrap: str, data: Path, all_records: list[Seen]) -> list[Seen]:
    """Until no key is twice below the segment that is written to; what is left then."""

    def active_base() -> int:
        return max(int(path.stem) for path in (data / "table-0").glob("*.log"))

    async def wait() -> list[Seen]:
        async with asyncio.timeout(60):
            while True:
                found = await left(bootstrap)
                assert last_values(found) == last_values(all_records), "at every moment"
                assert set(found) <= set(all_records)
                below = [record for record in found if record[0] < active_base()]
                if len(below) == len(last_values(below)):
                    return found
                await asyncio.sleep(0.1)

    return asyncio.run(wait())


async def make_topic(bootstrap: str) -> None:
    async with ClusterClient(bootstrap) as client:
        await admin.create_topics(client, WHERE.topic, partitions=1, configs=CONFIGS)


def test_each_goes_on_where_the_other_has_cleaned(tmp_path: Path) -> None:
    require_oracle()
    data = tmp_path / "data"
    data.mkdir()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    kafka: ApacheKafka | RunningKafka = ApacheKafka(
        tmp_path / "kafka", log_dir=data, voters="standalone", properties=QUICK_SESSION | EAGER
    )
    with BrokerProcess({"node.id": "1", **EAGER, "log.cleaner.enable": "false"}, data=str(data)) as moldau:
        asyncio.run(make_topic(moldau.bootstrap))
        asyncio.run(fill(moldau.bootstrap, seed, 200))
        written = asyncio.run(left(moldau.bootstrap))
        moldau.stop()
    with BrokerProcess({"node.id": "1", **EAGER}, data=str(data)) as moldau:
        ours = until_clean(moldau.bootstrap, data, written)
        assert len(ours) < len(written)
        moldau.stop()
    with kafka as running:
        assert asyncio.run(left(running.bootstrap)) == ours
        asyncio.run(fill(running.bootstrap, seed + 1, 200))
        more = asyncio.run(left(running.bootstrap))
        everything = [*ours, *(record for record in more if record[0] > ours[-1][0])]
        until_clean(running.bootstrap, data, everything)
        assert not running.complaints
    with BrokerProcess({"node.id": "1", **EAGER}, data=str(data)) as moldau:
        until_clean(moldau.bootstrap, data, everything)
        assert "uncleanable" not in moldau.log and "truncated" not in moldau.log
