"""A producer's transactions, decided without clock, socket or task: which call is legal when, and what an error means.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING --> READY
                                                    |  ^            |
                                                    |  (send)       v
                                                    +-------> ABORTABLE_ERROR -> ABORTING -> READY
    anything -> FATAL_ERROR

`CALLS` says what users may do in each state, `EVENTS` what happens to it; `severity_of` is the table of errors. The
producer asks and tells, `transaction_coordinator` speaks with brokers. Two generations of the protocol are known here
by one number: with `transaction.version` 2 (KIP-890) brokers add partitions by themselves and every end of a
transaction brings a new epoch; with 1 partitions are added first, and only a lost batch needs a new epoch (KIP-360).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from moldau.client.errors import (
    CommitFailed,
    ProducerFenced,
    TransactionAbortable,
    TransactionFatal,
    WrongTransactionState,
)
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.protocol.messages.registry import ApiKey

TRANSACTION_VERSION = "transaction.version"
IMPLICIT_PARTITIONS_FROM = 2


class State(Enum):
    UNINITIALIZED = "not initialised"
    INITIALIZING = "being initialised"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "failed"


class Call(Enum):
    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "send()"
    SEND_OFFSETS = "send_offsets_to_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"


class Event(Enum):
    INITIALIZED = "a producer id was given"
    NOT_INITIALIZED = "no broker could be asked for a producer id"
    ENDED = "the coordinator ended the transaction"
    ABORTABLE = "the transaction cannot be committed any more"
    FATAL = "the producer cannot go on"


_FIRST_INIT = "call init_transactions() first, and wait for it"
_FIRST_BEGIN = "call begin_transaction() first"
_OPEN_ALREADY = "a transaction is open: commit or abort it first"
_COMMIT_AGAIN = "the commit is not finished: call commit_transaction() again until it is"
_ABORT_AGAIN = "the abort is not finished: call abort_transaction() again until it is"
_ONCE = "it was called already: once is enough for the life of a producer"

# What a call leads to: the next state, or why it is wrong. In an error's state whatever is missing raises the error.
CALLS: dict[State, dict[Call, State | str]] = {
    State.UNINITIALIZED: {
        Call.INIT: State.INITIALIZING,
        Call.BEGIN: _FIRST_INIT,
        Call.SEND: _FIRST_INIT,
        Call.SEND_OFFSETS: _FIRST_INIT,
        Call.COMMIT: _FIRST_INIT,
        Call.ABORT: _FIRST_INIT,
    },
    State.INITIALIZING: {
        Call.INIT: State.INITIALIZING,
        Call.BEGIN: _FIRST_INIT,
        Call.SEND: _FIRST_INIT,
        Call.SEND_OFFSETS: _FIRST_INIT,
        Call.COMMIT: _FIRST_INIT,
        Call.ABORT: _FIRST_INIT,
    },
    State.READY: {
        Call.INIT: _ONCE,
        Call.BEGIN: State.IN_TRANSACTION,
        Call.SEND: _FIRST_BEGIN,
        Call.SEND_OFFSETS: _FIRST_BEGIN,
        Call.COMMIT: _FIRST_BEGIN,
        Call.ABORT: _FIRST_BEGIN,
    },
    State.IN_TRANSACTION: {
        Call.INIT: _ONCE,
        Call.BEGIN: _OPEN_ALREADY,
        Call.SEND: State.IN_TRANSACTION,
        Call.SEND_OFFSETS: State.IN_TRANSACTION,
        Call.COMMIT: State.COMMITTING,
        Call.ABORT: State.ABORTING,
    },
    State.COMMITTING: {
        Call.INIT: _ONCE,
        Call.BEGIN: _COMMIT_AGAIN,
        Call.SEND: _COMMIT_AGAIN,
        Call.SEND_OFFSETS: _COMMIT_AGAIN,
        Call.COMMIT: State.COMMITTING,
        Call.ABORT: _COMMIT_AGAIN,
    },
    State.ABORTING: {
        Call.INIT: _ONCE,
        Call.BEGIN: _ABORT_AGAIN,
        Call.SEND: _ABORT_AGAIN,
        Call.SEND_OFFSETS: _ABORT_AGAIN,
        Call.COMMIT: _ABORT_AGAIN,
        Call.ABORT: State.ABORTING,
    },
    State.ABORTABLE_ERROR: {Call.ABORT: State.ABORTING},
    State.FATAL_ERROR: {},
}

# What an event leads to; an event that is missing changes nothing in that state: it comes too late to matter.
EVENTS: dict[State, dict[Event, State]] = {
    State.UNINITIALIZED: {Event.FATAL: State.FATAL_ERROR},
    State.INITIALIZING: {
        Event.INITIALIZED: State.READY,
        Event.NOT_INITIALIZED: State.UNINITIALIZED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.READY: {Event.FATAL: State.FATAL_ERROR},
    State.IN_TRANSACTION: {Event.ABORTABLE: State.ABORTABLE_ERROR, Event.FATAL: State.FATAL_ERROR},
    State.COMMITTING: {
        Event.ENDED: State.READY,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTING: {Event.ENDED: State.READY, Event.FATAL: State.FATAL_ERROR},
    State.ABORTABLE_ERROR: {Event.FATAL: State.FATAL_ERROR},
    State.FATAL_ERROR: {},
}


# -- errors ------------------------------------------------------------------------------------------------------------


class Severity(Enum):
    RETRY = "send the request again"
    ABORTABLE = "abort the transaction, then go on"
    FATAL = "close the producer"


_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_GROUP_WENT_ON = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
# To a partition's leader an old epoch may mean that the coordinator timed the transaction out: aborting tells.
_FATAL_TO_PRODUCE = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
# What a coordinator refuses for the sake of this transaction only.
_ABORTABLE: dict[ApiKey, frozenset[ErrorCode]] = {
    ApiKey.FIND_COORDINATOR: frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE}),
    ApiKey.INIT_PRODUCER_ID: frozenset(),
    ApiKey.ADD_PARTITIONS_TO_TXN: frozenset(
        {
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_PRODUCER_ID,
            ErrorCode.TRANSACTION_ABORTABLE,
        }
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: frozenset(
        {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.TRANSACTION_ABORTABLE}
    ),
    ApiKey.TXN_OFFSET_COMMIT: _GROUP_WENT_ON
    | {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.TRANSACTION_ABORTABLE,
    },
    ApiKey.END_TXN: frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.TRANSACTION_ABORTABLE}),
}


def severity_of(api_key: ApiKey, code: ErrorCode) -> Severity:
    """What a refusal of one of a transaction's requests means."""
    if api_key is ApiKey.PRODUCE:
        # `accumulator` has tried again what may be tried again.
        return Severity.FATAL if code in _FATAL_TO_PRODUCE else Severity.ABORTABLE
    if code.retriable:
        return Severity.RETRY
    return Severity.ABORTABLE if code in _ABORTABLE[api_key] else Severity.FATAL


def transaction_error(api_key: ApiKey, code: ErrorCode, transactional_id: str, what: str) -> KafkaError:
    """The exception for a refusal that is not tried again: it says which of the two ways out there is."""
    name = f"transactional.id {transactional_id!r}"
    if severity_of(api_key, code) is Severity.ABORTABLE:
        if code in _GROUP_WENT_ON:
            why = "the group went on without this member"
            return abortable(name, CommitFailed(code, f"{what}: {why} ({code.name})"))
        return abortable(name, KafkaError(code, f"{what}: {code.name}"))
    if code in _FENCED:
        return ProducerFenced(
            code,
            f"{name}: {what}: {code.name}: another producer with this id began, or the transaction outlived "
            "transaction.timeout.ms; close this producer, and start a new one if it should go on",
        )
    step = _FATAL_STEPS.get(code, "close this producer and start a new one")
    return TransactionFatal(code, f"{name}: {what}: {code.name}; {step}")


_FATAL_STEPS = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "transaction.timeout.ms must be at most the brokers' transaction.max.timeout.ms"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not use the id: grant Write on it",
    ErrorCode.INVALID_TXN_STATE: "the coordinator ended the transaction already, as after transaction.timeout.ms; "
    "close this producer and start a new one",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator forgot the id (transactional.id.expiration.ms); "
    "close this producer and start a new one",
}


def abortable(name: str, cause: Exception) -> TransactionAbortable:
    code = cause.code if isinstance(cause, KafkaError) else ErrorCode.REQUEST_TIMED_OUT
    if isinstance(cause, TransactionAbortable):
        return cause
    error = TransactionAbortable(
        code, f"{name}: the transaction cannot be committed: {cause}; abort it, then it may be tried again"
    )
    error.__cause__ = cause
    return error


# -- the machine -------------------------------------------------------------------------------------------------------


class Identity(NamedTuple):
    """Under which number and epoch a producer writes."""

    producer_id: int
    epoch: int


NO_IDENTITY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Transactions:
    """One producer's state, and what its open transaction needs at its end."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.error: Exception | None = None
        self.identity = NO_IDENTITY
        self.version = IMPLICIT_PARTITIONS_FROM
        self.number = 0  # of the transaction, so that who waited can see that it is another one
        self.is_known = False  # to the coordinator, maybe: it must hear of the end
        self.needs_epoch = False  # a numbered batch was lost, and could still arrive
        self.added: set[TopicPartition] = set()
        self.to_add: set[TopicPartition] = set()

    @property
    def is_open(self) -> bool:
        return self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    @property
    def sends_nothing(self) -> bool:
        """Whether records that wait have no use any more."""
        return self.state in (State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR)

    @property
    def adds_partitions(self) -> bool:
        return self.version < IMPLICIT_PARTITIONS_FROM

    # -- calls ---------------------------------------------------------------------------------------------------------

    def check(self, call: Call) -> State:
        """The state that a call leads to; raises for one that is wrong here."""
        outcome = CALLS[self.state].get(call)
        if outcome is None:
            assert self.error is not None
            raise self.error
        if isinstance(outcome, str):
            raise WrongTransactionState(f"{call.value} while {self.state.value}: {outcome}")
        return outcome

    def make(self, call: Call) -> None:
        self.state = self.check(call)

    def begin(self, version: int) -> None:
        self.make(Call.BEGIN)
        self.version = version
        self.number += 1
        self.is_known = self.needs_epoch = False
        self.added.clear()
        self.to_add.clear()

    def check_send(self) -> int:
        """The number of the transaction that a record may be sent in."""
        self.check(Call.SEND)
        return self.number

    def takes_records_of(self, number: int) -> bool:
        return self.state is State.IN_TRANSACTION and self.number == number

    def check_still(self, number: int) -> None:
        """A record that waited for room belongs to the transaction in which it was sent, or to none."""
        if self.number != number:
            raise WrongTransactionState("the transaction ended while send() waited: wait for all sends before the end")
        self.check(Call.SEND)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def may_write_to(self, where: TopicPartition) -> bool:
        """Whether a batch may go; a partition that must be added first is noted."""
        if not self.adds_partitions or where in self.added:
            return True
        self.to_add.add(where)
        return False

    def on_written(self) -> None:
        """A batch leaves: with implicit partitions this is what begins the transaction at the coordinator."""
        self.is_known = True

    def on_added(self, partitions: set[TopicPartition]) -> None:
        self.added |= partitions
        self.to_add -= partitions
        self.is_known = True

    # -- events --------------------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> bool:
        state = EVENTS[self.state].get(event)
        if state is None:
            return False
        self.state = state
        return True

    def on_initialized(self, identity: Identity) -> None:
        if self._happen(Event.INITIALIZED):
            self.identity = identity

    def on_not_initialized(self) -> None:
        self._happen(Event.NOT_INITIALIZED)

    def on_ended(self, identity: Identity) -> None:
        if self._happen(Event.ENDED):
            self.identity = identity
            self.error = None

    def on_error(self, error: Exception) -> None:
        """An error of this transaction, or of the producer for good when it is a TransactionFatal."""
        if isinstance(error, TransactionFatal):
            if self._happen(Event.FATAL):
                self.error = error
        elif self._happen(Event.ABORTABLE):
            self.error = abortable(f"transactional.id {self.transactional_id!r}", error)

    def on_offsets_unknown(self, error: Exception) -> None:
        """Offsets were given up on their way. They may be in, or come later: a new epoch keeps them out of what
        follows, and ends what the coordinator may have begun for them."""
        self.needs_epoch = True
        self.on_error(error)

    def on_batch_failed(self, error: Exception, *, was_sent: bool) -> None:
        """Records that were taken are not in the log, or nobody knows."""
        self.needs_epoch |= was_sent
        if isinstance(error, KafkaError) and severity_of(ApiKey.PRODUCE, error.code) is Severity.FATAL:
            error = transaction_error(ApiKey.PRODUCE, error.code, self.transactional_id, str(error))
        self.on_error(error)
