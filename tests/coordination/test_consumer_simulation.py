"""Groups of the consumer protocol through seeds of trouble: what must hold after every step, and what at the end.

Clients join, leave, die, change their minds and lose answers; topics come, grow and go; the broker restarts. Replay one
seed with `pytest tests/coordination/test_consumer_simulation.py -k "seed and 17"`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.coordination import Logged
from moldau.coordination.groups import GroupMachine
from moldau.coordination.groups.consumer import ConsumerGroup
from moldau.kernel import ErrorCode
from moldau.testing.dice import SeededDice
from tests.coordination.consumer_play import Client, ConsumerPlay, settle
from tests.coordination.topics import Topics

SEEDS = 500
STEPS = 120
EXPRESSIONS = ["t[0-2]", "t.*", "nothing"]


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"consumer groups {seed}")
        counts = {f"t{index}": self.random.randint(1, 7) for index in range(3)}
        interval_ms = self.random.choice([0, 1000])
        self.play = ConsumerPlay(Topics(**counts), seed, group__consumer__assignment__interval__ms=interval_ms)
        for name in counts:
            self.play.topics.rack_map[name, 0] = frozenset({"east"})
        self.clients: dict[str, Client] = {}
        self.epochs: dict[str, int] = {}
        self.made = 0
        self.assignor = self.random.choice([None, "uniform", "range"])

    # -- what happens --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        happenings = [
            (self.beat, 50),
            (self.lose_an_answer, 12),
            (self.join, 10),
            (self.leave, 4),
            (self.go_away_and_return, 3),
            (self.die, 2),
            (self.subscribe, 5),
            (self.change_topics, 4),
            (self.pass_time, 12),
            (self.restart, 3),
        ]
        happen = self.random.choices([each for each, _ in happenings], [weight for _, weight in happenings])[0]
        happen()

    def some_client(self) -> Client | None:
        return self.random.choice(list(self.clients.values())) if self.clients else None

    def wish(self) -> dict[str, Any]:
        if self.random.random() < 0.25:
            return {"regex": self.random.choice(EXPRESSIONS), "topics": []}
        names = sorted(self.play.topics.counts)
        wanted = names if self.random.random() < 0.5 else self.random.sample(names, self.random.randint(0, len(names)))
        return {"topics": wanted, "regex": ""}

    def join(self) -> None:
        if len(self.clients) >= 6:
            return
        self.made += 1
        about = {"rack": self.random.choice([None, "east", "west"]), "assignor": self.assignor, **self.wish()}
        instance = f"instance-{self.made}" if self.random.random() < 0.3 else None
        client = Client(self.play, f"m{self.made}", instance=instance, timeout_ms=60_000, **about)
        self.clients[client.id] = client
        client.beat()

    def beat(self) -> None:
        client = self.some_client()
        if client is not None:
            client.beat()

    def lose_an_answer(self) -> None:
        client = self.some_client()
        if client is not None:
            client.lose_answer()

    def leave(self) -> None:
        client = self.some_client()
        if client is not None:
            client.leave()
            del self.clients[client.id]

    def go_away_and_return(self) -> None:
        static = [client for client in self.clients.values() if client.instance is not None and client.epoch]
        if static:
            client = self.random.choice(static)
            if not isinstance(client.leave(-2), ErrorCode):
                self.made += 1
                del self.clients[client.id]
                client.id = f"m{self.made}"
                self.clients[client.id] = client

    def die(self) -> None:
        client = self.some_client()
        if client is not None:
            del self.clients[client.id]

    def subscribe(self) -> None:
        client = self.some_client()
        if client is not None:
            client.beat(**self.wish())

    def change_topics(self) -> None:
        topics = self.play.topics
        name = f"t{self.random.randrange(5)}"
        if name not in topics.counts:
            topics.create(name, self.random.randint(1, 5))
            self.play.change_topics(name)
        elif self.random.random() < 0.5:
            topics.counts[name] += 1
            self.play.change_topics(name)
        else:
            topics.delete(name)
            for client in self.clients.values():
                client.held.pop(name, None)
            self.play.change_topics(deleted=[name])

    def pass_time(self) -> None:
        self.play.pass_time(self.random.choice([100, 1000, 1000, 20_000]))

    def restart(self) -> None:
        self.play.restart()

    # -- what must hold ------------------------------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.play.machine.groups.get("g")
        return group if isinstance(group, ConsumerGroup) else None

    def check(self) -> None:
        group = self.group
        if group is None:
            return
        self.check_one_owner(group)
        self.check_epochs(group)
        self.check_target(group)

    def check_one_owner(self, group: ConsumerGroup) -> None:
        """Neither for the group nor among clients that it still counts as members."""
        owners: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            for partitions in (member.holding.assigned, member.holding.revoking):
                for topic_id, indexes in partitions.items():
                    for index in indexes:
                        assert owners.setdefault((topic_id, index), member.id) == member.id
        assert owners == group.owners
        readers: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            if client.id in group.members:
                for name, held in client.held.items():
                    for index in held:
                        assert readers.setdefault((name, index), client.id) == client.id

    def check_epochs(self, group: ConsumerGroup) -> None:
        for member in group.members.values():
            epoch = member.holding.epoch
            if epoch >= 0:
                assert epoch >= self.epochs.get(member.id, 0)
                assert epoch <= group.target_epoch
                self.epochs[member.id] = epoch
        self.epochs = {member_id: self.epochs.get(member_id, 0) for member_id in group.members}
        moving = [each for each in group.members.values() if not each.holding.is_reconciled_to(group.target_epoch)]
        assert group.is_reconciled == (not moving)

    def check_target(self, group: ConsumerGroup) -> None:
        """Everything that is wanted is given once, to one who wants it, and no move would make loads more equal."""
        if not group.members or group.target_epoch < group.epoch:
            return
        topics = self.play.topics
        wants = {
            member.id: {topics.ids[name] for name in group.topics_of(member.about) if name in topics.ids}
            for member in group.members.values()
        }
        given = [
            (topic_id, index, member_id)
            for member_id, target in group.targets.items()
            for topic_id, indexes in target.items()
            for index in indexes
        ]
        expected = {
            (topics.ids[name], index)
            for name, count in topics.counts.items()
            if any(topics.ids[name] in each for each in wants.values())
            for index in range(count)
        }
        assert sorted((topic_id, index) for topic_id, index, _ in given) == sorted(expected)
        assert all(topic_id in wants[member_id] for topic_id, _, member_id in given)
        if group.preferred_assignor("uniform") != "uniform":
            return
        loads = {member_id: sum(map(len, group.targets.get(member_id, {}).values())) for member_id in group.members}
        for topic_id, _, owner in given:
            assert all(loads[owner] <= loads[other] + 1 for other in group.members if topic_id in wants[other]), loads

    def check_log(self) -> None:
        """The log makes the same groups, and so does what compaction leaves of it."""
        kept = dict(self.play.log)
        last = {record.key: index for index, record in enumerate(self.play.log)}
        compacted = [Logged(key, kept[key]) for key in sorted(last, key=last.__getitem__) if kept[key] is not None]
        for log in (self.play.log, compacted):
            machine = GroupMachine(self.play.settings, SeededDice(0), self.play.topics, print)
            for record in log:
                machine.replay(record.key, record.value)
            assert picture(machine.groups.get("g")) == picture(self.group)


def picture(group: Any) -> Any:
    if not isinstance(group, ConsumerGroup):
        return None
    return {
        "members": {member.id: (member.about, member.holding) for member in group.members.values()},
        **{
            name: getattr(group, name)
            for name in group.__slots__
            if name not in ("members", "history", "has_partition_metadata")
        },
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_share_partitions_safely_and_come_to_rest(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.check_log()
    # The dead are found out, the living are heard of, and then everything that is wanted is read by somebody.
    for _ in range(70):
        world.play.pass_time(1000)
        for client in world.clients.values():
            client.beat()
            world.check()
    settle(world.play, world.clients.values())
    world.check()
    world.check_log()
    if world.clients:
        group = world.group
        assert group is not None and set(group.members) == set(world.clients)
        assert {name: held for name, held in _read_by(world.clients.values()).items() if held} == _wanted(world, group)


def _read_by(clients: Any) -> dict[str, set[int]]:
    read: dict[str, set[int]] = {}
    for client in clients:
        for name, held in client.held.items():
            read.setdefault(name, set()).update(held)
    return read


def _wanted(world: World, group: ConsumerGroup) -> dict[str, set[int]]:
    counts = world.play.topics.counts
    names = {name for member in group.members.values() for name in group.topics_of(member.about)}
    return {name: set(range(counts[name])) for name in names if name in counts}
