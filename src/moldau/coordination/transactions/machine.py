"""All transactions of one partition of `__transaction_state`: the machine that a shard runs.

    initialize -> EMPTY -> add partitions -> ONGOING -> end -> PREPARE_* -> markers are written -> COMPLETE_*

A decision (PREPARE_*) is logged first; once it is committed the request that asked for it is answered, and right behind
the answer the shell writes the markers, and says so; then the end is logged. Requests that come in between are held
back, for a bounded time, rather than sent away to try again: who has committed can begin the next transaction at once.
A request held too long gets Kafka's answer, CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from moldau.coordination.deadlines import Deadlines
from moldau.coordination.expressions import matching, require_valid
from moldau.coordination.shard import Step
from moldau.coordination.transactions import rules
from moldau.coordination.transactions.events import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkersWritten,
    ProducerIdSource,
    TransactionSettings,
    WriteMarkers,
)
from moldau.coordination.transactions.records import read_key, read_value, transaction_key, transaction_value
from moldau.coordination.transactions.states import AT_REST, PREPARED, TransactionState
from moldau.coordination.transactions.transaction import EPOCH_BUMP_VERSION, Transaction
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch

HELD_MS_MAX = 1_000
HELD_REQUESTS_MAX = 100
# When no producer id is at hand for a transaction whose time is up.
TRY_AGAIN_MS = 1_000
TIMEOUT, HELD, EXPIRE, MARKERS = "timeout", "held", "expire", "markers"
# What is due together is done piece by piece, so that others are served in between.
DUE_PER_STEP_MAX = 200


class _Held(NamedTuple):
    event: Any
    until_ms: int


class TransactionMachine:
    def __init__(
        self, settings: TransactionSettings, ids: ProducerIdSource, outbox: Any, say: Callable[[str], None]
    ) -> None:
        """`outbox` is the token of `WriteMarkers`: the shell's, which gets them like any answer, once committed."""
        self._settings = settings
        self._ids = ids
        self._outbox = outbox
        self._say = say
        self.transactions: dict[str, Transaction] = {}
        self._held: dict[str, list[_Held]] = {}
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._unknown_kinds = False
        self._handlers: dict[type[Any], Callable[[Any, Step], None]] = {
            InitializeProducer: self._initialize,
            AddPartitions: self._add_partitions,
            EndTransaction: self._end,
            MarkersWritten: self._complete,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
        }

    # -- the machine's side of `Machine` -------------------------------------------------------------------------------

    def handle(self, event: Any, step: Step) -> None:
        self._handlers[type(event)](event, step)

    def replay(self, key: bytes, value: bytes | None) -> None:
        transactional_id = read_key(key)
        if transactional_id is None:
            if not self._unknown_kinds:
                self._unknown_kinds = True
                self._say("transaction_records_skipped hint='another version wrote them'")
        elif value is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = read_value(transactional_id, value)

    def replay_in_transaction(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Nobody writes such here: what somebody did all the same says nothing about transactions."""

    def replay_end(self, producer_id: int, committed: bool) -> None:
        """Likewise."""

    def on_loaded(self, step: Step) -> None:
        for transaction in self.transactions.values():
            if transaction.state in PREPARED:
                self._deadlines.set((MARKERS, transaction.transactional_id), step.now_ms)
            elif transaction.state is TransactionState.ONGOING:
                left_ms = transaction.started_ms + transaction.timeout_ms - step.wall_ms
                # The clock may have been set back meanwhile; nobody waits longer than was asked for.
                self._set_timeout(transaction, step.now_ms + min(max(left_ms, 0), transaction.timeout_ms))
        self._schedule_expiry(step)
        self.on_time(step)

    def on_time(self, step: Step) -> None:
        for count, (what, transactional_id) in enumerate(self._deadlines.take_due(step.now_ms), 1):
            if what == EXPIRE:
                self._expire(step)
            elif what == HELD:
                self._give_up_held(transactional_id, step)
            elif what == MARKERS:
                # Nobody else can have ended it: the decision is logged, the markers are not ordered yet.
                self._order_markers(self.transactions[transactional_id], step)
            else:
                self._time_out(transactional_id, step)
            if step.is_full or count == DUE_PER_STEP_MAX:
                return  # the rest is still due

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def waiting(self) -> Iterator[Any]:
        for held in self._held.values():
            yield from (each.event.token for each in held)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _initialize(self, event: InitializeProducer, step: Step) -> None:
        if not 0 < event.timeout_ms <= self._settings.integer("transaction.max.timeout.ms"):
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None:
            producer_id = rules.take_id(self._ids)
            transaction = Transaction(event.transactional_id, producer_id, event.timeout_ms, step.wall_ms)
        rules.check_expected(transaction, event.expected)
        if transaction.state is TransactionState.ONGOING:
            self._abort_from_outside(transaction, "a newer instance", step)
            self._hold(event, step)
        elif transaction.state in PREPARED:
            self._hold(event, step)
        else:
            transaction = rules.initialize(transaction, event.timeout_ms, event.expected, self._ids, step.wall_ms)
            self._put(transaction, step)
            step.answer(event.token, ProducerIdAndEpoch(transaction.producer_id, transaction.epoch))

    def _add_partitions(self, event: AddPartitions, step: Step) -> None:
        transaction = self._require(event.transactional_id)
        if not self._goes_on(transaction, event.producer):
            rules.check_producer(transaction, event.producer)
        if transaction.state in PREPARED:
            self._hold(event, step)
            return
        if event.only_verifies:
            step.answer(event.token, rules.verify_partitions(transaction, event.partitions))
            return
        changed = rules.add_partitions(transaction, event, step.wall_ms)
        if changed is not transaction:
            if transaction.state is not TransactionState.ONGOING:
                self._set_timeout(changed, step.now_ms + changed.timeout_ms)
            self._put(changed, step)
        step.answer(event.token, dict.fromkeys(event.partitions, ErrorCode.NONE))

    def _end(self, event: EndTransaction, step: Step) -> None:
        transaction = self._require(event.transactional_id)
        if event.client_version >= EPOCH_BUMP_VERSION and self._goes_on(transaction, event.producer):
            self._hold(event, step)
            return
        decided = rules.end(transaction, event, self._ids, step.wall_ms)
        if decided is not None:
            # Ahead of the order: the answer is on its way while the markers are written.
            step.answer(event.token, decided.following)
            self._decide(decided, step)
        elif transaction.state in PREPARED:
            self._hold(event, step)
        else:
            step.answer(event.token, transaction.following)

    def _goes_on(self, transaction: Transaction, producer: ProducerIdAndEpoch) -> bool:
        """The producer was told the outcome and goes on; the markers are still being written."""
        return transaction.state in PREPARED and producer == transaction.following

    def _describe(self, event: DescribeTransaction, step: Step) -> None:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        step.answer(event.token, transaction)

    def _list(self, event: ListTransactions, step: Step) -> None:
        if event.pattern:
            require_valid(event.pattern, "Transaction ID pattern")
        ids = self.transactions.keys() if not event.pattern else matching(event.pattern, self.transactions)
        found = [
            transaction
            for transaction in self.transactions.values()
            if (event.states is None or transaction.state in event.states)
            and (not event.producer_ids or transaction.producer_id in event.producer_ids)
            and (event.older_than_ms < 0 or step.wall_ms - transaction.started_ms > event.older_than_ms)
            and transaction.transactional_id in ids
        ]
        step.answer(event.token, found)

    def _require(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    # -- the end of a transaction --------------------------------------------------------------------------------------

    def _put(self, transaction: Transaction, step: Step) -> None:
        self.transactions[transaction.transactional_id] = transaction
        value = transaction_value(transaction, self._settings.transaction_version)
        step.log(transaction_key(transaction.transactional_id), value)

    def _decide(self, decided: Transaction, step: Step) -> None:
        assert decided.state in PREPARED
        self._deadlines.cancel((TIMEOUT, decided.transactional_id))
        self._put(decided, step)
        self._order_markers(decided, step)

    def _order_markers(self, decided: Transaction, step: Step) -> None:
        step.answer(
            self._outbox,
            WriteMarkers(
                decided.transactional_id,
                ProducerIdAndEpoch(decided.producer_id, decided.epoch),
                decided.state is TransactionState.PREPARE_COMMIT,
                decided.partitions,
                EPOCH_BUMP_VERSION if decided.client_version >= EPOCH_BUMP_VERSION else 0,
            ),
        )

    def _complete(self, event: MarkersWritten, step: Step) -> None:
        transaction = self.transactions.get(event.transactional_id)
        if (
            transaction is None
            or transaction.state not in PREPARED
            or event.producer != (transaction.producer_id, transaction.epoch)
        ):
            return  # told twice: before and after the shard was loaded anew
        transaction = transaction.completed(step.wall_ms)
        self._put(transaction, step)
        for held in self._take_held(event.transactional_id):
            self._try_again(held.event, step)

    def _abort_from_outside(self, transaction: Transaction, cause: str, step: Step) -> None:
        decided = rules.abort_from_outside(transaction, self._settings.transaction_version, self._ids, step.wall_ms)
        step.say(
            f"transaction_aborted id={transaction.transactional_id!r} by={cause!r} producer={transaction.producer_id}"
            f" epoch={transaction.epoch} age_ms={step.wall_ms - transaction.started_ms}"
        )
        self._decide(decided, step)

    # -- requests that wait for the markers ----------------------------------------------------------------------------

    def _hold(self, event: Any, step: Step) -> None:
        held = self._held.setdefault(event.transactional_id, [])
        if len(held) >= HELD_REQUESTS_MAX:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        until_ms = step.now_ms + HELD_MS_MAX
        held.append(_Held(event, until_ms))
        if self._deadlines.get((HELD, event.transactional_id)) is None:
            self._deadlines.set((HELD, event.transactional_id), until_ms)

    def _take_held(self, transactional_id: str) -> list[_Held]:
        self._deadlines.cancel((HELD, transactional_id))
        return self._held.pop(transactional_id, [])

    def _give_up_held(self, transactional_id: str, step: Step) -> None:
        """In the order of their coming, so that a later batch of a producer never overtakes an earlier one."""
        held = self._take_held(transactional_id)
        due = [each for each in held if each.until_ms <= step.now_ms]
        for each in due:
            step.answer(each.event.token, KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
        left = held[len(due) :]
        if left:
            self._held[transactional_id] = left
            self._deadlines.set((HELD, transactional_id), left[0].until_ms)

    def _try_again(self, event: Any, step: Step) -> None:
        try:
            self.handle(event, step)
        except KafkaError as refusal:
            step.answer(event.token, refusal)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _set_timeout(self, transaction: Transaction, deadline_ms: int) -> None:
        self._deadlines.set((TIMEOUT, transaction.transactional_id), deadline_ms)

    def _time_out(self, transactional_id: str, step: Step) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return
        try:
            self._abort_from_outside(transaction, "its timeout", step)
        except KafkaError:
            self._set_timeout(transaction, step.now_ms + TRY_AGAIN_MS)

    def _schedule_expiry(self, step: Step) -> None:
        interval_ms = self._settings.integer("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._deadlines.set((EXPIRE, ""), step.now_ms + interval_ms)

    def _expire(self, step: Step) -> None:
        """Forget ids that nobody used for long."""
        self._schedule_expiry(step)
        oldest_ms = step.wall_ms - self._settings.integer("transactional.id.expiration.ms")
        expired = [
            transaction.transactional_id
            for transaction in self.transactions.values()
            if transaction.state in AT_REST and transaction.updated_ms <= oldest_ms
        ]
        for transactional_id in expired:
            if step.is_full:
                self._deadlines.set((EXPIRE, ""), step.now_ms)
                return
            del self.transactions[transactional_id]
            step.log(transaction_key(transactional_id), None)

    # -- looking -------------------------------------------------------------------------------------------------------

    def open_transactions(self) -> Iterator[Transaction]:
        """Begun and not over, for metrics."""
        for transaction in self.transactions.values():
            if transaction.state not in AT_REST:
                yield transaction
