"""The classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup on a classic group (traps 26 and 27).

A rebalance has two waits, and every timer here ends one of them:

    join     members have the longest rebalance timeout among them to join again; a first rebalance waits
             `group.initial.rebalance.delay.ms` for more to come instead, again and again while some do
    sync     members have as long to fetch what the leader assigned
    session  a member that is not waiting must be heard of within its session timeout
    hold     cooperative members give up partitions in one rebalance and get them in the next, which the first of them
             to join again begins. All others would hear of it with their next heartbeat, seconds later; so whoever has
             nothing to give up is told its assignment a moment later, or of that next rebalance if it comes first
"""

from __future__ import annotations

from moldau.coordination.deadlines import Deadlines
from moldau.coordination.groups.classic import (
    ClassicGroup,
    ClassicMember,
    ClassicState,
    Protocols,
    assignments_by_member,
)
from moldau.coordination.groups.events import Asked, GroupSettings
from moldau.coordination.groups.history import shortened
from moldau.coordination.shard import Step
from moldau.kernel import Dice, ErrorCode, KafkaError
from moldau.protocol.consumer_protocol import read_assignment, read_subscription
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

JOIN, SYNC, SESSION, HOLD = "join", "sync", "session", "hold"
HOLD_MS = 1000
UNKNOWN_MEMBER = ""
KNOWN_MEMBER_VERSION_MIN = 4  # of JoinGroup: ask again with the id that we gave you (KIP-394)
SKIP_ASSIGNMENT_VERSION_MIN = 9
NEW_MEMBER_TIMEOUT_MS = 5 * 60_000
INITIAL_DELAY_KEY = "group.initial.rebalance.delay.ms"
# (what, group, member or how long the first rebalance may still be put off)
TimerKey = tuple[str, str, str]


class ClassicProtocol:
    def __init__(self, settings: GroupSettings, deadlines: Deadlines[TimerKey], dice: Dice) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._dice = dice
        # How long the first rebalance of a group may still be put off, while its delay runs.
        self._delay_left_ms: dict[str, int] = {}

    # -- join ----------------------------------------------------------------------------------------------------------

    def join(self, group: ClassicGroup, asked: Asked, step: Step) -> None:
        request: JoinGroupRequest = asked.request
        member_id = request.member_id
        protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
        if not self._has_room(group, member_id):
            group.remove(member_id)
            _refuse_join(asked, step, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
        elif not group.supports(request.protocol_type, protocols):
            _refuse_join(asked, step, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id == UNKNOWN_MEMBER:
            self._join_new(group, asked, protocols, step)
        elif member_id in group.pending:
            self._add(group, asked, member_id, protocols, step)
        else:
            self._join_again(group, asked, protocols, step)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings.integer("group.max.size")
        if group.state is ClassicState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is ClassicState.PREPARING:
            return (member is not None and member.join_token is not None) or group.joined < limit
        return member is not None or len(group.members) < limit

    def _join_new(self, group: ClassicGroup, asked: Asked, protocols: Protocols, step: Step) -> None:
        request: JoinGroupRequest = asked.request
        instance_id = request.group_instance_id
        new_id = self._new_member_id(asked.caller.client_id if instance_id is None else instance_id)
        if instance_id is not None and instance_id in group.static:
            self._replace_static(group, asked, new_id, protocols, step)
        elif instance_id is None and asked.caller.version >= KNOWN_MEMBER_VERSION_MIN:
            group.pending.add(new_id)
            self._deadlines.set((SESSION, group.id, new_id), step.now_ms + request.session_timeout_ms)
            _refuse_join(asked, step, ErrorCode.MEMBER_ID_REQUIRED, new_id)
        else:
            self._add(group, asked, new_id, protocols, step)

    def _new_member_id(self, prefix: str) -> str:
        digits = self._dice.random_bytes(16).hex()
        return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def _add(self, group: ClassicGroup, asked: Asked, member_id: str, protocols: Protocols, step: Step) -> None:
        request: JoinGroupRequest = asked.request
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            asked.caller.client_id,
            asked.caller.host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        member.is_new = True
        member.join_token = asked.token
        if group.state is ClassicState.PREPARING and group.had_no_members:
            group.has_new_member = True
        group.add(member, request.protocol_type)
        self._deadlines.set((SESSION, group.id, member_id), step.now_ms + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance_or_go_on(group, f"{_who(member)} joins{_reason(request)}", step)

    def _join_again(self, group: ClassicGroup, asked: Asked, protocols: Protocols, step: Step) -> None:
        request: JoinGroupRequest = asked.request
        try:
            member = group.require_member(request.member_id, request.group_instance_id)
        except KafkaError as refusal:
            _refuse_join(asked, step, refusal.code, request.member_id)
            return
        is_same = member.protocols == protocols
        if group.state is ClassicState.PREPARING:
            self._update(group, member, asked, protocols, step, "joins again")
        elif group.state is ClassicState.COMPLETING and is_same:
            # It did not get the answer to its last join.
            step.answer(asked.token, _joined(group, member))
        elif group.state is ClassicState.STABLE and is_same and member.id != group.leader:
            step.answer(asked.token, _joined(group, member))
        elif group.state is ClassicState.STABLE and is_same:
            self._update(group, member, asked, protocols, step, "is the leader and wants to assign anew")
        else:
            self._update(group, member, asked, protocols, step, "changed its metadata")

    def _update(
        self, group: ClassicGroup, member: ClassicMember, asked: Asked, protocols: Protocols, step: Step, why: str
    ) -> None:
        self._take_over(group, member, asked, protocols, step)
        self._rebalance_or_go_on(group, f"{_who(member)} {why}{_reason(asked.request)}", step)

    def _take_over(
        self, group: ClassicGroup, member: ClassicMember, asked: Asked, protocols: Protocols, step: Step
    ) -> None:
        """The member as its newest request says; of two joins that wait, the older is told to go."""
        request: JoinGroupRequest = asked.request
        group.change_protocols(member, protocols)
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        if member.join_token is not None:
            step.answer(member.join_token, _join_error(ErrorCode.UNKNOWN_MEMBER_ID, member.id))
        member.join_token = asked.token

    def _replace_static(self, group: ClassicGroup, asked: Asked, new_id: str, protocols: Protocols, step: Step) -> None:
        """A static member restarted: it takes its place without a rebalance, unless the protocol would change."""
        request: JoinGroupRequest = asked.request
        old_leader = group.leader
        old_id = group.static[request.group_instance_id or ""]
        member = group.members[old_id]
        if member.join_token is not None:
            step.answer(member.join_token, _join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
            member.join_token = None
        if member.sync_token is not None:
            step.answer(member.sync_token, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
            member.sync_token = None
        self._deadlines.cancel((SESSION, group.id, old_id))
        group.rename(member, new_id)
        member.client_id, member.client_host = asked.caller.client_id, asked.caller.host
        self._take_over(group, member, asked, protocols, step)
        self._keep_alive(group, member, step)
        if group.state is ClassicState.STABLE and group.choose_protocol() == group.protocol:
            step.log(group.key, group.value())
            member.join_token = None
            response = _joined(group, member)
            if asked.caller.version >= SKIP_ASSIGNMENT_VERSION_MIN:
                response.skip_assignment = member.id == group.leader
            else:
                # Named the old leader, it does not assign again.
                response.leader, response.members = old_leader or "", []
            step.answer(asked.token, response)
        elif group.state is ClassicState.STABLE:
            self._rebalance_or_go_on(group, f"{_who(member)} came back with other protocols", step)
        elif group.state is ClassicState.COMPLETING:
            self.rebalance(group, f"{_who(member)} came back during a rebalance", step)
        else:
            self._complete_if_all_joined(group, step)

    # -- from join to sync ---------------------------------------------------------------------------------------------

    def _rebalance_or_go_on(self, group: ClassicGroup, why: str, step: Step) -> None:
        if group.state is ClassicState.PREPARING:
            self._complete_if_all_joined(group, step)
        else:
            self.rebalance(group, why, step)

    def rebalance(self, group: ClassicGroup, why: str, step: Step) -> None:
        for member in group.members.values():
            if group.state is ClassicState.COMPLETING:
                member.assignment = b""
            self._answer_sync(group, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), step)
        group.held.clear()
        self._deadlines.cancel((HOLD, group.id, ""))
        group.pending_sync.clear()
        self._deadlines.cancel((SYNC, group.id, ""))
        group.had_no_members = group.is_empty
        group.history.begin(step.wall_ms, why)
        group.enter(ClassicState.PREPARING, step.wall_ms)
        step.say(f"group_rebalance_begun group={group.id} generation={group.generation} reason={shortened(why)!r}")
        if group.had_no_members:
            delay_ms = self._settings.integer(INITIAL_DELAY_KEY)
            group.has_new_member = False
            self._delay_left_ms[group.id] = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._deadlines.set((JOIN, group.id, ""), step.now_ms + delay_ms)
        elif group.all_have_joined:
            self._complete_join(group, step)
        else:
            self._deadlines.set((JOIN, group.id, ""), step.now_ms + group.rebalance_timeout_ms)

    def _complete_if_all_joined(self, group: ClassicGroup, step: Step) -> None:
        # A first rebalance waits for its delay, however many there are.
        is_first = group.had_no_members
        if group.state is ClassicState.PREPARING and not is_first and group.all_have_joined:
            self._complete_join(group, step)

    def on_join_time(self, group: ClassicGroup, step: Step) -> None:
        if group.state is not ClassicState.PREPARING:
            return
        left_ms = self._delay_left_ms.get(group.id, 0)
        if group.had_no_members and group.has_new_member and left_ms:
            group.has_new_member = False
            delay_ms = min(self._settings.integer(INITIAL_DELAY_KEY), left_ms)
            self._delay_left_ms[group.id] = left_ms - delay_ms
            self._deadlines.set((JOIN, group.id, ""), step.now_ms + delay_ms)
            return
        self._complete_join(group, step)

    def _complete_join(self, group: ClassicGroup, step: Step) -> None:
        """Whoever joined is in the next generation; dynamic members that did not are out, static ones are kept."""
        self._deadlines.cancel((JOIN, group.id, ""))
        self._delay_left_ms.pop(group.id, None)
        missing = [each for each in group.members.values() if each.join_token is None and each.instance_id is None]
        for member in missing:
            self._drop(group, member, step)
        if group.members and not group.elect_joined_leader():
            # Static members only, and none of them is here: wait on.
            group.had_no_members = False
            self._deadlines.set((JOIN, group.id, ""), step.now_ms + group.rebalance_timeout_ms)
            return
        group.begin_generation(step.wall_ms)
        group.had_no_members = False
        if group.is_empty:
            step.log(group.key, group.value())
            self._say_done(group, step)
            return
        for member in group.members.values():
            token, member.join_token = member.join_token, None
            if token is not None:
                step.answer(token, _joined(group, member))
            self._keep_alive(group, member, step)
            member.is_new = False
            group.pending_sync.add(member.id)
        self._deadlines.set((SYNC, group.id, ""), step.now_ms + group.rebalance_timeout_ms)

    # -- sync ----------------------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, asked: Asked, step: Step) -> None:
        request: SyncGroupRequest = asked.request
        member = group.require_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is ClassicState.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._has_synced(group, member)
        if group.state is ClassicState.STABLE and member.id not in group.held:
            step.answer(asked.token, _synced(group, member))
            return
        if member.sync_token is not None:
            step.answer(member.sync_token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        member.sync_token = asked.token
        if member.id == group.leader and group.state is ClassicState.COMPLETING:
            self._assign(group, request, step)

    def _assign(self, group: ClassicGroup, request: SyncGroupRequest, step: Step) -> None:
        assignments = assignments_by_member(request.assignments)
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
        group.enter(ClassicState.STABLE, step.wall_ms)
        step.log(group.key, group.value())
        group.held = members_with_nothing_to_give_up(group)
        if group.held:
            self._deadlines.set((HOLD, group.id, ""), step.now_ms + HOLD_MS)
        for member in group.members.values():
            if member.id not in group.held:
                self._answer_sync(group, member, _synced(group, member), step)
        self._say_done(group, step)

    def on_hold_time(self, group: ClassicGroup, step: Step) -> None:
        """No further rebalance came."""
        group.held.clear()
        if group.state is ClassicState.STABLE:
            for member in group.members.values():
                self._answer_sync(group, member, _synced(group, member), step)

    def _answer_sync(self, group: ClassicGroup, member: ClassicMember, response: SyncGroupResponse, step: Step) -> None:
        if member.sync_token is not None:
            step.answer(member.sync_token, response)
            member.sync_token = None
            self._keep_alive(group, member, step)

    def _has_synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        group.pending_sync.discard(member.id)
        if not group.pending_sync:
            self._deadlines.cancel((SYNC, group.id, ""))

    def on_sync_time(self, group: ClassicGroup, step: Step) -> None:
        """Who has not fetched its assignment by now is out."""
        if group.state not in (ClassicState.COMPLETING, ClassicState.STABLE) or not group.pending_sync:
            return
        late = sorted(group.pending_sync)
        for member_id in late:
            self._drop(group, group.members[member_id], step)
        self.rebalance(group, f"{', '.join(late)} did not fetch the assignment in time", step)

    def _say_done(self, group: ClassicGroup, step: Step) -> None:
        group.history.end(step.wall_ms, group.generation, len(group.members))
        step.say(
            f"group_rebalance_done group={group.id} generation={group.generation} members={len(group.members)}"
            f" protocol={group.protocol}"
        )

    # -- heartbeat and leave -------------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, asked: Asked, step: Step) -> None:
        request: HeartbeatRequest = asked.request
        member = group.require_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        self._keep_alive(group, member, step)
        is_preparing = group.state is ClassicState.PREPARING
        code = ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE
        step.answer(asked.token, HeartbeatResponse(error_code=code))

    def leave(self, group: ClassicGroup, asked: Asked, step: Step) -> None:
        request: LeaveGroupRequest = asked.request
        answers, left = [], []
        for leaving in request.members:
            code = ErrorCode.NONE
            try:
                member_id = self._leaving_member(group, leaving.member_id, leaving.group_instance_id)
                left.append(member_id)
                if member_id in group.members:
                    self._drop(group, group.members[member_id], step)
                else:
                    group.remove(member_id)
                    self._deadlines.cancel((SESSION, group.id, member_id))
            except KafkaError as refusal:
                code = refusal.code
            answers.append(LeaveGroupResponse.MemberResponse(leaving.member_id, leaving.group_instance_id, code))
        if left:
            why = f"{', '.join(left)} left"
            reasons = sorted({each.reason for each in request.members if each.reason})
            self._after_departure(group, why + (f": {'; '.join(reasons)}" if reasons else ""), step)
        step.answer(asked.token, LeaveGroupResponse(members=answers))

    def _leaving_member(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> str:
        if member_id == UNKNOWN_MEMBER:
            # An operator takes a static member out by its instance id alone.
            if instance_id is None or instance_id not in group.static:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return group.static[instance_id]
        if member_id in group.pending:
            return member_id
        return group.require_member(member_id, instance_id).id

    def on_session_time(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending.discard(member_id)
            if group.state is ClassicState.PREPARING:  # else nobody waited for it, and nothing was given to it
                self._after_departure(group, f"{member_id} never came back", step)
        elif member.is_new or not member.is_waiting:
            self._drop(group, member, step)
            self._after_departure(group, f"{_who(member)} was not heard of for its session timeout", step)

    def _after_departure(self, group: ClassicGroup, why: str, step: Step) -> None:
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
            self.rebalance(group, why, step)
        elif group.state is ClassicState.PREPARING and group.all_have_joined:
            if group.members and group.had_no_members:
                return  # the delay of a first rebalance goes on
            self._complete_join(group, step)

    def _drop(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        for token, response in (
            (member.join_token, _join_error(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER)),
            (member.sync_token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)),
        ):
            if token is not None:
                step.answer(token, response)
        member.join_token = member.sync_token = None
        group.remove(member.id)
        self._deadlines.cancel((SESSION, group.id, member.id))

    # -- timers and loading --------------------------------------------------------------------------------------------

    def _keep_alive(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        self._deadlines.set((SESSION, group.id, member.id), step.now_ms + member.session_timeout_ms)

    def heard_of(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        """A commit is as good as a heartbeat."""
        member = group.members.get(member_id)
        if member is not None:
            self._keep_alive(group, member, step)

    def on_loaded(self, group: ClassicGroup, step: Step) -> None:
        for member in group.members.values():
            self._keep_alive(group, member, step)
        if len(group.members) > self._settings.integer("group.max.size"):
            self.rebalance(group, "more members than group.max.size allows now", step)

    def forget(self, group: ClassicGroup) -> None:
        """The group is gone: no timer may find it."""
        for member_id in (*group.members, *group.pending):
            self._deadlines.cancel((SESSION, group.id, member_id))
        self._deadlines.cancel((JOIN, group.id, ""))
        self._deadlines.cancel((SYNC, group.id, ""))
        self._deadlines.cancel((HOLD, group.id, ""))
        self._delay_left_ms.pop(group.id, None)


def members_with_nothing_to_give_up(group: ClassicGroup) -> set[str]:
    """While some are to give up partitions that nobody has been given yet, all others; usually nobody."""
    if not group.is_consumer:
        return set()
    owned: dict[str, set[tuple[str, int]]] = {}
    given: dict[str, set[tuple[str, int]]] = {}
    for member in group.members.values():
        subscription = read_subscription(member.metadata(group.protocol))
        assignment = read_assignment(member.assignment)
        if subscription is None or assignment is None:
            return set()
        owned[member.id] = {(each.topic, index) for each in subscription.owned_partitions for index in each.partitions}
        given[member.id] = {(each.topic, index) for each in assignment.assigned_partitions for index in each.partitions}
    if set().union(*owned.values()) <= set().union(*given.values()):
        return set()
    return {member_id for member_id in owned if owned[member_id] <= given[member_id]}


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has none: the session timeout stands for both."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _who(member: ClassicMember) -> str:
    return member.id if member.instance_id is None else f"{member.id} ({member.instance_id})"


def _reason(request: JoinGroupRequest) -> str:
    return f": {request.reason}" if request.reason else ""


def _differ(named: str | None, agreed: str | None) -> bool:
    return named is not None and agreed is not None and named != agreed


def _joined(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.id,
        members=group.members_for_leader() if member.id == group.leader else [],
    )


def _synced(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def _join_error(code: int, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)


def _refuse_join(asked: Asked, step: Step, code: int, member_id: str) -> None:
    step.answer(asked.token, _join_error(code, member_id))
