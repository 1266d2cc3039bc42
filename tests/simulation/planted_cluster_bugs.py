"""Deliberate breaks of what only a cluster has, by name: simulated clusters must find each of them.

Replication, the metadata quorum, the controller, and coordinators that move. What one node alone can get wrong about
transactions is in `planted_bugs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.broker import active_controller
from moldau.broker import partition as partition_module
from moldau.broker.controller import Controller
from moldau.broker.coordinator import Coordinator, deliver
from moldau.broker.handlers import k01_fetch
from moldau.broker.partition import Partition
from moldau.broker.replicas import Replicas
from moldau.cluster import (
    PartitionFollower,
    PartitionLeader,
    alter_partition,
    brokers,
    metadata_log,
    partition_change,
    registration,
)
from moldau.cluster.partition_change import PartitionChange
from moldau.consensus import Quorum, TruncateTo
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError
from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.storage import PartitionLog
from moldau.storage.producer_state import ProducerStates

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED_IN_CLUSTERS: dict[str, Plant] = {}


def plant(break_it: Plant) -> Plant:
    PLANTED_IN_CLUSTERS[break_it.__name__] = break_it
    return break_it


# -- what is committed -------------------------------------------------------------------------------------------------


@plant
def the_high_watermark_waits_for_the_agreed_set_only(patch: pytest.MonkeyPatch) -> None:
    """Not for whoever is proposed: the controller may have let it in, and elect it (KIP-497)."""

    def await_followers(self: PartitionLeader) -> None:
        self._awaited = [state for replica, state in self.followers.items() if replica in self.isr]

    patch.setattr(PartitionLeader, "_await_followers", await_followers)


@plant
def who_is_proposed_to_leave_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    propose = PartitionLeader._propose

    def at_once(self: PartitionLeader, isr: Any, **what: Any) -> Any:
        self.maximal_isr = isr
        self._await_followers()
        return propose(self, isr, **what)

    patch.setattr(PartitionLeader, "_propose", at_once)


@plant
def a_proposal_without_an_answer_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    on_refused = PartitionLeader.on_refused
    patch.setattr(
        PartitionLeader,
        "on_refused",
        lambda self, proposal, code: on_refused(self, proposal, ErrorCode.OPERATION_NOT_ATTEMPTED),
    )


@plant
def acks_all_is_answered_when_the_leader_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLeader, "verdict", lambda self, end_offset: ErrorCode.NONE)


@plant
def records_are_committed_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    def require_in_sync(self: PartitionLeader, replicas_min: int) -> None:
        self._wanted_in_sync = self._min_in_sync = 1

    patch.setattr(PartitionLeader, "require_in_sync", require_in_sync)


@plant
def a_leader_that_is_replaced_calls_its_appends_committed(patch: pytest.MonkeyPatch) -> None:
    end_part = Partition._end_part

    def end_well(self: Partition, why: Any) -> None:
        waiters, self._acks_waiters = self._acks_waiters, []
        for _, reply in waiters:
            if not reply.is_done:
                reply.give(None)
        end_part(self, why)

    patch.setattr(Partition, "_end_part", end_well)


@plant
def the_latest_offset_is_told_before_it_is_known(patch: pytest.MonkeyPatch) -> None:
    """KIP-207: a new leader may know less of what is committed than the last one told."""
    patch.setattr(PartitionLeader, "knows_latest_offset", property(lambda self: True))


# -- followers ---------------------------------------------------------------------------------------------------------


@plant
def truncation_by_epochs_is_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(k01_fetch, "divergence", lambda *where: None)


@plant
def a_log_is_cut_at_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: what lies above a follower's high watermark may be committed all the same."""
    follow = Partition.follow

    def cut_and_follow(self: Partition, assigned: Any) -> None:
        is_news = self.follower is None or assigned.leader_epoch > self.leader_epoch
        follow(self, assigned)
        if is_news and not self.is_flushing and self.log.failure is None and self.high_watermark < self.log.end_offset:
            task = self._begin_truncation(self.high_watermark)
            if task is not None:
                self._run_cut(task).add_done_callback(lambda done: done.exception())

    patch.setattr(Partition, "follow", cut_and_follow)


@plant
def a_log_is_cut_where_the_leaders_epoch_ends(patch: pytest.MonkeyPatch) -> None:
    """KIP-279: our own epoch may have ended earlier."""
    patch.setattr(
        partition_module,
        "truncation_offset",
        lambda epochs, end, diverging_epoch, diverging_end: min(diverging_end, end),
    )


@plant
def a_follower_believes_in_what_it_does_not_have(patch: pytest.MonkeyPatch) -> None:
    def believe(self: PartitionFollower, leader_high_watermark: int, local_end_offset: int) -> bool:
        self.high_watermark = max(self.high_watermark, leader_high_watermark)
        return True

    patch.setattr(PartitionFollower, "on_fetched", believe)


@plant
def a_follower_joins_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    note_fetch = PartitionLeader.note_fetch

    def join(self: PartitionLeader, *fetch: Any, **more: Any) -> Any:
        high_watermark, self.high_watermark = self.high_watermark, 0
        try:
            return note_fetch(self, *fetch, **more)
        finally:
            self.high_watermark = high_watermark

    patch.setattr(PartitionLeader, "note_fetch", join)


@plant
def a_follower_joins_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    note_fetch = PartitionLeader.note_fetch

    def join(self: PartitionLeader, *fetch: Any, **more: Any) -> Any:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return note_fetch(self, *fetch, **more)
        finally:
            self.epoch_start_offset = start

    patch.setattr(PartitionLeader, "note_fetch", join)


@plant
def a_fetch_counts_before_the_logs_are_compared(patch: pytest.MonkeyPatch) -> None:
    """What a follower has beyond the end of a common epoch is not what the leader has there."""

    def note_positions(wanted: Any, fetcher: Any, context: Any) -> Any:
        refused = {}
        for key, state in wanted:
            partition = k01_fetch._find(key, context)
            if partition is None:
                continue
            try:
                partition.require_leader(state.leader_epoch)
                if state.offset <= partition.log.end_offset:
                    partition.note_follower_fetch(
                        fetcher.replica, fetcher.broker_epoch, state.offset, state.log_start_offset
                    )
            except KafkaError as refusal:
                refused[key] = refusal
        return refused

    patch.setattr(k01_fetch, "_note_positions", note_positions)


@plant
def replicas_forget_what_producers_wrote(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads next takes a retry for something new."""
    write_stored = PartitionLog._write_stored

    def write_and_forget(self: Any, segment: Any, batches: Any) -> None:
        write_stored(self, segment, batches)
        self.producers.clear()

    patch.setattr(PartitionLog, "_write_stored", write_and_forget)


@plant
def only_the_last_batch_is_known_again(patch: pytest.MonkeyPatch) -> None:
    """With five under way a retry of an earlier one is appended twice, or never answered."""

    def find_duplicate(self: Any, producer_id: int, epoch: int, base_sequence: int, offset_delta: int) -> Any:
        state = self.get(producer_id)
        if state is None or state.epoch != epoch or not state.batches:
            return None
        last = state.batches[-1]
        return last if last.first_sequence == base_sequence and last.offset_delta == offset_delta else None

    check = ProducerStates.check

    def check_gaps_only(self: Any, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        state = self.get(producer_id)
        if state is not None and state.epoch == epoch and 0 <= base_sequence <= state.last_sequence:
            return
        check(self, producer_id, epoch, base_sequence, transactional)

    patch.setattr(ProducerStates, "find_duplicate", find_duplicate)
    patch.setattr(ProducerStates, "check", check_gaps_only)


# -- the controller ----------------------------------------------------------------------------------------------------


@plant
def a_new_incarnation_keeps_the_epoch_of_the_old_one(patch: pytest.MonkeyPatch) -> None:
    """Whatever the old one said goes for the new one, which may have lost it (KIP-380, KIP-903)."""
    register = active_controller.decide_register_broker

    def register_again(image: Any, request: Any, **how: Any) -> Any:
        known = image.brokers.get(request.broker_id)
        if known is not None:
            request.incarnation_id = known.incarnation_id
        return register(image, request, **how)

    patch.setattr(active_controller, "decide_register_broker", register_again)


@plant
def proposals_of_old_leaders_are_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alter_partition, "_check", lambda partition, asked, isr, leader: None)


@plant
def proposals_from_before_a_change_are_accepted(patch: pytest.MonkeyPatch) -> None:
    check = alter_partition._check

    def check_without_partition_epoch(partition: Any, asked: Any, isr: Any, leader: int) -> None:
        epoch, asked.partition_epoch = asked.partition_epoch, partition.partition_epoch
        try:
            check(partition, asked, isr, leader)
        finally:
            asked.partition_epoch = epoch

    patch.setattr(alter_partition, "_check", check_without_partition_epoch)


@plant
def who_is_fenced_stays_in_sync(patch: pytest.MonkeyPatch) -> None:
    leave = brokers.leave

    def lead_elsewhere_only(*whom: Any, **how: Any) -> Any:
        for record in leave(*whom, **how):
            record.isr = None
            yield record

    patch.setattr(brokers, "leave", lead_elsewhere_only)


@plant
def who_is_fenced_may_join(patch: pytest.MonkeyPatch) -> None:
    """KIP-841."""
    patch.setattr(alter_partition, "_check_eligible", lambda image, replica, epoch: None)
    patch.setattr(Replicas, "is_eligible", lambda self, replica, epoch: True)


@plant
def an_unclean_stop_passes_for_a_clean_one(patch: pytest.MonkeyPatch) -> None:
    """KIP-966: who lost power stays eligible, with less than it had."""

    leave = registration.leave

    def as_if_clean(*whom: Any, is_unclean: bool) -> Any:
        return leave(*whom, is_unclean=False)

    patch.setattr(registration, "leave", as_if_clean)


@plant
def who_was_in_sync_last_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    """Without eligible replicas the last one of a set that shrank below the minimum cannot be replaced."""
    patch.setattr(PartitionChange, "_eligible", lambda self, state: ([], []))


@plant
def anybody_alive_may_lead(patch: pytest.MonkeyPatch) -> None:
    def choose(self: PartitionChange, replicas: list[int], isr: list[int], elr: list[int]) -> int:
        found = next((replica for replica in replicas if self.may_lead(replica)), NO_LEADER)
        if found != NO_LEADER and found not in isr:
            isr.append(found)
        return found

    patch.setattr(PartitionChange, "_choose", choose)


@plant
def a_reassignment_is_over_before_the_new_ones_are_in_sync(patch: pytest.MonkeyPatch) -> None:
    complete = partition_change._complete_reassignment

    def complete_at_once(state: Any, min_isr: int) -> Any:
        if not state.adding and not state.removing:
            return state
        return complete(state._replace(isr=[*dict.fromkeys([*state.isr, *state.adding])]), min_isr)

    patch.setattr(partition_change, "_complete_reassignment", complete_at_once)


@plant
def a_snapshot_forgets_who_is_eligible(patch: pytest.MonkeyPatch) -> None:
    """Some nodes know what others do not."""
    records_of = metadata_log.image_records

    def without_elr(image: Any) -> Any:
        for record in records_of(image):
            if isinstance(record, PartitionRecord):
                record.eligible_leader_replicas = None
            yield record

    patch.setattr(metadata_log, "image_records", without_elr)


# -- the metadata quorum -----------------------------------------------------------------------------------------------


@plant
def a_vote_is_not_on_disk(patch: pytest.MonkeyPatch) -> None:
    persist = Controller._persist

    def forget_votes(self: Controller, effect: Any) -> None:
        if effect.state.voted_id < 0 or effect.state.epoch < 3:
            persist(self, effect)

    patch.setattr(Controller, "_persist", forget_votes)


@plant
def two_candidates_get_a_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_may_vote_for", lambda self, candidate: self.leader_id == NO_LEADER)


@plant
def a_candidate_with_a_shorter_log_gets_a_vote(patch: pytest.MonkeyPatch) -> None:
    on_vote = Quorum.on_vote
    patch.setattr(
        Quorum, "on_vote", lambda self, request, now_ms: on_vote(self, replace(request, last_epoch=1 << 30), now_ms)
    )


@plant
def a_voter_fetches_on_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    on_fetch_answer = Quorum.on_fetch_answer

    def hurry(self: Quorum, *event: Any) -> Any:
        effects = on_fetch_answer(self, *event)
        self._awaits_flush = False
        return effects

    patch.setattr(Quorum, "on_fetch_answer", hurry)


@plant
def metadata_is_acted_on_before_it_is_agreed(patch: pytest.MonkeyPatch) -> None:
    enqueue = Controller._enqueue

    def act_at_once(self: Controller, records: Any) -> int:
        first = enqueue(self, records)
        self._apply_up_to(self._log.end_offset)
        return first

    patch.setattr(Controller, "_enqueue", act_at_once)


@plant
def metadata_that_diverges_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    carry_out = Controller._carry_out
    patch.setattr(
        Controller,
        "_carry_out",
        lambda self, effects: carry_out(self, [each for each in effects if not isinstance(each, TruncateTo)]),
    )


@plant
def a_failed_sync_of_the_metadata_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """fsyncgate: the second one says that all is well, and nothing is on disk."""

    def finish(self: Controller, task: Any, finished: Any) -> None:
        finished.exception()
        task.error, self._flushing = None, False
        self._complete(task)

    patch.setattr(Controller, "_finish_flush", finish)


@plant
def a_failed_sync_of_a_log_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    on_flushed = Partition._on_flushed

    def succeed(self: Partition, task: Any, finished: Any) -> None:
        task.error = None
        on_flushed(self, task, finished)

    patch.setattr(Partition, "_on_flushed", succeed)


# -- coordinators that move --------------------------------------------------------------------------------------------


@plant
def a_coordinator_answers_before_the_others_have_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Coordinator,
        "_give_answers",
        lambda self, hosted: deliver(hosted.shard.commit(hosted.partition.log.end_offset)),
    )


@plant
def a_coordinator_that_moved_serves_before_it_has_loaded(patch: pytest.MonkeyPatch) -> None:
    def begin_load(self: Any, hosted: Any) -> None:
        hosted.timer = None
        self._activate(hosted)

    patch.setattr(Coordinator, "_begin_load", begin_load)


@plant
def a_coordinator_that_comes_back_goes_on_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """Between two of its leaderships another broker decided."""
    follow, unload = Coordinator.follow_metadata, Coordinator._unload

    def keep(self: Any) -> None:
        for hosted in self._hosted.values():
            hosted.leader_epoch = hosted.partition.leader_epoch
        patch.setattr(Coordinator, "_unload", lambda self, hosted, error, others=None: None)
        try:
            follow(self)
        finally:
            patch.setattr(Coordinator, "_unload", unload)

    patch.setattr(Coordinator, "follow_metadata", keep)


@plant
def markers_of_a_coordinator_that_was_replaced_are_written(patch: pytest.MonkeyPatch) -> None:
    """The producer's next transaction may have begun since, with the same epoch in the first generation."""
    check_marker = ProducerStates.check_marker

    def check_producer_only(self: Any, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> None:
        check_marker(self, producer_id, epoch, 1 << 30, version)

    patch.setattr(ProducerStates, "check_marker", check_producer_only)
