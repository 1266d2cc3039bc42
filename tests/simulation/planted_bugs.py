"""Deliberate breaks of the broker, by name: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.coordinator import Coordinator, deliver
from moldau.broker.markers import Markers
from moldau.broker.partition import Partition
from moldau.broker.transactions import _Outbox
from moldau.broker.verification import Verified
from moldau.coordination.groups.pending_offsets import PendingOffsets
from moldau.coordination.transactions import TransactionMachine, TransactionState, rules
from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import LogDirectory, PartitionLog
from moldau.storage.producer_state import ProducerStates

Plant = Callable[[pytest.MonkeyPatch], None]
# Found when nodes die; found when machines do.
PLANTED: dict[str, Plant] = {}
PLANTED_FOR_POWER_LOSSES: dict[str, Plant] = {}


def plant(break_it: Plant) -> Plant:
    PLANTED[break_it.__name__] = break_it
    return break_it


def plant_for_power_losses(break_it: Plant) -> Plant:
    PLANTED_FOR_POWER_LOSSES[break_it.__name__] = break_it
    return break_it


@plant
def markers_are_written_before_the_decision_is_logged(patch: pytest.MonkeyPatch) -> None:
    order_markers = TransactionMachine._order_markers

    def at_once(self: Any, decided: Any, step: Any) -> None:
        class Now:
            def answer(self, outbox: Any, order: Any) -> None:
                report, outbox._report = outbox._report, lambda order: None
                outbox.give(order)
                outbox._report = report

        order_markers(self, decided, Now())  # type: ignore[arg-type]
        order_markers(self, decided, step)

    patch.setattr(TransactionMachine, "_order_markers", at_once)


@plant
def the_end_is_logged_without_markers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Markers, "carry_out", lambda self, partitions, end, *, is_wanted, on_done: on_done())


@plant
def one_partition_gets_no_marker(patch: pytest.MonkeyPatch) -> None:
    carry_out = Markers.carry_out
    patch.setattr(
        Markers,
        "carry_out",
        lambda self, partitions, end, **how: carry_out(
            self, sorted(partitions)[: max(len(partitions) - 1, 1)], end, **how
        ),
    )


@plant
def a_marker_that_was_refused_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    write = Markers.write

    class Content:
        def __init__(self, token: Any) -> None:
            self._token = token

        def give(self, response: Any) -> None:
            self._token.give(None)

    patch.setattr(Markers, "write", lambda self, where, end, token: write(self, where, end, Content(token)))


@plant
def the_coordinator_ignores_epochs(patch: pytest.MonkeyPatch) -> None:
    def check_producer(transaction: Any, producer: Any) -> None:
        if transaction.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    patch.setattr(rules, "check_producer", check_producer)


@plant
def an_end_that_comes_late_ends_the_next_transaction(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-17754, in the second generation."""
    end = rules.end

    def end_any(transaction: Any, request: Any, ids: Any, now_ms: int) -> Any:
        if transaction.state is TransactionState.ONGOING and transaction.producer_id == request.producer.producer_id:
            request = request._replace(producer=request.producer._replace(epoch=transaction.epoch))
        return end(transaction, request, ids, now_ms)

    patch.setattr(rules, "end", end_any)


@plant
def offsets_of_an_aborted_transaction_count(patch: pytest.MonkeyPatch) -> None:
    end = PendingOffsets.end
    patch.setattr(PendingOffsets, "end", lambda self, producer_id, committed: end(self, producer_id, True))


@plant
def nothing_is_verified(patch: pytest.MonkeyPatch) -> None:
    init = Verified.__init__

    def require_second_generation_only(self: Any, node: Any, claim: Any) -> None:
        init(self, node, claim)
        self._is_required = claim.adds_partitions

    patch.setattr(Verified, "__init__", require_second_generation_only)


@plant
def a_timeout_aborts_without_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rules,
        "abort_from_outside",
        lambda transaction, version, ids, now_ms: transaction.prepared(
            committed=False, client_version=0, now_ms=now_ms
        ),
    )


@plant
def open_transactions_do_not_hold_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


@plant
def decisions_are_forgotten_when_a_shard_is_loaded(patch: pytest.MonkeyPatch) -> None:
    on_loaded = TransactionMachine.on_loaded

    def without_prepared(self: Any, step: Any) -> None:
        self._order_markers = lambda decided, step: None
        on_loaded(self, step)
        del self._order_markers

    patch.setattr(TransactionMachine, "on_loaded", without_prepared)


@plant
def timeouts_are_forgotten_when_a_shard_is_loaded(patch: pytest.MonkeyPatch) -> None:
    on_loaded = TransactionMachine.on_loaded

    def without_timeouts(self: Any, step: Any) -> None:
        self._set_timeout = lambda transaction, deadline_ms: None
        on_loaded(self, step)
        del self._set_timeout

    patch.setattr(TransactionMachine, "on_loaded", without_timeouts)


@plant
def readers_are_not_told_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda self, first, upper: [])


@plant
def a_coordinator_answers_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    write = Coordinator._write
    patch.setattr(
        Coordinator,
        "_write",
        lambda self, partition, entries: self._node.loop.call_later(0.002, write, self, partition, entries),
    )


@plant
def retries_are_appended_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "find_duplicate", lambda self, *batch: None)
    patch.setattr(ProducerStates, "check", lambda self, *batch: None)


@plant
def a_newer_instance_leaves_the_open_transaction_alone(patch: pytest.MonkeyPatch) -> None:
    initialize = TransactionMachine._initialize

    def bump_only(self: Any, event: Any, step: Any) -> None:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is not None and transaction.state is TransactionState.ONGOING:
            self.transactions[event.transactional_id] = transaction.prepared(
                committed=False, client_version=0, now_ms=step.wall_ms
            ).completed(step.wall_ms)
        initialize(self, event, step)

    patch.setattr(TransactionMachine, "_initialize", bump_only)


@plant
def partitions_do_not_fence_old_epochs(patch: pytest.MonkeyPatch) -> None:
    check = ProducerStates.check

    def check_any_epoch(self: Any, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        state = self.get(producer_id)
        if state is None or epoch >= state.epoch:
            check(self, producer_id, epoch, base_sequence, transactional)

    patch.setattr(ProducerStates, "check", check_any_epoch)
    patch.setattr(ProducerStates, "check_coordinators_batch", lambda self, *batch: None)
    patch.setattr(Verified, "require_accepted", lambda self, partition: None)


@plant
def markers_report_the_opposite_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    give = _Outbox.give

    def opposite(self: Any, order: Any) -> None:
        if not isinstance(order, KafkaError) and self._epoch > 0:
            order = order._replace(committed=False)
        give(self, order)

    patch.setattr(_Outbox, "give", opposite)


@plant_for_power_losses
def a_marker_counts_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_first_without_committed_end", lambda self, high_watermark: high_watermark)


@plant_for_power_losses
def a_coordinator_answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def give(self: Any, hosted: Any) -> None:
        deliver(hosted.shard.commit(hosted.partition.log.end_offset))

    patch.setattr(Coordinator, "_give_synced_answers", give)


@plant_for_power_losses
def a_producer_is_answered_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "flush_is_due", lambda self, now_ms: False)


@plant_for_power_losses
def a_new_log_directory_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirectory, "make", lambda self: self.disk.make_directories(self.path))
