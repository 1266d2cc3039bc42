"""Many members of a group, a coordinator that crashes, a network that delays and loses: all from one seed.

Clients here are as small as the protocol allows and otherwise honest: they own what they were assigned, give it up when
they are told to, and commit what they own. Time is virtual. What must hold is checked at every step (`reliability.md`
P9 and P10), what must come in the end is checked after the faults are over.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

from moldau.coordination.groups.classic import ClassicState
from moldau.kernel import ErrorCode
from moldau.protocol.consumer_protocol import read_assignment, write_assignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from tests.coordination.play import Play

GROUP, TOPIC = "g", "t"
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS, COMMIT_MS = 6_000, 8_000, 1_000, 1_500
REQUEST_TIMEOUT_MS = 12_000
FAULTS_MS, CALM_MS = 60_000, 60_000
SUBSCRIPTION = b"\0\1" + ConsumerProtocolSubscription(topics=[TOPIC], user_data=None).encode(1)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.play = Play(seed, group__initial__rebalance__delay__ms=self.dice.choice([0, 100, 3000]))
        self.partitions = self.dice.randint(1, 9)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self.is_calm = False
        self._trace = hashlib.sha256()
        self._generation = 0
        # The highest offset of each partition of which a commit was acknowledged.
        self.committed: dict[int, int] = {}
        self.members = [Member(self, number) for number in range(self.dice.randint(1, 6))]

    # -- time and network ----------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.play.now_ms

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, action))

    def send(self, request: Any, on_answer: Callable[[Any], None]) -> None:
        """Over a network that takes its time and, before the calm, may lose the request or its answer."""
        if self._is_lost():
            return

        def arrive() -> None:
            token = self.play.ask(request)
            self.note(type(request).__name__, token)
            if not self._is_lost():
                self._waiting[token] = on_answer
            self._deliver()

        self.later(self.dice.randint(0, 40), arrive)

    def _is_lost(self) -> bool:
        return not self.is_calm and self.dice.random() < 0.03

    def _deliver(self) -> None:
        for token in [token for token in self._waiting if token in self.play.answers]:
            on_answer, answer = self._waiting.pop(token), self.play.answers[token]
            self.later(self.dice.randint(0, 40), lambda on_answer=on_answer, answer=answer: on_answer(answer))

    def note(self, *what: Any) -> None:
        self._trace.update(repr((self.now_ms, *what)).encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for member in self.members:
            self.later(self.dice.randint(0, 5_000), member.start)
        for _ in range(self.dice.randint(0, 4)):
            self.later(self.dice.randint(0, FAULTS_MS), self._crash_coordinator)
        for _ in range(self.dice.randint(0, 6)):
            self.later(self.dice.randint(0, FAULTS_MS), self._disturb_member)
        self._run_until(FAULTS_MS)
        self.is_calm = True
        for member in self.members:
            if not member.is_running:
                member.start()
        self._run_until(FAULTS_MS + CALM_MS)
        self._check_calm()

    def _run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            at_ms, _, action = heapq.heappop(self._queue)
            self.play.pass_time(at_ms - self.now_ms)
            self._deliver()
            action()
            self._check()
        self.play.pass_time(end_ms - self.now_ms)

    def _crash_coordinator(self) -> None:
        self.note("crash")
        self._waiting.clear()
        self.play.restart()

    def _disturb_member(self) -> None:
        member = self.dice.choice(self.members)
        how = self.dice.choice([member.crash, member.leave, member.pause])
        self.note(member.number, how.__name__)
        how()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        group = self.play.machine.groups.get(GROUP)
        if group is None:
            return
        if group.state is ClassicState.STABLE:
            # One that nobody was given an assignment in may come again after a crash, as in Kafka.
            assert group.generation >= self._generation, "a generation came back"
            self._generation = group.generation
        owners: dict[tuple[int, int], int] = {}
        for member in self.members:
            for partition in member.owned:
                where = member.generation, partition
                assert where not in owners, f"{where} is owned by members {owners[where]} and {member.number}"
                owners[where] = member.number

    def _check_calm(self) -> None:
        group = self.play.machine.groups[GROUP]
        assert group.state is ClassicState.STABLE, group.state
        assert len(group.members) == len(self.members), "members that are not there are still counted, or the reverse"
        owned = sorted(partition for member in self.members for partition in member.owned)
        assert owned == list(range(self.partitions)), f"not each partition has one owner: {owned}"
        for partition, offset in self.committed.items():
            value = self.play.machine.offsets.get(GROUP, TOPIC, partition)
            assert value is not None and int.from_bytes(value[2:10], "big") >= offset, "a commit was lost"


class Member:
    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.is_running = False
        self.id = ""
        self.generation = -1
        self.owned: list[int] = []
        # It has its assignment, and nothing but heartbeats to do.
        self.is_settled = False
        # A life: what was sent in an older one is not heard any more.
        self._life = 0
        # The request that this member waits for; an answer to another one comes too late.
        self._turn = 0

    def start(self) -> None:
        if self.is_running:
            return
        self.is_running = True
        self._life += 1
        self.id, self.generation, self.owned = "", -1, []
        self._join()
        self._beat(self._life)
        self._commit(self._life)

    def crash(self) -> None:
        if not self.is_running:
            return
        self.is_running = False
        self._life += 1
        self.owned = []
        self.simulation.later(self.simulation.dice.randint(100, 15_000), self.start)

    def leave(self) -> None:
        if self.is_running and self.id:
            identity = LeaveGroupRequest.MemberIdentity(self.id)
            self.simulation.send(LeaveGroupRequest(GROUP, members=[identity]), lambda answer: None)
        self.crash()

    def pause(self) -> None:
        """Stands still for longer than its session, then goes on as if nothing had been."""
        if not self.is_running:
            return
        life, self._life = self._life, -1

        def go_on() -> None:
            if self._life == -1:
                self._life = life
                self._beat(life)
                self._commit(life)
                if not self.is_settled:
                    self._join()  # whatever it waited for came or ended meanwhile

        self.simulation.later(self.simulation.dice.randint(1_000, 2 * SESSION_MS), go_on)

    # -- the protocol --------------------------------------------------------------------------------------------------

    def _ask(self, request: Any, on_answer: Callable[[Any], None]) -> None:
        life, self._turn = self._life, self._turn + 1
        turn = self._turn

        def heard(answer: Any) -> None:
            if self._life == life and self._turn == turn:
                self._turn += 1
                on_answer(answer)

        def given_up() -> None:
            if self._life == life and self._turn == turn:
                self._join()

        self.simulation.send(request, heard)
        self.simulation.later(REQUEST_TIMEOUT_MS, given_up)

    def _join(self) -> None:
        self.owned, self.is_settled = [], False
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", SUBSCRIPTION)]
        request = JoinGroupRequest(GROUP, SESSION_MS, REBALANCE_MS, self.id, None, "consumer", protocols)
        self._ask(request, self._joined)

    def _joined(self, answer: Any) -> None:
        code = _code(answer)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self._join()
        elif code is not ErrorCode.NONE:
            self._begin_again(code)
        else:
            self.generation = answer.generation_id
            handed = self._assign(answer) if answer.leader == self.id else []
            request = SyncGroupRequest(GROUP, self.generation, self.id, None, "consumer", "range", handed)
            self._ask(request, self._synced)

    def _assign(self, answer: Any) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        members = sorted(each.member_id for each in answer.members)
        partitions = range(self.simulation.partitions)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member, write_assignment({TOPIC: partitions[place :: len(members)]}, 1)
            )
            for place, member in enumerate(members)
        ]

    def _synced(self, answer: Any) -> None:
        code = _code(answer)
        if code is not ErrorCode.NONE:
            self._begin_again(code)
            return
        assignment = read_assignment(answer.assignment)
        assert assignment is not None
        self.owned = [index for each in assignment.assigned_partitions for index in each.partitions]
        self.is_settled = True
        self.simulation.note(self.number, "owns", self.generation, self.owned)

    def _begin_again(self, code: ErrorCode) -> None:
        self.owned, self.is_settled = [], False
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.id = ""
        life = self._life
        self.simulation.later(50, lambda: self._join() if self._life == life else None)

    def _beat(self, life: int) -> None:
        if self._life != life:
            return
        if self.is_settled:
            generation = self.generation

            def heard(answer: Any) -> None:
                code = _code(answer)
                is_mine = self._life == life and self.generation == generation and self.is_settled
                if is_mine and code is not ErrorCode.NONE:
                    self._begin_again(code)

            self.simulation.send(HeartbeatRequest(GROUP, generation, self.id), heard)
        self.simulation.later(HEARTBEAT_MS, lambda: self._beat(life))

    def _commit(self, life: int) -> None:
        if self._life != life:
            return
        generation = self.generation
        for partition in self.owned:
            offset = self.simulation.now_ms
            each = OffsetCommitRequest.OffsetCommitRequestPartition(partition, offset)
            topic = OffsetCommitRequest.OffsetCommitRequestTopic(TOPIC, partitions=[each])

            def heard(answer: Any, partition: int = partition, offset: int = offset) -> None:
                if _code(answer) is ErrorCode.NONE:
                    known = self.simulation.committed
                    known[partition] = max(known.get(partition, 0), offset)

            self.simulation.send(OffsetCommitRequest(GROUP, generation, self.id, topics=[topic]), heard)
        self.simulation.later(COMMIT_MS, lambda: self._commit(life))


def _code(answer: Any) -> ErrorCode:
    if isinstance(answer, ErrorCode):
        return answer
    if hasattr(answer, "error_code"):
        return ErrorCode(answer.error_code)
    return ErrorCode(answer.topics[0].partitions[0].error_code)
