"""`moldau cluster roll`: nobody who produces notices, and nothing goes on when a node stays away."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.cli.cluster_roll import roll_order
from moldau.client import Node, Producer
from tests.broker.cluster_kit import Cluster, wait_for
from tests.cli.conftest import Moldau

QUICK = {"broker.session.timeout.ms": "6000", "default.replication.factor": "3", "min.insync.replicas": "2"}


def test_who_leads_the_quorum_goes_last() -> None:
    nodes = [Node(number, "localhost", 9092, None) for number in (3, 1, 2)]
    assert [node.id for node in roll_order(nodes, 1)] == [2, 3, 1]
    assert [node.id for node in roll_order(nodes, 9)] == [1, 2, 3]


@contextmanager
def restarter(cluster: Cluster, directory: Path) -> Iterator[tuple[str, list[int], list[bool]]]:
    """A command that has a node restarted, the nodes that were, in order, and whether all were in sync before."""
    orders, restarted, in_sync = str(directory / "orders"), list[int](), list[bool]()
    os.mkfifo(orders)

    def restart(node_id: int) -> None:
        restarted.append(node_id)
        partitions = cluster.node(cluster.active()).image.topics["rolled"].partitions
        in_sync.append(all(len(each.isr) == 3 for each in partitions))
        cluster.nodes[node_id].stop()
        cluster.nodes[node_id].start()

    def work() -> None:
        for line in lines:
            if line == "end\n":
                return
            restart(int(line))

    # Open for both, so that a writer never waits for a reader.
    with open(os.open(orders, os.O_RDWR), encoding="ascii") as lines:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"echo {{id}} > {orders}; : ${{HOME}}", restarted, in_sync
        finally:
            os.write(lines.fileno(), b"end\n")
            thread.join()


async def produce_until(over: threading.Event, bootstrap: str) -> int:
    """How many records were acknowledged; it raises when one was not."""
    count = 0
    async with Producer(bootstrap) as producer:
        while not over.is_set():
            await producer.send("rolled", str(count).encode(), partition=count % 3)
            count += 1
    return count


@contextmanager
def load(bootstrap: str) -> Iterator[list[int]]:
    over, acknowledged = threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: acknowledged.append(asyncio.run(produce_until(over, bootstrap))))
    thread.start()
    try:
        yield acknowledged
    finally:
        over.set()
        thread.join()


def test_a_cluster_is_restarted_node_by_node_and_nobody_notices(tmp_path: Path) -> None:
    with Cluster(3, settings=QUICK) as cluster:
        moldau = Moldau(cluster.nodes[1].bootstrap)
        bootstrap = ",".join(node.bootstrap for node in cluster.nodes.values())
        moldau("topic", "create", "rolled", "--partitions", "3")
        active = cluster.active()
        with restarter(cluster, tmp_path) as (command, restarted, in_sync), load(bootstrap) as acknowledged:
            done = moldau("cluster", "roll", "-b", bootstrap, "--exec", command, "-o", "json")
        others = [node_id for node_id in (1, 2, 3) if node_id != active]
        assert restarted == [*others, active] == [row["id"] for row in done.json]
        assert in_sync == [True, True, True]
        assert "3 of 3: node" in done.err
        assert acknowledged and acknowledged[0] > 0, "a send failed"
        read = moldau("consume", "rolled", "--start", "start", "--exit", "-b", bootstrap, "-o", "jsonl").lines
        assert sorted(int(row["value"]) for row in read) == list(range(acknowledged[0]))
        wait_for(lambda: all(row["leads"] for row in moldau("node", "list", "-b", bootstrap, "-o", "json").json))


def test_it_stops_where_it_has_to() -> None:
    with Cluster(3) as cluster:
        moldau = Moldau(cluster.nodes[1].bootstrap)
        assert "there is no node 9" in moldau("cluster", "roll", "--nodes", "2,9", code=1).err
        assert "--nodes 2;3" in moldau("cluster", "roll", "--nodes", "2;3", code=2).err
        stayed = moldau("cluster", "roll", "--exec", "true", "--nodes", "2", "--wait", "0.2", code=1)
        assert "node 2 was not stopped within 0.2 s; the nodes after it are as they were" in stayed.err
        assert "ended with 7" in moldau("cluster", "roll", "--exec", "exit 7", "--nodes", "2", code=1).err
        moldau("topic", "create", "lacking", "--partitions", "1", "--replication-factor", "3")
        cluster.nodes[3].stop()
        wait_for(lambda: moldau("partition", "list", "--under-replicated", "-o", "json").json)
        assert "1 partitions lack a replica already, e.g. lacking-0" in moldau("cluster", "roll", code=1).err
