"""Committed offsets: who may commit, what is remembered, what is forgotten and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.coordination.groups import TopicsChanged
from moldau.coordination.groups.classic import ClassicState
from moldau.coordination.groups.records import is_of_topic, offset_key, pack_offset, read_offset_key
from moldau.coordination.prefixed import encode_key, encode_value
from moldau.coordination.shard import TURN_BYTES_MAX, Step
from moldau.kernel import ZERO_UUID, ErrorCode
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.coordinator.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.wire import ProtocolError
from tests.coordination.play import Play
from tests.coordination.topics import Topics

MINUTE_MS = 60_000
RETENTION_MS = 10_080 * MINUTE_MS
CHECK_MS = 600_000


def commit(
    play: Play,
    group: str,
    offsets: dict[tuple[str, int], int],
    generation: int = -1,
    member: str = "",
    *,
    metadata: str = "",
    retention_ms: int = -1,
    version: int = 9,
    topic_id: bytes = ZERO_UUID,
) -> Any:
    """The error of the request, or of each partition."""
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            topic, topic_id, [OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, 4, metadata)]
        )
        for (topic, index), offset in offsets.items()
    ]
    answer = play.answer(OffsetCommitRequest(group, generation, member, None, retention_ms, topics), version)
    if isinstance(answer, ErrorCode):
        return answer
    return [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]


def committed(play: Play, group: str) -> dict[tuple[str, int], int]:
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
    answer = play.answer(OffsetFetchRequest(groups=[wanted]))
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


def test_a_group_without_members_commits_and_everything_comes_back() -> None:
    play = Play(topics=Topics(t=1, u=4))
    assert commit(play, "g", {("t", 0): 5, ("u", 3): 7}, metadata="héllo") == [ErrorCode.NONE] * 2
    assert committed(play, "g") == {("t", 0): 5, ("u", 3): 7}
    play.restart()
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics("t", partition_indexes=[0, 1])
    answer = play.answer(OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=[wanted])]))
    found, missing = answer.topics[0].partitions
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (5, 4, "héllo")
    assert (missing.committed_offset, missing.committed_leader_epoch, missing.metadata) == (-1, -1, "")


def test_metadata_that_is_too_long_is_refused_alone() -> None:
    play = Play(offset__metadata__max__bytes=3)
    assert commit(play, "g", {("t", 0): 5}, metadata="long") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert committed(play, "g") == {}


def test_who_may_commit_in_which_state() -> None:
    play = Play()
    one = {("t", 0): 1}
    assert commit(play, "g", one, 3, "m") is ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(play, "g", one, 3, "m", version=8) is ErrorCode.ILLEGAL_GENERATION
    leader, other = play.stable("g", 2)
    assert commit(play, "g", one, 1, other) == [ErrorCode.NONE]
    assert commit(play, "g", one, 0, other) is ErrorCode.ILLEGAL_GENERATION
    assert commit(play, "g", one, 2, other) is ErrorCode.ILLEGAL_GENERATION
    assert commit(play, "g", one, 1, "ghost") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(play, "g", one) is ErrorCode.UNKNOWN_MEMBER_ID, "an active group is not reset from outside"
    play.join("g", leader)
    assert play.machine.groups["g"].state is ClassicState.PREPARING
    assert commit(play, "g", one, 1, other) == [ErrorCode.NONE], "what was read before giving it up may be committed"
    play.join("g", other)
    assert play.machine.groups["g"].state is ClassicState.COMPLETING
    assert commit(play, "g", one, 2, other) is ErrorCode.REBALANCE_IN_PROGRESS
    play.leave("g", (leader, None), (other, None))
    assert commit(play, "g", one) == [ErrorCode.NONE]


def test_a_commit_is_as_good_as_a_heartbeat() -> None:
    play = Play()
    (leader,) = play.stable("g")
    for _ in range(5):
        play.pass_time(8000)
        assert commit(play, "g", {("t", 0): 1}, 1, leader) == [ErrorCode.NONE]


def delete_offsets(play: Play, group: str, topic: str) -> Any:
    wanted = OffsetDeleteRequest.OffsetDeleteRequestTopic(
        topic, [OffsetDeleteRequest.OffsetDeleteRequestPartition(index) for index in (0, 1)]
    )
    answer = play.answer(OffsetDeleteRequest(group, [wanted]))
    if isinstance(answer, ErrorCode):
        return answer
    return [ErrorCode(each.error_code) for each in answer.topics[0].partitions]


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    play = Play()
    assert delete_offsets(play, "g", "t") is ErrorCode.GROUP_ID_NOT_FOUND
    metadata = b"\0\0" + ConsumerProtocolSubscription(topics=["t"], user_data=None).encode(0)
    (leader,) = play.stable("g", protocols=(("range", metadata),))
    commit(play, "g", {("t", 0): 1, ("u", 0): 2}, 1, leader)
    assert delete_offsets(play, "g", "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2
    assert delete_offsets(play, "g", "u") == [ErrorCode.NONE] * 2
    assert committed(play, "g") == {("t", 0): 1}
    play.stable("connect", protocol_type="connect")
    assert delete_offsets(play, "connect", "t") is ErrorCode.NON_EMPTY_GROUP


def test_garbage_in_a_subscription_is_nobodys_error() -> None:
    play = Play()
    (leader,) = play.stable("g", protocols=(("range", b"\xff\xff\xff"),))
    assert play.heartbeat("g", leader, 1) is ErrorCode.NONE
    commit(play, "g", {("t", 0): 1}, 1, leader)
    assert delete_offsets(play, "g", "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2, "when in doubt it is read"


def test_offsets_of_a_deleted_topic_are_gone_for_all_groups() -> None:
    play = Play(topics=Topics(t=2, u=1))
    commit(play, "g", {("t", 0): 1, ("u", 0): 2})
    commit(play, "h", {("t", 1): 1})
    play.shard.submit(TopicsChanged(frozenset({"t"}), frozenset({"t"})), play.moment)
    assert committed(play, "g") == {("u", 0): 2}
    assert committed(play, "h") == {}
    play.restart()
    assert committed(play, "g") == {("u", 0): 2}


@pytest.mark.parametrize("metadata", ["", "héllo"])
def test_offsets_of_a_topic_that_was_deleted_while_nobody_could_be_told_are_gone_once_loaded(metadata: str) -> None:
    topics = Topics(t=1, u=1, v=1)
    play = Play(topics=topics)
    for name in ("t", "u", "v"):
        commit(play, "g", {(name, 0): 1}, metadata=metadata, topic_id=topics.ids[name])
    commit(play, "h", {("t", 0): 1})  # a version without topic ids, as brokers before Kafka 4.1 wrote it
    for name in ("u", "v"):
        topics.delete(name)
    topics.create("u", 1)
    play.restart()
    assert committed(play, "g") == {("t", 0): 1}
    assert committed(play, "h") == {("t", 0): 1}
    topics.create("v", 1)
    play.restart()
    assert committed(play, "g") == {("t", 0): 1}, "the log says so, too"


def test_an_offset_is_told_from_that_of_an_older_topic_of_its_name() -> None:
    old, new = b"o" * 16, b"n" * 16
    assert is_of_topic(pack_offset(1, 0, "", 5, new), new) and not is_of_topic(pack_offset(1, 0, "", 5, old), new)
    assert is_of_topic(pack_offset(1, 0, "", 5, ZERO_UUID), new)
    # Metadata that ends as if an id came after it.
    tricky = "x" * 3 + "\x01\x00\x10" + "y" * 7
    assert is_of_topic(pack_offset(1, 0, tricky, 5, ZERO_UUID), new)


def test_pending_offsets_of_a_topic_that_is_gone_do_not_come_back() -> None:
    play = Play(topics=Topics(t=1))
    offsets = play.machine.offsets
    for name in ("t", "gone"):
        offsets.replay_in_transaction(7, offset_key("g", name, 0), pack_offset(3, 0, "", 5, ZERO_UUID))
    offsets.delete_strays(play.topics.topic_id, Step(0, 0))
    offsets.end_transaction(7, committed=True)
    assert committed(play, "g") == {} and offsets.topics_of("g") == ["t"]


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_expire_counted_from_when_it_became_empty() -> None:
    play = Play()
    (leader,) = play.stable("g")
    commit(play, "g", {("t", 0): 1}, 1, leader)
    for _ in range(10):
        play.pass_time(6000)
        assert play.heartbeat("g", leader, 1) is ErrorCode.NONE
    play.leave("g", (leader, None))
    play.pass_time(RETENTION_MS - 1)
    assert committed(play, "g") == {("t", 0): 1}
    play.pass_time(2 * CHECK_MS)
    assert "g" not in play.machine.groups, "and the group with the last of them"
    play.restart()
    assert "g" not in play.machine.groups and committed(play, "g") == {}


def test_offsets_of_a_group_without_members_ever_expire_after_their_commit() -> None:
    play = Play()
    commit(play, "g", {("t", 0): 1})
    play.pass_time(RETENTION_MS // 2)
    commit(play, "g", {("t", 1): 1})
    play.pass_time(RETENTION_MS // 2 + CHECK_MS)
    assert committed(play, "g") == {("t", 1): 1}


def test_offsets_that_expire_together_are_forgotten_in_batches_that_the_log_takes() -> None:
    play = Play()
    for number in range(100):
        commit(play, f"{number}-" + "g" * 20_000, {("t", 0): 1})
    play.pass_time(RETENTION_MS + CHECK_MS)
    assert not list(play.machine.offsets.committed()) and not play.machine.groups
    assert play.largest_turn_bytes <= TURN_BYTES_MAX


def test_offsets_of_an_active_group_do_not_expire_while_their_topic_is_read() -> None:
    play = Play()
    metadata = b"\0\0" + ConsumerProtocolSubscription(topics=["t"], user_data=None).encode(0)
    session_ms = 1_800_000
    (leader,) = play.stable("g", protocols=(("range", metadata),), session_ms=session_ms)
    commit(play, "g", {("t", 0): 1, ("old", 0): 2}, 1, leader)
    for _ in range(RETENTION_MS // 1_500_000 + 2):
        play.pass_time(1_500_000)
        assert play.heartbeat("g", leader, 1) is ErrorCode.NONE
    assert committed(play, "g") == {("t", 0): 1}, "what it does not read any more is forgotten"


def test_a_commit_with_a_retention_of_its_own_expires_by_that() -> None:
    play = Play()
    commit(play, "g", {("t", 0): 1}, retention_ms=MINUTE_MS, version=4)
    commit(play, "g", {("t", 1): 1})
    play.pass_time(2 * CHECK_MS)
    assert committed(play, "g") == {("t", 1): 1}


# -- admin -------------------------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type() -> None:
    play = Play()
    play.stable("a")
    commit(play, "b", {("t", 0): 1})

    def listed(states: list[str], types: list[str]) -> list[tuple[str, str, str]]:
        answer = play.answer(ListGroupsRequest(states, types))
        return [(each.group_id, each.group_state, each.group_type) for each in answer.groups]

    assert listed([], []) == [("a", "Stable", "classic"), ("b", "Empty", "classic")]
    assert listed(["STABLE"], []) == [("a", "Stable", "classic")]
    assert listed([], ["consumer"]) == []


def test_a_group_is_deleted_only_when_it_is_empty() -> None:
    play = Play()
    (leader,) = play.stable("a")
    commit(play, "a", {("t", 0): 1}, 1, leader)

    def delete(*names: str) -> list[ErrorCode]:
        return [ErrorCode(each.error_code) for each in play.answer(DeleteGroupsRequest(list(names))).results]

    assert delete("a", "ghost") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    play.leave("a", (leader, None))
    assert delete("a") == [ErrorCode.NONE]
    assert committed(play, "a") == {}
    play.restart()
    assert play.machine.groups == {}


def test_a_described_group_shows_metadata_only_when_it_is_stable() -> None:
    play = Play()
    leader, _ = play.stable("a", 2)

    def describe() -> Any:
        return play.answer(DescribeGroupsRequest(groups=["a"])).groups[0]

    assert [each.member_assignment for each in describe().members] == [
        each.encode() for each in play.machine.groups["a"].members
    ]
    play.join("a", leader)
    described = describe()
    assert described.group_state == "PreparingRebalance" and described.protocol_data == ""
    assert all(each.member_metadata == b"" for each in described.members)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_an_offsets_key_is_read_as_it_was_written() -> None:
    assert read_offset_key(offset_key("gröup", "tópic", 2**31 - 1)) == ("gröup", "tópic", 2**31 - 1)


@given(
    offset=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=200),
    topic_id=st.sampled_from([ZERO_UUID, bytes(range(16))]),
    names=st.tuples(st.text(max_size=40), st.text(max_size=40)),
)
def test_what_is_packed_directly_is_what_the_messages_write(
    offset: int, epoch: int, metadata: str, topic_id: bytes, names: tuple[str, str]
) -> None:
    value = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=7, topic_id=topic_id
    )
    assert pack_offset(offset, epoch, metadata, 7, topic_id) == encode_value(value, 4)
    assert offset_key(*names, 3) == encode_key(OffsetCommitKey(*names, 3))


@pytest.mark.parametrize("key", [b"\0\1", b"\0\1\0\5ab", b"\0\1\0\1a\0\1b\0\0", b"\0\1\0\1\xff\0\1b\0\0\0\0"])
def test_a_key_that_is_cut_or_garbled_is_an_error(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_offset_key(key)
