"""Groups as metric families, under the names that kafka_exporter uses, so that dashboards need no change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moldau.broker.groups import Groups

if TYPE_CHECKING:
    from moldau.broker.node import Node

_PREFIX = "kafka_consumergroup"


def group_families(node: Node, groups: Groups, gauge: Any, counter: Any) -> Iterator[Any]:
    yield from _offsets(node, groups, gauge)
    members = gauge(f"{_PREFIX}_members", "Members of a group.", labels=["consumergroup"])
    states = gauge(
        "moldau_consumergroup_state", "1 for the state that a group is in.", labels=["consumergroup", "state"]
    )
    rebalances = counter("moldau_consumergroup_rebalances", "Rebalances of a group.", labels=["consumergroup"])
    seconds = counter(
        "moldau_consumergroup_rebalance_seconds", "Time that a group spent in rebalances.", labels=["consumergroup"]
    )
    for machine in groups.coordinator.machines():
        for group in machine.groups.values():
            members.add_metric([group.id], len(group.members))
            states.add_metric([group.id, group.state_name], 1)
            rebalances.add_metric([group.id], group.history.completed)
            seconds.add_metric([group.id], group.history.total_ms / 1000)
    yield from (members, states, rebalances, seconds)


def _offsets(node: Node, groups: Groups, gauge: Any) -> Iterator[Any]:
    """Committed offsets against the visible end of the log, as far as a replica here knows it."""
    where, which = ["consumergroup", "topic", "partition"], ["consumergroup", "topic"]
    current = gauge(f"{_PREFIX}_current_offset", "The offset that a group committed.", labels=where)
    lag = gauge(f"{_PREFIX}_lag", "Records between the committed offset and the end.", labels=where)
    sums: dict[tuple[str, str], int] = {}
    lags: dict[tuple[str, str], int] = {}
    for machine in groups.coordinator.machines():
        for group, topic, index, offset in machine.offsets.committed():
            current.add_metric([group, topic, str(index)], offset)
            sums[group, topic] = sums.get((group, topic), 0) + offset
            partitions = node.replicas.by_name(topic) or []
            partition = partitions[index] if 0 <= index < len(partitions) else None
            if partition is None or (partition.leader is None and partition.follower is None):
                continue
            behind = max(partition.high_watermark - offset, 0)
            lag.add_metric([group, topic, str(index)], behind)
            lags[group, topic] = lags.get((group, topic), 0) + behind
    sum_of_offsets = gauge(f"{_PREFIX}_current_offset_sum", "Committed offsets of a topic, added up.", labels=which)
    sum_of_lags = gauge(f"{_PREFIX}_lag_sum", "Lag of a topic, added up.", labels=which)
    for family, values in ((sum_of_offsets, sums), (sum_of_lags, lags)):
        for labels, value in values.items():
            family.add_metric(list(labels), value)
    yield from (current, lag, sum_of_offsets, sum_of_lags)
