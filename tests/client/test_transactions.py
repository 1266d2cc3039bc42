"""Every state of a producer's transactions with every call, event and error, without a broker."""

from __future__ import annotations

import itertools

import pytest

from moldau.client import (
    DeliveryTimedOut,
    ProducerFenced,
    TransactionAbortable,
    TransactionFatal,
    WrongTransactionState,
)
from moldau.client.errors import CommitFailed
from moldau.client.transactions import (
    NO_IDENTITY,
    Call,
    Event,
    Identity,
    Severity,
    State,
    Transactions,
    severity_of,
    transaction_error,
)
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.messages.registry import ApiKey

ABORTABLE = TransactionAbortable(ErrorCode.TRANSACTION_ABORTABLE, "must be aborted")
FATAL = TransactionFatal(ErrorCode.INVALID_TXN_STATE, "over")
NEXT = Identity(7, 3)

WRONG, RAISES = "wrong", "raises the error"
S = State
# The whole table, once more and by hand: what `CALLS` says is checked against this, not against itself.
CALLS_EXPECTED = {
    #                   INIT            BEGIN             SEND              SEND_OFFSETS      COMMIT        ABORT
    S.UNINITIALIZED: (S.INITIALIZING, WRONG, WRONG, WRONG, WRONG, WRONG),
    S.INITIALIZING: (S.INITIALIZING, WRONG, WRONG, WRONG, WRONG, WRONG),
    S.READY: (WRONG, S.IN_TRANSACTION, WRONG, WRONG, WRONG, WRONG),
    S.IN_TRANSACTION: (WRONG, WRONG, S.IN_TRANSACTION, S.IN_TRANSACTION, S.COMMITTING, S.ABORTING),
    S.COMMITTING: (WRONG, WRONG, WRONG, WRONG, S.COMMITTING, WRONG),
    S.ABORTING: (WRONG, WRONG, WRONG, WRONG, WRONG, S.ABORTING),
    S.ABORTABLE_ERROR: (RAISES, RAISES, RAISES, RAISES, RAISES, S.ABORTING),
    S.FATAL_ERROR: (RAISES, RAISES, RAISES, RAISES, RAISES, RAISES),
}
EVENTS_EXPECTED = {
    #                   INITIALIZED  NOT_INITIALIZED   ENDED   ABORTABLE         FATAL
    S.UNINITIALIZED: (S.UNINITIALIZED,) * 4 + (S.FATAL_ERROR,),
    S.INITIALIZING: (S.READY, S.UNINITIALIZED, S.INITIALIZING, S.INITIALIZING, S.FATAL_ERROR),
    S.READY: (S.READY,) * 4 + (S.FATAL_ERROR,),
    S.IN_TRANSACTION: (S.IN_TRANSACTION,) * 3 + (S.ABORTABLE_ERROR, S.FATAL_ERROR),
    S.COMMITTING: (S.COMMITTING, S.COMMITTING, S.READY, S.ABORTABLE_ERROR, S.FATAL_ERROR),
    S.ABORTING: (S.ABORTING, S.ABORTING, S.READY, S.ABORTING, S.FATAL_ERROR),
    S.ABORTABLE_ERROR: (S.ABORTABLE_ERROR,) * 4 + (S.FATAL_ERROR,),
    S.FATAL_ERROR: (S.FATAL_ERROR,) * 5,
}


def machine_in(state: State) -> Transactions:
    """Brought there by calls and events, as producers bring it there."""
    machine = Transactions("orders")
    if state is State.UNINITIALIZED:
        return machine
    if state is State.FATAL_ERROR:
        machine.on_error(FATAL)
        return machine
    machine.make(Call.INIT)
    if state is State.INITIALIZING:
        return machine
    machine.on_initialized(Identity(7, 0))
    if state is State.READY:
        return machine
    machine.begin(2)
    if state is State.COMMITTING:
        machine.make(Call.COMMIT)
    if state is State.ABORTING:
        machine.make(Call.ABORT)
    if state is State.ABORTABLE_ERROR:
        machine.on_error(ABORTABLE)
    assert machine.state is state
    return machine


@pytest.mark.parametrize(("state", "call"), list(itertools.product(State, Call)))
def test_every_call_in_every_state(state: State, call: Call) -> None:
    machine = machine_in(state)
    expected = CALLS_EXPECTED[state][list(Call).index(call)]
    if isinstance(expected, State):
        machine.make(call)
        assert machine.state is expected
        return
    before = machine.error
    with pytest.raises(WrongTransactionState if expected == WRONG else KafkaError) as caught:
        machine.make(call)
    assert machine.state is state
    if expected == RAISES:
        assert caught.value is before
    else:
        assert call.value in str(caught.value) and state.value in str(caught.value)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_in_every_state(state: State, event: Event) -> None:
    machine = machine_in(state)
    before = machine.error
    happen = {
        Event.INITIALIZED: lambda: machine.on_initialized(NEXT),
        Event.NOT_INITIALIZED: machine.on_not_initialized,
        Event.ENDED: lambda: machine.on_ended(NEXT),
        Event.ABORTABLE: lambda: machine.on_error(TransactionAbortable(ErrorCode.TRANSACTION_ABORTABLE, "later")),
        Event.FATAL: lambda: machine.on_error(TransactionFatal(ErrorCode.PRODUCER_FENCED, "later")),
    }
    happen[event]()
    expected = EVENTS_EXPECTED[state][list(Event).index(event)]
    assert machine.state is expected
    if state in (State.ABORTABLE_ERROR, State.FATAL_ERROR) and expected is state:
        assert machine.error is before  # the first cause counts
    if expected in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
        assert machine.error is not None
    if expected is State.READY and state is not State.READY:
        assert machine.identity == NEXT and machine.error is None


def test_the_tables_of_this_test_know_all_states() -> None:
    assert set(CALLS_EXPECTED) == set(EVENTS_EXPECTED) == set(State)


def test_an_abort_forgets_the_error_and_the_next_transaction_starts_clean() -> None:
    machine = machine_in(State.IN_TRANSACTION)
    machine.on_batch_failed(DeliveryTimedOut("no answer"), was_sent=True)
    assert machine.state is State.ABORTABLE_ERROR and machine.needs_epoch
    with pytest.raises(TransactionAbortable, match=r"no answer.*abort it, then it may be tried again") as caught:
        machine.make(Call.COMMIT)
    assert isinstance(caught.value.__cause__, DeliveryTimedOut)
    machine.make(Call.ABORT)
    machine.on_ended(NEXT)
    machine.begin(2)
    assert machine.error is None and not machine.needs_epoch and not machine.is_known


def test_offsets_of_which_nobody_knows_need_an_abort_and_a_new_epoch() -> None:
    machine = machine_in(State.IN_TRANSACTION)
    machine.on_offsets_unknown(TimeoutError("no answer"))
    assert machine.state is State.ABORTABLE_ERROR and machine.needs_epoch


def test_a_batch_that_never_left_needs_no_new_epoch() -> None:
    machine = machine_in(State.IN_TRANSACTION)
    machine.on_batch_failed(DeliveryTimedOut("no leader"), was_sent=False)
    assert machine.state is State.ABORTABLE_ERROR and not machine.needs_epoch


def test_partitions_are_added_first_only_where_clients_must() -> None:
    where, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    machine = machine_in(State.READY)
    machine.begin(2)
    assert machine.may_write_to(where) and not machine.to_add
    machine.make(Call.ABORT)
    machine.on_ended(NEXT)
    machine.begin(1)
    assert not machine.may_write_to(where) and not machine.may_write_to(other)
    assert machine.to_add == {where, other} and not machine.is_known
    machine.on_added({where})
    assert machine.may_write_to(where) and machine.to_add == {other} and machine.is_known
    machine.make(Call.ABORT)
    machine.on_ended(NEXT)
    machine.begin(1)
    assert not machine.may_write_to(where)  # each transaction anew


def test_a_record_that_waited_belongs_to_its_own_transaction_or_none() -> None:
    machine = machine_in(State.IN_TRANSACTION)
    number = machine.check_send()
    assert machine.takes_records_of(number)
    machine.make(Call.COMMIT)
    assert not machine.takes_records_of(number)
    machine.on_ended(NEXT)
    machine.begin(2)
    assert not machine.takes_records_of(number)
    with pytest.raises(WrongTransactionState, match="ended while send"):
        machine.check_still(number)


COORDINATED = [
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
]
E = ErrorCode
ABORTABLE_EXPECTED: dict[ApiKey, set[ErrorCode]] = {
    ApiKey.FIND_COORDINATOR: {E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE},
    ApiKey.INIT_PRODUCER_ID: set(),
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        E.TOPIC_AUTHORIZATION_FAILED,
        E.OPERATION_NOT_ATTEMPTED,
        E.INVALID_TOPIC_EXCEPTION,
        E.UNKNOWN_PRODUCER_ID,
        E.TRANSACTION_ABORTABLE,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {E.GROUP_AUTHORIZATION_FAILED, E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: {
        E.ILLEGAL_GENERATION,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        E.STALE_MEMBER_EPOCH,
        E.GROUP_AUTHORIZATION_FAILED,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.GROUP_ID_NOT_FOUND,
        E.INVALID_GROUP_ID,
        E.OFFSET_METADATA_TOO_LARGE,
        E.INVALID_COMMIT_OFFSET_SIZE,
        E.TRANSACTION_ABORTABLE,
    },
    ApiKey.END_TXN: {E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE},
}


@pytest.mark.parametrize("api_key", COORDINATED)
def test_every_refusal_of_a_coordinator_is_repeated_aborted_or_fatal(api_key: ApiKey) -> None:
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            continue
        severity = severity_of(api_key, code)
        if code.retriable:
            assert severity is Severity.RETRY
        elif code in ABORTABLE_EXPECTED[api_key]:
            assert severity is Severity.ABORTABLE
        else:
            assert severity is Severity.FATAL


@pytest.mark.parametrize(
    "code",
    [
        E.CONCURRENT_TRANSACTIONS,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.REQUEST_TIMED_OUT,
    ],
)
def test_what_passes_by_itself_is_repeated(code: ErrorCode) -> None:
    assert {severity_of(api_key, code) for api_key in COORDINATED} == {Severity.RETRY}


def test_a_refused_batch_aborts_except_where_the_producer_has_no_future() -> None:
    fatal = {
        E.PRODUCER_FENCED,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_VERSION,
    }
    for code in ErrorCode:
        machine = machine_in(State.IN_TRANSACTION)
        machine.on_batch_failed(KafkaError(code, "refused"), was_sent=True)
        assert machine.state is (State.FATAL_ERROR if code in fatal else State.ABORTABLE_ERROR)


def test_errors_say_which_way_out_there_is() -> None:
    fenced = transaction_error(ApiKey.END_TXN, E.PRODUCER_FENCED, "orders", "committing")
    assert isinstance(fenced, ProducerFenced) and "close this producer" in str(fenced) and "'orders'" in str(fenced)
    assert isinstance(
        transaction_error(ApiKey.END_TXN, E.INVALID_PRODUCER_EPOCH, "orders", "committing"), ProducerFenced
    )
    timeout = transaction_error(ApiKey.INIT_PRODUCER_ID, E.INVALID_TRANSACTION_TIMEOUT, "orders", "asking")
    assert isinstance(timeout, TransactionFatal) and "transaction.max.timeout.ms" in str(timeout)
    left = transaction_error(ApiKey.TXN_OFFSET_COMMIT, E.ILLEGAL_GENERATION, "orders", "committing offsets")
    assert isinstance(left, TransactionAbortable) and isinstance(left.__cause__, CommitFailed)
    assert "went on without this member" in str(left) and "abort" in str(left)


def test_a_new_machine_has_no_identity() -> None:
    assert Transactions("orders").identity == NO_IDENTITY
