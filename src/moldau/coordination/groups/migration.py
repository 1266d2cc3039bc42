"""Groups that change their protocol while members are online: what becomes of each side on the other.

    upgrade     the first member of the consumer protocol joins a classic group of consumers
    downgrade   the last one leaves, and the members that remain speak the classic protocol

Either way assignments are kept. In between, members of both kinds live in one consumer group (`classic_members`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from moldau.coordination.groups.classic import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from moldau.coordination.groups.consumer import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    Holding,
    MemberAbout,
    MemberState,
    Target,
    TopicView,
)
from moldau.coordination.groups.consumer_records import (
    ConsumerRecord,
    epoch_record,
    holding_record,
    member_record,
    target_epoch_record,
    target_record,
)
from moldau.coordination.groups.events import GroupSettings
from moldau.coordination.prefixed import VERSION_BYTES
from moldau.coordination.shard import Step
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.consumer_protocol import read_assignment, read_subscription, write_assignment

POLICY_KEY = "group.consumer.migration.policy"
# What these add to an assignment is for their own stickiness, which is the broker's affair now: librdkafka's
# cooperative-sticky repeats what a member had before.
CLIENT_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
CUSTOM_ASSIGNOR = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor"
    " before re-attempting the upgrade"
)


class ClassicGroups(Protocol):
    """What the classic protocol does for a group that comes or goes."""

    def on_loaded(self, group: ClassicGroup, step: Step) -> None: ...

    def forget(self, group: ClassicGroup) -> None: ...

    def rebalance(self, group: ClassicGroup, why: str, step: Step) -> None: ...


def allows_classic(settings: GroupSettings) -> bool:
    return settings.text(POLICY_KEY).lower() != "disabled"


def allows_upgrade(settings: GroupSettings) -> bool:
    return settings.text(POLICY_KEY).lower() in ("upgrade", "bidirectional")


def allows_downgrade(settings: GroupSettings) -> bool:
    return settings.text(POLICY_KEY).lower() in ("downgrade", "bidirectional")


# -- upgrade -----------------------------------------------------------------------------------------------------------


def require_upgradable(group: ClassicGroup, settings: GroupSettings) -> None:
    if not allows_upgrade(settings):
        why = "online upgrade is disabled"
    elif not group.is_consumer:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.integer("group.consumer.max.size"):
        why = "the group size exceeds the consumer group maximum size"
    else:
        return
    raise _cannot_upgrade(group, why)


def upgrade_records(
    group: ClassicGroup, topics: TopicView, hash_of: Callable[[Iterable[str]], int]
) -> list[ConsumerRecord]:
    """The same members with the same partitions, in a consumer group whose epoch is the generation."""
    epoch = group.generation
    abouts = {member.id: _about(group, member) for member in group.members.values()}
    metadata_hash = hash_of(frozenset().union(*(about.topics for about in abouts.values())))
    targets = {member.id: _target(group, member, topics) for member in group.members.values()}
    records = [member_record(group.id, member_id, about) for member_id, about in abouts.items()]
    records.append(epoch_record(group.id, epoch, metadata_hash))
    records += [target_record(group.id, member_id, target) for member_id, target in targets.items()]
    records.append(target_epoch_record(group.id, epoch, 0))
    for member_id, target in targets.items():
        assigned = {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in target.items()}
        records.append(holding_record(group.id, member_id, Holding(epoch, epoch, MemberState.STABLE, assigned)))
    return records


def _about(group: ClassicGroup, member: ClassicMember) -> MemberAbout:
    subscription = read_subscription(member.metadata(group.protocol) or member.protocols[0][1])
    if subscription is None:
        raise _cannot_upgrade(group, "the embedded consumer protocol is malformed")
    return MemberAbout(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def _target(group: ClassicGroup, member: ClassicMember, topics: TopicView) -> Target:
    assignment = read_assignment(member.assignment)
    if assignment is None:
        raise _cannot_upgrade(group, "the embedded consumer protocol is malformed")
    if group.protocol not in CLIENT_ASSIGNORS and assignment.user_data:
        # What an assignor of the client's own adds would be lost.
        raise _cannot_upgrade(group, CUSTOM_ASSIGNOR)
    target: dict[bytes, frozenset[int]] = {}
    for each in assignment.assigned_partitions:
        topic_id = topics.topic_id(each.topic)
        if topic_id is not None and each.partitions:
            target[topic_id] = target.get(topic_id, frozenset()) | frozenset(each.partitions)
    return target


def _cannot_upgrade(group: ClassicGroup, why: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group.id} to consumer group because {why}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


# -- downgrade ---------------------------------------------------------------------------------------------------------


def can_downgrade_without(group: ConsumerGroup, leaving: Collection[ConsumerMember], settings: GroupSettings) -> bool:
    """Whether all who stay speak the classic protocol, and some do stay."""
    staying = len(group.members) - len(leaving)
    staying_classic = group.classic_count - sum(member.uses_classic for member in leaving)
    return 0 < staying == staying_classic <= settings.integer("group.max.size") and allows_downgrade(settings)


def can_downgrade_replacing(group: ConsumerGroup, replaced: ConsumerMember, settings: GroupSettings) -> bool:
    """Whether one static member is the last that does not speak the classic protocol."""
    return (
        not replaced.uses_classic
        and group.classic_count == len(group.members) - 1
        and len(group.members) <= settings.integer("group.max.size")
        and allows_downgrade(settings)
    )


def downgraded(
    group: ConsumerGroup, members: Mapping[str, ConsumerMember], topics: TopicView, wall_ms: int
) -> ClassicGroup:
    """A stable classic group of these members. What they have is its assignment, and not their targets: a target may
    name partitions that another member reads until it has joined again."""
    classic = ClassicGroup(group.id, wall_ms)
    classic.generation = group.epoch
    for member in members.values():
        side = member.about.classic
        assert side is not None, member.id
        classic.add(
            ClassicMember(
                member.id,
                member.about.instance_id,
                member.about.client_id,
                member.about.client_host,
                rebalance_timeout_ms=member.about.rebalance_timeout_ms,
                session_timeout_ms=side.session_timeout_ms,
                protocols=side.protocols,
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    classic.protocol = classic.choose_protocol()
    classic.update_subscriptions()
    for classic_member in classic.members.values():
        held = group.members[classic_member.id].holding.partitions
        classic_member.assignment = classic_assignment(held, classic_member.metadata(classic.protocol), topics)
    classic.enter(ClassicState.STABLE, wall_ms)
    return classic


def classic_assignment(target: Mapping[bytes, Collection[int]], metadata: bytes, topics: TopicView) -> bytes:
    """As a classic member reads it, in the version of its own subscription."""
    named = ((topics.name_of(topic_id), sorted(partitions)) for topic_id, partitions in target.items())
    partitions = {name: indexes for name, indexes in named if name is not None}
    return write_assignment(partitions, int.from_bytes(metadata[:VERSION_BYTES], "big"))
