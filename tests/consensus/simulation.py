"""Quorums of pure members on a simulated network and disk: everything happens by seed, and is judged after every step.

Members crash and lose what was not flushed, are paused, cut off (both ways or one), slow to answer and slow to flush;
they take snapshots and load them. Same seed, same trace.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from moldau.consensus import (
    AdvanceHighWatermark,
    AgreedRecordsLostError,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpochRequest,
    Effect,
    EndEpochRequest,
    EpochEnd,
    FetchRequest,
    InstallSnapshot,
    PersistState,
    Quorum,
    QuorumConfig,
    QuorumState,
    ReplicaKey,
    Request,
    Role,
    Send,
    SnapshotRequest,
    TruncateTo,
    Voter,
    VoteRequest,
    Voters,
    WriteSnapshot,
)
from moldau.kernel import ErrorCode, KafkaError
from moldau.testing import SeededDice

REQUEST_TIMEOUT_MS = 500
LONG_POLL_MS = 100
CHUNK = 7
CONFIG = QuorumConfig(election_timeout_ms=300, election_backoff_ms_max=300, fetch_timeout_ms=400, retry_backoff_ms=10)


class Violation(AssertionError):
    """A promise of the quorum was broken."""


@dataclass(frozen=True)
class Entry:
    epoch: int
    value: Any


@dataclass
class Log:
    """`QuorumLog` in memory. Entries before `start_offset` are gone for readers; they stay for the judge."""

    entries: list[Entry] = field(default_factory=list)
    durable_offset: int = 0
    start_offset: int = 0
    snapshot: EpochEnd | None = None

    @property
    def first_snapshot(self) -> EpochEnd | None:
        return self.snapshot

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        floor = 0
        for offset in range(len(self.entries) - 1, -1, -1):
            if self.entries[offset].epoch <= epoch:
                floor = self.entries[offset].epoch
                return EpochEnd(floor, offset + 1)
        return EpochEnd(floor, 0)


@dataclass
class Parked:
    sender: int
    request: FetchRequest
    until_ms: int
    reply: Callable[[Any], None]
    seen: tuple[int, int]


class Member:
    def __init__(self, sim: Simulation, node_id: int, voters: Voters) -> None:
        self.sim = sim
        self.key = ReplicaKey(node_id, bytes([node_id]) * 16)
        self.first_voters = voters
        self.log = Log()
        self.state = QuorumState()
        self.life = 0
        self.quorum: Quorum | None = None
        self.paused_until_ms = 0
        self.parked: list[Parked] = []
        self.flushing = False
        self.loaded: list[Entry] = []
        self.high_watermark = 0
        self.highest_epoch = 0

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.life += 1
        self.flushing = False
        self.parked = []
        self.loaded = []
        voters, later = self.first_voters, []
        for offset, entry in enumerate(self.log.entries):
            if isinstance(entry.value, Voters):
                later.append((offset, entry.value))
        dice = SeededDice(f"{self.sim.seed} {self.key.node_id} {self.life}")
        quorum = Quorum(self.key, self.log, self.state, voters, config=CONFIG, dice=dice)
        for offset, each in later:
            quorum.note_voters(offset, each)
        self.quorum = quorum
        self.high_watermark = 0
        self.act(quorum.start(self.sim.now_ms))
        self.after()

    def crash(self) -> None:
        self.quorum = None
        self.life += 1
        keep = self.log.durable_offset + self.sim.dice.below(self.log.end_offset - self.log.durable_offset + 1)
        del self.log.entries[keep:]
        self.log.durable_offset = keep
        self.parked = []

    # -- effects -------------------------------------------------------------------------------------------------------

    def act(self, effects: list[Effect]) -> None:
        assert self.quorum is not None
        for effect in effects:
            match effect:
                case PersistState(state):
                    self.state = state
                case AppendLeaderChange(epoch, leader_id):
                    self.sim.judge_leader(self, epoch)
                    self.append([Entry(epoch, ("leader", leader_id))])
                    self.flush()
                case AppendVoters(voters):
                    self.append([Entry(self.quorum.epoch, voters)])
                    self.flush()
                case AppendFetched(records):
                    self.append(records)
                    self.act(self.quorum.note_log_end())
                    self.flush()
                case TruncateTo(offset):
                    del self.log.entries[offset:]
                    self.log.durable_offset = min(self.log.durable_offset, offset)
                case WriteSnapshot(_, position, data):
                    del self.loaded[position:]
                    self.loaded += data
                case InstallSnapshot(snapshot):
                    self.log.entries[:] = self.loaded
                    self.log.durable_offset = self.log.start_offset = snapshot.end_offset
                    self.log.snapshot = snapshot
                    self.quorum.begin_with_voters(self.voters_of_log())
                    self.sim.judge_committed(self, snapshot.end_offset)
                case Send(to, request):
                    self.sim.send(self, to, request)
                case AdvanceHighWatermark(offset):
                    self.sim.judge_high_watermark(self, offset)

    def voters_of_log(self) -> Voters:
        named = (entry.value for entry in reversed(self.log.entries) if isinstance(entry.value, Voters))
        return next(named, self.first_voters)

    def append(self, entries: list[Entry]) -> None:
        assert self.quorum is not None
        for entry in entries:
            offset = self.log.end_offset
            self.log.entries.append(entry)
            self.sim.judge_entry(self, offset)
            if isinstance(entry.value, Voters):
                self.quorum.note_voters(offset, entry.value)

    def flush(self) -> None:
        if self.flushing:
            return
        self.flushing = True
        life, end_offset = self.life, self.log.end_offset
        last = self.log.entries[-1] if self.log.entries else None

        def done() -> None:
            self.flushing = False
            if self.log.end_offset < end_offset or (end_offset and self.log.entries[end_offset - 1] != last):
                self.flush()
                return
            self.log.durable_offset = max(self.log.durable_offset, end_offset)
            assert self.quorum is not None
            self.act(self.quorum.flushed(self.log.durable_offset, self.sim.now_ms))
            if self.log.end_offset > self.log.durable_offset:
                self.flush()

        self.sim.at(1 + self.sim.dice.below(self.sim.flush_ms), self, life, done)

    def after(self) -> None:
        """Whatever follows from an event: what is due, who waited for news, the next alarm."""
        quorum = self.quorum
        if quorum is None:
            return
        now_ms = self.sim.now_ms
        self.act(quorum.poll(now_ms))
        parked, self.parked = self.parked, []
        for each in parked:
            news = (self.log.end_offset, quorum.high_watermark) != each.seen
            if news or now_ms >= each.until_ms or not quorum.is_leader:
                self.answer_fetch(each.sender, each.request, each.reply, may_park=False)
            else:
                self.parked.append(each)
        if quorum.epoch < self.highest_epoch:
            raise Violation(f"epoch of {self.key.node_id} fell from {self.highest_epoch} to {quorum.epoch}")
        self.highest_epoch = quorum.epoch
        if self.sim.changes_voters and quorum.voters != self.voters_of_log():
            raise Violation(f"{self.key.node_id} goes by other voters than its log has: {quorum.voters.ids}")
        self.sim.judge_role(self)
        self.sim.wake(self, min(quorum.due_ms, *(each.until_ms for each in self.parked), 1 << 62))

    # -- requests ------------------------------------------------------------------------------------------------------

    def receive(self, sender: int, request: Request, reply: Callable[[Any], None]) -> None:
        quorum, now_ms = self.quorum, self.sim.now_ms
        assert quorum is not None
        match request:
            case VoteRequest():
                effects, answer = quorum.on_vote(request, now_ms)
                self.act(effects)
                if answer.granted and not request.is_pre_vote:
                    self.sim.judge_vote(self, request)
                reply(answer)
            case BeginEpochRequest():
                effects, plain = quorum.on_begin_epoch(request, now_ms)
                self.act(effects)
                reply(plain)
            case EndEpochRequest():
                effects, plain = quorum.on_end_epoch(request, now_ms)
                self.act(effects)
                reply(plain)
            case FetchRequest():
                self.answer_fetch(sender, request, reply, may_park=True)
            case SnapshotRequest():
                effects, piece = quorum.on_snapshot(request, now_ms)
                self.act(effects)
                if piece.error is ErrorCode.NONE:
                    whole = self.log.entries[: request.snapshot.end_offset]
                    if self.log.snapshot != request.snapshot:
                        piece = replace(piece, error=ErrorCode.SNAPSHOT_NOT_FOUND)
                    else:
                        data = whole[request.position : request.position + CHUNK]
                        piece = replace(piece, size=len(whole), data=data)
                reply(piece)

    def answer_fetch(self, sender: int, request: FetchRequest, reply: Callable[[Any], None], *, may_park: bool) -> None:
        quorum, now_ms = self.quorum, self.sim.now_ms
        assert quorum is not None
        effects, answer = quorum.on_fetch(request, now_ms)
        self.act(effects)
        if answer.error is ErrorCode.NONE and answer.diverging is None and answer.snapshot is None:
            records = self.log.entries[request.fetch_offset : request.fetch_offset + CHUNK]
            if not records and may_park and answer.high_watermark <= request.high_watermark:
                seen = (self.log.end_offset, quorum.high_watermark)
                self.parked.append(Parked(sender, request, now_ms + LONG_POLL_MS, reply, seen))
                return
            answer = replace(answer, records=records or None)
        reply(answer)

    def receive_answer(self, sender: int, request: Request, answer: Any) -> None:
        quorum, now_ms = self.quorum, self.sim.now_ms
        assert quorum is not None
        try:
            self._take(quorum, sender, request, answer, now_ms)
        except AgreedRecordsLostError as lost:
            raise Violation(str(lost)) from None  # no disk is lost here

    def _take(self, quorum: Quorum, sender: int, request: Request, answer: Any, now_ms: int) -> None:
        match request:
            case VoteRequest():
                self.act(quorum.on_vote_answer(sender, request, answer, now_ms))
            case FetchRequest():
                self.act(quorum.on_fetch_answer(sender, request, answer, now_ms))
            case SnapshotRequest():
                self.act(quorum.on_snapshot_answer(sender, request, answer, now_ms))
            case _:
                self.act(quorum.on_epoch_answer(sender, request, answer, now_ms))

    def propose(self, value: Any) -> None:
        if self.quorum is not None and self.quorum.is_leader:
            self.append([Entry(self.quorum.epoch, value)])
            self.flush()

    def take_snapshot(self) -> None:
        quorum = self.quorum
        if quorum is None or quorum.high_watermark <= self.log.start_offset:
            return
        end_offset = quorum.high_watermark
        self.log.snapshot = EpochEnd(self.log.entries[end_offset - 1].epoch, end_offset)
        self.log.start_offset = end_offset
        # A snapshot is durable, and what it covers with it.
        self.log.durable_offset = max(self.log.durable_offset, end_offset)


class Simulation:
    def __init__(self, seed: int, voters: int = 3, *, observers: int = 0, changes_voters: bool = False) -> None:
        self.seed = seed
        self.dice = SeededDice(f"quorum {seed}")
        self.now_ms = 0
        self.trace: list[str] = []
        self.changes_voters = changes_voters
        self.delay_ms = 1 + self.dice.below(15)
        self.flush_ms = 1 + self.dice.below(20)
        self.cuts: set[tuple[int, int]] = set()
        self._queue: list[tuple[int, int, Member | None, int, Callable[[], None]]] = []
        self._count = 0
        self._alarms: dict[int, int] = {}
        ids = range(1, voters + 1)
        first = Voters.of(Voter(ReplicaKey(node_id, bytes([node_id]) * 16)) for node_id in ids)
        self.members = {node_id: Member(self, node_id, first) for node_id in range(1, voters + observers + 1)}
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], ReplicaKey] = {}
        self.committed: list[Entry] = []
        self.known: dict[tuple[int, int], tuple[Any, int]] = {}
        self.proposed = 0

    # -- time ----------------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, member: Member | None, life: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, member, life, action))

    def wake(self, member: Member, due_ms: int) -> None:
        node_id = member.key.node_id
        if due_ms >= 1 << 61 or self._alarms.get(node_id) == due_ms:
            return
        self._alarms[node_id] = due_ms
        self.at(max(due_ms - self.now_ms, 1), member, member.life, lambda: None)

    def run(self, until_ms: int) -> None:
        while self._queue and self._queue[0][0] <= until_ms:
            at_ms, count, member, life, action = heapq.heappop(self._queue)
            self.now_ms = max(self.now_ms, at_ms)
            if member is not None:
                if member.life != life:
                    continue
                if member.paused_until_ms > self.now_ms:
                    heapq.heappush(self._queue, (member.paused_until_ms, count, member, life, action))
                    continue
            action()
            if member is not None:
                if self._alarms.get(member.key.node_id, 0) <= self.now_ms:
                    self._alarms.pop(member.key.node_id, None)
                member.after()
        self.now_ms = until_ms

    # -- network -------------------------------------------------------------------------------------------------------

    def send(self, sender: Member, to: int, request: Request) -> None:
        source, target, life = sender.key.node_id, self.members[to], sender.life
        quorum = sender.quorum
        assert quorum is not None
        is_answered = [False]

        def fail(*, is_unreachable: bool) -> None:
            if not is_answered[0]:
                is_answered[0] = True
                assert sender.quorum is not None
                sender.act(sender.quorum.on_failed(to, request, self.now_ms, is_unreachable=is_unreachable))

        def answered(answer: Any) -> None:
            if (to, source) not in self.cuts:
                self.at(1 + self.dice.below(self.delay_ms), sender, life, lambda: take(answer))

        def take(answer: Any) -> None:
            if not is_answered[0]:
                is_answered[0] = True
                self.note(f"{source}<-{to} {type(answer).__name__} {answer.epoch} {answer.error.name}")
                sender.receive_answer(to, request, answer)

        def arrive() -> None:
            if target.quorum is None:
                self.at(1, sender, life, lambda: fail(is_unreachable=True))
                return
            self.at(0, target, target.life, lambda: target.receive(source, request, answered))

        self.at(REQUEST_TIMEOUT_MS, sender, life, lambda: fail(is_unreachable=False))
        if (source, to) not in self.cuts:
            self.at(1 + self.dice.below(self.delay_ms), None, 0, arrive)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.now_ms} {line}")

    # -- judging -------------------------------------------------------------------------------------------------------

    def judge_role(self, member: Member) -> None:
        quorum = member.quorum
        assert quorum is not None
        if quorum.role is Role.LEADER:
            known = self.leaders.setdefault(quorum.epoch, member.key.node_id)
            if known != member.key.node_id:
                raise Violation(f"epoch {quorum.epoch} has the leaders {known} and {member.key.node_id}")

    def judge_leader(self, member: Member, epoch: int) -> None:
        self.note(f"{member.key.node_id} leads {epoch}")
        entries = member.log.entries
        if entries[: len(self.committed)] != self.committed:
            raise Violation(f"leader {member.key.node_id} of epoch {epoch} has not all that was agreed")

    def judge_vote(self, member: Member, request: VoteRequest) -> None:
        known = self.votes.setdefault((member.key.node_id, request.epoch), request.candidate)
        if known != request.candidate:
            raise Violation(f"{member.key.node_id} voted for {known} and {request.candidate} in epoch {request.epoch}")
        if member.state.epoch < request.epoch or member.state.voted_id != request.candidate.node_id:
            raise Violation(f"{member.key.node_id} answered before its vote was on disk")

    def judge_entry(self, member: Member, offset: int) -> None:
        entries = member.log.entries
        entry, before = entries[offset], entries[offset - 1].epoch if offset else 0
        if entry.epoch < before:
            raise Violation(f"epochs fall in the log of {member.key.node_id} at {offset}")
        known = self.known.setdefault((offset, entry.epoch), (entry.value, before))
        if known != (entry.value, before):
            raise Violation(f"two logs differ at {offset} in epoch {entry.epoch}: {known}, {(entry.value, before)}")

    def judge_high_watermark(self, member: Member, offset: int) -> None:
        quorum = member.quorum
        assert quorum is not None
        if offset < member.high_watermark:
            raise Violation(f"the high watermark of {member.key.node_id} fell to {offset}")
        member.high_watermark = offset
        if quorum.is_leader and offset > len(self.committed):
            entries = member.log.entries
            holders = [
                each.key.node_id
                for each in self.members.values()
                if each.log.durable_offset >= offset and each.log.entries[offset - 1] == entries[offset - 1]
            ]
            if not quorum.voters.is_majority(holders):
                raise Violation(f"{offset} counts as agreed, on disk it is only on {holders}")
        self.judge_committed(member, offset)

    def judge_committed(self, member: Member, offset: int) -> None:
        entries = member.log.entries[:offset]
        if len(entries) < offset:
            raise Violation(f"the high watermark {offset} of {member.key.node_id} is above its log")
        shared = min(offset, len(self.committed))
        if entries[:shared] != self.committed[:shared]:
            raise Violation(f"{member.key.node_id} takes other records for agreed than the others")
        self.committed += entries[shared:]

    # -- faults --------------------------------------------------------------------------------------------------------

    def run_faults(self, for_ms: int) -> None:
        for member in self.members.values():
            self.at(self.dice.below(50), None, 0, self.start_of(member))
        self.plan()
        self.run(for_ms)

    def start_of(self, member: Member) -> Callable[[], None]:
        def start() -> None:
            if member.quorum is None:
                member.start()

        return start

    def plan(self) -> None:
        self.at(5 + self.dice.below(60), None, 0, self.do_something)

    def do_something(self) -> None:
        self.plan()
        throw = self.dice.below(100)
        members = list(self.members.values())
        leader = next((each for each in members if each.quorum is not None and each.quorum.is_leader), None)
        one = members[self.dice.below(len(members))]
        if throw < 15 and leader is not None:
            # What stops a leader is what tells.
            one = leader
        if throw < 55:
            for member in members:
                for _ in range(self.dice.below(4)):
                    self.proposed += 1
                    member.propose(self.proposed)
                    member.after()
        elif throw < 65:
            if one.quorum is not None:
                self.note(f"{one.key.node_id} crashed")
                one.crash()
                self.at(self.dice.below(1500), None, 0, self.start_of(one))
        elif throw < 73:
            other = members[self.dice.below(len(members))]
            self.cuts.add((one.key.node_id, other.key.node_id))
            if self.dice.chance(50):
                self.cuts.add((other.key.node_id, one.key.node_id))
        elif throw < 77:
            for other in members:
                self.cuts |= {(one.key.node_id, other.key.node_id), (other.key.node_id, one.key.node_id)}
        elif throw < 85:
            self.cuts.clear()
        elif throw < 89:
            one.paused_until_ms = self.now_ms + self.dice.below(1200)
        elif throw < 93:
            one.take_snapshot()
        elif throw < 96 and leader is not None:
            assert leader.quorum is not None
            leader.act(leader.quorum.resign(self.now_ms))
            leader.after()
        elif self.changes_voters and leader is not None:
            self.change_voters(leader, one)

    def change_voters(self, leader: Member, one: Member) -> None:
        quorum = leader.quorum
        assert quorum is not None
        try:
            if quorum.voters.has(one.key):
                if len(quorum.voters.all) > 2:
                    leader.act(quorum.remove_voter(one.key))
            else:
                leader.act(quorum.add_voter(Voter(one.key)))
        except KafkaError:
            return
        leader.after()

    def heal(self, for_ms: int = 8000) -> None:
        """Everything works again: a leader is found, and what it appends everybody gets."""
        self.cuts.clear()
        self._queue = [each for each in self._queue if each[4] != self.do_something]
        heapq.heapify(self._queue)
        for member in self.members.values():
            member.paused_until_ms = 0
            if member.quorum is None:
                member.start()
        last = "healed"
        for _ in range(for_ms // 200):
            self.run(self.now_ms + 200)
            for member in self.members.values():
                if last not in [entry.value for entry in member.log.entries[-3:]]:
                    member.propose(last)
                    member.after()
            if all(self.has_everything(member, last) for member in self.members.values()):
                return
        roles = {node_id: member.quorum and member.quorum.role.value for node_id, member in self.members.items()}
        raise Violation(f"not everybody agrees {for_ms} ms after the faults: {roles}")

    def has_everything(self, member: Member, last: Any) -> bool:
        entries, quorum = member.log.entries, member.quorum
        is_there = last in [entry.value for entry in entries[-3:]]
        return quorum is not None and is_there and quorum.high_watermark == len(entries) == len(self.committed)


def simulate(seed: int, *, for_ms: int = 5000) -> Simulation:
    """One history; what the seed decides is how many members there are, and everything that happens to them."""
    shape = seed % 4
    simulation = Simulation(seed, voters=(3, 5, 3, 3)[shape], observers=(0, 0, 1, 2)[shape], changes_voters=shape == 3)
    simulation.run_faults(for_ms)
    simulation.heal()
    return simulation
