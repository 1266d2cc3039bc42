"""Transactions on the runtime: every state with every event, both generations, time, restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moldau.coordination import Logged
from moldau.coordination.shard import TURN_BYTES_MAX
from moldau.coordination.transactions import (
    HELD_MS_MAX,
    DescribeTransaction,
    ListTransactions,
    Transaction,
    TransactionState,
    WriteMarkers,
)
from moldau.coordination.transactions.machine import DUE_PER_STEP_MAX
from moldau.coordination.transactions.records import read_key, read_value, transaction_key, transaction_value
from moldau.coordination.transactions.states import MAY_FOLLOW, PREPARED
from moldau.coordination.transactions.transaction import EPOCH_MAX
from moldau.kernel import ErrorCode, ProducerIdAndEpoch
from moldau.protocol.wire import ProtocolError
from tests.coordination.transaction_play import ID, TIMEOUT_MS, WALL_MS, A, B, TransactionPlay

EPOCH = 7
ME = ProducerIdAndEpoch(5, EPOCH)
BEFORE, AFTER = ProducerIdAndEpoch(5, EPOCH - 1), ProducerIdAndEpoch(5, EPOCH + 1)
OTHER = ProducerIdAndEpoch(6, EPOCH)
S, E = TransactionState, ErrorCode
LOGGED = (S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


def in_state(state: TransactionState, generation: int) -> TransactionPlay:
    """A transaction of epoch 7 in that state, as a log would have it; markers are not written by themselves."""
    play = TransactionPlay(generation)
    play.writes_markers_at_once = False
    transaction = Transaction(
        ID,
        ME.producer_id,
        TIMEOUT_MS,
        WALL_MS,
        epoch=EPOCH,
        state=state,
        partitions=frozenset((A,)) if state in (S.ONGOING, *PREPARED) else frozenset(),
        started_ms=-1 if state is S.EMPTY else WALL_MS,
        client_version=2 if generation == 2 else 0,
    )
    play.put(transaction)
    return play


GO_ON = "goes on"  # answered, and the transaction is where it was
HELD = "held"

# State -> what it answers, in the order of COLUMNS: an error, or the state that it goes to.
COLUMNS = (
    "init",
    "add",
    "add before",
    "add after",
    "add other",
    "verify",
    "commit",
    "abort",
    "commit before",
    "timeout",
)
FIRST: dict[TransactionState, tuple[Any, ...]] = {
    S.EMPTY: (
        S.EMPTY, S.ONGOING, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE, E.PRODUCER_FENCED, GO_ON,
    ),
    S.ONGOING: (
        S.PREPARE_ABORT, S.ONGOING, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        GO_ON, S.PREPARE_COMMIT, S.PREPARE_ABORT, E.PRODUCER_FENCED, S.PREPARE_ABORT,
    ),
    S.PREPARE_COMMIT: (
        HELD, HELD, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        HELD, HELD, E.INVALID_TXN_STATE, E.PRODUCER_FENCED, GO_ON,
    ),
    S.PREPARE_ABORT: (
        HELD, HELD, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        HELD, E.INVALID_TXN_STATE, HELD, E.PRODUCER_FENCED, GO_ON,
    ),
    S.COMPLETE_COMMIT: (
        S.EMPTY, S.ONGOING, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        E.TRANSACTION_ABORTABLE, GO_ON, E.INVALID_TXN_STATE, E.PRODUCER_FENCED, GO_ON,
    ),
    S.COMPLETE_ABORT: (
        S.EMPTY, S.ONGOING, E.PRODUCER_FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING,
        E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE, GO_ON, E.PRODUCER_FENCED, GO_ON,
    ),
}  # fmt: skip
# The same but for ends: a commit of the present epoch is another transaction's, one of the epoch before is a retry.
# While markers are written the present epoch is that of a producer who goes on: it waits, where Kafka would fence it.
SECOND: dict[TransactionState, tuple[Any, ...]] = {
    S.EMPTY: (*FIRST[S.EMPTY][:6], E.INVALID_TXN_STATE, S.PREPARE_ABORT, E.PRODUCER_FENCED, GO_ON),
    S.ONGOING: FIRST[S.ONGOING],
    S.PREPARE_COMMIT: (*FIRST[S.PREPARE_COMMIT][:6], HELD, HELD, HELD, GO_ON),
    S.PREPARE_ABORT: (*FIRST[S.PREPARE_ABORT][:6], HELD, HELD, E.INVALID_TXN_STATE, GO_ON),
    S.COMPLETE_COMMIT: (*FIRST[S.COMPLETE_COMMIT][:6], E.INVALID_TXN_STATE, S.PREPARE_ABORT, GO_ON, GO_ON),
    S.COMPLETE_ABORT: (
        *FIRST[S.COMPLETE_ABORT][:6], E.INVALID_TXN_STATE, S.PREPARE_ABORT, E.INVALID_TXN_STATE, GO_ON,
    ),
}  # fmt: skip


@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=COLUMNS)
@pytest.mark.parametrize("state", LOGGED, ids=lambda state: state.title)
@pytest.mark.parametrize("generation", (1, 2))
def test_every_state_answers_every_event(generation: int, state: TransactionState, column: int) -> None:
    play = in_state(state, generation)
    expected = (FIRST if generation == 1 else SECOND)[state][column]
    version = 2 if generation == 2 else 0
    events = {
        "init": lambda: play.initialize(),
        "add": lambda: play.add(B, producer=ME, version=version),
        "add before": lambda: play.add(A, producer=BEFORE, version=version),
        "add after": lambda: play.add(A, producer=AFTER, version=version),
        "add other": lambda: play.add(A, producer=OTHER, version=version),
        "verify": lambda: play.verify(A, producer=ME),
        "commit": lambda: play.end(True, ME, version),
        "abort": lambda: play.end(False, ME, version),
        "commit before": lambda: play.end(True, BEFORE, version),
        "timeout": lambda: play.pass_time(TIMEOUT_MS),
    }
    before = play.transaction
    answer = events[COLUMNS[column]]()
    if isinstance(expected, ErrorCode):
        assert answer is expected
        assert play.transaction == before
    elif expected == HELD:
        assert answer == HELD
        assert play.transaction == before
    elif expected == GO_ON:
        assert not isinstance(answer, ErrorCode) or answer is E.NONE
        assert answer != HELD
        assert play.transaction == before
    else:
        assert play.state is expected
        assert before.state in MAY_FOLLOW[expected]


def test_a_state_follows_only_those_that_it_may() -> None:
    for state in TransactionState:
        for other in TransactionState:
            transaction = Transaction(ID, 5, TIMEOUT_MS, 0, epoch=1, state=state)
            if state in MAY_FOLLOW[other]:
                assert transaction._to(other).state is other
            else:
                with pytest.raises(AssertionError):
                    transaction._to(other)


# -- one transaction after the other -----------------------------------------------------------------------------------


def test_a_transaction_of_the_second_generation_bumps_the_epoch_with_every_end() -> None:
    play = TransactionPlay()
    assert play.initialize() == (1000, 0)
    for epoch in range(3):
        assert play.add(A, B) is E.NONE
        assert play.end(bool(epoch % 2)) == (1000, epoch + 1)
        assert play.state is (S.COMPLETE_COMMIT if epoch % 2 else S.COMPLETE_ABORT)
    assert (play.commits, play.aborts) == (1, 2)


def test_markers_carry_the_next_epoch_in_the_second_generation_and_the_same_in_the_first() -> None:
    for generation, epoch in ((1, 0), (2, 1)):
        play = TransactionPlay(generation)
        play.writes_markers_at_once = False
        play.initialize()
        version = 2 if generation == 2 else 0
        play.add(A, B, version=version)
        play.end(True, version=version)
        (order,) = play.orders
        assert order == WriteMarkers(ID, ProducerIdAndEpoch(1000, epoch), True, frozenset((A, B)), version)


def test_an_end_is_answered_when_it_is_decided_and_its_markers_are_ordered_right_behind() -> None:
    play = TransactionPlay()
    play.writes_markers_at_once = False
    play.initialize()
    play.add(A)
    assert play.end(True) == (1000, 1)
    assert play.state is S.PREPARE_COMMIT
    assert [order.partitions for order in play.orders] == [{A}]
    play.report_markers()
    assert play.state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("ask", ("add", "verify", "abort", "initialize"))
@pytest.mark.parametrize("start", ("fresh", "exhausted"))
def test_a_producer_that_goes_on_before_the_markers_are_written_is_held_back_and_then_served(
    start: str, ask: str
) -> None:
    play = TransactionPlay() if start == "fresh" else exhausted()
    if start == "fresh":
        play.initialize()
    play.add(A)
    play.writes_markers_at_once = False
    following = play.end(True)
    requests = {
        "add": lambda: play.add(B, producer=following),
        "verify": lambda: play.verify(B, producer=following),
        "abort": lambda: play.end(False, following),
        "initialize": lambda: play.initialize(following),
    }
    assert requests[ask]() == HELD
    play.writes_markers_at_once = True
    play.report_markers()
    answered = {
        "add": {B: E.NONE},
        "verify": {B: E.TRANSACTION_ABORTABLE},
        "abort": (following.producer_id, following.epoch + 1),
        "initialize": (following.producer_id, following.epoch + 1),
    }
    assert play.answers[max(play.answers)] == answered[ask]


def test_who_comes_while_markers_are_written_is_held_back_and_let_in_afterwards_in_order() -> None:
    play = TransactionPlay()
    play.writes_markers_at_once = False
    play.initialize()
    play.add(A)
    play.end(True)
    following = play.producer
    assert play.add(B, producer=following) == HELD
    assert play.verify(B, producer=following) == HELD
    play.report_markers()
    assert play.transaction.partitions == {B}
    assert play.state is S.ONGOING
    *_, added, verified = play.answers.values()
    assert added == verified == {B: E.NONE}


def test_who_is_held_back_too_long_is_told_to_try_again() -> None:
    play = TransactionPlay()
    play.writes_markers_at_once = False
    play.initialize()
    play.add(A)
    play.end(True)
    assert play.initialize() == HELD
    play.pass_time(HELD_MS_MAX // 2)
    assert play.initialize() == HELD
    first, second = max(play.answers) + 1, max(play.answers) + 2
    play.pass_time(HELD_MS_MAX // 2)
    assert play.answers[first] is E.CONCURRENT_TRANSACTIONS
    assert second not in play.answers
    play.pass_time(HELD_MS_MAX // 2)
    assert play.answers[second] is E.CONCURRENT_TRANSACTIONS
    play.report_markers()
    assert play.state is S.COMPLETE_COMMIT


def test_no_more_requests_are_held_back_than_the_limit() -> None:
    play = in_state(S.PREPARE_COMMIT, 2)
    answers = [play.initialize() for _ in range(101)]
    assert answers == [HELD] * 100 + [E.CONCURRENT_TRANSACTIONS]


# -- fencing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", (1, 2))
def test_a_newer_instance_aborts_what_the_older_left_and_fences_it(generation: int) -> None:
    play = TransactionPlay(generation)
    play.initialize()
    old = play.producer
    version = 2 if generation == 2 else 0
    play.add(A, version=version)
    # The abort takes an epoch, the new instance the next one: the old one has neither.
    assert play.initialize() == (1000, 2)
    assert play.aborts == 1
    assert play.add(A, producer=old, version=version) is E.PRODUCER_FENCED
    assert play.end(True, old, version) is E.PRODUCER_FENCED


@pytest.mark.parametrize("generation", (1, 2))
def test_a_transaction_whose_time_is_up_is_aborted_and_its_owner_learns_of_it(generation: int) -> None:
    play = TransactionPlay(generation)
    version = 2 if generation == 2 else 0
    play.initialize()
    old = play.producer
    play.add(A, version=version)
    play.pass_time(TIMEOUT_MS - 1)
    assert play.state is S.ONGOING
    play.pass_time(1)
    assert play.state is S.COMPLETE_ABORT
    assert play.end(True, old, version) is (E.PRODUCER_FENCED if generation == 1 else E.INVALID_TXN_STATE)
    assert play.add(A, producer=old, version=version) is E.PRODUCER_FENCED
    assert any("transaction_aborted id='orders' by='its timeout'" in line for line in play.lines)


def test_the_wall_clock_may_jump_without_ending_a_transaction() -> None:
    play = TransactionPlay()
    play.initialize()
    play.add(A)
    play.wall_shift_ms = 10 * TIMEOUT_MS
    play.pass_time(TIMEOUT_MS - 1)
    assert play.state is S.ONGOING
    play.wall_shift_ms = -10 * TIMEOUT_MS
    play.restart()
    play.pass_time(TIMEOUT_MS)
    assert play.state is S.COMPLETE_ABORT


def test_a_timeout_is_more_than_nothing_and_at_most_what_the_broker_allows() -> None:
    play = TransactionPlay()
    for timeout_ms in (0, -1, 900_001):
        assert play.initialize(timeout_ms=timeout_ms) is E.INVALID_TRANSACTION_TIMEOUT
    assert play.initialize(timeout_ms=900_000) == (1000, 0)


def test_a_producer_that_goes_on_after_an_error_names_the_epoch_it_has() -> None:
    play = TransactionPlay()
    play.initialize()
    assert play.initialize(ProducerIdAndEpoch(1000, 0)) == (1000, 1)
    assert play.initialize(ProducerIdAndEpoch(1000, 0)) == (1000, 1), "the answer was lost"
    assert play.initialize(ProducerIdAndEpoch(1000, 1)) == (1000, 2)
    assert play.initialize(ProducerIdAndEpoch(1000, 0)) is E.PRODUCER_FENCED
    assert play.initialize(ProducerIdAndEpoch(999, 2)) is E.PRODUCER_FENCED
    assert play.initialize() == (1000, 3)
    assert play.initialize(ProducerIdAndEpoch(1000, 2)) is E.PRODUCER_FENCED, "a stranger came between"


# -- epochs that are used up -------------------------------------------------------------------------------------------


def exhausted(generation: int = 2) -> TransactionPlay:
    play = in_state(S.EMPTY, generation)
    play.put(replace(play.transaction, epoch=EPOCH_MAX - 1))
    play.writes_markers_at_once = True
    return play


def test_a_producer_whose_epochs_are_used_up_gets_a_new_id() -> None:
    play = exhausted()
    assert play.initialize() == (1000, 0)
    assert play.transaction.previous_producer_id == ME.producer_id


def test_the_retry_of_a_rotation_gets_the_same_new_id() -> None:
    play = exhausted()
    last = play.producer
    assert play.initialize(last) == (1000, 0)
    assert play.initialize(last) == (1000, 0)


def test_an_end_with_the_last_epoch_gives_a_new_id_and_its_retry_the_same() -> None:
    play = exhausted()
    last = play.producer
    play.add(A)
    play.writes_markers_at_once = False
    assert play.end(True, last) == (1000, 0)
    assert play.orders[0].producer == (ME.producer_id, EPOCH_MAX)
    play.report_markers()
    assert play.end(True, last) == (1000, 0)
    assert play.end(False, last) is E.INVALID_TXN_STATE


@pytest.mark.parametrize("generation", (1, 2))
def test_a_producer_with_the_last_epoch_can_still_be_fenced(generation: int) -> None:
    play = exhausted(generation)
    last = play.producer
    play.add(A, version=2 if generation == 2 else 0)
    answer = play.initialize()
    assert answer.producer_id >= 1000 and answer.epoch in (0, 1)
    assert play.add(A, producer=last) is not E.NONE


def test_without_an_id_at_hand_the_client_tries_again_and_so_does_the_clock() -> None:
    play = TransactionPlay()
    play.ids.is_empty = True
    assert play.initialize() is E.COORDINATOR_LOAD_IN_PROGRESS
    assert not play.log
    play = exhausted()
    play.add(A)
    play.ids.is_empty = True
    play.pass_time(TIMEOUT_MS)
    assert play.state is S.ONGOING
    play.ids.is_empty = False
    play.pass_time(1_000)
    assert play.state is S.COMPLETE_ABORT


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LOGGED, ids=lambda state: state.title)
@pytest.mark.parametrize("transaction_version", (0, 1, 2))
def test_what_is_logged_is_read_back(state: TransactionState, transaction_version: int) -> None:
    has_tags = transaction_version >= 1
    transaction = Transaction(
        ID,
        5,
        TIMEOUT_MS,
        WALL_MS,
        epoch=3,
        state=state,
        partitions=frozenset() if state is S.EMPTY else frozenset((A, B)),
        started_ms=WALL_MS - 5,
        previous_producer_id=4 if has_tags else -1,
        next_producer_id=6 if has_tags else -1,
        client_version=2 if has_tags else 0,
    )
    assert read_key(transaction_key(ID)) == ID
    assert read_value(ID, transaction_value(transaction, transaction_version)) == transaction


def test_a_record_of_another_kind_is_passed_over_and_one_that_does_not_read_is_refused() -> None:
    play = TransactionPlay()
    machine = play.shard.machine
    machine.replay(b"\0\7x", b"")
    machine.replay(b"\0\7x", b"")
    assert len([line for line in play.lines if "transaction_records_skipped" in line]) == 1
    value = bytearray(transaction_value(Transaction(ID, 5, 1, 1), 0))
    for state in (99, S.DEAD, S.PREPARE_EPOCH_FENCE):
        value[16] = state
        with pytest.raises(ProtocolError, match=f"state {int(state)}"):
            machine.replay(transaction_key(ID), bytes(value))
    assert not machine.transactions


@pytest.mark.parametrize("generation", (1, 2))
def test_a_decision_that_was_logged_is_carried_out_after_a_restart(generation: int) -> None:
    play = TransactionPlay(generation)
    play.writes_markers_at_once = False
    play.initialize()
    version = 2 if generation == 2 else 0
    play.add(A, B, version=version)
    play.end(True, version=version)
    play.restart()
    (order,) = play.orders
    assert order.committed and order.partitions == {A, B}
    play.report_markers()
    assert play.state is S.COMPLETE_COMMIT


def test_decisions_that_a_restart_finds_are_carried_out_piece_by_piece() -> None:
    play = TransactionPlay()
    play.writes_markers_at_once = False
    for number in range(DUE_PER_STEP_MAX + 1):
        decided = Transaction(f"{number}", number, TIMEOUT_MS, WALL_MS, epoch=1, state=S.PREPARE_COMMIT, started_ms=1)
        play.log.append(Logged(transaction_key(decided.transactional_id), transaction_value(decided, 2)))
    play.restart()
    assert len(play.orders) == DUE_PER_STEP_MAX
    play.pass_time(0)
    assert len({order.transactional_id for order in play.orders}) == len(play.orders) == DUE_PER_STEP_MAX + 1
    play.report_markers()
    assert {each.state for each in play.shard.machine.transactions.values()} == {S.COMPLETE_COMMIT}


def test_a_report_that_comes_twice_completes_nothing_twice() -> None:
    play = TransactionPlay()
    play.writes_markers_at_once = False
    play.initialize()
    play.add(A)
    play.end(True)
    play.orders *= 2
    play.report_markers()
    assert play.state is S.COMPLETE_COMMIT
    assert len(play.log) == 4, "begun, added to, decided, complete"


def test_an_id_that_nobody_used_for_long_is_forgotten_and_can_be_had_again() -> None:
    play = TransactionPlay()
    old = play.initialize()
    play.pass_time(604_800_000 + 3_600_000)
    assert ID not in play.shard.machine.transactions
    assert play.log[-1].value is None
    assert play.answer(DescribeTransaction) is E.TRANSACTIONAL_ID_NOT_FOUND
    assert play.initialize(old) == (1001, 0), "a producer that goes on gets a new id"
    play.restart()
    assert play.producer == (1001, 0)


def test_an_open_transaction_keeps_its_id() -> None:
    play = in_state(S.PREPARE_COMMIT, 2)
    play.pass_time(604_800_000 + 3_600_000)
    assert play.state is S.PREPARE_COMMIT


def many_in_state(state: TransactionState) -> TransactionPlay:
    """So many long ids that one batch could not hold a record of each."""
    play = TransactionPlay()
    for number in range(100):
        transaction = Transaction(
            f"{number}-" + "x" * 20_000, 1000 + number, TIMEOUT_MS, WALL_MS, epoch=0, state=state, started_ms=WALL_MS
        )
        play.log.append(Logged(transaction_key(transaction.transactional_id), transaction_value(transaction, 2)))
    return play


def test_ids_that_expire_together_are_forgotten_in_batches_that_the_log_takes() -> None:
    play = many_in_state(S.EMPTY)
    play.restart()
    play.pass_time(604_800_000 + 3_600_000)
    assert not play.shard.machine.transactions
    assert len(play.log) == 200 and play.largest_turn_bytes <= TURN_BYTES_MAX


def test_transactions_whose_time_ran_out_while_the_broker_was_away_are_aborted_in_batches_that_the_log_takes() -> None:
    """Otherwise the append would be refused, the shard loaded anew, and they would be due again, for ever."""
    play = many_in_state(S.ONGOING)
    play.now_ms += TIMEOUT_MS
    play.restart()
    play.pass_time(1)
    assert {each.state for each in play.shard.machine.transactions.values()} == {S.COMPLETE_ABORT}
    assert play.largest_turn_bytes <= TURN_BYTES_MAX


# -- looking -----------------------------------------------------------------------------------------------------------


def test_transactions_are_listed_by_state_producer_age_and_name() -> None:
    play = TransactionPlay()
    play.initialize()
    play.add(A)
    play.pass_time(500)

    def listed(states: Any = None, producers: tuple[int, ...] = (), older_than_ms: int = -1, pattern: str = "") -> Any:
        answer = play.answer_plain(ListTransactions, states, frozenset(producers), older_than_ms, pattern)
        return answer if isinstance(answer, ErrorCode) else [each.transactional_id for each in answer]

    assert listed() == [ID]
    assert listed(frozenset((S.ONGOING,))) == [ID]
    assert listed(frozenset((S.EMPTY,))) == []
    assert listed(frozenset()) == []
    assert listed(producers=(1000,)) == [ID]
    assert listed(producers=(1,)) == []
    assert listed(older_than_ms=499) == [ID]
    assert listed(older_than_ms=500) == []
    assert listed(pattern="ord.*") == [ID]
    assert listed(pattern="ord") == []
    assert listed(pattern="(") is E.INVALID_REGULAR_EXPRESSION
