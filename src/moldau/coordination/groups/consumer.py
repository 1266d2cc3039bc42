"""A consumer group of the next generation (KIP-848): what its records say, and what follows from them.

    epoch          counts changes of membership, subscriptions and topics
    targets        what the assignor gave each member, made for one epoch: `target_epoch`
    holdings       what each member may have right now; reconciliation takes it to the target in safe steps

Everything here is made by `apply`, one record at a time, whether the record was just decided or is read from the log:
the two cannot differ. `consumer_protocol` has the rules of the requests, `reconciliation` those of the safe steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from moldau.coordination.groups.history import History
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.message import Message
from moldau.protocol.messages.coordinator.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from moldau.protocol.messages.coordinator.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from moldau.protocol.messages.coordinator.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from moldau.protocol.messages.coordinator.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from moldau.protocol.messages.coordinator.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from moldau.protocol.messages.coordinator.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from moldau.protocol.messages.coordinator.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

FIRST_EPOCH = 1
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
# Partitions by topic id, each with the epoch in which the member got it.
Partitions = Mapping[bytes, Mapping[int, int]]
Target = Mapping[bytes, frozenset[int]]
NO_PARTITIONS: Partitions = {}
NO_TARGET: Target = {}


class TopicView(Protocol):
    """The cluster's topics, as groups see them now."""

    def names(self) -> Iterable[str]: ...

    def partition_count(self, name: str) -> int | None: ...

    def topic_id(self, name: str) -> bytes | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def racks(self, name: str, partition: int) -> frozenset[str]:
        """Where the partition's replicas are."""
        ...


class MemberState(IntEnum):
    """Numbers as in the records."""

    STABLE = 0
    # It must give up partitions before its epoch may move on.
    UNREVOKED = 1
    # Some partitions of its target still belong to others.
    UNRELEASED = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        """A newer version may know states that we do not."""
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What a member that speaks the classic protocol brought along."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberAbout:
    """Who a member is and what it wants: the member record."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    expression: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member has: the current assignment record."""

    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def partitions(self) -> dict[bytes, set[int]]:
        """All that nobody else may have, be it to be given up."""
        found: dict[bytes, set[int]] = {}
        for partitions in (self.assigned, self.revoking):
            for topic_id, indexes in partitions.items():
                found.setdefault(topic_id, set()).update(indexes)
        return found

    @property
    def is_away(self) -> bool:
        """A static member said that it will be back."""
        return self.epoch == LEAVE_STATIC_EPOCH


NEW_HOLDING = Holding()


class ConsumerMember:
    __slots__ = ("about", "holding", "id")

    def __init__(self, member_id: str, about: MemberAbout, holding: Holding = NEW_HOLDING) -> None:
        self.id = member_id
        self.about = about
        self.holding = holding

    @property
    def uses_classic(self) -> bool:
        return self.about.classic is not None


@dataclass(frozen=True, slots=True)
class ResolvedExpression:
    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    type = "Consumer"
    protocol_type = "consumer"
    is_consumer = True

    __slots__ = (
        "_away",
        "_classic_supporters",
        "_reconciled",
        "_topic_counts",
        "assignors",
        "classic_count",
        "epoch",
        "expressions",
        "has_partition_metadata",
        "history",
        "id",
        "members",
        "metadata_hash",
        "owners",
        "resolved",
        "static",
        "target_epoch",
        "target_ms",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        # Member ids by instance id.
        self.static: dict[str, str] = {}
        self.target_epoch = FIRST_EPOCH
        # When the target was made, by the wall's clock; 0 when it never was.
        self.target_ms = 0
        self.targets: dict[str, Target] = {}
        # Who has each partition, be it to give it up: nobody else may get it.
        self.owners: dict[tuple[bytes, int], str] = {}
        # Members by expression, and what it stands for once it is resolved.
        self.expressions: dict[str, int] = {}
        self.resolved: dict[str, ResolvedExpression] = {}
        # Votes by assignor.
        self.assignors: dict[str, int] = {}
        self.classic_count = 0
        # A record that brokers before 4.1 wrote; it is deleted with the next change.
        self.has_partition_metadata = False
        self._classic_supporters: dict[str, int] = {}
        self._topic_counts: dict[str, int] = {}
        self._reconciled = 0
        self._away = 0
        self.history = History()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_reconciled(self) -> bool:
        return self._reconciled == len(self.members)

    @property
    def is_moving(self) -> bool:
        """Whether somebody has a step to take; static members that are away for a while cannot."""
        return self.epoch > self.target_epoch or self._reconciled + self._away < len(self.members)

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Stable" if self.is_reconciled else "Reconciling"

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._topic_counts or any(topic in each.topics for each in self.resolved.values())

    @property
    def subscribed_topics(self) -> set[str]:
        return set(self._topic_counts).union(*(each.topics for each in self.resolved.values()))

    def topics_of(self, about: MemberAbout) -> frozenset[str]:
        """By name and by expression; an expression that is not resolved yet stands for none."""
        if not about.expression:
            return about.topics
        resolved = self.resolved.get(about.expression)
        return about.topics if resolved is None else about.topics | resolved.topics

    def require_member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def require_static(self, instance_id: str, member_id: str) -> ConsumerMember:
        known = self.static.get(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known != member_id:
            message = f"Static member {member_id} with instance id {instance_id} was fenced by member {known}."
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        return self.members[known]

    def preferred_assignor(self, default: str) -> str:
        """The one with the most votes, of several the first by name."""
        return min(self.assignors, key=lambda name: (-self.assignors[name], name), default=default)

    def supports_classic(self, protocols: Iterable[str]) -> bool:
        return any(self._classic_supporters.get(name, 0) == self.classic_count for name in protocols)

    def is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Whether a partition of its target is still somebody else's."""
        return any(
            self.owners.get((topic_id, partition), member.id) != member.id
            for topic_id, partitions in self.targets.get(member.id, NO_TARGET).items()
            for partition in partitions
        )

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(self, key: Message, value: Message | None) -> None:
        """The only mutator."""
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
            self._apply_holding(key.member_id, value)
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
            self._apply_target(key.member_id, value)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
            self._apply_member(key.member_id, value)
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
            self._apply_target_metadata(value)
        elif isinstance(key, ConsumerGroupMetadataKey):
            assert isinstance(value, ConsumerGroupMetadataValue), "who deletes a group forgets it"
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
            self._apply_expression(key.regular_expression, value)
        else:
            assert isinstance(key, ConsumerGroupPartitionMetadataKey), key
            self.has_partition_metadata = value is not None

    def _apply_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._count(member, -1)
        if value is None:
            if member is not None:
                self._apply_holding(member_id, None)
                self._forget(member)
            return
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id, MemberAbout())
            self._reconciled += member.holding.is_reconciled_to(self.target_epoch)
        member.about = about_of(value)
        self._count(member, 1)
        if member.about.instance_id is not None:
            self.static[member.about.instance_id] = member_id

    def _forget(self, member: ConsumerMember) -> None:
        self._reconciled -= member.holding.is_reconciled_to(self.target_epoch)
        del self.members[member.id]
        instance_id = member.about.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.id:
            del self.static[instance_id]

    def _count(self, member: ConsumerMember, change: int) -> None:
        about = member.about
        for topic in about.topics:
            _add(self._topic_counts, topic, change)
        if about.expression:
            _add(self.expressions, about.expression, change)
        if about.assignor is not None:
            _add(self.assignors, about.assignor, change)
        if about.classic is not None:
            self.classic_count += change
            for name, _ in about.classic.protocols:
                _add(self._classic_supporters, name, change)

    def _apply_holding(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            # Its own record comes later in a log that was compacted.
            member = self.members[member_id] = ConsumerMember(member_id, MemberAbout())
            self._reconciled += member.holding.is_reconciled_to(self.target_epoch)
        old, new = member.holding, NEW_HOLDING if value is None else holding_of(value)
        for partition in _flat(old):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        for partition in _flat(new):
            self.owners[partition] = member_id
        self._reconciled += new.is_reconciled_to(self.target_epoch) - old.is_reconciled_to(self.target_epoch)
        self._away += new.is_away - old.is_away
        member.holding = new

    def _apply_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}

    def _apply_target_metadata(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        if value is None:
            self.target_epoch, self.target_ms = -1, 0
        else:
            self.target_epoch, self.target_ms = value.assignment_epoch, value.assignment_timestamp
        self._reconciled = sum(each.holding.is_reconciled_to(self.target_epoch) for each in self.members.values())

    def _apply_expression(self, expression: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.resolved.pop(expression, None)
        else:
            self.resolved[expression] = ResolvedExpression(frozenset(value.topics), value.version, value.timestamp)


def about_of(value: ConsumerGroupMemberMetadataValue) -> MemberAbout:
    classic = value.classic_member_metadata
    return MemberAbout(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        expression=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicSide(
            classic.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
        ),
    )


def holding_of(value: ConsumerGroupCurrentMemberAssignmentValue) -> Holding:
    return Holding(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState.of(value.state),
        _partitions_of(value.assigned_partitions, value.member_epoch),
        _partitions_of(value.partitions_pending_revocation, value.member_epoch),
    )


def _partitions_of(
    topics: Iterable[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> Partitions:
    """Brokers before 4.2 did not write when each partition was given; then the member's own epoch stands for it."""
    found: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or []
        if len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _flat(holding: Holding) -> Iterable[tuple[bytes, int]]:
    for topic_id, indexes in holding.partitions.items():
        for index in indexes:
            yield topic_id, index


def _add(counts: dict[str, int], name: str, change: int) -> None:
    count = counts.get(name, 0) + change
    if count:
        counts[name] = count
    else:
        del counts[name]
