"""All groups of one partition of `__consumer_offsets`: the machine that a shard runs.

Finds the group that a request is about, makes it where the protocol says so, and hands the request on. Groups and
offsets live side by side: an offset may belong to a group that has no members and never had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from moldau.coordination.deadlines import Deadlines
from moldau.coordination.groups.classic import ClassicGroup, ClassicState, group_key
from moldau.coordination.groups.classic_protocol import HOLD, JOIN, SESSION, SYNC, ClassicProtocol, TimerKey
from moldau.coordination.groups.consumer import ConsumerGroup, TopicView
from moldau.coordination.groups.consumer_changes import Group
from moldau.coordination.groups.consumer_protocol import ConsumerProtocol
from moldau.coordination.groups.consumer_records import CONSUMER_KINDS
from moldau.coordination.groups.describing import describe_classic, described_as_dead, list_group
from moldau.coordination.groups.events import Asked, EndOffsets, GroupSettings, TopicsChanged
from moldau.coordination.groups.offsets import Offsets
from moldau.coordination.prefixed import VERSION_BYTES, kind_of, version_of
from moldau.coordination.shard import Step, TransactionEnd
from moldau.kernel import Dice, ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.coordinator.group_metadata import GroupMetadataKey, GroupMetadataValue
from moldau.protocol.messages.coordinator.legacy_offset_commit import LegacyOffsetCommitKey
from moldau.protocol.messages.coordinator.offset_commit import OffsetCommitKey
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.wire import ProtocolError

EXPIRE = "expire"
MEMBER_EPOCH_VERSION_MIN = 9  # of OffsetCommit: a client that knows GROUP_ID_NOT_FOUND
Handler = Callable[[Asked, Step], None]


class GroupMachine:
    def __init__(self, settings: GroupSettings, dice: Dice, topics: TopicView, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._topics = topics
        self._say = say
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self._deadlines: Deadlines[TimerKey] = Deadlines()
        self._classic = ClassicProtocol(settings, self._deadlines, dice)
        self.consumer = ConsumerProtocol(settings, self._deadlines, dice, topics, self.groups, self._classic)
        self._unknown_kinds: set[int] = set()
        self._handlers: dict[type[Any], Handler] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            OffsetCommitRequest: self._commit_offsets,
            OffsetFetchRequest: self._fetch_offsets,
            TxnOffsetCommitRequest: self._commit_in_transaction,
            OffsetDeleteRequest: self._delete_offsets,
            ListGroupsRequest: self._list,
            DescribeGroupsRequest: self._describe,
            DeleteGroupsRequest: self._delete,
            ConsumerGroupHeartbeatRequest: self.consumer.heartbeat,
            ConsumerGroupDescribeRequest: self._describe_consumer,
        }

    # -- the machine's side of `Machine` -------------------------------------------------------------------------------

    def handle(self, event: Asked | TopicsChanged | EndOffsets, step: Step) -> None:
        if isinstance(event, TopicsChanged):
            self.offsets.delete_topics(event.deleted, step)
            self.consumer.topics_changed(event.changed, step)
        elif isinstance(event, EndOffsets):
            self.offsets.end_transaction(event.producer[0], event.marker.committed)
            step.log_apart(TransactionEnd(*event.producer, event.marker, event.transaction_version))
            step.answer(event.token, None)
        else:
            self._handlers[type(event.request)](event, step)

    def replay(self, key: bytes, value: bytes | None) -> None:
        kind = kind_of(key)
        if kind in (LegacyOffsetCommitKey.API_KEY, OffsetCommitKey.API_KEY):
            group_id = self.offsets.replay(key, value)
            if value is not None and group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, -1)
        elif kind == GroupMetadataKey.API_KEY:
            group_id = GroupMetadataKey.decode(key[VERSION_BYTES:], 0).group
            if value is not None:
                record = GroupMetadataValue.decode(value[VERSION_BYTES:], version_of(value))
                self.groups[group_id] = ClassicGroup.from_record(group_id, record)
            elif isinstance(self.groups.get(group_id), ClassicGroup):
                del self.groups[group_id]
        elif kind in CONSUMER_KINDS:
            self.consumer.replay(key, value)
        elif kind not in self._unknown_kinds:
            self._unknown_kinds.add(kind)
            self._say(f"group_records_skipped kind={kind} hint='another version wrote them'")

    def replay_in_transaction(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        if kind_of(key) != OffsetCommitKey.API_KEY:
            raise ProtocolError("only offsets are written in transactions")
        group_id = self.offsets.replay_in_transaction(producer_id, key, value)
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, -1)

    def replay_end(self, producer_id: int, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed)

    def on_loaded(self, step: Step) -> None:
        self.offsets.delete_strays(self._topics.topic_id, step)
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumer.on_loaded(group, step)
            else:
                self._classic.on_loaded(group, step)
        self._schedule_expiry(step)

    def on_time(self, step: Step) -> None:
        for what, group_id, rest in self._deadlines.take_due(step.now_ms):
            if step.is_full:
                self._deadlines.set((what, group_id, rest), step.now_ms)
                return
            if what == EXPIRE:
                self._expire(step)
                continue
            group = self.groups.get(group_id)
            if group is None:
                continue
            if isinstance(group, ConsumerGroup):
                self.consumer.on_time(what, group, rest, step)
            elif what == SESSION:
                self._classic.on_session_time(group, rest, step)
            elif what == JOIN:
                self._classic.on_join_time(group, step)
            elif what == SYNC:
                self._classic.on_sync_time(group, step)
            elif what == HOLD:
                self._classic.on_hold_time(group, step)

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def waiting(self) -> Iterator[Any]:
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                continue
            for member in group.members.values():
                yield from (token for token in (member.join_token, member.sync_token) if token is not None)

    # -- membership ----------------------------------------------------------------------------------------------------

    def _join(self, asked: Asked, step: Step) -> None:
        request: JoinGroupRequest = asked.request
        bounds = [self._settings.integer(f"group.{end}.session.timeout.ms") for end in ("min", "max")]
        if not bounds[0] <= request.session_timeout_ms <= bounds[1]:
            _refuse_join(asked, ErrorCode.INVALID_SESSION_TIMEOUT, step)
            return
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            self.consumer.classic_members.join(group, asked, step)
            return
        if group is None or isinstance(group, ConsumerGroup):
            if request.member_id:
                _refuse_join(asked, ErrorCode.UNKNOWN_MEMBER_ID, step)
                return
            if group is not None:
                self.consumer.tombstones(group, step)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, step.wall_ms)
            step.log(group.key, group.value())
        self._classic.join(group, asked, step)

    def _member_group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _sync(self, asked: Asked, step: Step) -> None:
        group = self._member_group(asked.request.group_id)
        if group.is_empty:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(group, ConsumerGroup):
            self.consumer.classic_members.sync(group, asked, step)
        else:
            self._classic.sync(group, asked, step)

    def _heartbeat(self, asked: Asked, step: Step) -> None:
        group = self._member_group(asked.request.group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.classic_members.heartbeat(group, asked, step)
        else:
            self._classic.heartbeat(group, asked, step)

    def _leave(self, asked: Asked, step: Step) -> None:
        group = self._member_group(asked.request.group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.classic_members.leave(group, asked, step)
        else:
            self._classic.leave(group, asked, step)

    # -- offsets -------------------------------------------------------------------------------------------------------

    def _commit_offsets(self, asked: Asked, step: Step) -> None:
        request: OffsetCommitRequest = asked.request
        generation = request.generation_id_or_member_epoch
        group = self.groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                is_modern = asked.caller.version >= MEMBER_EPOCH_VERSION_MIN
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_modern else ErrorCode.ILLEGAL_GENERATION)
            # A consumer that assigns its partitions itself, or a tool: a group without members.
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, step.wall_ms)
        elif isinstance(group, ConsumerGroup):
            self.consumer.check_commit(group, request, asked.caller.version)
        else:
            check_commit(group, request.member_id, request.group_instance_id, generation)
            if group.state in (ClassicState.STABLE, ClassicState.PREPARING):
                self._classic.heard_of(group, request.member_id, step)
        step.answer(
            asked.token, self.offsets.commit(request, self._settings.integer("offset.metadata.max.bytes"), step)
        )

    def _commit_in_transaction(self, asked: Asked, step: Step) -> None:
        """Who names neither member nor generation is let in (clients before KIP-447), even while others are members."""
        request: TxnOffsetCommitRequest = asked.request
        group = self.groups.get(request.group_id)
        names_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
        if group is None:
            if request.generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            self.groups[request.group_id] = ClassicGroup(request.group_id, step.wall_ms)
        elif names_member and not (request.generation_id < 0 and group.is_empty):
            if isinstance(group, ConsumerGroup):
                self.consumer.check_commit_in_transaction(group, request)
            else:
                group.require_member(request.member_id, request.group_instance_id)
                if request.generation_id != group.generation:
                    raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        metadata_bytes_max = self._settings.integer("offset.metadata.max.bytes")
        step.answer(asked.token, self.offsets.commit_in_transaction(request, metadata_bytes_max, step))

    def _fetch_offsets(self, asked: Asked, step: Step) -> None:
        """One group's offsets; the handler asks for each group of a request on its own."""
        (wanted,) = asked.request.groups
        group = self.groups.get(wanted.group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.check_fetch(group, wanted.member_id, wanted.member_epoch)
        answer = self.offsets.fetch(wanted, is_known=group is not None, require_stable=asked.request.require_stable)
        step.answer(asked.token, answer)

    def _delete_offsets(self, asked: Asked, step: Step) -> None:
        request: OffsetDeleteRequest = asked.request
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty and not group.is_consumer:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        topics = []
        for topic in request.topics:
            is_subscribed = group.is_subscribed_to(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
            answers = []
            for partition in topic.partitions:
                if not is_subscribed:
                    self.offsets.delete(group.id, topic.name, partition.partition_index, step)
                answers.append(OffsetDeleteResponse.OffsetDeleteResponsePartition(partition.partition_index, code))
            topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(topic.name, answers))
        step.answer(asked.token, OffsetDeleteResponse(topics=topics))

    # -- admin ---------------------------------------------------------------------------------------------------------

    def _list(self, asked: Asked, step: Step) -> None:
        request: ListGroupsRequest = asked.request
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed = [
            list_group(group)
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states) and (not types or group.type.lower() in types)
        ]
        step.answer(asked.token, ListGroupsResponse(groups=listed))

    def _describe(self, asked: Asked, step: Step) -> None:
        described = []
        for group_id in asked.request.groups:
            group = self.groups.get(group_id)
            described.append(
                describe_classic(group)
                if isinstance(group, ClassicGroup)
                else described_as_dead(
                    group_id, asked.caller.version, "not found" if group is None else "is not a classic group"
                )
            )
        step.answer(asked.token, DescribeGroupsResponse(groups=described))

    def _describe_consumer(self, asked: Asked, step: Step) -> None:
        described = []
        for group_id in asked.request.group_ids:
            group = self.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                is_other = group is not None
                raise KafkaError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found.",
                )
            described.append(self.consumer.describe(group))
        step.answer(asked.token, ConsumerGroupDescribeResponse(groups=described))

    def _delete(self, asked: Asked, step: Step) -> None:
        results = []
        for group_id in asked.request.groups_names:
            group = self.groups.get(group_id)
            code = ErrorCode.NONE
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                self.offsets.delete_group(group_id, step)
                self._remove_group(group, step)
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id, code))
        step.answer(asked.token, DeleteGroupsResponse(results=results))

    def _remove_group(self, group: Group, step: Step) -> None:
        del self.groups[group.id]
        if isinstance(group, ConsumerGroup):
            self.consumer.tombstones(group, step)
            return
        self._classic.forget(group)
        step.log(group_key(group.id), None)

    # -- expiry --------------------------------------------------------------------------------------------------------

    def _schedule_expiry(self, step: Step) -> None:
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._deadlines.set((EXPIRE, "", ""), step.now_ms + interval_ms)

    def _expire(self, step: Step) -> None:
        """Offsets of topics that no member reads, then groups that have nothing left."""
        self._schedule_expiry(step)
        retention_ms = self._settings.integer("offsets.retention.minutes") * 60_000
        for group in list(self.groups.values()):
            if (
                isinstance(group, ConsumerGroup)
                or group.protocol_type is None
                or (group.is_consumer and group.state is ClassicState.STABLE)
            ):
                since_ms = None
            elif group.is_empty:
                since_ms = group.state_since_ms if group.state_since_ms >= 0 else None
            else:
                continue
            for topic in self.offsets.topics_of(group.id):
                if step.is_full:
                    self._deadlines.set((EXPIRE, "", ""), step.now_ms)
                    return
                if group.is_empty or not group.is_subscribed_to(topic):
                    self.offsets.expire(group.id, topic, since_ms, retention_ms, step)
            is_expected = isinstance(group, ClassicGroup) and group.pending
            if group.is_empty and not is_expected and not self.offsets.has_group(group.id):
                self._remove_group(group, step)


def check_commit(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> None:
    """Trap 27: who may commit for a group, in each of its states."""
    if generation < 0 and group.is_empty:
        return
    if generation < 0 and not member_id and instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.require_member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is ClassicState.COMPLETING:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def _refuse_join(asked: Asked, code: ErrorCode, step: Step) -> None:
    step.answer(asked.token, JoinGroupResponse(error_code=code, member_id=asked.request.member_id, protocol_name=None))
