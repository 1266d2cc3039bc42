"""Members of the consumer protocol, played by hand: `Play` with topics, and clients that do as they are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moldau.coordination import Shard
from moldau.coordination.groups import GroupMachine, TopicsChanged
from moldau.coordination.groups.consumer import ConsumerGroup
from moldau.coordination.prefixed import kind_of
from moldau.kernel import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.coordination.play import PlainSettings, Play
from tests.coordination.topics import Topics

CONSUMER_SETTINGS: dict[str, Any] = {
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.heartbeat.interval.ms": 5000,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.max.size": 2_147_483_647,
    "group.consumer.regex.refresh.interval.ms": 600_000,
    "group.consumer.assignors": ["uniform", "range"],
    "group.consumer.migration.policy": "bidirectional",
}
TIMEOUT_MS = 300_000
Held = dict[str, set[int]]


class ConsumerSettings(PlainSettings):
    def items(self, name: str) -> list[str]:
        return self.values[name]  # type: ignore[return-value]

    def text(self, name: str) -> str:
        return self.values[name]  # type: ignore[return-value]


class ConsumerPlay(Play):
    def __init__(self, topics: Topics, seed: int = 0, **settings: Any) -> None:
        self._chosen = {**CONSUMER_SETTINGS, **{name.replace("__", "."): value for name, value in settings.items()}}
        super().__init__(seed, topics)

    def _new_shard(self) -> Shard[GroupMachine]:
        self.settings = ConsumerSettings({**self.settings.values, **self._chosen})
        return super()._new_shard()

    def group(self, group_id: str = "g") -> ConsumerGroup:
        group = self.machine.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(
        self,
        member: str = "m",
        epoch: int = 0,
        *,
        group: str = "g",
        version: int = 1,
        instance: str | None = None,
        rack: str | None = None,
        timeout_ms: int | None = None,
        topics: list[str] | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        owned: Held | None = None,
        client: str = "client",
    ) -> Any:
        """The answer, or the error code of a refusal. A join sends all that a join must."""
        if epoch == 0:
            timeout_ms = TIMEOUT_MS if timeout_ms is None else timeout_ms
            owned = {} if owned is None else owned
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=-1 if timeout_ms is None else timeout_ms,
            subscribed_topic_names=topics,
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None if owned is None else self._topic_partitions(owned),
        )
        return self.answer(request, version, client=client)

    def _topic_partitions(self, held: Held) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(self.topics.ids[name], sorted(partitions))
            for name, partitions in sorted(held.items())
            if name in self.topics.ids and partitions
        ]

    def held(self, assignment: ConsumerGroupHeartbeatResponse.Assignment) -> Held:
        found: Held = {}
        for topic in assignment.topic_partitions:
            name = self.topics.name_of(topic.topic_id)
            if name is not None:
                found[name] = set(topic.partitions)
        return found

    def change_topics(self, *changed: str, deleted: Iterable[str] = ()) -> None:
        self.shard.submit(TopicsChanged(frozenset(changed) | frozenset(deleted), frozenset(deleted)), self.moment)
        self._finish_turn()

    def kinds_logged(self, since: int) -> list[tuple[int, bool]]:
        """(kind, whether it is a tombstone) of the records from an index on."""
        return [(kind_of(record.key), record.value is None) for record in self.log[since:]]


class Client:
    """A member that does as it is told: takes what it is given, gives up what is not its own any more, and says so."""

    def __init__(self, play: ConsumerPlay, member: str, *, group: str = "g", **about: Any) -> None:
        self.play = play
        self.id = member
        self.group = group
        self.about = about
        self.epoch = 0
        self.held: Held = {}
        self.interval_ms = 0
        self.has_lost_answer = False

    @property
    def instance(self) -> str | None:
        instance: str | None = self.about.get("instance")
        return instance

    def beat(self, **changes: Any) -> ErrorCode:
        """One heartbeat; fenced, it forgets everything and would join next."""
        answer = self._ask(changes)
        if isinstance(answer, ErrorCode):
            if answer is not ErrorCode.UNRELEASED_INSTANCE_ID:
                self.epoch, self.held = 0, {}
            return answer
        self.epoch, self.interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self.held = self.play.held(answer.assignment)
        return ErrorCode.NONE

    def lose_answer(self) -> None:
        """A heartbeat whose answer never comes; the next one says everything."""
        self._ask({})
        self.has_lost_answer = True

    def _ask(self, changes: dict[str, Any]) -> Any:
        self.about.update(changes)
        said = {"instance": self.instance, **changes}
        if self.epoch == 0:
            said = self.about
        elif self.has_lost_answer:
            said = {"timeout_ms": TIMEOUT_MS, **self.about}
        self.has_lost_answer = False
        return self.play.beat(self.id, self.epoch, group=self.group, owned=self.held, **said)

    def leave(self, epoch: int = -1) -> Any:
        answer = self.play.beat(self.id, epoch, group=self.group, instance=self.instance)
        self.epoch, self.held = 0, {}
        return answer


ROUNDS_MAX = 40


def settle(play: ConsumerPlay, clients: Iterable[Client], ms: int = 100) -> int:
    """Let all beat until the group is stable; the rounds that it took."""
    clients = list(clients)
    for rounds in range(1, ROUNDS_MAX + 1):
        for client in clients:
            client.beat()
        if not clients or play.group(clients[0].group).state_name == "Stable":
            return rounds
        play.pass_time(ms)
    raise AssertionError(
        f"not stable after {ROUNDS_MAX} rounds: {[(each.id, each.epoch, each.held) for each in clients]}"
    )
