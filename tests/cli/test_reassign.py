"""Moves between brokers: as few as can be, and carried out by the cluster."""

from __future__ import annotations

import pytest

from moldau.cli.reassign_plan import plan_moves
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


def test_more_replicas_than_brokers_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 replicas do not fit on 2 brokers"):
        plan_moves(assignment((1, 2, 3)), [1, 2])


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
        gone = next(node_id for node_id in (3, 2) if node_id != cluster.active())
        cluster.nodes[gone].stop()
        fenced = wait_for(lambda: [row["id"] for row in moldau("node", "list", "-o", "json").json if row["fenced"]])
        assert fenced == [gone]
        assert f"node {gone} is forgotten" in moldau("node", "unregister", str(gone), "--yes").err
        assert gone not in [row["id"] for row in moldau("node", "list", "-o", "json").json]


def _all_lead(moldau: Moldau) -> list[dict[str, object]] | None:
    rows = moldau("node", "list", "-o", "json").json
    return rows if all(row["leads"] for row in rows) else None
