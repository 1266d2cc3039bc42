"""Moves between brokers: as few as can be, and carried out by the cluster."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from moldau.cli.reassign_plan import plan_moves
from moldau.cli.reassign_throttle import parse_rate, throttled_replicas
from moldau.cli.remote import on_cluster
from moldau.client import reassign
from moldau.kernel import TopicPartition
from tests.broker.cluster_kit import Cluster, wait_for
from tests.cli.conftest import Moldau


def assignment(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): each for index, each in enumerate(replicas)}


def test_what_is_even_stays_where_it_is() -> None:
    assert plan_moves(assignment((1, 2), (2, 3), (3, 1)), [1, 2, 3]) == {}


def test_only_replicas_of_a_broker_that_goes_move() -> None:
    now = assignment((1, 2), (2, 3), (3, 1))
    moves = plan_moves(now, [1, 2])
    assert moves == {TopicPartition("t", 1): (2, 1), TopicPartition("t", 2): (2, 1)}


def test_a_new_broker_gets_its_share_of_followers_first() -> None:
    moves = plan_moves(assignment((1, 2), (2, 1), (1, 2), (2, 1), (1, 2), (2, 1)), [1, 2, 3])
    assert len(moves) == 4, "a third of twelve"
    assert all(after[1] == 3 for after in moves.values()), "the leaders stay"


def test_no_partition_stands_in_fewer_racks_than_before() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    moves = plan_moves(assignment((1, 3), (1, 3), (3, 1), (3, 1)), [1, 2, 3, 4], racks)
    assert {tuple(sorted(racks[each] for each in after)) for after in moves.values()} == {("a", "b")}
    assert Counter(each for after in moves.values() for each in after)[2] == 2, "and yet all hold the same"
    # Broker 2 has more room than broker 4, and stands where the other replica does.
    moves = plan_moves(assignment((1, 3), (4,), (4,)), [1, 2, 4], racks)
    assert moves[TopicPartition("t", 0)] == (1, 4)
    # Where there is no other rack it has to be.
    assert plan_moves(assignment((1, 3)), [1, 2], racks) == {TopicPartition("t", 0): (1, 2)}


def test_more_replicas_than_brokers_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 replicas do not fit on 2 brokers"):
        plan_moves(assignment((1, 2, 3)), [1, 2])


def test_a_throttle_names_senders_and_receivers() -> None:
    rows = [{"topic": "t", "partition": 0, "now": (1, 2), "next": (2, 3)}]
    configs = throttled_replicas(rows)["t"]
    assert configs == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:3",
    }
    assert [parse_rate(text) for text in ("500000", "500K", "10MB", "1 G/s")] == [500_000, 500_000, 10**7, 10**9]


def test_a_throttled_move_takes_its_time_and_leaves_no_throttle_behind() -> None:
    with Cluster(3, settings={"replica.fetch.max.bytes": "30000", "replica.fetch.wait.max.ms": "100"}) as cluster:
        moldau = Moldau(cluster.nodes[1].bootstrap)
        for topic in ("whole", "sent", "fetched"):
            moldau("topic", "create", topic, "--partitions", "1", "--replication-factor", "1")
            moldau.fill(topic, 0, *[bytes(999)] * 150)

        def moves(topic: str, *more: str) -> float:
            (row,) = moldau("partition", "list", topic, "-o", "json").json
            target = row["leader"] % 3 + 1
            began = time.monotonic()
            moldau("reassign", "execute", "--topic", topic, "--brokers", str(target), *more)
            return time.monotonic() - began

        def where() -> list[int]:
            (row,) = moldau("partition", "list", "whole", "-o", "json").json
            return row["replicas"]

        begun = where()
        target = begun[0] % 3 + 1
        (planned,) = moldau("reassign", "plan", "--topic", "whole", "--brokers", str(target), "-o", "json").json
        assert (planned["now"], planned["next"]) == (begun, [target])
        moldau("reassign", "execute", "--topic", "whole", "--brokers", str(target), "--no-wait", "--throttle", "20K")
        (under_way,) = moldau("reassign", "status", "-o", "json").json
        assert (under_way["adding"], under_way["removing"]) == ([target], begun)
        again = moldau("reassign", "plan", "--topic", "whole", "--brokers", str(target), "-o", "json").json
        assert again == [], "it is on its way there"
        (back,) = moldau("reassign", "plan", "--topic", "whole", "--brokers", str(begun[0]), "-o", "json").json
        assert (back["now"], back["next"]) == ([target], begun), "one replica, not two"
        assert "stopped 1 moves" in moldau("reassign", "cancel").err
        assert moldau("reassign", "status", "-o", "json").json == []
        assert where() == begun
        # 150 kB at 100 kB/s, of which the last fetch may go out at once.
        assert moves("whole", "--throttle", "100K") > 1.0

        def is_free(resource: str) -> bool:
            rows = moldau("config", "get", resource, "-o", "json").json
            return not [row for row in rows if "throttled" in row["key"]]

        wait_for(lambda: is_free("topic/whole") and is_free("broker"))
        # Each side does it alone, too.
        for topic, side in (("sent", "leader"), ("fetched", "follower")):
            moldau("config", "set", "broker", f"{side}.replication.throttled.rate=100000")
            moldau("config", "set", f"topic/{topic}", f"{side}.replication.throttled.replicas=*")
            assert moves(topic) > 1.0
            moldau("reassign", "unthrottle")


def test_a_cluster_of_three_is_shown_and_led_by_the_first_replicas_again() -> None:
    with Cluster(3) as cluster:
        moldau = Moldau(cluster.nodes[1].bootstrap)
        moldau("topic", "create", "shown", "--partitions", "3", "--replication-factor", "3")
        rows = {row["id"]: row for row in wait_for(lambda: _all_lead(moldau))}
        assert all((row["leads"], row["holds"], row["fenced"]) == (1, 3, False) for row in rows.values())
        quorum = moldau("quorum", "describe", "-o", "json").json
        assert sorted(replica["role"] for replica in quorum["replicas"]) == ["leader", "voter", "voter"]
        assert moldau("node", "describe", "2", "-o", "json").json["id"] == 2
        assert "there is no node 9" in moldau("node", "describe", "9", code=3).err
        assert moldau("reassign", "plan", "--topic", "shown", "-o", "json").json == []
        # Who leads goes on leading where only the order changes, until somebody asks for the first ones.
        first, second, third = (row["replicas"] for row in moldau("partition", "list", "shown", "-o", "json").json)
        on_cluster(moldau.bootstrap, None, lambda client: reassign(client, {TopicPartition("shown", 0): first[::-1]}))
        rows = moldau("leader", "elect", "--topic", "shown", "-o", "json").json
        assert [row["result"] for row in rows] == ["elected", "election_not_needed", "election_not_needed"]
        wait_for(lambda: _leaders(moldau) == [first[-1], second[0], third[0]])
        gone = next(node_id for node_id in (3, 2) if node_id != cluster.active())
        cluster.nodes[gone].stop()
        held = {"topic": "shown", "partition": 0, "replicas": [1, 2, 3]}
        lacking = wait_for(lambda: moldau("partition", "list", "--under-replicated", "-o", "json").json)
        assert {key: lacking[0][key] for key in held} | {"replicas": sorted(lacking[0]["replicas"])} == held
        assert gone not in lacking[0]["isr"]
        assert moldau("partition", "list", "--offline", "-o", "json").json == []
        fenced = wait_for(lambda: [row["id"] for row in moldau("node", "list", "-o", "json").json if row["fenced"]])
        assert fenced == [gone]
        assert "do not fit on 1 brokers" in moldau("reassign", "plan", "--brokers", "1,1", code=1).err
        assert "broker 9 is not running" in moldau("reassign", "plan", "--brokers", "9", code=1).err
        assert f"node {gone} is forgotten" in moldau("node", "unregister", str(gone), "--yes").err
        assert gone not in [row["id"] for row in moldau("node", "list", "-o", "json").json]


def test_a_node_is_taken_out_and_what_it_held_is_with_the_others() -> None:
    with Cluster(3) as cluster:
        moldau = Moldau(cluster.nodes[1].bootstrap)
        moldau("topic", "create", "kept", "--partitions", "6", "--replication-factor", "2")
        moldau.fill("kept", 0, b"one", b"two")
        gone = next(node_id for node_id in (3, 2) if node_id != cluster.active())
        done = moldau("node", "decommission", str(gone), "--yes")
        assert f"node {gone} holds nothing any more" in done.err
        rows = moldau("partition", "list", "-o", "json").json
        assert not [row for row in rows if gone in row["replicas"]]
        assert all(len(row["isr"]) == len(row["replicas"]) == 2 for row in rows if row["topic"] == "kept")
        cluster.nodes[gone].stop()
        moldau("node", "unregister", str(gone), "--yes")
        read = moldau("consume", "kept", "-p", "0", "--exit", "-o", "jsonl").lines
        assert [row["value"] for row in read] == ["one", "two"]


def _leaders(moldau: Moldau) -> list[int]:
    return [row["leader"] for row in moldau("partition", "list", "shown", "-o", "json").json]


def _all_lead(moldau: Moldau) -> list[dict[str, object]] | None:
    rows = moldau("node", "list", "-o", "json").json
    return rows if all(row["leads"] for row in rows) else None
