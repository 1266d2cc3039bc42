"""Deliberate breaks of the quorum's machine, by name: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.consensus import NO_LEADER, EpochEnd, Leadership, PersistState, Quorum, Voters, majority_offset

PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def plant(break_it: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    PLANTED[break_it.__name__] = break_it
    return break_it


@plant
def a_vote_is_not_persisted(patch: pytest.MonkeyPatch) -> None:
    on_vote = Quorum.on_vote

    def forget(self: Quorum, *event: Any) -> Any:
        effects, answer = on_vote(self, *event)
        return [effect for effect in effects if not isinstance(effect, PersistState)], answer

    patch.setattr(Quorum, "on_vote", forget)


@plant
def an_epoch_that_was_heard_of_is_not_persisted(patch: pytest.MonkeyPatch) -> None:
    hear = Quorum._hear

    def forget(self: Quorum, *event: Any) -> Any:
        hear(self, *event)
        return []

    patch.setattr(Quorum, "_hear", forget)


@plant
def two_candidates_get_a_vote_in_one_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_may_vote_for", lambda self, candidate: self.leader_id == NO_LEADER)


@plant
def a_candidate_with_a_shorter_log_gets_a_vote(patch: pytest.MonkeyPatch) -> None:
    on_vote = Quorum.on_vote
    patch.setattr(
        Quorum, "on_vote", lambda self, request, now_ms: on_vote(self, replace(request, last_epoch=1 << 30), now_ms)
    )


@plant
def less_than_a_majority_elects(patch: pytest.MonkeyPatch) -> None:
    def is_half(self: Voters, node_ids: Any) -> bool:
        return len(set(node_ids) & set(self.ids)) >= len(self.all) // 2

    patch.setattr(Voters, "is_majority", is_half)


@plant
def records_of_earlier_epochs_are_agreed_by_counting(patch: pytest.MonkeyPatch) -> None:
    agreed_offset = Leadership.agreed_offset

    def count(self: Leadership, voters: Voters) -> int:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return agreed_offset(self, voters)
        finally:
            self.epoch_start_offset = start

    patch.setattr(Leadership, "agreed_offset", count)


@plant
def the_leader_counts_what_it_has_not_flushed(patch: pytest.MonkeyPatch) -> None:
    def count(self: Leadership, voters: Voters) -> int:
        ends = {node_id: progress.end_offset for node_id, progress in self.voters.items()}
        ends[self.key.node_id] = 1 << 30
        agreed = majority_offset(ends, voters.ids)
        return agreed if self.epoch_start_offset < agreed < 1 << 30 else 0

    patch.setattr(Leadership, "agreed_offset", count)


@plant
def a_follower_fetches_on_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    on_fetch_answer = Quorum.on_fetch_answer

    def hurry(self: Quorum, *event: Any) -> Any:
        effects = on_fetch_answer(self, *event)
        self._awaits_flush = False
        return effects

    patch.setattr(Quorum, "on_fetch_answer", hurry)


@plant
def a_diverging_log_is_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_truncate", lambda self, offset: [])


@plant
def the_leader_does_not_look_for_divergence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_place_of", lambda self, request: (None, None))


@plant
def a_truncated_voter_set_stays_in_force(patch: pytest.MonkeyPatch) -> None:
    truncate = Quorum._truncate

    def keep(self: Quorum, offset: int) -> Any:
        before = list(self._voter_sets)
        effects = truncate(self, offset)
        self._voter_sets = before
        return effects

    patch.setattr(Quorum, "_truncate", keep)


@plant
def a_leader_goes_on_in_its_epoch_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    start = Quorum.start

    def go_on(self: Quorum, now_ms: int) -> Any:
        return self._lead(now_ms) if self.leader_id == self.node_id else start(self, now_ms)

    patch.setattr(Quorum, "start", go_on)


@plant
def a_loaded_snapshot_is_taken_for_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    place_of = Quorum._place_of

    def later(self: Quorum, request: Any) -> Any:
        diverging, snapshot = place_of(self, request)
        return diverging, None if snapshot is None else EpochEnd(snapshot.epoch, snapshot.end_offset + 1)

    patch.setattr(Quorum, "_place_of", later)


@plant
def voters_change_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_check_may_change_voters", lambda self: self.leadership)
