"""The consumer protocol (KIP-848): ConsumerGroupHeartbeat, versions 0 and 1, and all else that meets a consumer group.

One request does everything. Epoch 0 joins, -1 leaves, -2 is a static member that will be back; any other is a heartbeat
in which fields that did not change are null. The answer carries an assignment only when it changed or all was sent.
A heartbeat of a member that has nothing to do logs nothing and computes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from moldau.coordination.deadlines import Deadlines
from moldau.coordination.expressions import require_valid
from moldau.coordination.groups.classic import ClassicGroup
from moldau.coordination.groups.classic_members import ClassicMembers
from moldau.coordination.groups.classic_protocol import SESSION, TimerKey
from moldau.coordination.groups.consumer import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NEW_HOLDING,
    ConsumerGroup,
    ConsumerMember,
    Holding,
    MemberAbout,
    MemberState,
    Partitions,
    TopicView,
)
from moldau.coordination.groups.consumer_changes import (
    ASSIGN,
    REBALANCE,
    REFRESH,
    ConsumerChanges,
    Group,
    new_member_id,
)
from moldau.coordination.groups.consumer_describing import describe_consumer
from moldau.coordination.groups.consumer_records import ConsumerRecord, decode, group_tombstones
from moldau.coordination.groups.events import Asked, Caller, GroupSettings
from moldau.coordination.groups.migration import (
    ClassicGroups,
    require_upgradable,
    upgrade_records,
)
from moldau.coordination.groups.reconciliation import Owned, is_subset, owned_by, require_understood
from moldau.coordination.shard import Step
from moldau.kernel import Dice, ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.coordinator.consumer_group_metadata import ConsumerGroupMetadataKey
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.wire import ZERO_UUID

# While partitions change hands members are heard of this often, so that no step waits for a heartbeat's turn.
RECONCILING_HEARTBEAT_MS = 200
# Nobody reads a partition between its release and the next word of whoever waits for it. The larger the group, the less
# often its members may ask.
WAITING_HEARTBEAT_MS = 20
WAITING_HEARTBEAT_MS_PER_MEMBER = 2
MEMBER_EPOCH_VERSION_MIN = 9  # of OffsetCommit: older ones have a generation only


class ConsumerProtocol:
    def __init__(
        self,
        settings: GroupSettings,
        deadlines: Deadlines[TimerKey],
        dice: Dice,
        topics: TopicView,
        groups: dict[str, Group],
        classic: ClassicGroups,
    ) -> None:
        self._settings = settings
        self._dice = dice
        self._topics = topics
        self._groups = groups
        self._classic = classic
        self._changes = ConsumerChanges(settings, deadlines, topics, groups, classic)
        self.classic_members = ClassicMembers(self._changes, dice)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def heartbeat(self, asked: Asked, step: Step) -> None:
        request: ConsumerGroupHeartbeatRequest = asked.request
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            self._leave(asked, step)
            return
        group = self._groups.get(request.group_id)
        member = group.members.get(request.member_id) if isinstance(group, ConsumerGroup) else None
        if isinstance(group, ConsumerGroup) and isinstance(member, ConsumerMember) and _is_steady(group, member, asked):
            self._answer(group, member, asked, step)
        else:
            self._join_or_change(asked, step)

    def _join_or_change(self, asked: Asked, step: Step) -> None:
        request: ConsumerGroupHeartbeatRequest = asked.request
        group, birth = self._group_for(request)
        owned = _owned(request)
        self._changes.require_room(group, request.member_id)
        known, replaced = _known_member(group, request, owned)
        _require_valid_expression(group, request.subscribed_topic_regex)

        # Nothing is refused from here on.
        self._be_born(group, birth, step)
        # Version 0 lets the broker name its members.
        member_id = request.member_id or new_member_id(self._dice)
        if replaced is not None:
            known = self._changes.replace_static(group, replaced, member_id, step)
        holding = NEW_HOLDING if known is None else known.holding
        about = _about(MemberAbout() if known is None else known.about, request, asked.caller)
        has_new_subscription = self._changes.subscribe(group, member_id, about, step)
        self._changes.update_target(group, step)
        member = group.members[member_id]
        self._changes.reconcile(group, member, owned, step, has_new_subscription=has_new_subscription)
        is_whole = request.member_epoch == JOIN_EPOCH or _is_full(request)
        self._answer(group, member, asked, step, is_whole=is_whole or member.holding.assigned != holding.assigned)

    def _answer(
        self, group: ConsumerGroup, member: ConsumerMember, asked: Asked, step: Step, *, is_whole: bool = False
    ) -> None:
        self._changes.keep_alive(group, member, step)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.holding.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(group, member),
            assignment=_assignment(member.holding.assigned) if is_whole else None,
        )
        step.answer(asked.token, response)

    def _heartbeat_interval_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        interval_ms = self._settings.group_integer(group.id, "consumer.heartbeat.interval.ms")
        if group.is_moving:
            interval_ms = min(interval_ms, RECONCILING_HEARTBEAT_MS)
            if member.holding.state is MemberState.UNRELEASED:
                waiting_ms = max(WAITING_HEARTBEAT_MS, WAITING_HEARTBEAT_MS_PER_MEMBER * len(group.members))
                interval_ms = min(interval_ms, waiting_ms)
        return interval_ms

    # -- the group of a member that joins ------------------------------------------------------------------------------

    def _group_for(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, list[ConsumerRecord]]:
        """The group, and the records that make it of a classic one with members."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if request.member_epoch != JOIN_EPOCH:
            raise self._no_group(request.group_id, "Consumer group")
        new = ConsumerGroup(request.group_id)
        if group is None or group.is_empty:
            return new, []
        require_upgradable(group, self._settings)
        records = upgrade_records(group, self._topics, self._changes.metadata_hash)
        for record in records:
            new.apply(record.key, record.value)
        return new, records

    def _be_born(self, group: ConsumerGroup, birth: list[ConsumerRecord], step: Step) -> None:
        old = self._groups.get(group.id)
        if old is group:
            return
        if isinstance(old, ClassicGroup):
            self._end_classic(old, step)
        for record in birth:
            step.log(*record.encode())
        self._groups[group.id] = group
        for member in group.members.values():
            self._changes.keep_alive(group, member, step)
        if birth:
            step.say(f"group_upgraded group={group.id} epoch={group.epoch} members={len(group.members)}")

    def _end_classic(self, old: ClassicGroup, step: Step) -> None:
        """Whoever waits is to join again, and then finds the new group."""
        code = ErrorCode.REBALANCE_IN_PROGRESS
        self._classic.forget(old)
        step.log(old.key, None)
        for member in old.members.values():
            for token, response in (
                (member.join_token, JoinGroupResponse(error_code=code, member_id=member.id, protocol_name=None)),
                (member.sync_token, SyncGroupResponse(error_code=code)),
            ):
                if token is not None:
                    step.answer(token, response)
            member.join_token = member.sync_token = None

    def _no_group(self, group_id: str, what: str) -> KafkaError:
        is_other = group_id in self._groups
        message = f"Group {group_id} is not a consumer group." if is_other else f"{what} {group_id} not found."
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self, asked: Asked, step: Step) -> None:
        request: ConsumerGroupHeartbeatRequest = asked.request
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise self._no_group(request.group_id, "Group")
        if request.instance_id is None:
            member = group.require_member(request.member_id)
        else:
            member = group.require_static(request.instance_id, request.member_id)
        if request.instance_id is not None and request.member_epoch == LEAVE_STATIC_EPOCH:
            self._go_away(group, member, step)
        else:
            self._changes.fence(group, [member], f"{member.id} left", step)
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        step.answer(asked.token, response)

    def _go_away(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        """A static member keeps its partitions until its session ends; what it was to give up is free."""
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.holding.assigned.items()}
        holding = replace(member.holding, epoch=LEAVE_STATIC_EPOCH, assigned=assigned, revoking={})
        self._changes.hold(group, member, holding, step)

    # -- time and topics -----------------------------------------------------------------------------------------------

    def on_time(self, what: str, group: ConsumerGroup, member_id: str, step: Step) -> None:
        if what == ASSIGN:
            self._changes.update_target(group, step)
        elif what == REFRESH:
            self._refresh(group, step)
        elif member_id in group.members:
            member = group.members[member_id]
            if what == SESSION:
                self._changes.fence(group, [member], f"{member_id} was not heard of for its session timeout", step)
            elif what == REBALANCE:
                self._changes.fence(group, [member], f"{member_id} did not give up its partitions in time", step)
            else:
                self.classic_members.on_time(what, group, member, step)

    def _refresh(self, group: ConsumerGroup, step: Step) -> None:
        self._changes.refresh_expressions(group, step)
        self._changes.renew_epoch_if_topics_differ(group, step)
        self._changes.update_target(group, step)

    def topics_changed(self, changed: frozenset[str], step: Step) -> None:
        self._changes.forget_topic_hashes(changed)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup) and group.members:
                self._changes.follow_topics(group, changed, step)

    # -- the log -------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """A record of one of `CONSUMER_KINDS`."""
        record = decode(key, value)
        group_id: str = record.key.group_id  # type: ignore[attr-defined]
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if record.value is None:
                return
            # Offsets may have come first and made a group without members.
            group = self._groups[group_id] = ConsumerGroup(group_id)
        if isinstance(record.key, ConsumerGroupMetadataKey) and record.value is None:
            del self._groups[group_id]
        else:
            group.apply(record.key, record.value)

    def on_loaded(self, group: ConsumerGroup, step: Step) -> None:
        for member in group.members.values():
            self._changes.keep_alive(group, member, step)
            self._changes.watch_revocation(group, member, step)
        if group.members:
            self._refresh(group, step)

    def tombstones(self, group: ConsumerGroup, step: Step) -> None:
        """The group is deleted."""
        self._changes.forget(group)
        for record in group_tombstones(group):
            step.log(*record.encode())

    # -- others' questions ---------------------------------------------------------------------------------------------

    def describe(self, group: ConsumerGroup) -> ConsumerGroupDescribeResponse.DescribedGroup:
        return describe_consumer(group, self._settings.items("group.consumer.assignors")[0], self._topics)

    def check_commit(self, group: ConsumerGroup, request: OffsetCommitRequest, version: int) -> None:
        """Who may commit: the member in its epoch, or in an older one what it has had since then (KIP-1251)."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and group.is_empty:
            return
        member = group.require_member(request.member_id)
        if not member.uses_classic and version < MEMBER_EPOCH_VERSION_MIN:
            message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        self._require_had(member, epoch, request)

    def check_commit_in_transaction(self, group: ConsumerGroup, request: TxnOffsetCommitRequest) -> None:
        """The same; a producer knows no member epochs: a stale one is a generation to it."""
        member = group.require_member(request.member_id)
        try:
            self._require_had(member, request.generation_id, request)
        except KafkaError:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from None

    def _require_had(
        self, member: ConsumerMember, epoch: int, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> None:
        """All of it, in that epoch and since."""
        if epoch == member.holding.epoch:
            return
        if epoch > member.holding.epoch:
            raise _stale(member, f"{epoch} is newer than current member epoch {member.holding.epoch}.")
        for topic in request.topics:
            topic_id = self._topics.topic_id(topic.name) or ZERO_UUID
            for partition in topic.partitions:
                _require_since(member, epoch, topic_id, partition.partition_index)

    def check_fetch(self, group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = group.require_member(member_id or "")
        if epoch != member.holding.epoch:
            raise _stale(member, f"{epoch} does not match the expected member epoch {member.holding.epoch}.")


# -- requests ----------------------------------------------------------------------------------------------------------


def _is_steady(group: ConsumerGroup, member: ConsumerMember, asked: Asked) -> bool:
    """Nothing new from the member, and nothing to be done for it."""
    request: ConsumerGroupHeartbeatRequest = asked.request
    about, caller = member.about, asked.caller
    return (
        request.member_epoch == member.holding.epoch == group.target_epoch == group.epoch
        and member.holding.state is MemberState.STABLE
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id == about.instance_id
        and about.classic is None
        and about.client_id == caller.client_id
        and about.client_host == caller.host
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    if request.topic_partitions is None:
        return None
    return owned_by((topic.topic_id, topic.partitions) for topic in request.topic_partitions)


def _about(known: MemberAbout, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> MemberAbout:
    """What is null stays as it was."""
    names, expression = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberAbout(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.host,
        topics=known.topics if names is None else frozenset(names),
        expression=known.expression if expression is None else expression,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=known.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _known_member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, owned: Owned | None
) -> tuple[ConsumerMember | None, ConsumerMember | None]:
    """The member that asks, and the static member whose place it takes; neither is there for a new one."""
    member_id, instance_id = request.member_id, request.instance_id
    is_joining = request.member_epoch == JOIN_EPOCH
    if is_joining and instance_id is not None and instance_id in group.static:
        replaced = group.members[group.static[instance_id]]
        _require_released(replaced, member_id, instance_id)
        return None, replaced
    if is_joining:
        return group.members.get(member_id), None
    if instance_id is None:
        member = group.require_member(member_id)
    else:
        member = group.require_static(instance_id, member_id)
    _require_epoch(member.holding, request.member_epoch, owned)
    require_understood(member.holding, owned)
    return member, None


def _require_valid_expression(group: ConsumerGroup, expression: str | None) -> None:
    if expression and expression not in group.expressions:
        require_valid(expression)


def _require_released(known: ConsumerMember, member_id: str, instance_id: str) -> None:
    if not known.uses_classic and not known.holding.is_away:
        message = (
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id"
            f" is owned by {known.id} member."
        )
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)


def _require_epoch(holding: Holding, epoch: int, owned: Owned | None) -> None:
    if epoch == holding.epoch:
        return
    # The answer with the new epoch may have been lost; then it has nothing that it was not given.
    if epoch < holding.epoch and epoch == holding.previous_epoch and is_subset(owned, holding.assigned):
        return
    relation = "greater" if epoch > holding.epoch else "smaller"
    message = (
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group coordinator"
        f" ({holding.epoch}). The member must abandon all its partitions and rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _assignment(partitions: Partitions) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        [
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id, sorted(partitions[topic_id]))
            for topic_id in sorted(partitions)
        ]
    )


# -- commits -----------------------------------------------------------------------------------------------------------


def _stale(member: ConsumerMember, what: str) -> KafkaError:
    if member.uses_classic:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Received generation id {what}")
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, f"Received member epoch {what}")


def _require_since(member: ConsumerMember, epoch: int, topic_id: bytes, partition: int) -> None:
    for partitions in (member.holding.assigned, member.holding.revoking):
        since = partitions.get(topic_id, {}).get(partition)
        if since is not None and since <= epoch:
            return
        if since is not None:
            raise _stale(member, f"{epoch} is older than assignment epoch {since} of partition {partition}.")
    raise _stale(member, f"{epoch} is older than the current one, and partition {partition} is not the member's.")
