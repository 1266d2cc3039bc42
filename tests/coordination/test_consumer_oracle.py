"""Our consumer groups beside those of a real Apache Kafka: the same requests, the same answers.

Kafka is asked over the wire, our machine directly. What differs by design is not compared: heartbeat intervals while
partitions move, and how soon a target is there after a member left.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.handlers import k68_consumer_group_heartbeat as handler
from moldau.coordination import Logged, partition_of
from moldau.coordination.groups import Asked, Caller
from moldau.coordination.groups.consumer_records import CONSUMER_KINDS, decode
from moldau.coordination.prefixed import kind_of
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import iterate_batches, iterate_records
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.coordinator.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from tests.coordination.classic_client import subscription
from tests.coordination.consumer_play import ConsumerPlay, Held
from tests.coordination.topics import Topics
from tests.differential.wire import Wire
from tests.oracle import RunningKafka

pytestmark = pytest.mark.oracle
GROUP_RESOURCE = 32
OFFSETS_PARTITIONS = 4  # of the oracle
WAIT_SECONDS_MAX = 20.0
_numbers = itertools.count()


class OurSide:
    def __init__(self, topics: dict[str, int]) -> None:
        self.play = ConsumerPlay(Topics(**topics))
        self.tokens = itertools.count(1)

    def topic_id(self, name: str) -> bytes:
        return self.play.topics.ids[name]

    def name_of(self, topic_id: bytes) -> str:
        return self.play.topics.name_of(topic_id) or "?"

    def ask(self, request: Any, version: int) -> Any:
        """The response, or (code, message) of a refusal."""
        token = next(self.tokens)
        try:
            if isinstance(request, ConsumerGroupHeartbeatRequest):
                handler._require_valid(request, version)
                handler._require_assignor(request.server_assignor, ["uniform", "range"])
            asked = Asked(request, token, Caller("differential", "/127.0.0.1", version))
            self.play.shard.submit(asked, self.play.moment)
        except KafkaError as refusal:
            return int(refusal.code), refusal.message
        self.play._finish_turn()
        return self.play.answers[token]

    def describe(self, group: str) -> Any:
        return self.play.machine.consumer.describe(self.play.group(group))


class KafkaSide:
    def __init__(self, kafka: RunningKafka, topics: dict[str, int]) -> None:
        self.wire = Wire(kafka.bootstrap)
        made = [CreateTopicsRequest.CreatableTopic(name, count, 1) for name, count in topics.items()]
        answer = self.wire.ask(CreateTopicsRequest(made, 10_000), 7)
        assert not isinstance(answer, str)
        self.ids = {topic.name: topic.topic_id for topic in answer.topics}  # type: ignore[attr-defined]
        for name in topics:
            self._await(lambda name=name: self._is_known(name))

    def _is_known(self, name: str) -> bool:
        answer: Any = self.wire.ask(MetadataRequest([MetadataRequest.MetadataRequestTopic(name=name)]), 12)
        return bool(answer.topics[0].error_code == 0)

    def _await(self, is_done: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not is_done():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def prepare(self, group: str) -> None:
        """A coordinator that is there, and targets without a delay."""
        config = IncrementalAlterConfigsRequest.AlterableConfig("consumer.assignment.interval.ms", 0, "0")
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(GROUP_RESOURCE, group, [config])
        answer: Any = self.wire.ask(IncrementalAlterConfigsRequest([resource]), 1)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        self._await(lambda: self.wire.ask(find, 6).coordinators[0].error_code == 0)  # type: ignore[union-attr]
        ask = ConsumerGroupHeartbeatRequest(group, "nobody", 7)
        self._await(lambda: self.wire.ask(ask, 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND)  # type: ignore[union-attr]

    def await_topics(self, group: str) -> None:
        """Until the coordinator of the group knows the topics: another group of the same shard is assigned them all."""
        shard = partition_of(group, OFFSETS_PARTITIONS)
        probes = (f"{group}-probe-{number}" for number in itertools.count())
        probe = next(name for name in probes if partition_of(name, OFFSETS_PARTITIONS) == shard)
        self.prepare(probe)

        def is_known() -> bool:
            join = ConsumerGroupHeartbeatRequest(
                probe,
                "p",
                0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=list(self.ids),
                topic_partitions=[],
            )
            answer: Any = self.wire.ask(join, 1)
            self.wire.ask(ConsumerGroupHeartbeatRequest(probe, "p", -1), 1)
            return len(answer.assignment.topic_partitions) == len(self.ids)

        self._await(is_known)

    def topic_id(self, name: str) -> bytes:
        return self.ids[name]

    def name_of(self, topic_id: bytes) -> str:
        return next(name for name, known in self.ids.items() if known == topic_id)

    def ask(self, request: Any, version: int) -> Any:
        return self.wire.ask(request, version)

    def describe(self, group: str) -> Any:
        answer: Any = self.wire.ask(ConsumerGroupDescribeRequest([group]), 1)
        return answer.groups[0]


class Both:
    """One request to both sides; what they answered, when it is the same."""

    def __init__(self, kafka: RunningKafka) -> None:
        # Other processes of this run use the same Kafka.
        self.group = f"both-{os.getpid()}-{next(_numbers)}"
        self.topic, self.other = f"{self.group}-orders", f"{self.group}-users"
        topics = {self.topic: 6, self.other: 2}
        self.kafka = KafkaSide(kafka, topics)
        self.ours = OurSide(topics)
        self.kafka.prepare(self.group)
        self.kafka.await_topics(self.group)

    @property
    def sides(self) -> tuple[OurSide, KafkaSide]:
        return self.ours, self.kafka

    def beat(self, member: str, epoch: int, *, version: int = 1, owned: Held | None = None, **fields: Any) -> Any:
        answers = []
        for side in self.sides:
            if owned is not None:
                fields["topic_partitions"] = [
                    ConsumerGroupHeartbeatRequest.TopicPartitions(side.topic_id(name), sorted(partitions))
                    for name, partitions in owned.items()
                ]
            request = ConsumerGroupHeartbeatRequest(self.group, member, epoch, **fields)
            answers.append(self._seen(side, side.ask(request, version)))
        assert answers[0] == answers[1]
        return answers[0]

    def _seen(self, side: Any, answer: Any) -> Any:
        if isinstance(answer, tuple):
            return ErrorCode(answer[0]).name, answer[1]
        if answer.error_code:
            return ErrorCode(answer.error_code).name, answer.error_message
        held = None
        if answer.assignment is not None:
            held = {side.name_of(each.topic_id): set(each.partitions) for each in answer.assignment.topic_partitions}
        return answer.member_id, answer.member_epoch, held

    def join(self, member: str, **fields: Any) -> Any:
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self.topic], **fields}
        return self.beat(member, 0, owned={}, **fields)

    def code(self, request: Any, version: int) -> str:
        """Of a classic request that is answered at once."""
        codes = []
        for side in self.sides:
            answer = side.ask(request, version)
            codes.append(ErrorCode(answer[0] if isinstance(answer, tuple) else answer.error_code).name)
        assert codes[0] == codes[1]
        return codes[0]

    def describe(self) -> Any:
        described = []
        for side in self.sides:
            group = side.describe(self.group)
            members = {
                member.member_id: (
                    member.instance_id,
                    member.rack_id,
                    member.member_epoch,
                    member.client_id,
                    member.client_host,
                    sorted(member.subscribed_topic_names),
                    member.subscribed_topic_regex,
                    {each.topic_name: sorted(each.partitions) for each in member.assignment.topic_partitions},
                    {each.topic_name: sorted(each.partitions) for each in member.target_assignment.topic_partitions},
                    member.member_type,
                )
                for member in group.members
            }
            described.append(
                (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name, members)
            )
        assert described[0] == described[1]
        return described[0]


@pytest.fixture
def both(apache_kafka: RunningKafka) -> Iterator[Both]:
    both = Both(apache_kafka)
    yield both
    both.kafka.wire.close()


def test_what_is_not_valid_is_refused_in_the_same_words(both: Both) -> None:
    group = both.group
    both.beat("", 0)
    both.beat("", 3, version=0)
    both.beat("", -1, version=0)
    both.beat(" ", 0)
    both.beat("m", 0, instance_id="")
    both.beat("m", 0, rack_id=" ")
    both.beat("m", 0)
    both.beat("m", 0, rebalance_timeout_ms=1)
    both.beat("m", 0, rebalance_timeout_ms=1, owned={both.topic: {1}})
    both.beat("m", 0, rebalance_timeout_ms=1, owned={})
    both.beat("m", -2)
    both.beat("m", -3)
    both.join("m", server_assignor="mine")
    both.group = ""
    both.beat("m", 0)
    both.group = group
    both.beat("m", 5)
    both.beat("m", -1)
    both.beat("m", -2, instance_id="i")


def test_two_members_share_a_topic(both: Both) -> None:
    everything = {both.topic: set(range(6))}
    assert both.join("a") == ("a", 2, everything)
    both.describe()
    assert both.beat("a", 2) == ("a", 2, None)
    assert both.join("b") == ("b", 3, {})
    state, *_ = both.describe()
    assert state == "Reconciling"
    # Who keeps which half is the assignors' own choice: each side goes on with its own.
    kept = [set(), set()]  # type: ignore[var-annotated]
    for index, side in enumerate(both.sides):
        request = ConsumerGroupHeartbeatRequest(both.group, "a", 2, topic_partitions=None)
        _, epoch, held = both._seen(side, side.ask(request, 1))
        assert (epoch, len(held[both.topic])) == (2, 3)
        kept[index] = held[both.topic]
        owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(side.topic_id(both.topic), sorted(kept[index]))]
        request = ConsumerGroupHeartbeatRequest(both.group, "a", 2, topic_partitions=owned)
        assert both._seen(side, side.ask(request, 1)) == ("a", 3, None)
        # The answer was lost, so it asks again with the epoch before.
        assert both._seen(side, side.ask(request, 1)) == ("a", 3, None)
        request = ConsumerGroupHeartbeatRequest(both.group, "b", 3, topic_partitions=[])
        assert both._seen(side, side.ask(request, 1)) == ("b", 3, {both.topic: set(range(6)) - kept[index]})
    assert both.beat("b", 2)[0] == "FENCED_MEMBER_EPOCH"
    assert both.beat("b", 9)[0] == "FENCED_MEMBER_EPOCH"
    assert both.beat("c", 3)[0] == "UNKNOWN_MEMBER_ID"
    assert both.beat("a", -1) == ("a", -1, None)
    assert both.beat("a", -1)[0] == "UNKNOWN_MEMBER_ID"


def test_a_member_without_topics(both: Both) -> None:
    assert both.join("a", subscribed_topic_names=[]) == ("a", 1, {})
    both.describe()
    assert both.beat("a", 1, subscribed_topic_names=[both.other]) == ("a", 2, {both.other: {0, 1}})
    assert both.beat("a", 2, subscribed_topic_names=[both.topic]) == ("a", 2, {})
    assert both.beat("a", 2, owned={}) == ("a", 3, {both.topic: set(range(6))})
    assert both.beat("a", 3, subscribed_topic_names=[], owned={}) == ("a", 4, {})


def test_topics_that_do_not_exist(both: Both) -> None:
    assert both.join("a", subscribed_topic_names=["both-nothing"]) == ("a", 2, {})
    both.describe()


def test_the_range_assignor(both: Both) -> None:
    names = [both.topic, both.other]
    both.join("a", server_assignor="range", subscribed_topic_names=names)
    both.join("b", server_assignor="range", subscribed_topic_names=names)
    both.beat("a", 2)
    both.beat("a", 2, owned={both.topic: {0, 1, 2}, both.other: {0}})
    both.beat("b", 3)
    state, *_ = both.describe()
    assert state == "Stable"


def test_joining_again_with_epoch_0(both: Both) -> None:
    both.join("a")
    assert both.join("a") == ("a", 2, {both.topic: set(range(6))})
    assert both.join("a", rack_id="r", subscribed_topic_names=[both.other])[1] == 3
    both.describe()


def test_static_members(both: Both) -> None:
    everything = {both.topic: set(range(6))}
    both.join("a", instance_id="i")
    assert both.join("b", instance_id="i")[0] == "UNRELEASED_INSTANCE_ID"
    assert both.join("a", instance_id="i")[0] == "UNRELEASED_INSTANCE_ID"
    assert both.beat("b", 2, instance_id="i")[0] == "FENCED_INSTANCE_ID"
    assert both.beat("b", 2, instance_id="j")[0] == "UNKNOWN_MEMBER_ID"
    assert both.beat("b", -2, instance_id="i")[0] == "FENCED_INSTANCE_ID"
    assert both.beat("b", -1, instance_id="j")[0] == "UNKNOWN_MEMBER_ID"
    assert both.beat("a", -2, instance_id="i") == ("a", -2, None)
    both.describe()
    assert both.join("b", instance_id="i") == ("b", 2, everything)
    assert both.beat("a", 2, instance_id="i")[0] == "FENCED_INSTANCE_ID"
    both.describe()
    both.beat("b", -2, instance_id="i")
    assert both.join("b", instance_id="i") == ("b", 2, everything)
    both.beat("b", -1, instance_id="i")
    assert both.describe() == ("Empty", 3, 2, "uniform", {})


def test_an_expression_that_is_not_one(both: Both) -> None:
    for side in both.sides:
        request = ConsumerGroupHeartbeatRequest(
            both.group, "a", 0, rebalance_timeout_ms=1, subscribed_topic_regex="[", topic_partitions=[]
        )
        code, message = both._seen(side, side.ask(request, 1))
        assert code == "INVALID_REGULAR_EXPRESSION"
        assert message.startswith("SubscribedTopicRegex `[` is not a valid regular expression: ")


@pytest.mark.parametrize("version", [8, 9, 10])
def test_commits_of_members(both: Both, version: int) -> None:
    both.join("a")

    def commit(member: str, epoch: int) -> str:
        codes = []
        for side in both.sides:
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(0, 5)
            topic = OffsetCommitRequest.OffsetCommitRequestTopic(partitions=[partition])
            if version >= 10:
                topic.topic_id = side.topic_id(both.topic)
            else:
                topic.name = both.topic
            answer = side.ask(OffsetCommitRequest(both.group, epoch, member, topics=[topic]), version)
            code = answer[0] if isinstance(answer, tuple) else answer.topics[0].partitions[0].error_code
            codes.append(ErrorCode(code).name)
        assert codes[0] == codes[1]
        return codes[0]

    assert commit("a", 2) == ("NONE" if version >= 9 else "UNSUPPORTED_VERSION")
    commit("a", 1)
    commit("a", 3)
    commit("x", 2)
    commit("", -1)


def classic_join(both: Both, member: str, instance: str | None = None, names: list[str] | None = None) -> Any:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", subscription(names or [both.topic]))]
    return JoinGroupRequest(both.group, 10_000, 60_000, member, instance, "consumer", protocols)


def sync(both: Both, generation: int, member: str, protocol: str = "range") -> SyncGroupRequest:
    return SyncGroupRequest(both.group, generation, member, protocol_type="consumer", protocol_name=protocol)


def test_a_classic_member_in_a_consumer_group(both: Both) -> None:
    both.join("a")
    assert both.code(classic_join(both, ""), 9) == "MEMBER_ID_REQUIRED"
    assert both.code(classic_join(both, "c"), 9) == "NONE"
    assert both.code(sync(both, 3, "c"), 5) == "NONE"
    assert both.code(sync(both, 3, "c", "other"), 5) == "INCONSISTENT_GROUP_PROTOCOL"
    assert both.code(sync(both, 2, "c"), 5) == "ILLEGAL_GENERATION"
    assert both.code(sync(both, 2, "a"), 5) == "UNKNOWN_MEMBER_ID"
    assert both.code(HeartbeatRequest(both.group, 3, "c"), 4) == "NONE"
    assert both.code(HeartbeatRequest(both.group, 2, "c"), 4) == "ILLEGAL_GENERATION"
    assert both.code(HeartbeatRequest(both.group, 2, "a"), 4) == "UNKNOWN_MEMBER_ID"
    assert both.code(HeartbeatRequest(both.group, 2, "x"), 4) == "UNKNOWN_MEMBER_ID"
    both.beat("a", 2, subscribed_topic_names=[both.other], owned={})
    assert both.code(HeartbeatRequest(both.group, 3, "c"), 4) == "REBALANCE_IN_PROGRESS"
    assert both.code(sync(both, 3, "c"), 5) == "REBALANCE_IN_PROGRESS"
    assert both.code(classic_join(both, "c"), 9) == "NONE"
    both.describe()
    wrong = JoinGroupRequest(both.group, 10_000, 60_000, "d", None, "connect", classic_join(both, "d").protocols)
    assert both.code(wrong, 9) == "INCONSISTENT_GROUP_PROTOCOL"
    # The last of the consumer protocol leaves: the group is classic, and rebalances.
    both.beat("a", -1)
    assert both.code(HeartbeatRequest(both.group, 4, "c"), 4) == "REBALANCE_IN_PROGRESS"
    assert both.beat("a", 4)[0] == "GROUP_ID_NOT_FOUND"


def test_a_static_member_between_protocols(both: Both) -> None:
    both.join("a", instance_id="i")
    for side in both.sides:
        answer = side.ask(classic_join(both, "", "i"), 9)
        assert (answer.error_code, answer.generation_id) == (0, 2)
    both.code(LeaveGroupRequest(both.group, members=[LeaveGroupRequest.MemberIdentity("", "i")]), 5)


def test_records_are_the_same_in_the_same_order(both: Both, apache_kafka: RunningKafka) -> None:
    """But for hashes and times. Kafka's own records make the group that ours make."""
    both.join("a", instance_id="i", rack_id="r", server_assignor="range")
    both.join("b")
    both.beat("a", 2)
    both.beat("a", 2, owned={both.topic: {0, 1, 2}})
    both.beat("b", 3)
    both.beat("a", -2, instance_id="i")
    both.join("a2", instance_id="i")
    both.code(classic_join(both, "c"), 9)
    theirs = [
        record
        for record in _offsets_log(apache_kafka, partition_of(both.group, OFFSETS_PARTITIONS))
        if kind_of(record.key) in CONSUMER_KINDS and decode(*record).key.group_id == both.group  # type: ignore[attr-defined]
    ]
    ours = both.ours.play.log
    assert _plain_log(both.kafka, theirs) == _plain_log(both.ours, ours)
    machine = OurSide({}).play.machine
    for record in theirs:
        machine.replay(record.key, record.value)
    group = machine.groups[both.group]
    assert {member.id: member.holding.epoch for member in group.members.values()} == {
        member.id: member.holding.epoch for member in both.ours.play.group(both.group).members.values()
    }


def _offsets_log(kafka: RunningKafka, partition: int) -> list[Logged]:
    found = []
    for path in sorted(Path(kafka.log_dir, f"__consumer_offsets-{partition}").glob("*.log")):
        for _, batch in iterate_batches(path.read_bytes()):
            found += [Logged(bytes(record.key or b""), record.value) for record in iterate_records(batch)]
    return found


def _plain_log(side: Any, log: list[Logged]) -> list[Any]:
    """Members' targets of one assignment come in any order."""
    plain: list[Any] = []
    for kind, same in itertools.groupby((_plain(side, record) for record in log), key=lambda each: each[0]):
        run = list(same)
        if kind == ConsumerGroupTargetAssignmentMemberKey.__name__:
            run.sort(key=lambda each: each[1])
        plain += run
    return plain


def _plain(side: Any, record: Logged) -> Any:
    """A record as it reads, with names for ids and nothing that only one broker can know."""
    key, value = decode(record.key, record.value)
    return type(key).__name__, getattr(key, "member_id", ""), None if value is None else _plain_struct(side, value)


def _plain_struct(side: Any, struct: Any) -> Any:
    plain: dict[str, Any] = {}
    for name in struct.__slots__:
        item = getattr(struct, name)
        if name in ("metadata_hash", "assignment_timestamp"):
            continue
        if name == "topic_id":
            item = side.name_of(item)
        elif isinstance(item, list):
            item = [_plain_struct(side, each) if hasattr(each, "__slots__") else each for each in item]
        elif hasattr(item, "__slots__"):
            item = _plain_struct(side, item)
        plain[name] = item
    return plain
