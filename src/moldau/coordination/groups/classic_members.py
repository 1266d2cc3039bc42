"""Members of a consumer group that still speak the classic protocol, while a group is being migrated.

To them their member epoch is the generation. The broker assigns, so nobody is the leader: a join is answered at once,
and the assignment comes with the sync. A member that is to give up partitions, or that may have more, is told to join
again; with each join it says what it has, which is how the group learns what it gave up.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.coordination.groups.classic import CONSUMER_PROTOCOL_TYPE, Protocols
from moldau.coordination.groups.classic_protocol import JOIN, KNOWN_MEMBER_VERSION_MIN, SYNC, UNKNOWN_MEMBER
from moldau.coordination.groups.consumer import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    MemberAbout,
    MemberState,
)
from moldau.coordination.groups.consumer_changes import ConsumerChanges, new_member_id
from moldau.coordination.groups.events import Asked
from moldau.coordination.groups.migration import allows_classic, can_downgrade_replacing, classic_assignment
from moldau.coordination.groups.reconciliation import Owned, owned_by, require_understood
from moldau.coordination.shard import Step
from moldau.kernel import Dice, ErrorCode, KafkaError
from moldau.protocol.consumer_protocol import read_subscription
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


@dataclass(frozen=True, slots=True)
class _Joining:
    """A join that nothing speaks against any more."""

    member_id: str
    about: MemberAbout
    owned: Owned
    # The static member whose place it takes.
    replaced: ConsumerMember | None


class ClassicMembers:
    def __init__(self, changes: ConsumerChanges, dice: Dice) -> None:
        self._changes = changes
        self._dice = dice

    # -- join ----------------------------------------------------------------------------------------------------------

    def join(self, group: ConsumerGroup, asked: Asked, step: Step) -> None:
        """For a group with members; an empty one becomes a classic group instead."""
        if _must_ask_again(asked):
            self._require_supported(group, asked.request)
            response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, protocol_name=None)
            response.member_id = new_member_id(self._dice)
        else:
            response = self._take_in(group, asked, self._require_joinable(group, asked), step)
        step.answer(asked.token, response)

    def _require_supported(self, group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerProtocolSubscription:
        if not allows_classic(self._changes.settings):
            why = "because the group migration is disabled"
            message = f"Cannot join the consumer group {group.id} with the classic protocol {why}."
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
        self._changes.require_room(group, request.member_id)
        return _require_common_protocol(group, request)

    def _require_joinable(self, group: ConsumerGroup, asked: Asked) -> _Joining:
        request: JoinGroupRequest = asked.request
        subscription = self._require_supported(group, request)
        owned = self._owned(subscription)
        replaced = _replaced_member(group, request)
        known = replaced or group.members.get(request.member_id)
        if known is not None:
            require_understood(known.holding, owned)
        about = _about(MemberAbout() if known is None else known.about, asked, subscription)
        return _Joining(request.member_id or new_member_id(self._dice), about, owned, replaced)

    def _take_in(self, group: ConsumerGroup, asked: Asked, joining: _Joining, step: Step) -> JoinGroupResponse:
        changes, member_id, replaced = self._changes, joining.member_id, joining.replaced
        is_last = replaced is not None and can_downgrade_replacing(group, replaced, changes.settings)
        if replaced is not None:
            changes.replace_static(group, replaced, member_id, step)
        has_new_subscription = changes.subscribe(group, member_id, joining.about, step)
        if not is_last:
            changes.update_target(group, step)
        member = group.members[member_id]
        if not is_last or group.target_epoch >= group.epoch:
            changes.reconcile(group, member, joining.owned, step, has_new_subscription=has_new_subscription)
        changes.deadlines.cancel((JOIN, group.id, member_id))
        if is_last:
            self._downgrade(group, step)
        else:
            changes.keep_alive(group, member, step)
            changes.deadlines.set((SYNC, group.id, member_id), step.now_ms + member.about.rebalance_timeout_ms)
        return JoinGroupResponse(
            generation_id=member.holding.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=asked.request.protocols[0].name,
            member_id=member_id,
        )

    def _owned(self, subscription: ConsumerProtocolSubscription) -> Owned:
        named = ((self._changes.topics.topic_id(each.topic), each.partitions) for each in subscription.owned_partitions)
        return owned_by((topic_id, partitions) for topic_id, partitions in named if topic_id is not None)

    def _downgrade(self, group: ConsumerGroup, step: Step) -> None:
        """The static member that joined took the place of the last one of the consumer protocol."""
        is_settled = not group.is_moving
        classic = self._changes.downgrade(group, dict(group.members), step)
        if not is_settled:
            self._changes.classic.rebalance(classic, "downgraded while partitions changed hands", step)

    # -- sync, heartbeat, leave ----------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, asked: Asked, step: Step) -> None:
        request: SyncGroupRequest = asked.request
        member = _require_classic(group, request.member_id, request.group_instance_id)
        _require_generation(member, request.generation_id)
        name, metadata = _protocols(member)[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        # One that is giving up partitions has joined already and joins again when it is done.
        if group.target_epoch > member.holding.epoch and member.holding.state is not MemberState.UNREVOKED:
            self._expect_join(group, member, step)
            response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            self._changes.deadlines.cancel((SYNC, group.id, member.id))
            self._changes.keep_alive(group, member, step)
            response = SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=classic_assignment(member.holding.assigned, metadata, self._changes.topics),
            )
        step.answer(asked.token, response)

    def heartbeat(self, group: ConsumerGroup, asked: Asked, step: Step) -> None:
        request: HeartbeatRequest = asked.request
        member = _require_classic(group, request.member_id, request.group_instance_id)
        _require_generation(member, request.generation_id)
        self._changes.keep_alive(group, member, step)
        code = ErrorCode.NONE
        if _should_join_again(group, member):
            self._expect_join(group, member, step)
            code = ErrorCode.REBALANCE_IN_PROGRESS
        step.answer(asked.token, HeartbeatResponse(error_code=code))

    def leave(self, group: ConsumerGroup, asked: Asked, step: Step) -> None:
        """Also how an operator takes out members of either protocol."""
        request: LeaveGroupRequest = asked.request
        answers, left = [], {}
        for leaving in request.members:
            code = ErrorCode.NONE
            try:
                member = _leaving_member(group, leaving.member_id, leaving.group_instance_id)
                left[member.id] = member
            except KafkaError as refusal:
                code = refusal.code
            answers.append(LeaveGroupResponse.MemberResponse(leaving.member_id, leaving.group_instance_id, code))
        self._changes.fence(group, list(left.values()), f"{', '.join(left)} left", step)
        step.answer(asked.token, LeaveGroupResponse(members=answers))

    def on_time(self, what: str, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        if what == JOIN:
            self._changes.fence(group, [member], f"{member.id} did not join again in time", step)
        elif what == SYNC:
            self._changes.fence(group, [member], f"{member.id} did not fetch its assignment in time", step)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        key = (JOIN, group.id, member.id)
        if self._changes.deadlines.get(key) is None:
            self._changes.deadlines.set(key, step.now_ms + member.about.rebalance_timeout_ms)


def _must_ask_again(asked: Asked) -> bool:
    """With the id that we gave it (KIP-394)."""
    is_new = asked.request.member_id == UNKNOWN_MEMBER and asked.request.group_instance_id is None
    return is_new and asked.caller.version >= KNOWN_MEMBER_VERSION_MIN


def _should_join_again(group: ConsumerGroup, member: ConsumerMember) -> bool:
    holding = member.holding
    if holding.epoch < group.target_epoch or holding.state is MemberState.UNREVOKED:
        return True
    return holding.state is MemberState.UNRELEASED and not group.is_waiting_for_others(member)


def _require_common_protocol(group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """All classic members must have one in common, though the broker assigns: the group may be theirs again."""
    subscription = read_subscription(request.protocols[0].metadata) if request.protocols else None
    is_consumer = request.protocol_type == CONSUMER_PROTOCOL_TYPE
    if subscription is None or not is_consumer or not group.supports_classic(each.name for each in request.protocols):
        message = f"Member {request.member_id}'s protocols are not supported."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    return subscription


def _replaced_member(group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerMember | None:
    """The static member whose place the joining one takes, under a new id."""
    instance_id = request.group_instance_id
    if instance_id is None:
        return None
    if request.member_id != UNKNOWN_MEMBER:
        group.require_static(instance_id, request.member_id)
        return None
    known = group.static.get(instance_id)
    return None if known is None else group.members[known]


def _about(known: MemberAbout, asked: Asked, subscription: ConsumerProtocolSubscription) -> MemberAbout:
    request: JoinGroupRequest = asked.request
    timeout_ms = request.rebalance_timeout_ms
    protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
    return MemberAbout(
        instance_id=known.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or known.rack_id,
        client_id=asked.caller.client_id,
        client_host=asked.caller.host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        assignor=known.assignor,
        classic=ClassicSide(request.session_timeout_ms, protocols),
    )


def _require_classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    member = group.require_member(member_id) if instance_id is None else group.require_static(instance_id, member_id)
    if not member.uses_classic:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    return member


def _require_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.holding.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _protocols(member: ConsumerMember) -> Protocols:
    assert member.about.classic is not None
    return member.about.classic.protocols


def _leaving_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is None:
        return group.require_member(member_id)
    if member_id == UNKNOWN_MEMBER and instance_id in group.static:
        return group.members[group.static[instance_id]]
    return group.require_static(instance_id, member_id)
