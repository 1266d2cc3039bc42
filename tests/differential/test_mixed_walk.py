"""Members of both protocols in one group that do whatever comes to mind: each step is answered as Kafka answers it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.protocol.consumer_protocol import read_assignment
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from tests.coordination.classic_client import subscription
from tests.differential.pair import Pair
from tests.differential.test_consumer_groups import Group, Owned
from tests.differential.test_groups import commit, join, sync

pytestmark = pytest.mark.oracle


class Walk:
    STEPS = 40
    # The first of them stays, so that the group does not become a classic one.
    CONSUMERS, CLASSICS = ("a", "b"), ("x", "y", "z")

    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair = pair
        self._group = Group(pair)
        self._dice = random.Random(seed)
        self._topics = (self._group.topic, self._group.other)
        # By member: the epoch or generation that it was told, what it has, and what it was last told to have.
        self._epochs: dict[str, int] = {}
        self._owned: dict[str, Owned] = {}
        self._told: dict[str, Owned] = {}

    def run(self) -> None:
        self._joins("first: ", "a")
        steps = [self._consumer_acts] * 3 + [self._classic_joins] * 3 + [self._classic_syncs] * 3
        steps += [self._classic_beats] * 2 + [self._leaves, self._commits]
        for number in range(self.STEPS):
            self._dice.choice(steps)(f"step {number}")
        # When a member leaves, Kafka makes the next target only when another one is heard of.
        self._joins("in the end", "a")
        self._group.describe("in the end")

    def _consumer_acts(self, say: str) -> None:
        member = self._dice.choice(self.CONSUMERS)
        if member not in self._epochs or self._dice.random() < 0.1:
            self._joins(say, member)
            return
        if self._dice.random() < 0.7:
            self._owned[member] = self._told[member]
        owned = self._dice.choice([None, self._owned[member]])
        self._hear(member, self._group.beat(member, self._epochs[member], f"{say}: goes on", owned=owned))

    def _joins(self, say: str, member: str) -> None:
        answers = self._group.join(member, f"{say}: joins", subscribed_topic_names=self._some_topics())
        self._owned[member] = {}
        self._hear(member, answers)

    def _hear(self, member: str, answers: tuple[Any, Any]) -> None:
        answer = answers[0]
        if answer.error_code:
            return
        self._epochs[member] = answer.member_epoch
        if answer.assignment is not None:
            names = self._pair.moldau.names_of_ids
            self._told[member] = {names[each.topic_id]: each.partitions for each in answer.assignment.topic_partitions}

    def _classic_joins(self, say: str) -> None:
        member = self._dice.choice(self.CLASSICS)
        if self._dice.random() < 0.7:
            self._owned[member] = self._told.get(member, {})
        held = {name: set(partitions) for name, partitions in self._owned.get(member, {}).items()}
        protocols = [("range", subscription(self._some_topics(), held))]
        # One of them says that it is static once it has joined, which is too late.
        instance = "i" if member == "z" and member in self._epochs else None
        request = join(self._group.name, member, version=9, protocols=protocols, instance=instance)
        answers = self._pair.ask(request, 9, say=f"{say}: {member} joins with {held}")
        if not answers[0].error_code:
            self._epochs[member] = answers[0].generation_id

    def _classic_syncs(self, say: str) -> None:
        member, generation = self._some_classic()
        answers = self._pair.ask(
            sync(self._group.name, generation, member, {}, protocol_type="consumer", protocol_name="range"),
            5,
            edit=_readable,
            say=f"{say}: {member} syncs in {generation}",
        )
        if not answers[0].error_code:
            assignment = read_assignment(answers[0].assignment)
            assert assignment is not None
            self._told[member] = {each.topic: sorted(each.partitions) for each in assignment.assigned_partitions}

    def _classic_beats(self, say: str) -> None:
        member, generation = self._some_classic()
        self._pair.ask(
            HeartbeatRequest(self._group.name, generation, member), 4, say=f"{say}: {member} beats {generation}"
        )

    def _leaves(self, say: str) -> None:
        member = self._dice.choice(("b", *self.CLASSICS))
        if member == "b" and self._dice.random() < 0.5:
            self._group.beat(member, -1, f"{say}: leaves")
        else:
            identity = LeaveGroupRequest.MemberIdentity(member, None)
            self._pair.ask(LeaveGroupRequest(self._group.name, members=[identity]), 5, say=f"{say}: {member} leaves")
        self._epochs.pop(member, None)
        self._told.pop(member, None)
        # Kafka makes the next target only when somebody is heard of.
        self._hear("a", self._group.beat("a", self._epochs["a"], f"{say}: goes on"))

    def _commits(self, say: str) -> None:
        member = self._dice.choice((*self.CONSUMERS, *self.CLASSICS))
        epoch = max(0, self._epochs.get(member, 1) - self._dice.choice([0, 0, 1, 2, -1]))
        offsets = {self._dice.choice(self._topics): {self._dice.choice([0, 1]): 5}}
        version, name = self._dice.choice([8, 9, 10]), self._group.name
        self._pair.ask(
            lambda side: commit(side, name, offsets, version, epoch, member), version, say=f"{say}: {member} commits"
        )

    def _some_classic(self) -> tuple[str, int]:
        member = self._dice.choice(self.CLASSICS)
        return member, self._epochs.get(member, 1) + self._dice.choice([0] * 8 + [-1, 1])

    def _some_topics(self) -> list[str]:
        return self._dice.choice([[self._topics[0]], [self._topics[1]], list(self._topics)])


def _readable(tree: Any) -> Any:
    """Kafka names topics in the order of a hash map."""
    assignment = read_assignment(bytes.fromhex(tree["assignment"]))
    topics = (
        {} if assignment is None else {each.topic: sorted(each.partitions) for each in assignment.assigned_partitions}
    )
    return {**tree, "assignment": topics}


@pytest.mark.parametrize("seed", range(6))
def test_a_random_walk_of_members_of_both_protocols(pair: Pair, seed: int) -> None:
    Walk(pair, seed).run()
