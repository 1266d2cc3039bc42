"""The metadata quorum and the controller as metric families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.broker.node import Node

_RAFT = "kafka_server_raftmetrics"
_CONTROLLER = "kafka_controller_kafkacontroller"


def quorum_families(node: Node, gauge: Any) -> Iterator[Any]:
    quorum = node.controller.quorum
    for name, value, help_text in (
        ("current_leader", quorum.leader_id, "Who leads the metadata quorum; -1 for nobody known."),
        ("current_epoch", quorum.epoch, "The quorum's epoch."),
        ("current_vote", quorum.voted.node_id, "Whom this node voted for in the epoch; -1 for nobody."),
        ("high_watermark", quorum.high_watermark, "End of the metadata that is agreed."),
        ("log_end_offset", node.controller.log.end_offset, "End of the metadata log here."),
        ("number_of_voters", len(quorum.voters.ids), "Voters of the quorum."),
    ):
        yield gauge(f"{_RAFT}_{name}", help_text, value=value)
    state = gauge(f"{_RAFT}_current_state", "What this node is in the quorum.", labels=["current_state"])
    state.add_metric([quorum.role.value if quorum.is_voter else "observer"], 1)
    yield state


def controller_families(node: Node, gauge: Any, counter: Any) -> Iterator[Any]:
    image = node.image
    fenced = sum(broker.fenced for broker in image.brokers.values())
    partitions = [each for topic in image.topics.values() for each in topic.partitions]
    for name, value, help_text in (
        ("activecontrollercount", node.controller.quorum.is_leader, "1 on the controller."),
        ("activebrokercount", len(image.brokers) - fenced, "Brokers that serve."),
        ("fencedbrokercount", fenced, "Brokers that are registered and missed."),
        ("globaltopiccount", len(image.topics), "Topics."),
        ("globalpartitioncount", len(partitions), "Partitions."),
        ("offlinepartitionscount", sum(each.leader < 0 for each in partitions), "Partitions without a leader."),
        (
            "preferredreplicaimbalancecount",
            sum(each.leader != each.replicas[0] for each in partitions),
            "Partitions that their first replica does not lead.",
        ),
    ):
        yield gauge(f"{_CONTROLLER}_{name}", help_text, value=value)
    yield counter(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Leaders elected outside the in-sync set since this node started.",
        value=node.metrics.unclean_elections,
    )
