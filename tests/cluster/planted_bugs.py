"""Deliberate breaks of the machines of replication, by name: the seeds must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.cluster import PartitionFollower, PartitionLeader, replication
from moldau.cluster.replication import leader as leader_module
from moldau.kernel import ErrorCode
from tests.cluster.replication_world import Broker

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, Plant] = {}


def plant(break_it: Plant) -> Plant:
    PLANTED[break_it.__name__] = break_it
    return break_it


@plant
def the_high_watermark_waits_for_the_committed_set_only(patch: pytest.MonkeyPatch) -> None:
    def awaits(self: PartitionLeader) -> None:
        self._awaited = [state for replica, state in self.followers.items() if replica in self.isr]

    patch.setattr(PartitionLeader, "_await_followers", awaits)


@plant
def truncation_is_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replication, "divergence", lambda epochs, end_offset, offset, epoch: None)


@plant
def a_log_is_cut_at_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    on_view = Broker.on_view

    def cuts(self: Broker, view: Any, broker_epoch: int) -> None:
        before = self.follower
        on_view(self, view, broker_epoch)
        if self.follower is not None and self.follower is not before:
            self.truncate(self.high_watermark)

    patch.setattr(Broker, "on_view", cuts)


@plant
def a_log_is_cut_at_the_leaders_end_of_the_epoch_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replication, "truncation_offset", lambda epochs, end, epoch, epoch_end: min(epoch_end, end))


@plant
def records_are_committed_before_min_isr(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: PartitionLeader, replicas_min: int) -> None:
        self._wanted_in_sync = replicas_min
        self._min_in_sync = 1

    patch.setattr(PartitionLeader, "require_in_sync", forgets)


@plant
def acks_all_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLeader, "verdict", lambda self, end_offset: ErrorCode.NONE)


@plant
def a_follower_joins_without_its_broker_epoch(patch: pytest.MonkeyPatch) -> None:
    propose = PartitionLeader._propose

    def without(self: PartitionLeader, isr: Any, **what: Any) -> Any:
        proposal = propose(self, isr, **what)
        self.proposal = leader_module.InSyncProposal(
            proposal.leader_epoch, proposal.partition_epoch, isr, (-1,) * len(isr), proposal.added, proposal.removed
        )
        return self.proposal

    patch.setattr(PartitionLeader, "_propose", without)
    patch.setattr(Broker, "is_eligible", lambda self, replica, epoch: True)


@plant
def a_follower_joins_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    note_fetch = PartitionLeader.note_fetch

    def joins(self: PartitionLeader, *arguments: Any, **more: Any) -> Any:
        high_watermark, self.high_watermark = self.high_watermark, 0
        try:
            return note_fetch(self, *arguments, **more)
        finally:
            self.high_watermark = high_watermark

    patch.setattr(PartitionLeader, "note_fetch", joins)


@plant
def a_follower_joins_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    note_fetch = PartitionLeader.note_fetch

    def joins(self: PartitionLeader, *arguments: Any, **more: Any) -> Any:
        start_offset, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return note_fetch(self, *arguments, **more)
        finally:
            self.epoch_start_offset = start_offset

    patch.setattr(PartitionLeader, "note_fetch", joins)


@plant
def a_follower_that_is_to_leave_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    propose = PartitionLeader._propose

    def at_once(self: PartitionLeader, isr: Any, **what: Any) -> Any:
        self.maximal_isr = isr
        self._await_followers()
        return propose(self, isr, **what)

    patch.setattr(PartitionLeader, "_propose", at_once)


@plant
def an_unanswered_proposal_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    on_refused = PartitionLeader.on_refused

    def forgets(self: PartitionLeader, proposal: Any, code: ErrorCode) -> bool:
        return on_refused(self, proposal, ErrorCode.OPERATION_NOT_ATTEMPTED)

    patch.setattr(PartitionLeader, "on_refused", forgets)


@plant
def a_new_leader_does_not_note_where_its_epoch_begins(patch: pytest.MonkeyPatch) -> None:
    lead = Broker._lead

    def leads(self: Broker, state: Any) -> None:
        lead(self, state)
        self.epochs.truncate_from_end(len(self.log))

    patch.setattr(Broker, "_lead", leads)


@plant
def a_follower_believes_in_what_it_does_not_have(patch: pytest.MonkeyPatch) -> None:
    def believes(self: PartitionFollower, leader_high_watermark: int, local_end_offset: int) -> bool:
        self.high_watermark = max(self.high_watermark, leader_high_watermark)
        return True

    patch.setattr(PartitionFollower, "on_fetched", believes)


@plant
def what_followers_had_under_an_older_epoch_counts(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}
    lead = Broker._lead

    def leads(self: Broker, state: Any) -> None:
        lead(self, state)
        assert self.leader is not None
        for replica, known in kept.get(self.node_id, {}).items():
            if replica in self.leader.followers:
                self.leader.followers[replica].end_offset = known.end_offset
        kept[self.node_id] = self.leader.followers

    patch.setattr(Broker, "_lead", leads)


@plant
def a_follower_keeps_the_epoch_that_it_never_wrote_in(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: Broker, offset: int) -> None:
        if offset < len(self.log):
            assert self.follower is not None
            del self.log[offset:]
            self.synced = min(self.synced, offset)
            self.epochs.truncate_from_end(offset)
            self.follower.on_truncated(offset)

    patch.setattr(Broker, "truncate", truncate)
