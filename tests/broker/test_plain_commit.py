"""Plain commits take a way of their own, which must not be told from the handler's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.broker.plain_commit import PLAIN_COMMIT_VERSION_MAX, PLAIN_COMMIT_VERSION_MIN
from moldau.kernel import ErrorCode
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.testing import Broker
from tests.broker.test_coordinator import commit, committed, find
from tests.broker.test_produce_and_fetch import create
from tests.differential.wire import Wire

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0", "offset.metadata.max.bytes": "100"}) as running:
        wire = Wire(running.bootstrap)
        create(wire, "t")
        find(wire, "g")
        yield running


def topic_id(broker: Broker) -> bytes:
    assert broker.node is not None
    return broker.node.image.topics["t"].id


def plain_count(broker: Broker) -> int:
    assert broker.node is not None
    return broker.node.listeners.dispatchers[0].plain_commit_count


def one(name: str, *values: Any) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.just(name), st.sampled_from(values))


# What may be odd about a request that is otherwise plain.
ODDITIES = (
    one("partition_index", 1, -1, 7, -(2**31)),
    one("committed_offset", 0, 2**40, -1, -(2**63), 2**63 - 1),
    one("committed_leader_epoch", 0, 9),
    one("committed_metadata", None, "note", "x" * 100, "x" * 101, "x" * 200, "é"),
    one("partition_tags", ((9, b"x"),)),
    one("name", "", "missing", "é" * 70),
    one("topic_tags", ((9, b"x"),)),
    one("partition_count", 0, 2),
    one("topic_count", 0, 2),
    one("generation_id_or_member_epoch", 0, 1, 2, 2**31 - 1),
    one("member_id", "MEMBER", "stranger", "m" * 130),
    one("group_instance_id", "instance", "", "i" * 130),
    one("unknown_tags", ((9, b"x"),)),
)
REQUEST_FIELDS = ("generation_id_or_member_epoch", "member_id", "group_instance_id", "unknown_tags")


def make_request(odd: dict[str, Any]) -> OffsetCommitRequest:
    partition = Partition(
        odd.get("partition_index", 0),
        odd.get("committed_offset", 5),
        odd.get("committed_leader_epoch", -1),
        odd.get("committed_metadata", ""),
        odd.get("partition_tags", ()),
    )
    partitions = [partition] * odd.get("partition_count", 1)
    topic = Topic(odd.get("name", "t"), partitions=partitions, unknown_tags=odd.get("topic_tags", ()))
    fields = {name: odd[name] for name in REQUEST_FIELDS if name in odd}
    return OffsetCommitRequest(topics=[topic] * odd.get("topic_count", 1), **fields)


requests = st.lists(st.one_of(*ODDITIES), max_size=2).map(lambda odd: make_request(dict(odd)))
numbers = iter(range(10**9))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests, version=st.integers(PLAIN_COMMIT_VERSION_MIN, PLAIN_COMMIT_VERSION_MAX), joined=st.booleans())
def test_a_plain_commit_answers_what_the_handler_answers(
    broker: Broker, request: OffsetCommitRequest, version: int, joined: bool
) -> None:
    """And remembers the same: two groups in the same state, one asked by each way."""
    wire = Wire(broker.bootstrap)
    if version >= 10:
        for topic in request.topics:
            topic.topic_id = topic_id(broker) if topic.name == "t" else bytes(15) + b"x"
    is_member, outcomes = request.member_id == "MEMBER", []
    for is_plain in (True, False):
        request.group_id = f"group-{next(numbers)}"
        if joined:
            member_id = join_alone(wire, request.group_id)
            request.member_id = member_id if is_member else request.member_id
        with pytest.MonkeyPatch.context() as patch:
            if not is_plain:
                patch.setattr("moldau.broker.dispatch.PLAIN_COMMIT_VERSION_MIN", 99)
            answer: Any = wire.exchange(wire.frame(request, version, correlation_id=77))
        wanted = OffsetFetchRequest.OffsetFetchRequestGroup(request.group_id, topics=None)
        stored: Any = wire.ask(OffsetFetchRequest(groups=[wanted]), 9)
        outcomes.append((answer, stored.groups[0].topics, stored.groups[0].error_code))
    assert outcomes[0] == outcomes[1]
    wire.close()


@pytest.mark.parametrize("version", [9, 10])
def test_damage_in_any_byte_of_a_plain_commit_has_the_handlers_outcome(broker: Broker, version: int) -> None:
    wire = Wire(broker.bootstrap)
    topic = Topic("t", topic_id(broker), [Partition(0, 4)])
    whole = wire.frame(OffsetCommitRequest("damaged", topics=[topic]), version, correlation_id=77)
    begin = whole.index(b"damaged") - 1
    for position in range(begin, len(whole)):
        for byte in (0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF):
            frame = whole[:position] + bytes((byte,)) + whole[position + 1 :]
            answer = wire.exchange(frame)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("moldau.broker.dispatch.PLAIN_COMMIT_VERSION_MIN", 99)
                assert wire.exchange(frame) == answer, (position, byte)


def join_alone(wire: Wire, group: str) -> str:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    answer: Any = wire.ask(JoinGroupRequest(group, 10_000, 10_000, "", None, "consumer", protocols), 3)
    return str(answer.member_id)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_a_plain_commit_takes_the_plain_way_and_is_counted_as_a_request(broker: Broker, version: int) -> None:
    wire = Wire(broker.bootstrap)
    assert broker.node is not None
    dispatcher = broker.node.listeners.dispatchers[0]
    commit(wire, "counted", 1)
    plain, asked = plain_count(broker), dispatcher.request_counts[8]
    topic = Topic("t" if version < 10 else "", topic_id(broker), [Partition(0, 4)])
    answer: Any = wire.ask(OffsetCommitRequest("counted", topics=[topic]), version)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert committed(wire, "counted") == 4
    assert (plain_count(broker), dispatcher.request_counts[8]) == (plain + 1, asked + 1)


def test_a_plain_commit_waits_in_line_behind_an_older_request(broker: Broker) -> None:
    wire = Wire(broker.bootstrap)
    fetched = FetchRequest.FetchTopic("t", partitions=[FetchRequest.FetchPartition(0, fetch_offset=0)])
    fetch = FetchRequest(max_wait_ms=200, min_bytes=1, topics=[fetched])
    request = OffsetCommitRequest("line", topics=[Topic("t", partitions=[Partition(0, 9)])])
    frames = wire.frame(fetch, 12, correlation_id=1)
    frames += b"".join(wire.frame(request, 9, correlation_id=number) for number in (2, 3))
    wire.send(frames)
    assert [int.from_bytes(wire.receive()[:4], "big") for _ in range(3)] == [1, 2, 3]


def test_an_answer_that_comes_at_once_is_sent(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that is full is logged before its request is in line."""
    monkeypatch.setattr("moldau.coordination.shard.TURN_BYTES_MAX", 0)
    wire = Wire(broker.bootstrap)
    before = plain_count(broker)
    assert commit(wire, "at once", 3) is ErrorCode.NONE
    assert committed(wire, "at once") == 3
    assert plain_count(broker) == before + 1


def test_a_client_that_leaves_before_its_answer_disturbs_nobody(broker: Broker) -> None:
    request = OffsetCommitRequest("gone", topics=[Topic("t", partitions=[Partition(0, 9)])])
    for _ in range(20):
        leaver = Wire(broker.bootstrap)
        leaver.send(leaver.frame(request, 9) * 3)
        leaver.close()
    assert commit(Wire(broker.bootstrap), "gone", 10) is ErrorCode.NONE
    assert not [line for line in broker.log if "handler_failed" in line]
