"""Consumer groups (KIP-848): heartbeats, descriptions, and whatever else meets such a group, at every version."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.coordination import partition_of
from moldau.coordination.groups.history import HISTORY_TAG
from moldau.kernel import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.testing import Broker
from tests.differential.conftest import LIKE_THE_ORACLE
from tests.differential.deliberate import (
    HEARTBEATS,
    LOST_AGAIN,
    NO_SUBSCRIPTION,
    NOBODY_IN_AN_EPOCH,
    WANTS_NOTHING,
    Deliberate,
)
from tests.differential.pair import Pair, Side, versions_of
from tests.differential.plain import only
from tests.differential.test_group_tools import printed
from tests.differential.test_groups import (
    OFFSETS_PARTITIONS,
    ORDERED_BY_HASH,
    commit,
    fetch_offsets,
    join,
    ready,
    stable,
    subscription,
    sync,
)
from tests.differential.wire import Wire
from tests.oracle import ApacheKafka, require_oracle

pytestmark = pytest.mark.oracle

GROUP_RESOURCE = 32
PARTITIONS = 6
EVERYTHING = list(range(PARTITIONS))
ORDERED_BY_HASH_HERE = (
    "assignment.topic_partitions",
    "assignment.topic_partitions.*.partitions",
    "groups",
    "groups.*.members",
    "groups.*.members.*.subscribed_topic_names",
    "groups.*.members.*.assignment.topic_partitions",
    "groups.*.members.*.assignment.topic_partitions.*.partitions",
    "groups.*.members.*.target_assignment.topic_partitions",
    "groups.*.members.*.target_assignment.topic_partitions.*.partitions",
)
Owned = dict[str, list[int]]


class Group:
    """One group on both sides, with a topic of six partitions and one of two; targets are made without a delay."""

    def __init__(self, pair: Pair, version: int = 1) -> None:
        self.pair = pair
        self.version = version
        self.name = pair.topic("group")
        for side in pair.sides:
            ready(side, self.name)
            assign_at_once(side, self.name)
        self.topic, self.other = pair.create("wanted", PARTITIONS), pair.create("other", 2)
        for side in pair.sides:
            await_topics(side, self.name, [self.topic, self.other])

    def request(
        self, side: Side, member: str, epoch: int, owned: Owned | None = None, **fields: Any
    ) -> ConsumerGroupHeartbeatRequest:
        if owned is not None:
            fields["topic_partitions"] = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(side.topic_ids[name], indexes)
                for name, indexes in owned.items()
            ]
        return ConsumerGroupHeartbeatRequest(self.name, member, epoch, **fields)

    def beat(self, member: str, epoch: int, say: str, *, owned: Owned | None = None, **more: Any) -> tuple[Any, Any]:
        asked = {name: more.pop(name) for name in ("until", "masks") if name in more}
        deliberate = more.pop("deliberate", ())
        return self.pair.ask(
            lambda side: self.request(side, member, epoch, owned, **more),
            self.version,
            deliberate=[HEARTBEATS, *deliberate],
            unordered=ORDERED_BY_HASH_HERE,
            say=f"{member}: {say}",
            **asked,
        )

    def join(self, member: str, say: str = "joins", **more: Any) -> tuple[Any, Any]:
        """With the range assignor unless it says otherwise: Kafka's uniform one may hand out another half."""
        wanted: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "server_assignor": "range",
            "subscribed_topic_names": [self.topic],
        }
        return self.beat(member, 0, say, owned={}, **{**wanted, **more})

    def describe(self, say: str) -> None:
        request = ConsumerGroupDescribeRequest([self.name])
        self.pair.ask(request, self.version, unordered=ORDERED_BY_HASH_HERE, say=say)


def assign_at_once(side: Side, name: str) -> None:
    config = IncrementalAlterConfigsRequest.AlterableConfig("consumer.assignment.interval.ms", 0, "0")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(GROUP_RESOURCE, name, [config])
    answer = side.ask(IncrementalAlterConfigsRequest([resource]), 1)
    assert answer.responses[0].error_code == 0, (side.name, answer.responses[0])


def await_topics(side: Side, name: str, topics: list[str]) -> None:
    """Until the coordinator of the group knows them: a member of another group of its shard is given them all."""
    shard = partition_of(name, OFFSETS_PARTITIONS)
    probes = (f"{name}-probe-{number}" for number in itertools.count())
    probe = next(each for each in probes if partition_of(each, OFFSETS_PARTITIONS) == shard)
    joins = ConsumerGroupHeartbeatRequest(
        probe, "p", 0, rebalance_timeout_ms=60_000, subscribed_topic_names=topics, topic_partitions=[]
    )
    ready(side, probe)
    assign_at_once(side, probe)

    def is_given_all(answer: Any) -> bool:
        side.ask(ConsumerGroupHeartbeatRequest(probe, "p", -1), 1)
        return answer.error_code == 0 and len(answer.assignment.topic_partitions) == len(topics)

    answer = side.ask_until(joins, 1, is_given_all)
    assert len(answer.assignment.topic_partitions) == len(topics), (side.name, answer)


# -- heartbeats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(68))
def test_a_group_from_its_first_member_to_its_last(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    topic = group.topic
    group.join("a")
    group.describe("one member")
    group.beat("a", 2, "nothing new")
    group.beat("a", 2, "says what it has", owned={topic: EVERYTHING})
    group.beat(
        "a",
        2,
        "says everything",
        owned={topic: EVERYTHING},
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        server_assignor="range",
    )
    group.join("b")
    group.describe("two members, one of which has it all")
    group.beat("b", 3, "nothing free yet", owned={})
    group.beat("a", 2, "is told to give up")
    group.describe("who is to give up has it still")
    group.beat("a", 2, "still has it", owned={topic: EVERYTHING})
    group.beat("a", 2, "has some of it", owned={topic: [0, 1, 2, 5]})
    group.beat("a", 2, "gave up", owned={topic: [0, 1, 2]})
    group.beat("a", 2, "did not hear it", owned={topic: [0, 1, 2]})
    group.beat("a", 2, "did not hear it, and has what it should not", owned={topic: [0, 1, 2, 3]})
    group.beat("a", 2, "did not hear it, and does not say what it has")
    group.describe("what nobody has is free")
    group.beat("b", 3, "is given the rest", owned={})
    group.describe("stable")
    group.beat("b", 3, "says what it has", owned={topic: [3, 4, 5]})
    group.beat("b", -1, "leaves")
    group.beat("b", -1, "leaves again")
    group.beat("b", 3, "after it left")
    group.beat("a", 3, "has it all again")
    group.describe("one member again")
    group.beat("a", -1, "leaves")
    group.describe("empty")
    group.join("c", "joins the empty group")
    group.describe("somebody again")


@pytest.mark.parametrize("version", versions_of(68))
def test_epochs_that_are_not_the_members(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    group.beat("a", 1, "of no group")
    group.beat("a", -1, "leaves no group")
    group.beat("a", -2, "leaves no group for a while", instance_id="i")
    group.join("a")
    group.join("b")
    for epoch in (1, 2, 4, 1_000):
        group.beat("b", epoch, f"epoch {epoch}", owned={})
        group.beat("b", epoch, f"epoch {epoch} with partitions", owned={group.topic: [0]})
    group.beat("ghost", 3, "not a member")
    group.beat("ghost", -1, "leaves")
    group.beat("b", -2, "leaves for a while, but is not static", instance_id="i")
    group.join("b", "joins again")
    group.join("a", "joins again, having had it all")
    group.describe("in the end")


def test_an_answer_that_is_lost(pair: Pair) -> None:
    group = Group(pair)
    for member in ("a", "b", "c"):
        group.join(member)
    group.beat("b", 3, "hears of the next epoch, and waits for a")
    group.beat("b", 3, "did not hear it", owned={})
    group.beat("b", 3, "nor that", owned={}, deliberate=[LOST_AGAIN])


@pytest.mark.parametrize("version", versions_of(68))
def test_what_a_member_wants(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    group.join("a", subscribed_topic_names=[])
    group.describe("nothing")
    group.beat("a", 1, "wants a topic", subscribed_topic_names=[group.other])
    group.beat("a", 2, "wants another instead", subscribed_topic_names=[group.topic])
    group.describe("gives up the first")
    group.beat("a", 2, "gave it up", owned={})
    group.beat("a", 3, "wants both", owned={group.topic: EVERYTHING}, subscribed_topic_names=[group.topic, group.other])
    group.beat("a", 4, "wants one that does not exist", subscribed_topic_names=[pair.topic("none")], owned={})
    group.beat("a", 5, "the same twice", subscribed_topic_names=[group.topic, group.topic], owned={})
    group.beat("a", 6, "another rack, assignor and timeout", rack_id="r", server_assignor="uniform")
    group.beat("a", 6, "a timeout", rebalance_timeout_ms=5_000)
    group.describe("after all that")


def test_a_member_that_wants_nothing_where_one_left(pair: Pair) -> None:
    group = Group(pair)
    group.join("b")
    group.join("c")
    group.beat("b", -1, "leaves")
    group.join("a", "wants nothing", subscribed_topic_names=[])
    ours, _ = group.beat("c", 3, "goes on", deliberate=[WANTS_NOTHING])
    assert [each.partitions for each in ours.assignment.topic_partitions] == [EVERYTHING]


@pytest.mark.parametrize("version", versions_of(68))
def test_a_member_that_the_broker_names(pair: Pair, version: int) -> None:
    """Version 0 only: 1 refuses."""
    group = Group(pair, version)
    group.join("", masks=("member_id",))


@pytest.mark.parametrize("version", versions_of(68))
def test_static_members(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    group.join("a", instance_id="i")
    group.join("b", "is not released", instance_id="i")
    group.join("a", "joins again", instance_id="i")
    group.beat("b", 2, "another id", instance_id="i")
    group.beat("a", 2, "another instance", instance_id="j")
    group.beat("a", 2, "does not say which instance")
    group.beat("b", -2, "another id leaves for a while", instance_id="i")
    group.beat("a", -2, "leaves for a while", instance_id="i")
    group.describe("away")
    group.beat("a", 2, "after it left", instance_id="i")
    group.join("b", "comes back", instance_id="i")
    group.describe("is back")
    group.beat("a", 2, "the old id", instance_id="i")
    group.beat("b", 2, "nothing new", instance_id="i")
    group.join("c", instance_id="k")
    group.beat("b", 2, "is told to give up", instance_id="i")
    group.beat("b", -2, "leaves before it gave up", instance_id="i")
    group.describe("away, and somebody waits")
    group.beat("c", 3, "what is free now", instance_id="k", owned={})
    group.join("d", "comes back", instance_id="i")
    group.describe("back once more")
    group.beat("d", -1, "leaves for good", instance_id="i")
    group.beat("c", 3, "has everything", instance_id="k", owned={group.topic: [3, 4, 5]})
    group.describe("one is left")


@pytest.mark.parametrize("version", versions_of(68))
def test_requests_that_are_not_valid(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    topic: dict[str, Any] = {"subscribed_topic_names": [group.topic]}
    for member, epoch in (("", 0), ("", 3), ("", -1), ("", -2), (" ", 0), (" ", 1)):
        group.beat(member, epoch, f"epoch {epoch}")
    for field in ("instance_id", "rack_id"):
        for text in ("", " "):
            given: dict[str, Any] = {field: text}
            group.beat("a", 0, f"{field} {text!r}", **given)
            group.beat("a", 1, f"{field} {text!r}", **given)
    group.beat("a", 0, "nothing but an epoch")
    group.beat("a", 0, "a timeout", rebalance_timeout_ms=1)
    group.beat("a", 0, "a timeout, and says not what it has", rebalance_timeout_ms=1, **topic)
    group.beat("a", 0, "has partitions", rebalance_timeout_ms=1, owned={group.topic: [1]}, **topic)
    group.beat("a", 0, "wants nothing", rebalance_timeout_ms=1, owned={})
    for epoch in (-2, -3, -1_000):
        group.beat("a", epoch, f"epoch {epoch}")
    group.beat("a", -3, "a static one", instance_id="i")
    group.join("a", "assignor", server_assignor="mine")
    group.join("a", "assignor", server_assignor="")
    group.beat("a", 5, "assignor", server_assignor="RANGE")
    group.describe("nobody joined")
    group.name = ""
    group.beat("a", 0, "no group")
    group.beat("a", -1, "leaves no group")
    group.name = " "
    group.beat("a", 0, "a blank group")


def test_expressions(pair: Pair) -> None:
    """Kafka looks for matching topics in the background and tells the member later; Moldau has the answer at once."""
    group = Group(pair)

    def has_partitions(answer: Any) -> bool:
        return answer.error_code != 0 or bool(answer.assignment and answer.assignment.topic_partitions)

    expression = f"{pair.prefix}-wan.*"
    nothing = {"subscribed_topic_names": None}
    group.join("a", "by expression", until=has_partitions, subscribed_topic_regex=expression, **nothing)
    group.describe("by expression")
    group.beat("a", 1, "an old epoch")
    for side in pair.sides:
        side.ask(ConsumerGroupHeartbeatRequest(group.name, "a", -1), 1)
    for wrong in ("[", "(", "*", "(?<x", "a{2000}", "\\"):
        answers = group.join("b", f"{wrong!r}", masks=("error_message",), subscribed_topic_regex=wrong, **nothing)
        starts = f"SubscribedTopicRegex `{wrong}` is not a valid regular expression: "
        assert all(answer.error_message.startswith(starts) for answer in answers), answers
    group.join("b", "lookahead", masks=("error_message",), subscribed_topic_regex="(?=a)", **nothing)
    group.join("b", "matches nothing", subscribed_topic_regex="nothing-at-all", masks=("member_epoch",), **nothing)


# -- offsets of members ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(8))
def test_commits_of_members(pair: Pair, version: int) -> None:
    group = Group(pair)
    topic = group.topic

    def ask(say: str, epoch: int, member: str, partition: int = 0) -> None:
        pair.ask(
            lambda side: commit(side, group.name, {topic: {partition: 5}}, version, epoch, member), version, say=say
        )

    group.join("a")
    ask("the member", 2, "a")
    ask("an old epoch", 1, "a")
    ask("an epoch to come", 3, "a")
    ask("no member", 2, "ghost")
    ask("from outside", -1, "")
    ask("a member without an epoch", -1, "a")
    group.join("b")
    ask("not told yet", 2, "a")
    group.beat("a", 2, "is told to give up")
    ask("what it is to give up", 2, "a", 5)
    group.beat("a", 2, "gave up", owned={topic: [0, 1, 2]})
    ask("what it has had all along, in the old epoch", 2, "a")
    ask("what it gave up, in the old epoch", 2, "a", 5)
    ask("what it gave up, in the new epoch", 3, "a", 5)
    ask("what another one has not been given yet", 3, "b", 5)
    for side in pair.sides:
        for member in ("a", "b"):
            side.ask(ConsumerGroupHeartbeatRequest(group.name, member, -1), 1)
    ask("of who left", 3, "a")
    ask("from outside, when nobody is in", -1, "")
    pair.ask(lambda side: fetch_offsets(side, 9, group.name, None), 9, unordered=ORDERED_BY_HASH, say="in the end")


@pytest.mark.parametrize("version", versions_of(9))
def test_offsets_for_members(pair: Pair, version: int) -> None:
    group = Group(pair)
    group.join("a")
    for side in pair.sides:
        side.ask(commit(side, group.name, {group.topic: {0: 5}}, 9, 2, "a"), 9)

    def asked_by(member: str | None, epoch: int) -> Callable[[Side], OffsetFetchRequest]:
        def build(side: Side) -> OffsetFetchRequest:
            request = fetch_offsets(side, version, group.name, {group.topic: [0, 1]})
            if version >= 9:
                request.groups[0].member_id, request.groups[0].member_epoch = member, epoch
            return request

        return build

    for member, epoch in ((None, -1), ("a", 2), ("a", 1), ("a", 3), ("a", -1), ("ghost", 2), ("", -1), (None, 2)):
        is_nobody = member is None and epoch >= 0
        pair.ask(
            asked_by(member, epoch),
            version,
            unordered=ORDERED_BY_HASH,
            deliberate=[NOBODY_IN_AN_EPOCH] if is_nobody and version >= 9 else [],
            say=f"{member} in epoch {epoch}",
        )


def test_deleting_offsets(pair: Pair) -> None:
    group = Group(pair)
    group.join("a")
    for side in pair.sides:
        side.ask(commit(side, group.name, {group.topic: {0: 5}, group.other: {0: 5}}, 9, 2, "a"), 9)
    topics = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(name, [OffsetDeleteRequest.OffsetDeleteRequestPartition(0)])
        for name in (group.topic, group.other)
    ]
    pair.ask(OffsetDeleteRequest(group.name, topics), 0, unordered=ORDERED_BY_HASH, say="while it reads one of them")
    pair.ask(lambda side: fetch_offsets(side, 9, group.name, None), 9, unordered=ORDERED_BY_HASH, say="what is left")


# -- admin -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(69))
def test_describe(pair: Pair, version: int) -> None:
    group = Group(pair, version)
    classic, nobody = pair.topic("classic"), pair.topic("nobody")
    for side in pair.sides:
        ready(side, classic)
        ready(side, nobody)
    stable(pair, classic)
    asked: dict[str, Any] = {"unordered": ORDERED_BY_HASH_HERE}
    pair.ask(ConsumerGroupDescribeRequest([]), version, say="nothing", **asked)
    pair.ask(ConsumerGroupDescribeRequest([nobody]), version, say="an unknown group", **asked)
    pair.ask(ConsumerGroupDescribeRequest([""]), version, say="no name", **asked)
    pair.ask(ConsumerGroupDescribeRequest([classic]), version, say="a classic group", **asked)
    group.join("a", instance_id="i", rack_id="r")
    group.join("b", subscribed_topic_names=[group.other])
    for operations in (False, True):
        request = ConsumerGroupDescribeRequest([group.name, classic, nobody, ""], operations)
        pair.ask(request, version, say=f"all of them, operations: {operations}", **asked)
    pair.ask(ConsumerGroupDescribeRequest([group.name, group.name]), version, say="twice", **asked)


@pytest.mark.parametrize("version", versions_of(15))
def test_classic_descriptions(pair: Pair, version: int) -> None:
    group = Group(pair)
    group.join("a")
    pair.ask(DescribeGroupsRequest(groups=[group.name]), version, say="with a member")
    if version >= 3:
        pair.ask(DescribeGroupsRequest(groups=[group.name], include_authorized_operations=True), version)


@pytest.mark.parametrize("version", versions_of(16))
def test_lists(pair: Pair, version: int) -> None:
    group = Group(pair)
    asked: dict[str, Any] = {
        "unordered": ("groups",),
        "edit": only("groups", lambda entry: entry["group_id"] == group.name),
    }
    group.join("a")
    pair.ask(ListGroupsRequest(), version, say="all", **asked)
    if version >= 4:
        for states in (["Stable"], ["Reconciling"], ["Empty"], ["Assigning", "STABLE"]):
            pair.ask(ListGroupsRequest(states_filter=states), version, say=f"{states}", **asked)
    if version >= 5:
        for types in (["consumer"], ["CONSUMER"], ["classic"], ["classic", "Consumer"]):
            pair.ask(ListGroupsRequest(types_filter=types), version, say=f"{types}", **asked)
    group.join("b")
    pair.ask(ListGroupsRequest(), version, say="while partitions change hands", **asked)
    for side in pair.sides:
        for member in ("a", "b"):
            side.ask(ConsumerGroupHeartbeatRequest(group.name, member, -1), 1)
    pair.ask(ListGroupsRequest(), version, say="empty", **asked)


@pytest.mark.parametrize("version", versions_of(42))
def test_deletions(pair: Pair, version: int) -> None:
    group = Group(pair)
    group.join("a")
    pair.ask(DeleteGroupsRequest([group.name]), version, say="with a member")
    group.beat("a", -1, "leaves")
    pair.ask(lambda side: commit(side, group.name, {group.topic: {0: 5}}, 9), 9, say="from outside")
    pair.ask(DeleteGroupsRequest([group.name]), version, say="empty")
    pair.ask(lambda side: fetch_offsets(side, 9, group.name, None), 9, say="its offsets")
    group.describe("gone")
    pair.ask(DeleteGroupsRequest([group.name]), version, say="again")
    group.join("a", "joins what was deleted")


# -- the classic protocol ----------------------------------------------------------------------------------------------


def test_classic_requests_of_members(pair: Pair) -> None:
    group = Group(pair)
    name = group.name
    group.join("a")
    group.join("b", instance_id="i")
    pair.ask(HeartbeatRequest(name, 2, "a"), 4, say="heartbeat")
    pair.ask(sync(name, 2, "a", {}, protocol_type="consumer", protocol_name="range"), 5, say="sync")
    identity = LeaveGroupRequest.MemberIdentity
    leaving = [identity("ghost", None), identity("", "i"), identity("", "j"), identity("a", None), identity("a", "i")]
    pair.ask(LeaveGroupRequest(name, members=leaving), 5, say="an operator takes members out")
    group.describe("whom it left")


def static_sync(name: str, generation: int, member: str, assignments: dict[str, bytes]) -> SyncGroupRequest:
    more = {"protocol_type": "consumer", "protocol_name": "range", "group_instance_id": "i"}
    return sync(name, generation, member, assignments, **more)


@pytest.mark.parametrize("version", versions_of(11))
def test_classic_members_join(pair: Pair, version: int) -> None:
    group = Group(pair)
    protocols = [("range", subscription(group.topic))]
    ids = ("member_id",)

    def ask(say: str, member: str | None = None, deliberate: Sequence[Deliberate] = (), **more: Any) -> tuple[Any, Any]:
        def build(side: Side) -> JoinGroupRequest:
            wanted = {"protocols": protocols, **more}
            return join(group.name, side.notes["member"] if member is None else member, version=version, **wanted)

        return pair.ask(build, version, masks=ids, deliberate=deliberate, say=say)

    group.join("a")
    for side, answer in zip(pair.sides, ask("joins", ""), strict=True):
        side.notes["member"] = answer.member_id
    ask("joins with its id")
    ask("joins again")
    ask("no protocols", protocols=[])
    ask("another type", kind="connect")
    ask("another protocol", protocols=[("other", subscription(group.topic))])
    ask("a subscription that is none", protocols=[("range", b"x")], deliberate=[NO_SUBSCRIPTION])
    ask("a session that is too short", session_ms=1)
    ask("an id that the broker did not give", "ghost")
    pair.ask(lambda side: HeartbeatRequest(group.name, 3, side.notes["member"]), 4, say="heartbeat")
    pair.ask(lambda side: HeartbeatRequest(group.name, 9, side.notes["member"]), 4, say="another generation")
    # Which ones depends on the members' ids, and those are chance.
    group.beat("a", 2, "is told to give up", masks=("assignment.topic_partitions.*.partitions.*",))
    group.beat("a", 2, "gave up", owned={}, masks=("assignment.topic_partitions.*.partitions.*",))
    pair.ask(
        lambda side: HeartbeatRequest(group.name, 3, side.notes["member"]), 4, say="heartbeat, now that it is free"
    )
    pair.ask(lambda side: sync(group.name, 3, side.notes["member"], {}), 4, masks=("assignment",), say="its share")


def test_a_classic_group_is_upgraded_and_downgraded(pair: Pair) -> None:
    group = Group(pair)
    name, topic = group.name, group.topic
    protocols = [("range", subscription(topic))]
    assigned = b"\0\0" + ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic, EVERYTHING)], user_data=None
    ).encode(0)
    for side in pair.sides:
        answer = side.ask(join(name, version=9, protocols=protocols, instance="i"), 9)
        assert answer.error_code == ErrorCode.NONE, answer
        side.notes["member"] = member = answer.member_id
        assert side.ask(static_sync(name, 1, member, {member: assigned}), 5).error_code == ErrorCode.NONE
    ids = ("groups.*.members.*.member_id", "member_id")
    unordered = ("groups", "groups.*.members")

    def named_alike(tree: Any) -> Any:
        for each in tree["groups"]:
            for described in each["members"]:
                described["member_id"] = described["member_id"] if described["member_id"] == "a" else "classic"
        return tree

    def describe(say: str) -> None:
        for version in versions_of(69):
            request = ConsumerGroupDescribeRequest([name])
            pair.ask(request, version, unordered=unordered, edit=named_alike, say=say)

    def classic_beat(generation: int, say: str) -> None:
        pair.ask(lambda side: HeartbeatRequest(name, generation, side.notes["member"], "i"), 4, say=say)

    describe("before")
    group.join("a")
    describe("upgraded")
    classic_beat(1, "the classic member is told to join")
    pair.ask(
        lambda side: join(name, side.notes["member"], version=9, protocols=protocols, instance="i"),
        9,
        masks=ids,
        say="it joins, having given up all",
    )
    pair.ask(lambda side: static_sync(name, 2, side.notes["member"], {}), 5, say="its share")
    group.beat("a", 2, "the other share", owned={})
    describe("both kinds")
    classic_beat(2, "nothing new")
    group.beat("a", -1, "leaves: the group is classic again")
    describe("downgraded")
    pair.ask(DescribeGroupsRequest(groups=[name]), 6, masks=ids, say="as a classic group")
    classic_beat(2, "after the downgrade")


# -- who asks ----------------------------------------------------------------------------------------------------------


def test_kafkas_tool_describes_a_group(pair: Pair) -> None:
    group = Group(pair)
    group.join("a", instance_id="i")
    for side in pair.sides:
        side.ask(commit(side, group.name, {group.topic: {0: 5}}, 9, 2, "a"), 9)
    for more in ((), ("--members", "--verbose"), ("--state", "--verbose"), ("--offsets", "--verbose")):
        ours, theirs = (printed(side, "--describe", "--group", group.name, *more) for side in pair.sides)
        assert ours == theirs, more


@pytest.mark.parametrize("software", ["moldau", "another"])
def test_our_own_client_is_told_the_last_rebalances(embedded_moldau: Broker, software: str) -> None:
    wire, name = Wire(embedded_moldau.bootstrap), f"history-{software}"
    side = Side("Moldau", embedded_moldau.bootstrap)
    ready(side, name)
    side.wire.close()
    wire.ask(ApiVersionsRequest(software, "1"), 4)
    wire.ask(
        ConsumerGroupHeartbeatRequest(
            name, "a", 0, rebalance_timeout_ms=1, subscribed_topic_names=["history"], topic_partitions=[]
        ),
        1,
    )
    answer: Any = wire.ask(ConsumerGroupDescribeRequest([name]), 1)
    wire.close()
    told = dict(answer.groups[0].unknown_tags)
    assert set(told) == ({HISTORY_TAG} if software == "moldau" else set())
    reasons = [rebalance["reason"] for content in told.values() for rebalance in json.loads(content)]
    assert reasons == (["a joined"] if software == "moldau" else [])


# -- topics that change ------------------------------------------------------------------------------------------------


def test_partitions_and_topics_come_and_go(pair: Pair) -> None:
    group = Group(pair)
    topic, other = group.topic, group.other
    group.join("a", subscribed_topic_names=[topic, other])
    more = CreatePartitionsRequest([CreatePartitionsRequest.CreatePartitionsTopic(other, 4, None)], 10_000)

    def has_epoch(epoch: int) -> Any:
        return lambda answer: answer.error_code != 0 or answer.member_epoch == epoch

    for side in pair.sides:
        assert side.ask(more, 3).results[0].error_code == 0
    group.beat("a", 2, "more partitions", until=has_epoch(3))
    for side in pair.sides:
        side.ask(DeleteTopicsRequest(topic_names=[other], timeout_ms=10_000), 5)
    group.beat("a", 3, "a topic less", owned={topic: EVERYTHING}, until=has_epoch(4))
    group.describe("in the end")


# -- chance ------------------------------------------------------------------------------------------------------------


class Walk:
    """Members that do whatever comes to mind, the right thing more often than not."""

    STEPS = 60
    NAMES = ("a", "b", "c", "d")

    def __init__(self, group: Group, seed: int) -> None:
        self._group = group
        self._dice = random.Random(seed)
        self._topics = (group.topic, group.other)
        # By member: the epoch it was told, what it has, and what it was last told to have.
        self._epochs: dict[str, int] = {}
        self._owned: dict[str, Owned] = {}
        self._told: dict[str, Owned] = {}
        # By member: its last heartbeat, when it has asked nothing else since.
        self._last: dict[str, tuple[int, Owned | None]] = {}

    def run(self) -> None:
        steps = (
            [self._goes_on] * 8
            + [self._joins] * 3
            + [
                self._errs,
                self._leaves,
                self._repeats,
                self._wants,
                self._commits,
            ]
        )
        for number in range(self.STEPS):
            self._dice.choice(steps)(f"step {number}")
        self._comes_to_rest()
        # When a member leaves, Kafka makes the next target only when another one is heard of.
        if self._epochs:
            self._group.describe("at rest")

    def _joins(self, say: str) -> None:
        member = self._dice.choice(self.NAMES)
        wanted = self._some_topics() or list(self._topics)
        answer = self._group.join(member, f"{say}: joins", subscribed_topic_names=wanted, **self._who(member))
        self._hear(member, answer)
        if not answer[0].error_code:
            self._owned[member] = {}

    def _goes_on(self, say: str) -> None:
        for member in self._dice.sample(sorted(self._epochs), k=min(1, len(self._epochs))):
            if self._dice.random() < 0.6:
                self._owned[member] = self._told[member]
            owned = self._dice.choice([None, self._owned[member]])
            epoch = self._epochs[member]
            self._beat(member, epoch, f"{say}: goes on", owned)
            self._last[member] = epoch, owned

    def _repeats(self, say: str) -> None:
        """As after an answer that was lost."""
        for member in self._dice.sample(sorted(self._last), k=min(1, len(self._last))):
            epoch, owned = self._last[member]
            self._beat(member, epoch, f"{say}: repeats", owned)

    def _wants(self, say: str) -> None:
        for member in self._dice.sample(sorted(self._epochs), k=min(1, len(self._epochs))):
            more = {"subscribed_topic_names": self._some_topics()}
            self._beat(member, self._epochs[member], f"{say}: wants others", self._owned[member], **more)

    def _errs(self, say: str) -> None:
        member = self._dice.choice(self.NAMES)
        epoch = self._dice.choice([1, self._epochs.get(member, 1) + 1])
        owned = self._dice.choice([None, {}, {self._group.topic: [0, 5]}, self._owned.get(member)])
        self._beat(member, epoch, f"{say}: errs", owned)

    def _leaves(self, say: str) -> None:
        member = self._dice.choice(self.NAMES)
        is_static = bool(self._who(member))
        epoch = self._dice.choice([-1, -2]) if is_static else -1
        self._group.beat(member, epoch, f"{say}: leaves", **self._who(member))
        self._epochs.pop(member, None)

    def _commits(self, say: str) -> None:
        member = self._dice.choice(self.NAMES)
        epoch = max(0, self._epochs.get(member, 1) - self._dice.choice([0, 0, 1, 2]))
        offsets = {self._dice.choice(self._topics): {self._dice.choice([0, 1]): 5}}
        name, say = self._group.name, f"{say}: {member} commits"
        self._group.pair.ask(lambda side: commit(side, name, offsets, 10, epoch, member), 10, say=say)

    def _comes_to_rest(self) -> None:
        for number in range(3 * len(self.NAMES)):
            for member in sorted(self._epochs):
                self._owned[member] = self._told[member]
                self._beat(member, self._epochs[member], f"rest {number}", self._owned[member])

    def _beat(self, member: str, epoch: int, say: str, owned: Owned | None, **more: Any) -> None:
        self._hear(member, self._group.beat(member, epoch, say, owned=owned, **self._who(member), **more))

    def _hear(self, member: str, answers: tuple[Any, Any]) -> None:
        answer, side = answers[0], self._group.pair.moldau
        self._last.pop(member, None)
        if answer.error_code:
            return
        self._epochs[member] = answer.member_epoch
        if answer.assignment is not None:
            self._told[member] = {
                side.names_of_ids[each.topic_id]: each.partitions for each in answer.assignment.topic_partitions
            }

    def _some_topics(self) -> list[str]:
        return self._dice.choice([[self._topics[0]], [self._topics[1]], list(self._topics), []])

    @staticmethod
    def _who(member: str) -> dict[str, Any]:
        """One of them is static."""
        return {"instance_id": "i"} if member == "d" else {}


@pytest.mark.parametrize("seed", range(40))
def test_a_random_walk(pair: Pair, seed: int) -> None:
    Walk(Group(pair), seed).run()


def test_without_the_consumer_protocol_its_requests_are_refused(tmp_path: Path) -> None:
    require_oracle()
    properties = {"group.coordinator.rebalance.protocols": "classic"}
    with ApacheKafka(tmp_path, properties=properties) as kafka, Broker({**LIKE_THE_ORACLE, **properties}) as moldau:
        pair = Pair(Side("Moldau", moldau.bootstrap), Side("Kafka", kafka.bootstrap), "classic-only")
        for version in (0, 1):
            joining = ConsumerGroupHeartbeatRequest(
                "g", "m", 0, rebalance_timeout_ms=30_000, subscribed_topic_names=["t"], topic_partitions=[]
            )
            invalid = ConsumerGroupHeartbeatRequest("", "", -7)
            for request in (joining, invalid):
                answer: Any = pair.ask(request, version)[0]
                assert ErrorCode(answer.error_code) is ErrorCode.UNSUPPORTED_VERSION
            described: Any = pair.ask(ConsumerGroupDescribeRequest(group_ids=["g", ""]), version)[0]
            assert {group.error_code for group in described.groups} == {ErrorCode.UNSUPPORTED_VERSION}
        pair.verdict()
        for side in pair.sides:
            side.wire.close()
