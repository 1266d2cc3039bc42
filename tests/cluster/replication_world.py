"""One partition on three brokers under faults, made of the real machines: a world in which messages are late or lost,
brokers pause, die and lose what they had not synced, and a small controller (KIP-966's rules) elects leaders.

Everything follows from the seed. After every step the invariants of replication are checked; after the faults the world
is healed and must come to rest with every broker in sync and every record on each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from moldau.cluster import InSyncProposal, PartitionFollower, PartitionLeader, replication
from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import LeaderEpochs

BROKERS = (0, 1, 2)
NOBODY = -1
MIN_IN_SYNC = 2
LAG_MS_MAX = 300
SESSION_MS = 200
FETCH_TIMEOUT_MS = 150
ALTER_TIMEOUT_MS = 60
RECORDS_PER_FETCH = 3
DELAY_MS_MAX = 40
FAULTY_STEPS = 500
HEALED_MS = 6_000


class Broken(AssertionError):
    """An invariant does not hold."""


class Entry(NamedTuple):
    epoch: int
    value: int


class State(NamedTuple):
    """The partition as the controller has it."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]


class Registration(NamedTuple):
    epoch: int
    is_fenced: bool


class View(NamedTuple):
    """What the controller published: the partition and the brokers."""

    state: State
    brokers: tuple[Registration, ...]


class Broker:
    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.epoch = 0
        self.is_alive = True
        self.is_registered = True
        self.paused_until = 0
        self.starts_at_ms: int | None = None
        self.log: list[Entry] = []
        self.synced = 0
        self.epochs = LeaderEpochs()
        self.checkpointed_high_watermark = 0
        self.high_watermark_at_start = 0
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.view: View | None = None
        self.fetch_sent_ms: int | None = None
        self.fetch_number = 0
        self.waiting: list[tuple[int, int]] = []
        self.alter_due_ms: int | None = None

    @property
    def high_watermark(self) -> int:
        if self.leader is not None:
            return self.leader.high_watermark
        return self.follower.high_watermark if self.follower is not None else self.high_watermark_at_start

    def is_eligible(self, replica: int, broker_epoch: int) -> bool:
        assert self.view is not None
        registration = self.view.brokers[replica]
        return not registration.is_fenced and registration.epoch == broker_epoch

    # -- lives ---------------------------------------------------------------------------------------------------------

    def die(self, loses: int) -> None:
        self.is_alive = self.is_registered = False
        # What was published to an earlier life is not for the next one.
        self.epoch = NOBODY
        high_watermark = min(self.checkpointed_high_watermark, self.high_watermark)
        del self.log[len(self.log) - loses :]
        self.synced = len(self.log)
        self.epochs = LeaderEpochs()
        for offset, entry in enumerate(self.log):
            if entry.epoch > self.epochs.latest:
                self.epochs.assign(entry.epoch, offset)
        self.high_watermark_at_start = min(high_watermark, len(self.log))
        self.leader = self.follower = self.view = None
        self.waiting.clear()
        self.fetch_sent_ms = self.alter_due_ms = None
        self.fetch_number += 1

    # -- metadata ------------------------------------------------------------------------------------------------------

    def on_view(self, view: View, broker_epoch: int) -> None:
        if not self.is_registered or broker_epoch != self.epoch:
            return
        self.view = view
        state = view.state
        if state.leader == self.node_id:
            if self.leader is not None and self.leader.leader_epoch == state.leader_epoch:
                self.leader.follow_metadata(state.partition_epoch, BROKERS, state.isr, self.epoch, self.world.now_ms)
            else:
                self._lead(state)
            self._settle()
            return
        if self.follower is None or self.follower.leader_epoch != state.leader_epoch:
            high_watermark = self.high_watermark
            self.leader, self.alter_due_ms = None, None
            self.waiting.clear()
            self.follower = PartitionFollower(state.leader, state.leader_epoch, high_watermark)
            self.fetch_sent_ms = None
            self.fetch_number += 1

    def _lead(self, state: State) -> None:
        high_watermark = self.high_watermark
        self.epochs.assign(state.leader_epoch, len(self.log))
        self.follower = None
        self.waiting.clear()
        self.alter_due_ms = None
        self.fetch_number += 1
        self.leader = PartitionLeader(
            self.node_id,
            state.leader_epoch,
            state.isr,
            high_watermark,
            replicas=BROKERS,
            partition_epoch=state.partition_epoch,
            epoch_start_offset=len(self.log),
            min_in_sync=MIN_IN_SYNC,
            node_epoch=self.epoch,
            now_ms=self.world.now_ms,
        )

    def _settle(self) -> None:
        """The leader's state changed: more may be committed, and then answered."""
        leader = self.leader
        assert leader is not None
        if leader.advance(len(self.log)):
            self.world.on_committed(self)
        still = []
        for end_offset, value in self.waiting:
            verdict = leader.verdict(end_offset)
            if verdict is None:
                still.append((end_offset, value))
            elif verdict is ErrorCode.NONE:
                self.world.on_acknowledged(end_offset - 1, value)
        self.waiting = still

    # -- in and out ----------------------------------------------------------------------------------------------------

    def produce(self, value: int, *, acks_all: bool) -> None:
        leader = self.leader
        if leader is None:
            return
        if acks_all:
            try:
                leader.check_in_sync()
            except KafkaError:
                return
        self.log.append(Entry(leader.leader_epoch, value))
        if acks_all:
            self.waiting.append((len(self.log), value))
        self._settle()

    def fetch(self) -> None:
        follower, world = self.follower, self.world
        if follower is None or follower.leader_id == NOBODY:
            return
        if self.fetch_sent_ms is not None and world.now_ms - self.fetch_sent_ms < FETCH_TIMEOUT_MS:
            return
        self.fetch_sent_ms = world.now_ms
        self.fetch_number += 1
        number, leader_epoch, broker_epoch = self.fetch_number, follower.leader_epoch, self.epoch
        offset, last_epoch = len(self.log), self.epochs.latest
        to = world.brokers[follower.leader_id]

        def arrive() -> None:
            to.on_fetch(self, number, leader_epoch, broker_epoch, offset, last_epoch)

        world.send(self.node_id, to.node_id, arrive)

    def on_fetch(
        self, source: Broker, number: int, leader_epoch: int, broker_epoch: int, offset: int, last_epoch: int
    ) -> None:
        leader, world = self.leader, self.world
        if leader is None or not self.accepts_epoch(leader_epoch):
            return
        assert self.view is not None
        if self.view.brokers[source.node_id].epoch > broker_epoch:
            return
        try:
            parts = replication.divergence(self.epochs, len(self.log), offset, last_epoch)
        except KafkaError as refusal:
            raise Broken(f"the leader of epoch {leader_epoch} knows nothing of epoch {last_epoch}") from refusal
        records: list[Entry] = []
        if parts is None:
            try:
                proposal = leader.note_fetch(
                    source.node_id,
                    broker_epoch,
                    offset,
                    0,
                    len(self.log),
                    world.now_ms,
                    lag_ms_max=LAG_MS_MAX,
                    is_eligible=self.is_eligible,
                )
            except KafkaError:
                return
            if proposal is not None:
                self.propose(proposal)
            self._settle()
            records = self.log[offset : offset + RECORDS_PER_FETCH]
        high_watermark = leader.high_watermark

        def arrive() -> None:
            source.on_fetched(number, parts, records, high_watermark)

        world.send(self.node_id, source.node_id, arrive)

    def accepts_epoch(self, leader_epoch: int) -> bool:
        return self.leader is not None and self.leader.leader_epoch == leader_epoch

    def on_fetched(self, number: int, parts: tuple[int, int] | None, records: list[Entry], high_watermark: int) -> None:
        follower = self.follower
        if follower is None or number != self.fetch_number:
            return
        self.fetch_sent_ms = None
        if parts is not None:
            self.truncate(replication.truncation_offset(self.epochs, len(self.log), *parts))
            return
        for entry in records:
            if entry.epoch > self.epochs.latest:
                self.epochs.assign(entry.epoch, len(self.log))
            self.log.append(entry)
        follower.on_fetched(high_watermark, len(self.log))

    def truncate(self, offset: int) -> None:
        assert self.follower is not None
        del self.log[offset:]
        self.synced = min(self.synced, offset)
        self.epochs.truncate_from_end(offset)
        self.follower.on_truncated(offset)

    # -- the controller ------------------------------------------------------------------------------------------------

    def look_for_laggards(self) -> None:
        if self.leader is None:
            return
        proposal = self.leader.drop_laggards(
            len(self.log), self.world.now_ms, lag_ms_max=LAG_MS_MAX, is_eligible=self.is_eligible
        )
        if proposal is not None:
            self.propose(proposal)
        self._settle()

    def propose(self, proposal: InSyncProposal) -> None:
        world, broker_epoch = self.world, self.epoch
        self.alter_due_ms = world.now_ms + ALTER_TIMEOUT_MS

        def arrive() -> None:
            answer = world.controller.on_alter_partition(self.node_id, broker_epoch, proposal)
            world.send(NOBODY, self.node_id, lambda: self.on_answer(broker_epoch, proposal, answer))

        world.send(self.node_id, NOBODY, arrive)

    def on_answer(self, broker_epoch: int, proposal: InSyncProposal, answer: State | ErrorCode) -> None:
        leader = self.leader
        if leader is None or broker_epoch != self.epoch or proposal is not leader.proposal:
            return
        self.alter_due_ms = None
        if isinstance(answer, State):
            leader.on_accepted(proposal, answer.leader_epoch, answer.partition_epoch, answer.isr)
        elif leader.on_refused(proposal, answer):
            self.propose(proposal)
        self._settle()

    def ask_again(self) -> None:
        leader, due_ms = self.leader, self.alter_due_ms
        if due_ms is None or self.world.now_ms < due_ms or leader is None or leader.proposal is None:
            return
        if leader.on_refused(leader.proposal, ErrorCode.REQUEST_TIMED_OUT):
            self.propose(leader.proposal)


class Controller:
    """Never fails: the quorum is another simulation's affair."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = State(0, 0, 0, BROKERS, ())
        self.brokers = [Registration(0, False) for _ in BROKERS]
        self.next_broker_epoch = 1
        self.heard_ms = dict.fromkeys(BROKERS, 0)

    def publish(self) -> None:
        view = View(self.state, tuple(self.brokers))
        for broker in self.world.brokers:
            self.world.publish(broker, view)

    def _is_active(self, broker: int) -> bool:
        return not self.brokers[broker].is_fenced

    def _change(self, isr: tuple[int, ...], unclean: tuple[int, ...] = ()) -> None:
        """Another in-sync set, then whoever leads under it."""
        old = self.state
        elr: tuple[int, ...] = ()
        if len(isr) < MIN_IN_SYNC:
            wanted = {*old.elr, *old.isr} - set(isr) - set(unclean)
            elr = tuple(each for each in BROKERS if each in wanted)
        leader = old.leader
        if leader not in isr or not self._is_active(leader):
            leader = next((each for each in BROKERS if each in isr and self._is_active(each)), NOBODY)
            if leader == NOBODY:
                leader = next((each for each in elr if self._is_active(each)), NOBODY)
                if leader != NOBODY:
                    isr, elr = (leader,), tuple(each for each in elr if each != leader)
        epoch = old.leader_epoch + (leader != old.leader)
        new = State(leader, epoch, old.partition_epoch + 1, isr, elr)
        if (new.leader, new.isr, new.elr) != (old.leader, old.isr, old.elr):
            self.state = new
            self.world.note(f"state {new}")

    def fence_silent(self) -> None:
        for broker in BROKERS:
            if self._is_active(broker) and self.world.now_ms - self.heard_ms[broker] > SESSION_MS:
                self.fence(broker)

    def fence(self, broker: int) -> None:
        self.brokers[broker] = self.brokers[broker]._replace(is_fenced=True)
        self._change(tuple(each for each in self.state.isr if each != broker))
        self.publish()

    def register(self, broker: Broker, *, lost_records: bool) -> None:
        """A new life; the old one is fenced first, should nobody have missed it yet."""
        node_id = broker.node_id
        if self._is_active(node_id):
            self.fence(node_id)
        broker.epoch, self.next_broker_epoch = self.next_broker_epoch, self.next_broker_epoch + 1
        self.brokers[node_id] = Registration(broker.epoch, True)
        if lost_records:
            self._change(self.state.isr, unclean=(node_id,))
        broker.is_registered = True
        self.heard_ms[node_id] = self.world.now_ms
        self.publish()

    def on_heartbeat(self, broker: int, epoch: int) -> None:
        registration = self.brokers[broker]
        if registration.epoch != epoch:
            return
        self.heard_ms[broker] = self.world.now_ms
        if registration.is_fenced:
            self.brokers[broker] = registration._replace(is_fenced=False)
            self._change(self.state.isr)
            self.publish()

    def on_alter_partition(self, broker: int, epoch: int, proposal: InSyncProposal) -> State | ErrorCode:
        state = self.state
        if self.brokers[broker].epoch != epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if state.leader != broker:
            return ErrorCode.INVALID_REQUEST
        if proposal.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for replica, replica_epoch in zip(proposal.isr, proposal.broker_epochs, strict=True):
            registration = self.brokers[replica]
            if registration.is_fenced or replica_epoch not in (NOBODY, registration.epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        self._change(proposal.isr)
        self.publish()
        return self.state


class World:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now_ms = 0
        self.trace: list[str] = []
        self.brokers = [Broker(self, node_id) for node_id in BROKERS]
        self.controller = Controller(self)
        # (when, number, who must be awake to take it, what happens)
        self._messages: list[tuple[int, int, int, Callable[[], None]]] = []
        self._number = 0
        # The metadata reaches a broker in order.
        self._published: dict[int, int] = dict.fromkeys(BROKERS, 0)
        self._cut: set[tuple[int, int]] = set()
        self.committed: list[Entry] = []
        self.acknowledged: dict[int, int] = {}
        self._next_value = 0
        # Brokers that lost records and are not back in the in-sync set: one at a time (KIP-966's bound).
        self._lossy: set[int] = set()
        self._latest_told = 0

    def note(self, line: str) -> None:
        self.trace.append(f"{self.now_ms} {line}")

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        if (source, target) in self._cut:
            return
        delay_ms = self.dice.randrange(DELAY_MS_MAX)
        if self.dice.random() < (0.15 if NOBODY in (source, target) else 0.02):
            delay_ms += self.dice.randrange(1000)
        self._add(self.now_ms + delay_ms, target, arrive)

    def publish(self, broker: Broker, view: View) -> None:
        epoch = broker.epoch
        delay_ms = self.dice.randrange(2 * DELAY_MS_MAX)
        if self.dice.random() < 0.2:
            delay_ms += self.dice.randrange(1000)
        when_ms = max(self._published[broker.node_id], self.now_ms + delay_ms)
        self._published[broker.node_id] = when_ms
        self._add(when_ms, broker.node_id, lambda: broker.on_view(view, epoch))

    def _add(self, when_ms: int, target: int, arrive: Callable[[], None]) -> None:
        self._number += 1
        self._messages.append((when_ms, self._number, target, arrive))

    def _deliver_due(self) -> None:
        while True:
            due = [each for each in self._messages if each[0] <= self.now_ms and self._takes(each[2])]
            if not due:
                return
            message = min(due)
            self._messages.remove(message)
            if message[2] == NOBODY or self.brokers[message[2]].is_alive:
                message[3]()
                self.check()

    def _takes(self, target: int) -> bool:
        return target == NOBODY or self.brokers[target].paused_until <= self.now_ms

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Broken says which invariant does not hold."""
        self.controller.publish()
        for _ in range(FAULTY_STEPS):
            self._do_something()
            self._tick(self.dice.randrange(20))
        self._heal()
        end_ms = self.now_ms + HEALED_MS
        while self.now_ms < end_ms:
            self._tick(5)
            if self._is_at_rest():
                break
        else:
            raise Broken(f"not at rest: {self.controller.state} {[len(each.log) for each in self.brokers]}")
        self.note(f"rest {len(self.committed)} {len(self.acknowledged)}")

    def _tick(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self._deliver_due()
        for broker in self.brokers:
            if not broker.is_alive and broker.starts_at_ms is not None and broker.starts_at_ms <= self.now_ms:
                broker.is_alive = True
                self.note(f"start {broker.node_id}")
            if not broker.is_alive or broker.paused_until > self.now_ms:
                continue
            if broker.is_registered:
                self._heartbeat(broker)
            else:
                self.controller.register(broker, lost_records=broker.node_id in self._lossy)
            broker.fetch()
            broker.look_for_laggards()
            broker.ask_again()
        self.controller.fence_silent()
        back = {each for each in self._lossy if self.brokers[each].is_registered and each in self.controller.state.isr}
        self._lossy -= back
        self.check()

    def _heartbeat(self, broker: Broker) -> None:
        if (broker.node_id, NOBODY) not in self._cut:
            self.controller.on_heartbeat(broker.node_id, broker.epoch)

    def _do_something(self) -> None:
        dice = self.dice
        broker = self.brokers[dice.randrange(len(BROKERS))]
        chance = dice.random()
        if chance < 0.55:
            for each in self.brokers:
                if each.is_alive and each.leader is not None and each.paused_until <= self.now_ms:
                    self._next_value += 1
                    each.produce(self._next_value, acks_all=dice.random() < 0.7)
        elif chance < 0.78:
            if broker.is_alive:
                broker.synced = dice.randint(broker.synced, len(broker.log))
                if dice.random() < 0.5:
                    broker.checkpointed_high_watermark = broker.high_watermark
        elif chance < 0.81:
            self._kill(broker)
        elif chance < 0.88:
            if not broker.is_alive:
                broker.is_alive = True
                self.note(f"start {broker.node_id}")
        elif chance < 0.90:
            broker.paused_until = self.now_ms + dice.randrange(3 * SESSION_MS)
        elif chance < 0.93:
            self._cut.add((dice.randrange(-1, 3), dice.randrange(-1, 3)))
        elif self._cut:
            self._cut.discard(dice.choice(sorted(self._cut)))

    def _kill(self, broker: Broker) -> None:
        if not broker.is_alive:
            return
        loses = 0
        if not self._lossy - {broker.node_id} and self.dice.random() < 0.5:
            loses = self.dice.randint(0, len(broker.log) - broker.synced)
            self._lossy.add(broker.node_id)
        self.note(f"kill {broker.node_id} loses {loses}")
        broker.die(loses)
        broker.starts_at_ms = self.now_ms + self.dice.randrange(100) if self.dice.random() < 0.5 else None

    def _heal(self) -> None:
        self._cut.clear()
        for broker in self.brokers:
            broker.paused_until = 0
            broker.is_alive = True

    def _is_at_rest(self) -> bool:
        state = self.controller.state
        logs = [broker.log for broker in self.brokers]
        return (
            set(state.isr) == set(BROKERS)
            and logs[0] == logs[1] == logs[2]
            and all(broker.high_watermark == len(broker.log) for broker in self.brokers)
        )

    # -- what must hold ------------------------------------------------------------------------------------------------

    def on_committed(self, broker: Broker) -> None:
        high_watermark = broker.high_watermark
        if high_watermark > len(self.committed):
            self.committed += broker.log[len(self.committed) : high_watermark]

    def on_acknowledged(self, offset: int, value: int) -> None:
        self.note(f"acknowledged {offset} {value}")
        self.acknowledged[offset] = value
        if len(self.committed) <= offset or self.committed[offset].value != value:
            raise Broken(f"record {value} was acknowledged at {offset} and is not committed there")

    def check(self) -> None:
        state, committed = self.controller.state, self.committed
        for broker in self.brokers:
            high_watermark = broker.high_watermark
            if high_watermark > len(broker.log):
                raise Broken(f"broker {broker.node_id}: high watermark {high_watermark} is beyond its log")
            if broker.log[:high_watermark] != committed[:high_watermark]:
                raise Broken(f"broker {broker.node_id} shows what is not committed below {high_watermark}")
            leader = broker.leader
            if leader is not None:
                self._check_leader(broker, leader)
        for candidate in {*state.isr, *state.elr} - self._lossy:
            if self.brokers[candidate].log[: len(committed)] != committed:
                raise Broken(f"broker {candidate} may lead and lacks a committed record")
        if set(state.isr) & set(state.elr):
            raise Broken("a broker is in sync and eligible at once")

    def _check_leader(self, broker: Broker, leader: PartitionLeader) -> None:
        state = self.controller.state
        if leader.proposal is None and leader.maximal_isr != leader.isr:
            raise Broken("without a proposal the maximal in-sync set is the committed one")
        if leader.leader_epoch == state.leader_epoch and len(leader.isr) >= MIN_IN_SYNC and broker.is_alive:
            missing = {*state.isr, *state.elr} - set(leader.maximal_isr)
            # What the controller took back into the set on its own it took from an earlier state of ours.
            if missing and leader.partition_epoch == state.partition_epoch:
                raise Broken(f"the leader does not wait for {missing}, which may lead")
        if leader.leader_epoch == state.leader_epoch and leader.knows_latest_offset:
            if leader.high_watermark < self._latest_told:
                raise Broken(f"the latest offset fell from {self._latest_told} to {leader.high_watermark}")
            self._latest_told = leader.high_watermark


def run(seed: int) -> World:
    world = World(seed)
    world.run()
    return world
