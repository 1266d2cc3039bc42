"""A group coordinator without a broker: events in, answers out, time by hand.

Records are kept as a log, so that a machine can be compared with the one that its log makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moldau.coordination import Logged, Moment, Shard
from moldau.coordination.groups import Asked, Caller, GroupMachine
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.testing.dice import SeededDice
from tests.coordination.topics import Topics

WALL_MS = 1_700_000_000_000
SESSION_MS, REBALANCE_MS = 10_000, 30_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": 3000,
    "group.min.session.timeout.ms": 6000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.max.size": 2_147_483_647,
    "offset.metadata.max.bytes": 4096,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
}


class PlainSettings:
    def __init__(self, values: dict[str, int]) -> None:
        self.values = values

    def integer(self, name: str) -> int:
        return self.values[name]

    def items(self, name: str) -> list[str]:
        raise KeyError(name)

    def text(self, name: str) -> str:
        raise KeyError(name)

    def group_integer(self, group: str, name: str) -> int:
        return self.values[f"group.{name}"]


class Play:
    def __init__(self, seed: int = 0, topics: Topics | None = None, **settings: int) -> None:
        values = {**SETTINGS, **{name.replace("__", "."): value for name, value in settings.items()}}
        self.settings = PlainSettings(values)
        self.seed = seed
        self.topics = topics or Topics()
        self.now_ms = 0
        self.log: list[Logged] = []
        self.largest_turn_bytes = 0
        self.lines: list[str] = []
        # Answers by token; a token is the number of its request.
        self.answers: dict[int, Any] = {}
        self._tokens = 0
        self._lives = 0
        self.is_committing = True
        self.shard = self._new_shard()
        self.shard.activate(0, self.moment)
        self._finish_turn()

    def _new_shard(self) -> Shard[GroupMachine]:
        # Another seed for each life: ids are never given out twice.
        self._lives += 1
        dice = SeededDice(self.seed * 1000 + self._lives)
        machine = GroupMachine(self.settings, dice, self.topics, self.lines.append)
        return Shard(0, machine, self.lines.append)

    @property
    def machine(self) -> GroupMachine:
        return self.shard.machine

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms, WALL_MS + self.now_ms)

    def ask(self, request: Any, version: int = -1, client: str = "client", host: str = "/127.0.0.1") -> int:
        """The token of a request; its answer, an error code when it was refused, is in `answers` once it is there."""
        self._tokens += 1
        token = self._tokens
        version = request.VERSION_MAX if version < 0 else version
        try:
            self.shard.submit(Asked(request, token, Caller(client, host, version)), self.moment)
        except KafkaError as refusal:
            self.answers[token] = ErrorCode(refusal.code)
        self._finish_turn()
        return token

    def answer(self, request: Any, version: int = -1, **caller: str) -> Any:
        """Of a request that is answered at once."""
        return self.answers[self.ask(request, version, **caller)]

    def _finish_turn(self) -> None:
        if self.shard.has_turn:
            turn = self.shard.take()
            turn_bytes = sum(len(each.key) + len(each.value or b"") for each in turn if isinstance(each, Logged))
            self.largest_turn_bytes = max(self.largest_turn_bytes, turn_bytes)
            self.log += turn
            self.shard.appended(len(self.log))
        if self.is_committing:
            self.commit()

    def commit(self) -> None:
        for token, response in self.shard.commit(len(self.log)):
            assert token not in self.answers, f"request {token} was answered twice"
            self.answers[token] = response

    def pass_time(self, ms: int) -> None:
        """Timers fire when they are due, one after the other."""
        until = self.now_ms + ms
        while True:
            due = self.machine.next_deadline_ms
            if due is None or due > until:
                break
            self.now_ms = max(self.now_ms, due)
            self.shard.tick(self.moment)
            self._finish_turn()
        self.now_ms = until

    def restart(self) -> None:
        """The broker dies; whoever waits gets no answer. What the log holds comes back."""
        self.shard = self._new_shard()
        for record in self.log:
            self.machine.replay(record.key, record.value)
        self.shard.activate(len(self.log), self.moment)
        self._finish_turn()

    # -- the classic protocol, as a client speaks it -------------------------------------------------------------------

    def join(
        self,
        group: str,
        member: str = "",
        *,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"meta"),),
        instance: str | None = None,
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
        client: str = "client",
    ) -> int:
        request = JoinGroupRequest(
            group,
            session_ms,
            rebalance_ms,
            member,
            instance,
            protocol_type,
            [JoinGroupRequest.JoinGroupRequestProtocol(name, metadata) for name, metadata in protocols],
        )
        return self.ask(request, version, client)

    def new_member(self, group: str, **options: Any) -> tuple[str, int]:
        """Both steps of a first join: (member id, token of the second)."""
        refused: JoinGroupResponse = self.answers[self.join(group, **options)]
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED, refused
        return refused.member_id, self.join(group, refused.member_id, **options)

    def sync(
        self, group: str, member: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> int:
        handed = [SyncGroupRequest.SyncGroupRequestAssignment(*item) for item in (assignments or {}).items()]
        return self.ask(SyncGroupRequest(group, generation, member, assignments=handed, **more))

    def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> ErrorCode:
        answer = self.answer(HeartbeatRequest(group, generation, member, instance))
        return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)

    def leave(self, group: str, *members: tuple[str, str | None]) -> Any:
        identities = [LeaveGroupRequest.MemberIdentity(member, instance) for member, instance in members]
        return self.answer(LeaveGroupRequest(group, members=identities))

    def stable(self, group: str, count: int = 1, **options: Any) -> list[str]:
        """A group of so many members with an assignment; the leader first."""
        joins = [self.new_member(group, **options) for _ in range(count)]
        self.pass_time(self.settings.integer("group.initial.rebalance.delay.ms") * (2 if count > 1 else 1))
        answers = [self.answers[token] for _, token in joins]
        assert all(answer.error_code == 0 for answer in answers), answers
        leader, generation = answers[0].leader, answers[0].generation_id
        members = sorted((member for member, _ in joins), key=lambda member: member != leader)
        self.sync(group, leader, generation, {member: member.encode() for member in members})
        for member in members[1:]:
            self.sync(group, member, generation)
        return members
