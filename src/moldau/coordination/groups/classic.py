"""A classic group: its members, what they agreed on, and where it is between two assignments.

    EMPTY -> PREPARING (someone joins; all others are to join again) -> COMPLETING (the leader is to assign) -> STABLE
    and back to PREPARING whenever membership or metadata change, or to EMPTY when the last member is gone

Here is what a group is and which changes keep it whole; `classic_protocol` has the rules of the requests. What survives
a crash is in one record, written when an assignment is made and when the group becomes empty: whoever joined since
must join again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from moldau.coordination.groups.history import History
from moldau.coordination.prefixed import encode_key, encode_value
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.consumer_protocol import read_subscription
from moldau.protocol.messages.coordinator.group_metadata import GroupMetadataKey, GroupMetadataValue
from moldau.protocol.messages.join_group import JoinGroupResponse

CONSUMER_PROTOCOL_TYPE = "consumer"
GROUP_VALUE_VERSION = 3
Protocols = tuple[tuple[str, bytes], ...]


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicMember:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "join_token",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        # Requests that wait for the others.
        self.join_token: Any = None
        self.sync_token: Any = None
        # Not yet part of a generation: its session may end while its join waits.
        self.is_new = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None


class ClassicGroup:
    type = "Classic"

    __slots__ = (
        "_supporters",
        "generation",
        "had_no_members",
        "has_new_member",
        "held",
        "history",
        "id",
        "leader",
        "members",
        "pending",
        "pending_sync",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static",
        "subscriptions",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.id = group_id
        self.state = ClassicState.EMPTY
        self.state_since_ms = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        # Member ids by instance id.
        self.static: dict[str, str] = {}
        # Ids that were handed out and not used yet; whose assignment was not fetched yet.
        self.pending: set[str] = set()
        self.pending_sync: set[str] = set()
        # While STABLE: who is not told yet, because the next rebalance is about to begin (see `classic_protocol`).
        self.held: set[str] = set()
        # While PREPARING: whether the group was empty before, and whether someone came in the present delay.
        self.had_no_members = False
        self.has_new_member = False
        # Topics of all members; None where we cannot know.
        self.subscriptions: frozenset[str] | None = None
        self._supporters: dict[str, int] = {}
        self.history = History()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """When in doubt, a group of consumers is."""
        return self.is_consumer if self.subscriptions is None else topic in self.subscriptions

    @property
    def joined(self) -> int:
        return sum(member.join_token is not None for member in self.members.values())

    @property
    def all_have_joined(self) -> bool:
        return not self.pending and all(member.join_token is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def require_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these could take part: one protocol at least must be everybody's."""
        if self.is_empty:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supporters.get(name, 0) == count for name, _ in protocols
        )

    def choose_protocol(self) -> str:
        """Each member votes for the first of its own that all have; the most votes win, then the first named."""
        count = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if self._supporters.get(name, 0) == count:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=votes.__getitem__)

    def members_for_leader(self) -> list[JoinGroupResponse.JoinGroupResponseMember]:
        return [
            JoinGroupResponse.JoinGroupResponseMember(member.id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        ]

    # -- membership ----------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id
        self.pending.discard(member.id)
        self._count(member.protocols, 1)

    def remove(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self.pending_sync.discard(member_id)
        self.held.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member.protocols, -1)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicMember, new_id: str) -> None:
        """A static member came back under a new id; it keeps its place and its assignment."""
        old_id = member.id
        self.members = {new_id if key == old_id else key: each for key, each in self.members.items()}
        member.id = new_id
        assert member.instance_id is not None
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self.held.discard(old_id)
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)

    def change_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:  # a member that names one twice is one supporter
            self._supporters[name] = self._supporters.get(name, 0) + change

    def elect_joined_leader(self) -> bool:
        """The leader must be among those who joined; whether anybody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_token is None:
            joined = next((member for member in self.members.values() if member.join_token is not None), None)
            if joined is None:
                return False
            self.leader = joined.id
        return self.leader is not None

    # -- states --------------------------------------------------------------------------------------------------------

    def enter(self, state: ClassicState, wall_ms: int) -> None:
        self.state = state
        self.state_since_ms = wall_ms

    def begin_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.pending_sync.clear()
        self.protocol = self.choose_protocol() if self.members else None
        self.update_subscriptions()
        self.enter(ClassicState.COMPLETING if self.members else ClassicState.EMPTY, wall_ms)

    def update_subscriptions(self) -> None:
        self.subscriptions = self._all_subscriptions()

    def _all_subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscription = read_subscription(member.metadata(self.protocol))
            if subscription is None:
                return None  # not in the consumer's format: we do not know
            topics.update(subscription.topics)
        return frozenset(topics)

    # -- the record ----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        return group_key(self.id)

    def value(self) -> bytes:
        members = [
            GroupMetadataValue.MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol),
                assignment=member.assignment,
            )
            for member in self.members.values()
        ]
        record = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=members,
        )
        return encode_value(record, GROUP_VALUE_VERSION)

    @classmethod
    def from_record(cls, group_id: str, record: GroupMetadataValue) -> ClassicGroup:
        group = cls(group_id, record.current_state_timestamp)
        group.generation = record.generation
        for stored in record.members:
            member = ClassicMember(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                # Values before version 1 have none.
                rebalance_timeout_ms=stored.session_timeout
                if stored.rebalance_timeout < 0
                else stored.rebalance_timeout,
                session_timeout_ms=stored.session_timeout,
                protocols=((record.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
            group.add(member, record.protocol_type)
        group.protocol_type = record.protocol_type or None
        group.protocol = record.protocol
        group.leader = record.leader if record.leader in group.members else next(iter(group.members), None)
        group.state = ClassicState.STABLE if group.members else ClassicState.EMPTY
        group.update_subscriptions()
        return group


def group_key(group_id: str) -> bytes:
    return encode_key(GroupMetadataKey(group_id))


def assignments_by_member(assignments: Iterable[Any]) -> Mapping[str, bytes]:
    return {each.member_id: bytes(each.assignment) for each in assignments}
