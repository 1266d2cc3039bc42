"""A leader is killed under every client: what was acknowledged is there, once and in order, and its group goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from moldau.client import ClusterClient, PartitionInfo, admin, read_partition
from moldau.testing import BrokerProcess
from tests.broker.cluster_kit import three_processes, wait_for
from tests.clients.groups import await_all_seen, start_member
from tests.clients.steady_producers import STEADY_PRODUCERS

pytestmark = pytest.mark.clients

BEFORE, WITHOUT, AFTERWARDS = 200, 200, 200
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[int, BrokerProcess]]:
    with three_processes(SETTINGS) as running:
        yield running
        assert not [node_id for node_id, node in running.items() if "Traceback" in node.log]


def partition_of(bootstrap: str, topic: str) -> PartitionInfo:
    async def ask() -> PartitionInfo:
        async with ClusterClient(bootstrap) as client:
            ((partition,),) = [each.partitions for each in await admin.describe_topics(client, [topic])]
            return partition

    return asyncio.run(ask())


def stored(bootstrap: str, topic: str) -> list[int]:
    async def read() -> list[int]:
        async with ClusterClient(bootstrap) as client:
            return [int(record.value or b"") async for record in read_partition(client, topic, 0)]

    return asyncio.run(read())


@pytest.mark.parametrize("library", STEADY_PRODUCERS)
def test_what_was_acknowledged_survives_its_leader_and_a_group_goes_on(
    nodes: dict[int, BrokerProcess], library: str
) -> None:
    bootstrap, topic = ",".join(node.bootstrap for node in nodes.values()), f"failover-{library}"

    async def create() -> None:
        async with ClusterClient(bootstrap) as client:
            await admin.create_topics(client, topic, partitions=1)

    asyncio.run(create())
    producer = STEADY_PRODUCERS[library](bootstrap, topic)
    member = start_member(library, bootstrap, f"group-{library}", topic)

    def gets_on(count: int) -> None:
        so_far = len(producer.acknowledged)
        wait_for(lambda: producer.failed or len(producer.acknowledged) >= so_far + count)
        assert producer.failed is None, producer.failed

    try:
        gets_on(BEFORE)
        await_all_seen([member], BEFORE)
        leader = partition_of(bootstrap, topic).leader
        nodes[leader].kill()
        gets_on(WITHOUT)
        await_all_seen([member], BEFORE + WITHOUT)
        nodes[leader].start()
        wait_for(lambda: set(partition_of(bootstrap, topic).isr) == {1, 2, 3})
        gets_on(AFTERWARDS)
        acknowledged = producer.end()
        found = stored(bootstrap, topic)
        assert found == sorted(set(found)), "twice, or out of order"
        assert set(acknowledged) <= set(found), "lost"
        await_all_seen([member], len(found))
    finally:
        member.abandon()
