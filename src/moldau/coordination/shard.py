"""A state machine on a log: the one runtime of groups, transactions and later coordinators.

A shard is one partition of an internal topic and the machine that its records make. What happens, in order:

    load      records of the log are replayed one by one                                         LOADING -> ACTIVE
    submit    an event goes to the machine, which changes and says what to log and whom to answer
    take      the records of one turn of the loop leave as one batch; its answers wait with it
    appended  the batch has its end offset; its answers wait until the high watermark covers it
    commit    the high watermark moved: the answers that it covers are given
    fail      the append failed: everyone who waits gets the error, and the shard is loaded anew from the log

A read is an event without records: it is answered when everything before it is committed, so nobody sees what may yet
be reverted. Pure: no clock, socket, file or thread. The shell reads and appends, sets timers, and gives the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.markers import Marker

# A turn ends before its batch outgrows what a topic takes by default. An event's records are never parted.
TURN_BYTES_MAX = 512 << 10
# What the clock alone leads to can wait: a step that logged so much leaves the rest to the next one.
STEP_BYTES_MAX = 64 << 10


class Logged(NamedTuple):
    """A record of an internal topic; no value deletes what the key names."""

    key: bytes
    value: bytes | None


class InTransaction(NamedTuple):
    """Records that count once their producer's transaction is committed: a batch of their own."""

    producer_id: int
    producer_epoch: int
    records: Sequence[Logged]


class TransactionEnd(NamedTuple):
    """The marker that ends a producer's transaction on this partition."""

    producer_id: int
    producer_epoch: int
    marker: Marker
    transaction_version: int


Entry = Logged | InTransaction | TransactionEnd


class Answer(NamedTuple):
    """A response, or the error that stands for it, to the token that its request came with."""

    token: Any
    response: Any


class Moment(NamedTuple):
    """Timers run on the first, what is written down carries the second: the wall's clock may jump."""

    monotonic_ms: int
    wall_ms: int


@dataclass(slots=True)
class Step:
    """When an event happens and what it leads to."""

    now_ms: int
    wall_ms: int
    records: list[Entry] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    # Of what this step logged itself; `records` has what the turn's other steps did, too.
    size: int = 0

    def log(self, key: bytes, value: bytes | None) -> None:
        self.records.append(Logged(key, value))
        self.size += len(key) + len(value or b"")

    @property
    def is_full(self) -> bool:
        """Whoever has more to do, and need not do it at once, goes on in a step of its own."""
        return self.size > STEP_BYTES_MAX

    def log_apart(self, entry: InTransaction | TransactionEnd) -> None:
        """What cannot share a batch with others; it keeps its place among them."""
        self.records.append(entry)

    def answer(self, token: Any, response: Any) -> None:
        self.answers.append(Answer(token, response))

    def say(self, line: str) -> None:
        """For the operator's log."""
        self.lines.append(line)


class _Turn:
    """What the steps of one turn of the loop lead to, together."""

    __slots__ = ("answers", "records", "size")

    def __init__(self, records: list[Entry], answers: list[Answer], size: int) -> None:
        self.records = records
        self.answers = answers
        self.size = size

    @classmethod
    def begin(cls) -> _Turn:
        return cls([], [], 0)


class Machine(Protocol):
    """What a coordinator is.

    Records say everything that must survive: replaying what a machine logged gives an equal machine, but for waiting
    requests and timers (`tests/coordination` hold every machine to it).
    """

    def replay(self, key: bytes, value: bytes | None) -> None:
        """A record of the log, while loading."""
        ...

    def replay_in_transaction(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """A record that counts once the producer's transaction is committed."""
        ...

    def replay_end(self, producer_id: int, committed: bool) -> None:
        """The end of a producer's transaction."""
        ...

    def handle(self, event: Any, step: Step) -> None:
        """Change, and say in `step` what to log and whom to answer. KafkaError refuses: then nothing changed."""
        ...

    def on_loaded(self, step: Step) -> None: ...

    def on_time(self, step: Step) -> None:
        """Timers that are due; those that a full step leaves have the next one."""
        ...

    @property
    def next_deadline_ms(self) -> int | None: ...

    def waiting(self) -> Iterable[Any]:
        """Tokens of requests that the machine holds back, to be told when it ends."""
        ...


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


AnyMachine = TypeVar("AnyMachine", bound=Machine)


class Shard(Generic[AnyMachine]):
    def __init__(self, index: int, machine: AnyMachine, say: Callable[[str], None]) -> None:
        self.index = index
        self.machine = machine
        self.state = ShardState.LOADING
        self._say = say
        self._turn = _Turn.begin()
        # Turns before it that are full already.
        self._full: deque[_Turn] = deque()
        self._in_append: _Turn | None = None
        # (end offset, answers) of batches that wait for the high watermark.
        self._uncommitted: deque[tuple[int, list[Answer]]] = deque()
        self.end_offset = 0

    # -- loading -------------------------------------------------------------------------------------------------------

    def activate(self, end_offset: int, now: Moment) -> None:
        """Everything below `end_offset` was replayed."""
        assert self.state is ShardState.LOADING
        self.state = ShardState.ACTIVE
        self.end_offset = end_offset
        step = self._step(now)
        self.machine.on_loaded(step)
        self._take_in(step, 0, 0)

    def require_active(self) -> None:
        if self.state is ShardState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    # -- events --------------------------------------------------------------------------------------------------------

    def submit(self, event: Any, now: Moment) -> None:
        self.require_active()
        turn = self._turn
        records, answers, step = len(turn.records), len(turn.answers), self._step(now)
        self.machine.handle(event, step)
        self._take_in(step, records, answers)

    def tick(self, now: Moment) -> None:
        """Let time pass; a shard that is not active has no timers."""
        if self.state is ShardState.ACTIVE:
            turn = self._turn
            records, answers, step = len(turn.records), len(turn.answers), self._step(now)
            self.machine.on_time(step)
            self._take_in(step, records, answers)

    def _step(self, now: Moment) -> Step:
        return Step(now.monotonic_ms, now.wall_ms, self._turn.records, self._turn.answers)

    def _take_in(self, step: Step, records: int, answers: int) -> None:
        """A step was made; so many records and answers were there before it."""
        turn, size = self._turn, step.size
        if records and turn.size + size > TURN_BYTES_MAX:
            self._full.append(_Turn(turn.records[:records], turn.answers[:answers], turn.size))
            self._turn = _Turn(turn.records[records:], turn.answers[answers:], size)
        else:
            turn.size += size
        for line in step.lines:
            self._say(line)

    @property
    def has_turn(self) -> bool:
        return bool(self._full or self._turn.records or self._turn.answers)

    @property
    def is_full(self) -> bool:
        """No more events before what is here was taken."""
        return bool(self._full) or self._turn.size > TURN_BYTES_MAX

    def take(self) -> list[Entry]:
        """What the oldest turn logs, to be appended in as few batches as can be; then `appended` or `fail`."""
        assert self._in_append is None, "one append at a time"
        if self._full:
            self._in_append = self._full.popleft()
        else:
            self._in_append, self._turn = self._turn, _Turn.begin()
        return self._in_append.records

    def appended(self, end_offset: int) -> None:
        turn, self._in_append = self._in_append, None
        assert turn is not None and end_offset >= self.end_offset
        self.end_offset = end_offset
        if turn.answers:
            self._uncommitted.append((end_offset, turn.answers))

    def commit(self, high_watermark: int) -> list[Answer]:
        """The answers that may be given now, oldest first."""
        due: list[Answer] = []
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            due += self._uncommitted.popleft()[1]
        return due

    @property
    def is_waiting(self) -> bool:
        return bool(self._uncommitted)

    # -- the end -------------------------------------------------------------------------------------------------------

    def fail(self, error: KafkaError, others: KafkaError | None = None) -> list[Answer]:
        """The append failed or leadership is lost: all who wait are told, and the log alone says what is true.

        `error` is for whom the append was, and for all unless there is another for the `others`.
        """
        others = others or error
        told = [Answer(answer.token, others) for _, answers in self._uncommitted for answer in answers]
        if self._in_append is not None:
            told += [Answer(answer.token, error) for answer in self._in_append.answers]
        told += [Answer(answer.token, others) for turn in (*self._full, self._turn) for answer in turn.answers]
        told += [Answer(token, others) for token in self.machine.waiting()]
        self.state = ShardState.CLOSED
        self._turn = _Turn.begin()
        self._full.clear()
        self._uncommitted.clear()
        self._in_append = None
        return told
