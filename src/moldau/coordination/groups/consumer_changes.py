"""What may happen to a consumer group, whichever protocol asked for it: the steps between a request and its records.

    a change of members, subscriptions or topics   -> a new group epoch
    a new epoch, at most once per interval         -> a new target from the assignor
    a member that is heard of                      -> one step of it towards its target

Every step logs records and applies the same records to the group.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from moldau.coordination.deadlines import Deadlines
from moldau.coordination.expressions import matching, matching_after
from moldau.coordination.groups.classic import ClassicGroup
from moldau.coordination.groups.classic_protocol import JOIN, SESSION, SYNC, TimerKey
from moldau.coordination.groups.consumer import (
    NO_TARGET,
    ConsumerGroup,
    ConsumerMember,
    Holding,
    MemberAbout,
    MemberState,
    ResolvedExpression,
    TopicView,
)
from moldau.coordination.groups.consumer_records import (
    ConsumerRecord,
    epoch_record,
    expression_record,
    expression_tombstone,
    group_tombstones,
    holding_record,
    member_record,
    member_tombstones,
    partition_metadata_tombstone,
    target_epoch_record,
    target_record,
)
from moldau.coordination.groups.events import GroupSettings
from moldau.coordination.groups.migration import (
    ClassicGroups,
    can_downgrade_without,
    downgraded,
)
from moldau.coordination.groups.reconciliation import Goal, Owned, reconcile
from moldau.coordination.groups.server_assignors import ASSIGNORS, AssignedMember, AssignedTopic, assign_uniform
from moldau.coordination.shard import Step
from moldau.kernel import Dice, ErrorCode, KafkaError

ASSIGN, REBALANCE, REFRESH = "assign", "rebalance", "refresh"
MEMBER_TIMERS = (SESSION, REBALANCE, JOIN, SYNC)
Group = ClassicGroup | ConsumerGroup


def new_member_id(dice: Dice) -> str:
    return base64.urlsafe_b64encode(dice.random_bytes(16)).decode().rstrip("=")


class ConsumerChanges:
    def __init__(
        self,
        settings: GroupSettings,
        deadlines: Deadlines[TimerKey],
        topics: TopicView,
        groups: dict[str, Group],
        classic: ClassicGroups,
    ) -> None:
        self.settings = settings
        self.deadlines = deadlines
        self.topics = topics
        self.groups = groups
        self.classic = classic
        self._topic_hashes: dict[str, bytes] = {}

    def log(self, group: ConsumerGroup, records: Iterable[ConsumerRecord], step: Step) -> None:
        for record in records:
            step.log(*record.encode())
            group.apply(record.key, record.value)

    # -- members -------------------------------------------------------------------------------------------------------

    def require_room(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self.settings.integer("group.consumer.max.size")
        if len(group.members) >= limit and member_id not in group.members:
            message = f"The consumer group has reached its maximum capacity of {limit} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def subscribe(self, group: ConsumerGroup, member_id: str, about: MemberAbout, step: Step) -> bool:
        """The member as it says it is; whether it wants other topics than before."""
        member = group.members.get(member_id)
        old = MemberAbout() if member is None else member.about
        if member is None or about != old:
            self.log(group, [member_record(group.id, member_id, about)], step)
        if (about.topics, about.expression) == (old.topics, old.expression):
            return False
        if old.expression and old.expression not in group.expressions:
            self.log(group, [expression_tombstone(group.id, old.expression)], step)
        if about.expression and about.expression not in group.resolved:
            self._resolve(group, about.expression, matching(about.expression, self.topics.names()), step)
            self._schedule_refresh(group, step)
        self.renew_epoch(group, f"{member_id} {'joined' if member is None else 'wants other topics'}", step)
        return True

    def replace_static(self, group: ConsumerGroup, old: ConsumerMember, new_id: str, step: Step) -> ConsumerMember:
        """A static member came back: its partitions are the new one's, to be kept in an epoch of its own."""
        holding = replace(old.holding, epoch=0, previous_epoch=0)
        target = group.targets.get(old.id, NO_TARGET)
        self.cancel_timers(group, old.id)
        self.log(
            group,
            [
                *member_tombstones(group.id, old.id),
                member_record(group.id, new_id, old.about),
                target_record(group.id, new_id, target),
                holding_record(group.id, new_id, holding),
            ],
            step,
        )
        step.say(f"group_static_member_replaced group={group.id} instance={old.about.instance_id} member={new_id}")
        return group.members[new_id]

    def fence(self, group: ConsumerGroup, members: Collection[ConsumerMember], why: str, step: Step) -> None:
        """Members are gone, or must be."""
        if not members:
            return
        for member in members:
            step.say(f"group_member_removed group={group.id} member={member.id} reason={why!r}")
        if can_downgrade_without(group, members, self.settings):
            gone = {member.id for member in members}
            staying = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
            classic = self.downgrade(group, staying, step)
            self.classic.rebalance(classic, f"the last member of the consumer protocol left: {why}", step)
            return
        for member in members:
            self.cancel_timers(group, member.id)
            self.log(group, member_tombstones(group.id, member.id), step)
        for expression in {member.about.expression for member in members} - {""}:
            if expression not in group.expressions:
                self.log(group, [expression_tombstone(group.id, expression)], step)
        self.renew_epoch(group, why, step)
        self.update_target(group, step)

    def downgrade(self, group: ConsumerGroup, staying: dict[str, ConsumerMember], step: Step) -> ClassicGroup:
        self.forget(group)
        for record in group_tombstones(group):
            step.log(*record.encode())
        classic = downgraded(group, staying, self.topics, step.wall_ms)
        step.log(classic.key, classic.value())
        self.groups[group.id] = classic
        self.classic.on_loaded(classic, step)
        step.say(f"group_downgraded group={group.id} generation={classic.generation} members={len(classic.members)}")
        return classic

    # -- epochs and targets --------------------------------------------------------------------------------------------

    def renew_epoch(self, group: ConsumerGroup, why: str, step: Step) -> None:
        group.history.begin(step.wall_ms, why)
        metadata_hash = self.metadata_hash(group.subscribed_topics)
        records = [epoch_record(group.id, group.epoch + 1, metadata_hash)]
        if group.has_partition_metadata:
            records.append(partition_metadata_tombstone(group.id))
        self.log(group, records, step)
        step.say(f"group_epoch_renewed group={group.id} epoch={group.epoch} reason={why!r}")
        self._end_rebalance_if_done(group, step)

    def renew_epoch_if_topics_differ(self, group: ConsumerGroup, step: Step) -> None:
        if self.metadata_hash(group.subscribed_topics) != group.metadata_hash:
            self.renew_epoch(group, "topics changed", step)

    def update_target(self, group: ConsumerGroup, step: Step) -> None:
        """A new target when the epoch asks for one: at once, or when the interval since the last one is over."""
        if group.target_epoch >= group.epoch or not group.members:
            return
        wait_ms = self._assignment_wait_ms(group, step)
        if wait_ms > 0:
            self.deadlines.set((ASSIGN, group.id, ""), step.now_ms + wait_ms)
            return
        members, topics = self._assignor_view(group)
        name = group.preferred_assignor(self.settings.items("group.consumer.assignors")[0])
        # A broker that knows more assignors may have written the log.
        assignment = ASSIGNORS.get(name, assign_uniform)(members, topics)
        records = [
            target_record(group.id, member_id, assignment[member_id])
            for member_id in group.members
            if group.targets.get(member_id) != assignment[member_id]
        ]
        records.append(target_epoch_record(group.id, group.epoch, step.wall_ms))
        self.log(group, records, step)

    def _assignment_wait_ms(self, group: ConsumerGroup, step: Step) -> int:
        interval_ms = self.settings.group_integer(group.id, "consumer.assignment.interval.ms")
        if not group.target_ms:
            return 0
        # The wall's clock may have been put back since.
        return min(group.target_ms + interval_ms - step.wall_ms, interval_ms)

    def _assignor_view(self, group: ConsumerGroup) -> tuple[dict[str, AssignedMember], dict[bytes, AssignedTopic]]:
        ids_of: dict[frozenset[str], frozenset[bytes]] = {}
        members = {}
        for member in group.members.values():
            names = group.topics_of(member.about)
            if names not in ids_of:
                ids_of[names] = self.topic_ids(names)
            about, target = member.about, group.targets.get(member.id, NO_TARGET)
            members[member.id] = AssignedMember(ids_of[names], target, about.instance_id, about.rack_id)
        return members, {topic_id: self._assigned_topic(topic_id) for topic_id in frozenset().union(*ids_of.values())}

    def _assigned_topic(self, topic_id: bytes) -> AssignedTopic:
        name = self.topics.name_of(topic_id)
        assert name is not None
        count = self.topics.partition_count(name) or 0
        racks = [self.topics.racks(name, partition) for partition in range(count)]
        return AssignedTopic(count, racks if any(racks) else ())

    def topic_ids(self, names: Iterable[str]) -> frozenset[bytes]:
        found = (self.topics.topic_id(name) for name in names)
        return frozenset(topic_id for topic_id in found if topic_id is not None)

    # -- reconciliation ------------------------------------------------------------------------------------------------

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        owned: Owned | None,
        step: Step,
        *,
        has_new_subscription: bool,
    ) -> None:
        if not has_new_subscription and member.holding.is_reconciled_to(group.target_epoch):
            return
        owners, member_id = group.owners, member.id
        target = group.targets.get(member_id, NO_TARGET)
        goal = Goal(group.target_epoch, target, self.topic_ids(group.topics_of(member.about)))
        holding = reconcile(
            member.holding,
            goal,
            lambda topic_id, partition: owners.get((topic_id, partition), member_id) == member_id,
            owned,
            has_new_subscription=has_new_subscription,
        )
        if holding is not member.holding:
            self.hold(group, member, holding, step)

    def hold(self, group: ConsumerGroup, member: ConsumerMember, holding: Holding, step: Step) -> None:
        self.log(group, [holding_record(group.id, member.id, holding)], step)
        self.watch_revocation(group, member, step)
        self._end_rebalance_if_done(group, step)

    def watch_revocation(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        """Who is to give up partitions has its rebalance timeout for it. Classic members have other timers."""
        key, holding = (REBALANCE, group.id, member.id), member.holding
        if holding.state is MemberState.UNREVOKED and not holding.is_away and not member.uses_classic:
            self.deadlines.set(key, step.now_ms + member.about.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(key)

    def _end_rebalance_if_done(self, group: ConsumerGroup, step: Step) -> None:
        if not group.members or not group.is_moving:
            group.history.end(step.wall_ms, group.epoch, len(group.members))

    # -- expressions and topics ----------------------------------------------------------------------------------------

    def refresh_expressions(self, group: ConsumerGroup, step: Step) -> None:
        for expression in group.expressions:
            self._resolve(group, expression, matching(expression, self.topics.names()), step)
        if group.expressions:
            self._schedule_refresh(group, step)

    def follow_topics(self, group: ConsumerGroup, changed: frozenset[str], step: Step) -> None:
        was_subscribed = any(group.is_subscribed_to(name) for name in changed)
        present = [name for name in changed if self.topics.topic_id(name) is not None]
        for expression in group.expressions:
            resolved = group.resolved.get(expression)
            if resolved is not None:
                self._resolve(group, expression, matching_after(expression, resolved.topics, changed, present), step)
        if was_subscribed or any(group.is_subscribed_to(name) for name in present):
            self.renew_epoch_if_topics_differ(group, step)
            self.update_target(group, step)

    def _resolve(self, group: ConsumerGroup, expression: str, names: frozenset[str], step: Step) -> None:
        known = group.resolved.get(expression)
        if known is None or known.topics != names:
            version = 0 if known is None else known.version + 1
            resolved = ResolvedExpression(names, version, step.wall_ms)
            self.log(group, [expression_record(group.id, expression, resolved)], step)

    def _schedule_refresh(self, group: ConsumerGroup, step: Step) -> None:
        interval_ms = self.settings.integer("group.consumer.regex.refresh.interval.ms")
        self.deadlines.set((REFRESH, group.id, ""), step.now_ms + interval_ms)

    def forget_topic_hashes(self, changed: frozenset[str]) -> None:
        for name in changed:
            self._topic_hashes.pop(name, None)

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Of what an assignor sees of these topics; 0 when there are none."""
        hashes = [self._topic_hash(name) for name in sorted(names) if self.topics.topic_id(name) is not None]
        if not hashes:
            return 0
        return int.from_bytes(hashlib.blake2b(b"".join(hashes), digest_size=8).digest(), "big", signed=True)

    def _topic_hash(self, name: str) -> bytes:
        known = self._topic_hashes.get(name)
        if known is None:
            count = self.topics.partition_count(name) or 0
            racks = [sorted(self.topics.racks(name, partition)) for partition in range(count)]
            content = repr((name, self.topics.topic_id(name), racks)).encode()
            known = self._topic_hashes[name] = hashlib.blake2b(content, digest_size=8).digest()
        return known

    # -- timers --------------------------------------------------------------------------------------------------------

    def keep_alive(self, group: ConsumerGroup, member: ConsumerMember, step: Step) -> None:
        classic = member.about.classic
        if classic is None:
            timeout_ms = self.settings.group_integer(group.id, "consumer.session.timeout.ms")
        else:
            timeout_ms = classic.session_timeout_ms
        self.deadlines.set((SESSION, group.id, member.id), step.now_ms + timeout_ms)

    def cancel_timers(self, group: ConsumerGroup, member_id: str) -> None:
        for what in MEMBER_TIMERS:
            self.deadlines.cancel((what, group.id, member_id))

    def forget(self, group: ConsumerGroup) -> None:
        """The group is gone: no timer may find it."""
        for member_id in group.members:
            self.cancel_timers(group, member_id)
        self.deadlines.cancel((ASSIGN, group.id, ""))
        self.deadlines.cancel((REFRESH, group.id, ""))
