"""Elections that the active controller holds by itself, now and then: who came back leads again what it is the first
replica of; who may lose data for it (`unclean.leader.election.enable`) gets a leader when nobody in sync is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from moldau.cluster import MetadataImage, PartitionPolicy, lead_uncleanly, prefer_leaders
from moldau.kernel import KafkaError, Timer

if TYPE_CHECKING:
    from moldau.broker.node import Node

# Leaders that are changed at once.
ELECTIONS_MAX = 1000


class Elections:
    def __init__(self, node: Node, policy: Callable[[MetadataImage], PartitionPolicy]) -> None:
        self._node = node
        self._policy = policy
        self._timers: list[Timer] = []

    def begin(self) -> None:
        settings = self._node.settings
        self.end()
        if settings.flag("auto.leader.rebalance.enable"):
            self._repeat(settings.integer("leader.imbalance.check.interval.seconds") * 1000, self.balance)
        self._repeat(settings.integer("unclean.leader.election.interval.ms"), self.lead_uncleanly)

    def end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _repeat(self, interval_ms: int, look: Callable[[], None]) -> None:
        place = len(self._timers)

        def run() -> None:
            self._timers[place] = self._node.clock.call_later(interval_ms, run)
            look()

        self._timers.append(self._node.clock.call_later(interval_ms, run))

    def balance(self) -> None:
        image = self._node.controller.latest
        percent_max = self._node.settings.integer("leader.imbalance.per.broker.percentage")
        found = prefer_leaders(image, self._policy(image), ELECTIONS_MAX, imbalance_percent_max=percent_max)
        self._propose("leaders_balanced", found)

    def lead_uncleanly(self) -> None:
        image = self._node.controller.latest
        self._propose("leaders_elected_uncleanly", lead_uncleanly(image, self._policy(image), ELECTIONS_MAX))

    def _propose(self, what: str, found: Iterable[Any]) -> None:
        node = self._node
        if not node.controller.is_active:
            return
        records = list(found)
        if not records:
            return
        try:
            node.controller.propose(records)
            node.say(f"{what} partitions={len(records)}")
        except KafkaError as error:
            node.say(f"election_failed reason={str(error)!r}")
