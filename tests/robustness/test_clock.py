"""A wall clock that is set forward or back under a running broker: leases run on, data ages by the new time."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.host import SystemClock
from moldau.kernel import ErrorCode
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.testing import Broker
from tests.broker.test_produce_and_fetch import batch_of, create, produce
from tests.differential.transactions import Producer, end
from tests.differential.wire import Wire
from tests.robustness.kit import wait_until
from tests.robustness.test_transactions import ONE_SHARD, ask_until_settled, begin, ready, send

DAY_MS = 24 * 3_600_000
EARLIEST, LATEST = -2, -1
BRIEF_MS = 500
SETTINGS = {
    **ONE_SHARD,
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}


class MovableClock(SystemClock):
    """The machine's clocks, with a wall clock that somebody sets."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> MovableClock:  # stands in for the class SystemClock
        return self

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovableClock:
    movable = MovableClock()
    monkeypatch.setattr("moldau.testing.broker.SystemClock", movable)
    return movable


def offset_at(wire: Wire, topic: str, timestamp: int) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    answer: Any = wire.ask(ListOffsetsRequest(-1, 0, [ListOffsetsRequest.ListOffsetsTopic(topic, [wanted])]), 7)
    partition = answer.topics[0].partitions[0]
    assert partition.error_code == 0, ErrorCode(partition.error_code)
    offset: int = partition.offset
    return offset


def send_stamped(wire: Wire, topic: str, now_ms: int) -> int:
    answer: Any = wire.ask(produce(topic, batch_of(b"v", timestamp=now_ms)), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def member_of(wire: Wire, group: str, session_ms: int = 60_000) -> HeartbeatRequest:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    joining = JoinGroupRequest(group, session_ms, 60_000, protocol_type="consumer", protocols=protocols)
    joined: Any = wire.ask(joining, 3)
    assert joined.error_code == 0
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"all")
    synced: Any = wire.ask(SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=[assignment]), 3)
    assert synced.error_code == 0
    return HeartbeatRequest(group, joined.generation_id, joined.member_id)


def state_of(wire: Wire, group: str) -> str:
    answer: Any = wire.ask(DescribeGroupsRequest([group]), 5)
    return str(answer.groups[0].group_state)


def begin_with(wire: Wire, transactional_id: str, topic: str, timeout_ms: int) -> Producer:
    """A transaction with one record in it."""
    answer = ask_until_settled(wire, InitProducerIdRequest(transactional_id, timeout_ms), 4)
    one = Producer(transactional_id, answer.producer_id, answer.producer_epoch)
    begin(wire, one, topic)
    assert send(wire, one, topic, 0) is ErrorCode.NONE
    return one


@pytest.mark.parametrize("jump_ms", (DAY_MS, -DAY_MS))
def test_members_and_transactions_outlive_a_clock_that_is_set(clock: MovableClock, jump_ms: int) -> None:
    with Broker(SETTINGS) as broker:
        wire = ready(broker, "t", "brief")
        heartbeat, one = member_of(wire, "g"), begin_with(wire, "one", "t", timeout_ms=60_000)
        member_of(wire, "brief", session_ms=BRIEF_MS)
        begin_with(wire, "brief", "brief", timeout_ms=BRIEF_MS)
        clock.offset_ms = jump_ms
        # What should end meanwhile does; so every timer has looked at its clock since.
        assert wait_until(lambda: state_of(wire, "brief") == "Empty")
        assert wait_until(lambda: offset_at(wire, "brief", LATEST) == 2), "aborted"
        answer: Any = wire.ask(heartbeat, 3)
        assert ErrorCode(answer.error_code) is ErrorCode.NONE, "a session is no matter of the wall clock"
        assert send(wire, one, "t", 1) is ErrorCode.NONE
        assert ask_until_settled(wire, end(one, commit=True), 3).error_code == 0
        assert wait_until(lambda: offset_at(wire, "t", LATEST) == 3), "two records and the marker are committed"


def test_after_a_jump_forward_only_what_is_too_old_by_the_new_time_goes(clock: MovableClock) -> None:
    with Broker(SETTINGS) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "short", **{"retention.ms": "3600000"})
        create(wire, "long", **{"retention.ms": str(7 * DAY_MS)})
        for topic in ("short", "long"):
            assert send_stamped(wire, topic, clock.now_ms()) == 0
        clock.offset_ms = DAY_MS
        assert wait_until(lambda: offset_at(wire, "short", EARLIEST) == 1)
        assert offset_at(wire, "long", EARLIEST) == 0


def test_after_a_jump_back_nothing_goes_and_records_of_the_future_stay_in_order(clock: MovableClock) -> None:
    with Broker(SETTINGS) as broker:
        wire = Wire(broker.bootstrap)
        clock.offset_ms = 2 * DAY_MS
        create(wire, "t", **{"retention.ms": "3600000"})
        create(wire, "old", **{"retention.ms": "3600000"})
        assert send_stamped(wire, "t", clock.now_ms()) == 0
        clock.offset_ms = 0
        assert send_stamped(wire, "t", clock.now_ms()) == 0
        # Retention has looked since: what is too old by the present time is gone.
        assert send_stamped(wire, "old", clock.now_ms() - DAY_MS) == 0
        assert wait_until(lambda: offset_at(wire, "old", EARLIEST) == 1)
        assert (offset_at(wire, "t", EARLIEST), offset_at(wire, "t", LATEST)) == (0, 2)
        assert offset_at(wire, "t", clock.now_ms() + DAY_MS) == 0, "the first record is two days ahead"
