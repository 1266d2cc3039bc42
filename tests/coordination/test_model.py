"""A group as Hypothesis treats it: any request at any time, a crash now and then, and what must hold all the while.

P9: whoever has an assignment has it alone in its generation, and commits of older generations are
refused. P10: a commit that was acknowledged is there, whatever came after, until a later commit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.coordination.groups.classic import ClassicGroup, ClassicState
from moldau.coordination.groups.records import committed_offset
from moldau.kernel import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from tests.coordination.play import Play

GROUP, TOPIC, PARTITIONS = "g", "t", 4
members = st.integers(0, 3)
instances = st.sampled_from([None, None, "one", "two"])


class GroupModel(RuleBasedStateMachine):
    """Four clients that may do anything; each remembers what it was told last."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(group__initial__rebalance__delay__ms=100)
        self.ids: dict[int, str] = {}
        self.instances: dict[int, str | None] = {}
        self.generations: dict[int, int] = {}
        self.joins: dict[int, int] = {}
        self.syncs: dict[int, tuple[int, int]] = {}
        # (generation, partition) -> the member that was given it.
        self.owners: dict[tuple[int, int], str] = {}
        self.commits: dict[int, int] = {}
        self.offset = 0
        self.stable_generation = 0

    @initialize(delay=st.sampled_from([0, 100, 3000]))
    def begin(self, delay: int) -> None:
        self.play.settings.values["group.initial.rebalance.delay.ms"] = delay

    # -- what clients do -----------------------------------------------------------------------------------------------

    @rule(who=members, instance=instances, protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky",)]))
    def join(self, who: int, instance: str | None, protocols: tuple[str, ...]) -> None:
        if who in self.ids:
            instance = self.instances[who]
        self.instances[who] = instance
        named = tuple((name, b"") for name in protocols)
        self.joins[who] = self.play.join(GROUP, self.ids.get(who, ""), protocols=named, instance=instance)
        self.hear()

    @rule(who=members)
    def sync(self, who: int) -> None:
        if who not in self.generations:
            return
        group = self.play.machine.groups.get(GROUP)
        handed = {}
        if isinstance(group, ClassicGroup) and group.leader == self.ids.get(who):
            everyone = sorted(group.members)
            for place, member in enumerate(everyone):
                handed[member] = bytes(range(PARTITIONS)[place :: len(everyone)])
        generation = self.generations[who]
        token = self.play.sync(GROUP, self.ids[who], generation, handed, group_instance_id=self.instances[who])
        self.syncs[who] = token, generation
        self.hear()

    @rule(who=members, shift=st.sampled_from([0, 0, 0, -1, 1]))
    def beat(self, who: int, shift: int) -> None:
        if who in self.generations:
            self.play.heartbeat(GROUP, self.ids[who], self.generations[who] + shift, self.instances[who])

    @rule(who=members)
    def leave(self, who: int) -> None:
        if who in self.ids:
            self.play.leave(GROUP, (self.ids.pop(who), self.instances[who]))
            self.generations.pop(who, None)
            self.hear()

    @rule(who=members, partition=st.integers(0, PARTITIONS - 1), shift=st.sampled_from([0, 0, -1]))
    def commit(self, who: int, partition: int, shift: int) -> None:
        if who not in self.generations:
            return
        self.offset += 1
        generation = self.generations[who] + shift
        each = OffsetCommitRequest.OffsetCommitRequestPartition(partition, self.offset)
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(TOPIC, partitions=[each])]
        request = OffsetCommitRequest(GROUP, generation, self.ids[who], self.instances[who], topics=topics)
        group = self.play.machine.groups.get(GROUP)
        answer = self.play.answer(request)
        if not isinstance(answer, ErrorCode):
            assert isinstance(group, ClassicGroup) and group.generation == generation, "an old generation committed"
            assert self.ids[who] in group.members, "a stranger committed"
            self.commits[partition] = self.offset

    # -- what happens to them ------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 99, 100, 3000, 9_999, 10_000, 31_000]))
    def wait(self, ms: int) -> None:
        self.play.pass_time(ms)
        self.hear()

    @rule()
    def crash(self) -> None:
        self.play.restart()
        self.joins.clear()
        self.syncs.clear()

    def hear(self) -> None:
        for who, token in list(self.joins.items()):
            answer = self.play.answers.get(token)
            if answer is None:
                continue
            del self.joins[who]
            if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.ids[who] = answer.member_id
            else:
                self.ids.pop(who, None)
            self.generations.pop(who, None)
            if answer.error_code == ErrorCode.NONE:
                self.generations[who] = answer.generation_id
        for who, (token, generation) in list(self.syncs.items()):
            answer = self.play.answers.get(token)
            if answer is None:
                continue
            del self.syncs[who]
            if not isinstance(answer, ErrorCode) and answer.error_code == ErrorCode.NONE:
                self.given(who, generation, answer)

    def given(self, who: int, generation: int, answer: Any) -> None:
        for partition in answer.assignment:
            owner = self.owners.setdefault((generation, partition), self._person(who))
            assert owner == self._person(who), f"partition {partition} has two owners in generation {generation}"

    def _person(self, who: int) -> str:
        """A static member is the same whatever its id of the moment."""
        return self.instances[who] or self.ids.get(who, "")

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def commits_are_kept(self) -> None:
        for partition, offset in self.commits.items():
            value = self.play.machine.offsets.get(GROUP, TOPIC, partition)
            assert value is not None and committed_offset(value) == offset

    @invariant()
    def the_group_is_whole(self) -> None:
        group = self.play.machine.groups.get(GROUP)
        if not isinstance(group, ClassicGroup):
            return
        assert (group.state is ClassicState.EMPTY) == (not group.members) or group.state is ClassicState.PREPARING
        assert group.leader is None or group.leader in group.members
        assert set(group.static.values()) <= set(group.members)
        assert group.pending_sync <= set(group.members)
        if group.state is ClassicState.STABLE:
            assert group.generation >= self.stable_generation, "a generation came back"
            self.stable_generation = group.generation
            waiting = {member.id for member in group.members.values() if member.sync_token is not None}
            assert waiting <= group.held, "nobody answers these"
        if group.state is not ClassicState.PREPARING:
            assert all(member.join_token is None for member in group.members.values()), "nobody answers these"

    @invariant()
    def the_log_makes_the_same_group(self) -> None:
        group = self.play.machine.groups.get(GROUP)
        if not isinstance(group, ClassicGroup) or group.state is not ClassicState.STABLE:
            return
        other = Play()
        other.log = list(self.play.log)
        other.restart()
        again = other.machine.groups[GROUP]
        assert isinstance(again, ClassicGroup)
        assert (again.generation, again.leader, again.protocol) == (group.generation, group.leader, group.protocol)
        assert {each.id: each.assignment for each in again.members.values()} == {
            each.id: each.assignment for each in group.members.values()
        }


GroupModel.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestGroupModel = GroupModel.TestCase
