"""Groups under hostile hands: whatever a member sends or somebody wrote into the log, the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moldau.broker.run import say_on_stderr
from moldau.coordination.expressions import EXPRESSION_BYTES_MAX, matching, require_valid
from moldau.coordination.groups.history import REASON_CHARACTERS_MAX
from moldau.coordination.groups.machine import GroupMachine
from moldau.coordination.groups.records import offset_key
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol import Record, build_batch
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.testing import Broker
from tests.broker.test_coordinator import OFFSETS_TOPIC, commit, committed, find
from tests.broker.test_http import get
from tests.broker.test_produce_and_fetch import create, produce
from tests.differential.wire import CLOSED, Wire
from tests.robustness.kit import ask_in_thread, create_topics, wait_until

ONE_PARTITION = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
LONG = "x" * 40_000
Protocol = JoinGroupRequest.JoinGroupRequestProtocol


def ready(broker: Broker) -> Wire:
    wire = Wire(broker.bootstrap)
    create(wire, "t")
    find(wire, "g")
    return wire


def join(group: str, *protocols: tuple[str, bytes], **fields: Any) -> JoinGroupRequest:
    named = [Protocol(*each) for each in protocols or (("range", b""),)]
    return JoinGroupRequest(group, 10_000, 10_000, protocol_type="consumer", protocols=named, **fields)


def test_a_member_that_names_a_protocol_twice_joins_like_others() -> None:
    with Broker(ONE_PARTITION) as broker:
        wire = ready(broker)
        answer: Any = wire.ask(join("g", ("range", b"a"), ("range", b"b")), 3)
        assert (answer.error_code, answer.protocol_name) == (0, "range")
        thread, second = ask_in_thread(Wire(broker.bootstrap), join("g"), 3)
        assert wait_until(lambda: sum("group_rebalance_begun" in line for line in broker.log) == 2)
        again = join("g", ("range", b"a"), ("range", b"b"), member_id=answer.member_id)
        answer = wire.ask(again, 3)
        thread.join()
        assert len(answer.members) == 2 and second[0].error_code == 0


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (join(LONG), 7),
        (join("g", group_instance_id=LONG), 7),
        (join("g", (LONG, b"")), 7),
        (OffsetCommitRequest(LONG), 9),
        (ConsumerGroupHeartbeatRequest("g", LONG, 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"]), 1),
        (ConsumerGroupHeartbeatRequest("g", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=[LONG]), 1),
    ],
    ids=["group", "instance", "protocol", "committing group", "member", "topic"],
)
def test_a_text_longer_than_kafka_takes_is_refused_before_a_group_hears_of_it(request_: Any, version: int) -> None:
    """Flexible versions could carry it; the records of a group, whose lengths are int16, could not."""
    with Broker(ONE_PARTITION) as broker:
        wire = ready(broker)
        assert wire.ask(request_, version) == CLOSED
        assert commit(wire, "g", 4) is ErrorCode.NONE
        assert broker.node is not None
        (machine,) = broker.node.groups.coordinator.machines()
        assert list(machine.groups) == ["g"]
        assert not [line for line in broker.log if "handler_failed" in line]


def test_offsets_that_nobody_can_read_cost_themselves_alone(tmp_path: Path) -> None:
    """They are no offset to whoever asks, no stumbling block to metrics, and gone when offsets expire."""
    settings = {**ONE_PARTITION, "offsets.retention.check.interval.ms": "500", "moldau.http.listener": "127.0.0.1:0"}
    with Broker(settings, data=str(tmp_path)) as broker:
        wire = ready(broker)
        commit(wire, "g", 7)
        for group, value in (("short", b"\0"), ("future", b"\0\x63" + bytes(20)), ("cut", b"\0\4" + bytes(12))):
            batch = bytes(build_batch([Record(0, 1_700_000_000_000, offset_key(group, "t", 0), value)]))
            wire.ask(produce(OFFSETS_TOPIC, batch), 9)
        broker.stop()
        broker.start()
        again = Wire(broker.bootstrap)
        assert wait_until(lambda: committed(again, "g") == 7)
        assert [committed(again, group) for group in ("short", "future", "cut")] == [-1, -1, -1]
        assert broker.node is not None
        (machine,) = broker.node.groups.coordinator.machines()
        assert 'consumergroup="g"' in get(broker, "/metrics")
        assert wait_until(lambda: [group for group, *_ in machine.offsets.committed()] == ["g"])


def test_an_assignment_too_large_for_the_log_fails_its_group_and_sends_the_others_back() -> None:
    with Broker({**ONE_PARTITION, "group.initial.rebalance.delay.ms": "60000"}) as broker:
        wire = ready(broker)
        commit(wire, "other", 3)
        waits, waiting = ask_in_thread(Wire(broker.bootstrap), join("waits"), 3)
        assert wait_until(lambda: any("group=waits" in line for line in broker.log))
        many = [OffsetCommitRequest.OffsetCommitRequestPartition(0, 1, -1, "x" * 4096)] * 300
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=many)]
        answer: Any = wire.ask(OffsetCommitRequest("large", topics=topics), 9)
        assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.UNKNOWN_SERVER_ERROR}
        waits.join(10)
        assert ErrorCode(waiting[0].error_code) is ErrorCode.NOT_COORDINATOR, "it looks for the coordinator again"
        assert wait_until(lambda: committed(wire, "other") == 3)
        assert committed(wire, "large") == -1


def test_requests_that_are_too_large_together_are_logged_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.coordination.shard.TURN_BYTES_MAX", 10_000)
    with Broker({**ONE_PARTITION, "message.max.bytes": "20000"}) as broker:
        wire = ready(broker)
        frames = b""
        for group, count in (("small", 4), ("large", 8), ("next", 4)):
            many = [OffsetCommitRequest.OffsetCommitRequestPartition(0, 5, -1, "x" * 2000)] * count
            topics = [OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=many)]
            frames += wire.frame(OffsetCommitRequest(group, topics=topics), 9)
        wire.send(frames)
        for _ in range(3):
            answer: Any = wire.decode(OffsetCommitRequest.API_KEY, wire.receive(), 9)
            assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}
        assert [committed(wire, group) for group in ("small", "large", "next")] == [5] * 3


def test_a_group_with_more_offsets_than_a_batch_takes_can_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.broker.coordinator.TURN_BYTES_MAX", 2_000)
    with Broker({**ONE_PARTITION, "message.max.bytes": "8000"}) as broker:
        wire = ready(broker)
        wire.ask(create_topics("many", partitions=100), 5)
        group = "g" * 200
        for index in range(100):
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(index, 5)
            topics = [OffsetCommitRequest.OffsetCommitRequestTopic("many", partitions=[partition])]
            stored: Any = wire.ask(OffsetCommitRequest(group, topics=topics), 8)
            assert stored.topics[0].partitions[0].error_code == 0
        commit(wire, "other", 3)
        answer: Any = wire.ask(DeleteGroupsRequest([group]), 2)
        assert ErrorCode(answer.results[0].error_code) is ErrorCode.NONE
        assert (committed(wire, group), committed(wire, "other")) == (-1, 3)


def test_a_step_that_fails_in_the_middle_is_undone_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own mistake: the request's connection is closed, and no memory of half a step stays."""
    with Broker(ONE_PARTITION) as broker:
        wire = ready(broker)
        commit(wire, "g", 7)

        def break_down(machine: GroupMachine, group_id: str) -> None:
            machine.offsets._remove(group_id, "t", 0)
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(GroupMachine, "_member_group", break_down)
            assert wire.ask(HeartbeatRequest("g", 1, "m"), 4) == CLOSED
        assert wait_until(lambda: committed(wire, "g") == 7)
        assert any("coordinator_step_failed" in line for line in broker.log)


def test_names_that_clients_choose_cannot_forge_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    say_on_stderr("group_rebalance_begun group=x\nbroker_stopped reason='a\x1b[2J' číslo=1")
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert r"group=x\nbroker_stopped" in written and "\x1b" not in written and "číslo=1" in written


def test_reasons_are_cut_before_they_are_kept_or_told() -> None:
    with Broker(ONE_PARTITION) as broker:
        wire = ready(broker)
        answer: Any = wire.ask(join("h", group_instance_id="i", reason="because " * 4000), 8)
        assert answer.error_code == 0
        lines = [line for line in broker.log if "group_rebalance_begun" in line]
        assert lines and max(map(len, lines)) < REASON_CHARACTERS_MAX + 200


def test_an_expression_may_not_grow_without_bound() -> None:
    with pytest.raises(KafkaError) as refused:
        require_valid("(" + "|".join(f"{number}[a-z]{{900}}" for number in range(300)) + ")")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert EXPRESSION_BYTES_MAX <= 1 << 20
    assert matching("orders-.*|x{1,100}", ["orders-eu", "other", "xx"]) == {"orders-eu", "xx"}


def test_a_leader_that_syncs_twice_and_a_stranger_that_syncs_change_nothing() -> None:
    with Broker(ONE_PARTITION) as broker:
        wire = ready(broker)
        joined: Any = wire.ask(join("g"), 3)
        handed = [SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"first")]
        sync = SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=handed)
        first: Any = wire.ask(sync, 3)
        handed[0].assignment = b"second"
        again: Any = wire.ask(sync, 3)
        sync.member_id = "stranger"
        stranger: Any = wire.ask(sync, 3)
        assert (first.assignment, again.assignment) == (b"first", b"first")
        assert ErrorCode(stranger.error_code) is ErrorCode.UNKNOWN_MEMBER_ID
