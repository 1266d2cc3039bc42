"""Classic groups and committed offsets: every request, version and error, and the records that they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moldau.coordination import partition_of
from moldau.kernel import ErrorCode
from moldau.protocol.batches import iterate_batches, iterate_records
from moldau.protocol.message import Message
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.coordinator.group_metadata import GroupMetadataKey, GroupMetadataValue
from moldau.protocol.messages.coordinator.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from tests.differential.pair import Pair, Side, versions_of

pytestmark = pytest.mark.oracle

IDS = ("member_id", "leader", "*.member_id")
OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 4
Protocols = list[tuple[str, bytes]]


def subscription(*topics: str) -> bytes:
    return b"\0\0" + ConsumerProtocolSubscription(topics=list(topics), user_data=None).encode(0)


RANGE: Protocols = [("range", subscription("wanted"))]


def join(
    group: str,
    member: str = "",
    *,
    version: int,
    protocols: Protocols = RANGE,
    kind: str = "consumer",
    session_ms: int = 30_000,
    instance: str | None = None,
) -> JoinGroupRequest:
    request = JoinGroupRequest(
        group,
        session_ms,
        member_id=member,
        protocol_type=kind,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(*each) for each in protocols],
    )
    if version >= 1:
        request.rebalance_timeout_ms = 20_000
    if version >= 5:
        request.group_instance_id = instance
    if version >= 8:
        request.reason = "just so"
    return request


def sync(group: str, generation: int, member: str, assignments: dict[str, bytes], **more: Any) -> SyncGroupRequest:
    handed = [SyncGroupRequest.SyncGroupRequestAssignment(*each) for each in assignments.items()]
    return SyncGroupRequest(group, generation, member, assignments=handed, **more)


@pytest.fixture
def group(pair: Pair) -> str:
    """The name of a group of the scenario's own, its coordinator there on both sides."""
    name = pair.topic("group")
    for side in pair.sides:
        ready(side, name)
    return name


def ready(side: Side, name: str) -> None:
    side.ask_until(FindCoordinatorRequest(key=name), 3, lambda answer: answer.error_code == 0)
    side.ask_until(
        DescribeGroupsRequest(groups=[name]), 5, lambda answer: answer.groups[0].error_code == ErrorCode.NONE
    )


def stable(pair: Pair, name: str, *, instance: str | None = None, protocols: Protocols = RANGE) -> None:
    """A group of one member with an assignment; its id is noted as `member`."""
    for side in pair.sides:
        answer = side.ask(join(name, version=9, instance=instance, protocols=protocols), 9)
        if instance is None:
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, (side.name, answer)
            answer = side.ask(join(name, answer.member_id, version=9, protocols=protocols), 9)
        assert answer.error_code == 0, (side.name, answer)
        member = side.notes["member"] = answer.member_id
        handed = sync(name, answer.generation_id, member, {member: b"assigned"}, protocol_type="consumer")
        handed.protocol_name = protocols[0][0]
        handed.group_instance_id = instance
        assert side.ask(handed, 5).assignment == b"assigned"


def of_member(build: Callable[[str], Message]) -> Callable[[Side], Message]:
    return lambda side: build(side.notes["member"])


# -- membership --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(11))
def test_join(pair: Pair, group: str, version: int) -> None:
    first = pair.ask(join(group, version=version), version, masks=IDS, say="first")
    for side, answer in zip(pair.sides, first, strict=True):
        side.notes["member"] = answer.member_id
    again = of_member(lambda member: join(group, member, version=version))
    pair.ask(again, version, masks=IDS, say="with the id")
    pair.ask(again, version, masks=IDS, say="again while the group completes")
    pair.ask(join(group, "ghost", version=version), version, say="an unknown member")
    pair.ask(join(pair.topic("none"), "ghost", version=version), version, say="an unknown group")
    pair.ask(join("", version=version), version, say="no group")
    for session_ms in (-1, 0, 5_999, 1_800_001):
        pair.ask(join(group, version=version, session_ms=session_ms), version, say=f"session {session_ms}")
    pair.ask(join(group, version=version, protocols=[("other", b"")]), version, say="another protocol")
    pair.ask(join(group, version=version, kind="connect"), version, say="another type")
    pair.ask(join(group, version=version, protocols=[]), version, say="no protocols")
    pair.ask(join(pair.topic("new"), version=version, protocols=[]), version, say="a new group without protocols")
    pair.ask(join(pair.topic("new"), version=version, kind=""), version, say="a new group without a type")


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
def test_join_of_static_members(pair: Pair, group: str, version: int) -> None:
    stable(pair, group, instance="one")
    old = {side.name: side.notes["member"] for side in pair.sides}
    replaced = pair.ask(join(group, version=version, instance="one"), version, masks=IDS, say="came back")
    for side, answer in zip(pair.sides, replaced, strict=True):
        side.notes["member"] = answer.member_id
    pair.ask(
        lambda side: join(group, old[side.name], version=version, instance="one"), version, masks=IDS, say="the old one"
    )
    pair.ask(lambda side: HeartbeatRequest(group, 1, old[side.name], "one"), 4, say="a heartbeat of the old one")
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 1, member, "one")), 4, say="a heartbeat of the new one")
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 1, member, "two")), 4, say="of another instance")
    pair.ask(of_member(lambda member: join(group, member, version=version, instance="two")), version, masks=IDS)
    pair.ask(DescribeGroupsRequest(groups=[group]), 6, masks=IDS, say="described")


@pytest.mark.parametrize("version", versions_of(14))
def test_sync(pair: Pair, group: str, version: int) -> None:
    more = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    pair.ask(sync(group, 1, "ghost", {}, **more), version, say="an unknown group")
    pair.ask(sync("", 1, "ghost", {}, **more), version, say="no group")
    stable(pair, group)
    pair.ask(of_member(lambda member: sync(group, 1, member, {}, **more)), version, say="again")
    pair.ask(of_member(lambda member: sync(group, 2, member, {}, **more)), version, say="wrong generation")
    pair.ask(sync(group, 1, "ghost", {}, **more), version, say="an unknown member")
    if version >= 3:
        pair.ask(
            of_member(lambda member: sync(group, 1, member, {}, group_instance_id="i", **more)), version, say="instance"
        )
    if version >= 5:
        for wrong in ({"protocol_name": "other"}, {"protocol_type": "connect"}):
            pair.ask(of_member(lambda member, wrong=wrong: sync(group, 1, member, {}, **{**more, **wrong})), version)
        pair.ask(of_member(lambda member: sync(group, 1, member, {})), version, say="no protocol")


@pytest.mark.parametrize("version", versions_of(12))
def test_heartbeat(pair: Pair, group: str, version: int) -> None:
    pair.ask(HeartbeatRequest(group, 1, "ghost"), version, say="an unknown group")
    pair.ask(HeartbeatRequest("", 1, "ghost"), version, say="no group")
    stable(pair, group)
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 1, member)), version, say="alive")
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 0, member)), version, say="old generation")
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 2, member)), version, say="future generation")
    pair.ask(HeartbeatRequest(group, 1, "ghost"), version, say="an unknown member")
    if version >= 3:
        pair.ask(of_member(lambda member: HeartbeatRequest(group, 1, member, "i")), version, say="an unknown instance")
    for side in pair.sides:
        side.ask(LeaveGroupRequest(group, members=[LeaveGroupRequest.MemberIdentity(side.notes["member"])]), 5)
    pair.ask(of_member(lambda member: HeartbeatRequest(group, 1, member)), version, say="of who left")


@pytest.mark.parametrize("version", versions_of(13))
def test_leave(pair: Pair, group: str, version: int) -> None:
    def leave(name: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
        if version < 3:
            return LeaveGroupRequest(name, members[0][0])
        return LeaveGroupRequest(name, members=[LeaveGroupRequest.MemberIdentity(*each) for each in members])

    pair.ask(leave(group, ("ghost", None)), version, say="an unknown group")
    pair.ask(leave("", ("ghost", None)), version, say="no group")
    stable(pair, group)
    pair.ask(leave(group, ("ghost", None)), version, say="an unknown member")
    if version >= 3:
        pair.ask(
            lambda side: leave(group, ("ghost", None), (side.notes["member"], None), ("", "i"), ("", None)),
            version,
            masks=("members.*.member_id",),
            say="several",
        )
        pair.ask(leave(group), version, say="nobody")
    else:
        pair.ask(lambda side: leave(group, (side.notes["member"], None)), version, say="the member")
    pair.ask(DescribeGroupsRequest(groups=[group]), 6, say="what is left")


# -- offsets -----------------------------------------------------------------------------------------------------------


def commit(
    side: Side, name: str, wanted: dict[str, dict[int, Any]], version: int, generation: int = -1, member: str = ""
) -> OffsetCommitRequest:
    """Offsets, or (offset, metadata), by topic and partition."""
    topics = []
    for topic, partitions in wanted.items():
        values = []
        for index, value in partitions.items():
            offset, metadata = value if isinstance(value, tuple) else (value, "")
            each = OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
            if version >= 6:
                each.committed_leader_epoch = 3
            values.append(each)
        named = OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=values)
        if version >= 10:
            named.name, named.topic_id = "", side.topic_ids.get(topic, b"\x07" * 16)
        topics.append(named)
    return OffsetCommitRequest(name, generation, member, topics=topics)


def fetch_offsets(side: Side, version: int, name: str, wanted: dict[str, list[int]] | None) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(
            name,
            None
            if wanted is None
            else [OffsetFetchRequest.OffsetFetchRequestTopic(topic, indexes) for topic, indexes in wanted.items()],
        )
    topics = None
    if wanted is not None:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopics(topic, partition_indexes=indexes)
            for topic, indexes in wanted.items()
        ]
        if version >= 10:
            for topic in topics:
                topic.name, topic.topic_id = "", side.topic_ids.get(topic.name, b"\x07" * 16)
    return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=topics)])


ORDERED_BY_HASH = ("topics", "topics.*.partitions", "groups.*.topics", "groups.*.topics.*.partitions")


@pytest.mark.parametrize("version", versions_of(8))
def test_offset_commit(pair: Pair, group: str, version: int) -> None:
    topic = pair.create("wanted", 2)
    asked = {"unordered": ORDERED_BY_HASH}

    def ask(
        wanted: dict[str, dict[int, Any]], say: str, generation: int = -1, member: str | None = "", name: str = group
    ) -> None:
        def build(side: Side) -> OffsetCommitRequest:
            return commit(side, name, wanted, version, generation, side.notes["member"] if member is None else member)

        pair.ask(build, version, say=say, **asked)

    ask({topic: {0: 5, 1: (7, "seven")}}, "of a group without members")
    ask({topic: {0: 6, 9: 1, -1: 1}}, "partitions that do not exist")
    ask({pair.topic("none"): {0: 6}, topic: {0: 7}}, "a topic that does not exist")
    ask({pair.topic("none"): {0: 6}}, "only that")
    ask({topic: {0: (8, "x" * 4097), 1: 8}}, "metadata that is too long")
    ask({topic: {0: (8, None), 1: -5}}, "no metadata, a negative offset")
    ask({}, "nothing")
    ask({topic: {0: 1}}, "a generation without a member", generation=3)
    ask({topic: {0: 1}}, "a member without a generation", member="ghost")
    ask({topic: {0: 1}}, "a generation of an unknown group", generation=3, member="ghost", name=pair.topic("none"))
    pair.ask(lambda side: fetch_offsets(side, 9, group, None), 9, unordered=ORDERED_BY_HASH, say="so far")
    stable(pair, group)
    ask({topic: {0: 20}}, "the member", generation=1, member=None)
    ask({topic: {0: 21}}, "an old generation", generation=0, member=None)
    ask({topic: {0: 21}}, "an unknown member", generation=1, member="ghost")
    ask({topic: {0: 21}}, "from outside", generation=-1, member="")
    if version >= 7:
        pair.ask(
            lambda side: _with_instance(commit(side, group, {topic: {0: 1}}, version, 1, side.notes["member"])), version
        )
    pair.ask(lambda side: fetch_offsets(side, 9, group, None), 9, unordered=ORDERED_BY_HASH, say="in the end")


def _with_instance(request: OffsetCommitRequest) -> OffsetCommitRequest:
    request.group_instance_id = "i"
    return request


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_retention_of_ones_own(pair: Pair, group: str, version: int) -> None:
    topic = pair.create("wanted")

    def build(side: Side) -> OffsetCommitRequest:
        request = commit(side, group, {topic: {0: 5}}, version)
        request.retention_time_ms = 3_600_000
        return request

    pair.ask(build, version)
    pair.ask(lambda side: fetch_offsets(side, 7, group, {topic: [0]}), 7)


@pytest.mark.parametrize("version", versions_of(9))
def test_offset_fetch(pair: Pair, group: str, version: int) -> None:
    topic, other = pair.create("wanted", 3), pair.create("other")
    for side in pair.sides:
        side.ask(commit(side, group, {topic: {0: 5, 1: (7, "seven")}, other: {0: 9}}, 9), 9)

    def ask(name: str, wanted: dict[str, list[int]] | None, say: str) -> None:
        pair.ask(lambda side: fetch_offsets(side, version, name, wanted), version, unordered=ORDERED_BY_HASH, say=say)

    ask(group, {topic: [0, 1, 2, 77], other: [0]}, "some")
    ask(group, {}, "none")
    if version >= 2:
        ask(group, None, "all")
        ask(pair.topic("nobody"), None, "all of an unknown group")
    ask(group, {pair.topic("none"): [0]}, "a topic that does not exist")
    ask(pair.topic("nobody"), {topic: [0]}, "an unknown group")
    if version >= 8:
        pair.ask(
            lambda side: OffsetFetchRequest(
                groups=[
                    *fetch_offsets(side, version, group, {topic: [0]}).groups,
                    *fetch_offsets(side, version, pair.topic("nobody"), {topic: [0]}).groups,
                ],
                require_stable=True,
            ),
            version,
            unordered=("groups",),
            say="two groups",
        )
        pair.ask(OffsetFetchRequest(), version, say="no groups")


@pytest.mark.parametrize("version", versions_of(47))
def test_offset_delete(pair: Pair, group: str, version: int) -> None:
    topic, other = pair.create("wanted", 2), pair.create("other")

    def delete(name: str, wanted: dict[str, list[int]]) -> OffsetDeleteRequest:
        return OffsetDeleteRequest(
            name,
            [
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    each, [OffsetDeleteRequest.OffsetDeleteRequestPartition(index) for index in indexes]
                )
                for each, indexes in wanted.items()
            ],
        )

    asked = {"unordered": ORDERED_BY_HASH}
    pair.ask(delete(group, {topic: [0]}), version, say="an unknown group", **asked)
    pair.ask(delete("", {topic: [0]}), version, say="no group", **asked)
    for side in pair.sides:
        side.ask(commit(side, group, {topic: {0: 5, 1: 7}, other: {0: 9}}, 9), 9)
    pair.ask(delete(group, {topic: [0, 99], pair.topic("none"): [0]}), version, say="some", **asked)
    pair.ask(lambda side: fetch_offsets(side, 9, group, None), 9, unordered=ORDERED_BY_HASH, say="what is left")
    stable(pair, group, protocols=[("range", subscription(topic))])
    pair.ask(delete(group, {topic: [1], other: [0]}), version, say="while it reads one of them", **asked)
    pair.ask(lambda side: fetch_offsets(side, 9, group, None), 9, unordered=ORDERED_BY_HASH, say="what is left now")


def test_the_group_without_a_name(pair: Pair, group: str) -> None:
    """It can commit, for old clients' sake. All in one test: the Kafka is shared, and so is this group."""
    topic = pair.create("wanted")
    for side in pair.sides:
        ready(side, "")
        side.ask(DeleteGroupsRequest([""]), 2)
    pair.ask(DescribeGroupsRequest(groups=[""]), 6, say="unknown")
    for version in versions_of(8):
        pair.ask(lambda side, version=version: commit(side, "", {topic: {0: 2}}, version), version)
    for version in versions_of(9):
        pair.ask(lambda side, version=version: fetch_offsets(side, version, "", {topic: [0]}), version)
    pair.ask(DescribeGroupsRequest(groups=[""]), 6, say="described")
    pair.ask(DeleteGroupsRequest([""]), 2, say="deleted")
    pair.ask(DeleteGroupsRequest([""]), 2, say="and again")


def test_deleting_a_topic_deletes_its_offsets(pair: Pair, group: str) -> None:
    from moldau.protocol.messages.delete_topics import DeleteTopicsRequest

    topic, other = pair.create("wanted"), pair.create("other")
    for side in pair.sides:
        side.ask(commit(side, group, {topic: {0: 5}, other: {0: 9}}, 9), 9)
        side.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    pair.ask(
        lambda side: fetch_offsets(side, 9, group, None),
        9,
        until=lambda answer: len(answer.groups[0].topics) == 1,
        say="what is left",
    )


# -- admin -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(15))
def test_describe_groups(pair: Pair, group: str, version: int) -> None:
    nobody = pair.topic("nobody")
    pair.ask(DescribeGroupsRequest(groups=[nobody]), version, say="an unknown group")
    pair.ask(DescribeGroupsRequest(groups=[]), version, say="nothing")
    stable(pair, group)
    unordered = ("groups",)
    pair.ask(DescribeGroupsRequest(groups=[group, nobody]), version, masks=IDS, unordered=unordered, say="stable")
    if version >= 3:
        pair.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), version, masks=IDS)
    for side in pair.sides:
        side.ask(LeaveGroupRequest(group, members=[LeaveGroupRequest.MemberIdentity(side.notes["member"])]), 5)
    pair.ask(DescribeGroupsRequest(groups=[group]), version, say="empty")
    simple = pair.topic("simple")
    topic = pair.create("wanted")
    for side in pair.sides:
        side.ask(commit(side, simple, {topic: {0: 5}}, 9), 9)
    pair.ask(DescribeGroupsRequest(groups=[simple]), version, say="without members ever")


@pytest.mark.parametrize("version", versions_of(16))
def test_list_groups(pair: Pair, group: str, version: int) -> None:
    topic, simple = pair.create("wanted"), pair.topic("simple")
    stable(pair, group)
    for side in pair.sides:
        side.ask(commit(side, simple, {topic: {0: 5}}, 9), 9)

    def only_ours(tree: Any) -> Any:
        tree["groups"] = [each for each in tree["groups"] if each["group_id"].startswith(pair.prefix)]
        return tree

    asked: dict[str, Any] = {"unordered": ("groups",), "edit": only_ours}
    pair.ask(ListGroupsRequest(), version, say="all", **asked)
    if version >= 4:
        for states in (["Stable"], ["empty"], ["Empty", "STABLE"], ["Nonsense"], ["Dead"], ["Assigning"]):
            pair.ask(ListGroupsRequest(states_filter=states), version, say=f"{states}", **asked)
    if version >= 5:
        for types in (["classic"], ["Consumer"], ["share"], ["nonsense"], ["Classic", "consumer"]):
            pair.ask(ListGroupsRequest(types_filter=types), version, say=f"{types}", **asked)
        pair.ask(ListGroupsRequest(["Stable"], ["classic"]), version, say="both", **asked)


@pytest.mark.parametrize("version", versions_of(42))
def test_delete_groups(pair: Pair, group: str, version: int) -> None:
    topic, simple = pair.create("wanted"), pair.topic("simple")
    stable(pair, group)
    for side in pair.sides:
        side.ask(commit(side, simple, {topic: {0: 5}}, 9), 9)
    unordered = ("results",)
    wanted = [group, simple, pair.topic("nobody")]
    pair.ask(DeleteGroupsRequest(wanted), version, unordered=unordered, say="an active, a simple, an unknown one")
    pair.ask(lambda side: fetch_offsets(side, 9, simple, None), 9, say="its offsets")
    pair.ask(DeleteGroupsRequest([simple, simple]), version, unordered=unordered, say="twice, and gone")
    for side in pair.sides:
        side.ask(LeaveGroupRequest(group, members=[LeaveGroupRequest.MemberIdentity(side.notes["member"])]), 5)
    pair.ask(DeleteGroupsRequest([group]), version, say="empty by now")
    pair.ask(DescribeGroupsRequest(groups=[group]), 6, say="gone")


# -- what is in the log ------------------------------------------------------------------------------------------------


def logged(side: Side, name: str) -> Iterator[tuple[Any, Any]]:
    """(key, value) of a group's records, decoded, what is of one side only taken out."""
    index = partition_of(name, OFFSETS_PARTITIONS)
    wanted = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10 << 20)
    topic = FetchRequest.FetchTopic(topic=OFFSETS_TOPIC, partitions=[wanted])
    answer = side.ask(FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, topics=[topic]), 4)
    for _, batch in iterate_batches(bytes(answer.responses[0].partitions[0].records)):
        for record in iterate_records(batch):
            assert record.key is not None
            kind, body = int.from_bytes(record.key[:2], "big"), record.key[2:]
            version = None if record.value is None else int.from_bytes(record.value[:2], "big")
            value: Any = None
            key: Any
            if kind == OffsetCommitKey.API_KEY:
                key = OffsetCommitKey.decode(body, 0)
                if record.value is not None:
                    assert version is not None
                    value = OffsetCommitValue.decode(record.value[2:], version)
                    value.commit_timestamp = 0
                    value.topic_id = side.names_of_ids.get(value.topic_id, value.topic_id)
            elif kind == GroupMetadataKey.API_KEY:
                key = GroupMetadataKey.decode(body, 0)
                if record.value is not None:
                    assert version is not None
                    value = GroupMetadataValue.decode(record.value[2:], version)
                    value.current_state_timestamp = 0
                    value.leader = value.leader and "leader"
                    for member in value.members:
                        member.member_id = "member"
            else:
                continue
            if key.group == name:
                yield repr(key), (version, repr(value))


def test_the_records_are_kafkas(pair: Pair, group: str) -> None:
    topic = pair.create("wanted", 2)
    stable(pair, group)
    for side in pair.sides:
        side.ask(commit(side, group, {topic: {0: (5, "five")}}, 9, 1, side.notes["member"]), 9)
        side.ask(commit(side, group, {topic: {1: 6}}, 10, 1, side.notes["member"]), 10)
        side.ask(LeaveGroupRequest(group, members=[LeaveGroupRequest.MemberIdentity(side.notes["member"])]), 5)
        request = commit(side, group, {topic: {0: 7}}, 2)
        side.ask(request, 2)
        side.ask(DeleteGroupsRequest([group]), 2)
    ours, theirs = (list(logged(side, group)) for side in pair.sides)
    assert ours == theirs
