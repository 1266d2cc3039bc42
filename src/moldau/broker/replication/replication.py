"""Which partition is fetched from whom, and what leaders propose: the part of replication that the node talks to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.partition import Partition
from moldau.broker.replication.fetcher import ReplicaFetcher
from moldau.broker.replication.proposals import InSyncProposals
from moldau.broker.replication.throttling import ReplicationThrottle
from moldau.cluster import InSyncProposal
from moldau.kernel import NO_LEADER

if TYPE_CHECKING:
    from moldau.broker.node import Node

FetcherKey = tuple[int, int]
# After a node has taken a lead, polls of its followers are short for a while: a follower names a new partition in its
# next fetch, and what is produced there with acks=all waits for that. It hears of it about when the leader does.
SHORT_POLL_MS, SHORT_POLLS_FOR_MS = 20, 1000


class Replication:
    def __init__(self, node: Node) -> None:
        self.node = node
        self._fetchers: dict[FetcherKey, ReplicaFetcher] = {}
        self._fetched_by: dict[Partition, ReplicaFetcher] = {}
        self._proposals = InSyncProposals(node)
        self.sending = ReplicationThrottle(node, "leader")
        self.fetching = ReplicationThrottle(node, "follower")
        self._looked_ms = 0
        self._led_ms = -SHORT_POLLS_FOR_MS
        self._polls: dict[Callable[[], None], None] = {}
        self.is_stopping = False

    # -- what the metadata says ----------------------------------------------------------------------------------------

    def on_part_changed(self, partition: Partition) -> None:
        """Fetch from whoever leads now, from nobody else."""
        follower = partition.follower
        fetcher = self._fetched_by.get(partition)
        if self.is_stopping or follower is None or follower.leader_id in (NO_LEADER, self.node.node_id):
            self.forget(partition)
            return
        wanted = self._fetcher_for(partition, follower.leader_id)
        if fetcher is not wanted:
            if fetcher is not None:
                fetcher.remove(partition)
            self._fetched_by[partition] = wanted
        wanted.add(partition)

    def _fetcher_for(self, partition: Partition, leader_id: int) -> ReplicaFetcher:
        count = max(self.node.settings.integer("num.replica.fetchers"), 1)
        key = leader_id, (int.from_bytes(partition.topic_id[:4], "big") + partition.index) % count
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = ReplicaFetcher(self, leader_id)
        return fetcher

    def forget(self, partition: Partition) -> None:
        fetcher = self._fetched_by.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def on_brokers_changed(self) -> None:
        """Someone came, went or moved: addresses and the eligible ones may be others."""
        self.node.replicas.drop_laggards()
        for fetcher in self._fetchers.values():
            fetcher.look_again()

    @property
    def broker_epoch(self) -> int:
        registration = self.node.image.brokers.get(self.node.node_id)
        return -1 if registration is None else registration.epoch

    # -- leaders -------------------------------------------------------------------------------------------------------

    def on_lead_taken(self, partition: Partition) -> None:
        if partition.has_followers:
            self._led_ms = self.node.clock.monotonic_ms()
            polls, self._polls = self._polls, {}
            for wake in polls:
                wake()

    def add_poll(self, wake: Callable[[], None]) -> None:
        """A follower's fetch waits: it is woken when a lead is taken."""
        self._polls[wake] = None

    def drop_poll(self, wake: Callable[[], None]) -> None:
        self._polls.pop(wake, None)

    @property
    def poll_ms_max(self) -> int | None:
        """How long a follower's fetch may wait now, other than it asks."""
        is_new = self.node.clock.monotonic_ms() - self._led_ms < SHORT_POLLS_FOR_MS
        return SHORT_POLL_MS if is_new else None

    def propose(self, partition: Partition, proposal: InSyncProposal) -> None:
        self._proposals.send(partition, proposal)

    def look_if_due(self) -> None:
        """Housekeeping: twice in the time that a follower may lag, so that none stays much longer."""
        now_ms = self.node.clock.monotonic_ms()
        if now_ms - self._looked_ms >= self.node.replicas.lag_ms_max // 2:
            self._looked_ms = now_ms
            self.node.replicas.drop_laggards()

    # -- for the metrics -----------------------------------------------------------------------------------------------

    def lags(self) -> list[tuple[Partition, int]]:
        """How many committed records each fetched partition does not have yet."""
        return [
            (partition, max(partition.follower.leader_high_watermark - partition.log.end_offset, 0))
            for partition in self._fetched_by
            if partition.follower is not None
        ]

    @property
    def failed_count(self) -> int:
        """Partitions whose last fetch was refused."""
        return sum(fetcher.failed_count for fetcher in self._fetchers.values())

    async def stop(self) -> None:
        self.is_stopping = True
        self._proposals.stop()
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._fetched_by.clear()
        for fetcher in fetchers:
            await fetcher.stop()
