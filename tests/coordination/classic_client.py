"""A consumer of the classic protocol, played by hand: whatever kind of group it meets."""

from __future__ import annotations

import struct
from typing import Any

from moldau.coordination.groups.server_assignors import AssignedMember, AssignedTopic, assign_range
from moldau.kernel import ErrorCode
from moldau.protocol.consumer_protocol import read_assignment, read_subscription, write_assignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from tests.coordination.consumer_play import ConsumerPlay, Held

SUBSCRIPTION_VERSION = 3


def subscription(topics: list[str], owned: Held | None = None, rack: str | None = None) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=topics,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(name, sorted(partitions))
            for name, partitions in sorted((owned or {}).items())
        ],
        rack_id=rack,
    )
    return struct.pack(">h", SUBSCRIPTION_VERSION) + message.encode(SUBSCRIPTION_VERSION)


class ClassicClient:
    """An eager one gives up everything before it joins again; a cooperative one says what it has."""

    def __init__(
        self,
        play: ConsumerPlay,
        topics: list[str],
        *,
        group: str = "g",
        instance: str | None = None,
        is_cooperative: bool = False,
    ) -> None:
        self.play = play
        self.topics = topics
        self.group = group
        self.instance = instance
        self.is_cooperative = is_cooperative
        self.id = ""
        self.generation = -1
        self.held: Held = {}
        self.join_token: int | None = None
        self.sync_token: int | None = None
        self.is_joined = False

    def beat(self) -> None:
        """Whatever comes next: an answer that waits, a heartbeat, or a new join."""
        if self.join_token is not None:
            self._take_join()
        elif self.sync_token is not None:
            self._take_sync()
        elif not self.is_joined:
            self.join()
        else:
            code = self.play.heartbeat(self.group, self.id, self.generation, self.instance)
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.join()
            elif code is not ErrorCode.NONE:
                self._lose_all(code)
                self.join()

    def join(self) -> None:
        if not self.is_cooperative:
            self.held = {}
        self.is_joined = False
        protocols = [("cooperative" if self.is_cooperative else "range", subscription(self.topics, self.held))]
        self.join_token = self.play.join(self.group, self.id, protocols=protocols, instance=self.instance)
        self._take_join()

    def _take_join(self) -> None:
        answer: JoinGroupResponse | ErrorCode | None = self.play.answers.get(self.join_token or 0)
        if answer is None:
            return
        self.join_token = None
        code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        if isinstance(answer, JoinGroupResponse) and code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self.join()
        elif isinstance(answer, JoinGroupResponse) and code is ErrorCode.NONE:
            self.id, self.generation = answer.member_id, answer.generation_id
            shares = self._assign(answer) if answer.leader == self.id and not answer.skip_assignment else {}
            self.sync_token = self.play.sync(
                self.group, self.id, self.generation, shares, group_instance_id=self.instance
            )
            self._take_sync()
        elif code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._lose_all(code)

    def _take_sync(self) -> None:
        answer: SyncGroupResponse | ErrorCode | None = self.play.answers.get(self.sync_token or 0)
        if answer is None:
            return
        self.sync_token = None
        code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        if isinstance(answer, SyncGroupResponse) and code is ErrorCode.NONE:
            self.is_joined = True
            assignment = read_assignment(answer.assignment)
            assert assignment is not None
            self.held = {each.topic: set(each.partitions) for each in assignment.assigned_partitions}
        elif code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._lose_all(code)

    def _lose_all(self, code: ErrorCode) -> None:
        self.held, self.is_joined = {}, False
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.id, self.generation = "", -1

    def _assign(self, answer: JoinGroupResponse) -> dict[str, bytes]:
        topics = self.play.topics
        members = {}
        for member in answer.members:
            wants = read_subscription(member.metadata)
            assert wants is not None
            ids = frozenset(topics.ids[name] for name in wants.topics if name in topics.ids)
            members[member.member_id] = AssignedMember(ids, instance_id=member.group_instance_id)
        assignment = assign_range(
            members, {topics.ids[name]: AssignedTopic(count) for name, count in topics.counts.items()}
        )
        return {
            member: write_assignment({topics.name_of(key) or "": sorted(value) for key, value in share.items()}, 3)
            for member, share in assignment.items()
        }

    def leave(self) -> Any:
        answer = self.play.leave(self.group, (self.id, self.instance))
        self._lose_all(ErrorCode.UNKNOWN_MEMBER_ID)
        return answer
