"""The shell of the group coordinator: loading, full disks, damaged records, stops."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from moldau.coordination import partition_of
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol import Record, build_batch
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.testing import Broker
from tests.broker.test_produce_and_fetch import create, produce
from tests.differential.wire import Wire
from tests.robustness.kit import alter, ask_in_thread, hooked_broker, wait_until

TOPIC = 2
OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 4


def commit(wire: Wire, group: str, offset: int, topic: str = "t") -> ErrorCode:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(0, offset)
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=[partition])]
    answer: Any = wire.ask(OffsetCommitRequest(group, topics=topics), 9)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(wire: Wire, group: str) -> int | ErrorCode:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics("t", partition_indexes=[0])
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=[topic])
    answer: Any = wire.ask(OffsetFetchRequest(groups=[wanted]), 9)
    if answer.groups[0].error_code:
        return ErrorCode(answer.groups[0].error_code)
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def find(wire: Wire, *groups: str) -> list[ErrorCode]:
    answer: Any = wire.ask(FindCoordinatorRequest(coordinator_keys=list(groups)), 4)
    return [ErrorCode(each.error_code) for each in answer.coordinators]


def join(group: str) -> JoinGroupRequest:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    return JoinGroupRequest(group, 10_000, 10_000, "", None, "consumer", protocols)


def test_the_offsets_topic_is_made_when_a_coordinator_is_first_asked_for() -> None:
    with Broker({"offsets.topic.num.partitions": "50"}) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        assert commit(wire, "g", 1) is ErrorCode.NOT_COORDINATOR, "nobody asked for one yet"
        assert find(wire, "g", "h") == [ErrorCode.NONE] * 2
        assert commit(wire, "g", 1) is ErrorCode.NONE
        wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)])
        answer: Any = wire.ask(wanted, 12)
        assert answer.topics[0].is_internal and len(answer.topics[0].partitions) == 50


def test_a_commit_that_does_not_fit_on_the_disk_is_refused_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        assert commit(wire, "g", 1) is ErrorCode.NONE

        def full(operation: str, path: str) -> None:
            if operation == "write" and f"/{OFFSETS_TOPIC}-" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        assert commit(wire, "g", 2) is ErrorCode.NOT_COORDINATOR
        assert wait_until(lambda: committed(wire, "g") == 1), "what the log does not hold is not told"
        disk.hook = lambda operation, path: None
        assert commit(wire, "g", 3) is ErrorCode.NONE
        assert committed(wire, "g") == 3


def test_a_coordinator_whose_appends_are_refused_loads_no_more_often_than_its_back_off_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.broker.coordinator.RELOAD_MS_MIN", 1000)
    with Broker({"offsets.topic.num.partitions": "1"}) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        assert commit(wire, "g", 1) is ErrorCode.NONE
        assert wire.ask(alter(TOPIC, OFFSETS_TOPIC, min__insync__replicas="2"), 1).responses[0].error_code == 0
        assert commit(wire, "g", 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert wait_until(lambda: committed(wire, "g") == 1), "the first time it is loaded at once"
        assert commit(wire, "g", 3) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [commit(wire, "g", 4) for _ in range(20)] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 20
        assert sum("coordinator_loaded" in line for line in broker.log) == 1
        assert any("coordinator_reload_delayed" in line and "ms=1000" in line for line in broker.log)
        assert wire.ask(alter(TOPIC, OFFSETS_TOPIC, min__insync__replicas="1"), 1).responses[0].error_code == 0
        assert wait_until(lambda: commit(wire, "g", 5) is ErrorCode.NONE), "it goes on by itself"
        assert committed(wire, "g") == 5
        assert wire.ask(alter(TOPIC, OFFSETS_TOPIC, min__insync__replicas="2"), 1).responses[0].error_code == 0
        assert commit(wire, "g", 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert wait_until(lambda: committed(wire, "g") == 5, 0.8), "an append that succeeded ends the back-off"


def test_whoever_waits_is_told_when_the_broker_stops() -> None:
    with Broker({"group.initial.rebalance.delay.ms": "60000"}) as broker:
        wire = Wire(broker.bootstrap)
        find(wire, "g")
        first: Any = wire.ask(join("g"), 4)
        request = join("g")
        request.member_id = first.member_id
        thread, answers = ask_in_thread(wire, request, 4)
        assert broker.node is not None
        wait_until(lambda: any("group_rebalance_begun" in line for line in broker.log))
        broker.stop()
        thread.join(10)
        assert answers and ErrorCode(answers[0].error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_record_that_nobody_can_read_costs_itself_alone(tmp_path: Path) -> None:
    with Broker({"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}, data=str(tmp_path)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        commit(wire, "g", 7)
        index = partition_of("g", OFFSETS_PARTITIONS)
        admin = Wire(broker.bootstrap, client_id="__admin_client")  # nobody else may write there
        for key, value in ((b"\0\1\0\xff", b"x"), (b"", b"x"), (b"\0\2\0\1g", b"\0\3\xff"), (b"\x7f\xff", b"")):
            batch = bytes(build_batch([Record(0, 1_700_000_000_000, key, value)]))
            request = produce(OFFSETS_TOPIC, batch)
            request.topic_data[0].partition_data[0].index = index
            answer: Any = wire.ask(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            answer = admin.ask(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        commit(wire, "g", 8)
        broker.stop()
        broker.start()
        again = Wire(broker.bootstrap)
        assert wait_until(lambda: committed(again, "g") == 8)
        assert sum("coordinator_record_skipped" in line for line in broker.log) == 3
        assert any("group_records_skipped kind=32767" in line for line in broker.log)


def test_a_long_load_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        commit(wire, "g", 7)
        broker.stop()
        monkeypatch.setattr("moldau.broker.coordinator.PROGRESS_MS", 0)
        broker.start()
        assert wait_until(lambda: committed(Wire(broker.bootstrap), "g") == 7)
        index = partition_of("g", OFFSETS_PARTITIONS)
        assert any(f"coordinator_loading partition={OFFSETS_TOPIC}-{index} at=1 of=1" in line for line in broker.log)
        assert any(f"coordinator_loaded partition={OFFSETS_TOPIC}-{index} records=1" in line for line in broker.log)


def test_a_load_that_fails_on_a_bad_disk_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moldau.broker.coordinator.LOAD_RETRY_MS_MIN", 10)
    with hooked_broker(monkeypatch, data=str(tmp_path)) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        commit(wire, "g", 7)
        broker.stop()

        def unreadable(operation: str, path: str) -> None:
            if operation == "read" and f"/{OFFSETS_TOPIC}-" in path:
                raise OSError(errno.EIO, "Input/output error")

        disk.hook = unreadable
        broker.start()
        again = Wire(broker.bootstrap)

        def failures() -> list[str]:
            return [line.rpartition("=")[2] for line in broker.log if "coordinator_load_failed" in line]

        assert wait_until(lambda: len(failures()) >= 3)
        assert failures()[:3] == ["10", "20", "40"], "less and less often"
        assert committed(again, "g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        disk.hook = lambda operation, path: None
        assert wait_until(lambda: committed(again, "g") == 7)


def test_a_log_that_ends_early_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    """A read that gives less than the log should hold, as of a file that someone cut, is a failed load like others."""
    with Broker(data=str(tmp_path)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        commit(wire, "g", 7)
        assert broker.node is not None
        index = partition_of("g", len(broker.node.image.topics[OFFSETS_TOPIC].partitions))
        (file,) = tmp_path.glob(f"{OFFSETS_TOPIC}-{index}/*.log")
        content = file.read_bytes()
        os.truncate(file, 30)
        coordinator, loop = broker.node.groups.coordinator, broker.node.loop
        refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        loop.call_soon_threadsafe(lambda: coordinator._restart(coordinator._hosted[index], refusal))
        assert wait_until(lambda: any("no whole batch at offset 0" in line for line in broker.log))
        file.write_bytes(content)
        assert wait_until(lambda: committed(wire, "g") == 7)


def test_groups_are_gone_with_the_offsets_topic() -> None:
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        find(wire, "g")
        commit(wire, "g", 7)
        wire.ask(DeleteTopicsRequest(topic_names=[OFFSETS_TOPIC], timeout_ms=10_000), 5)
        assert committed(wire, "g") is ErrorCode.NOT_COORDINATOR
        heartbeat: Any = wire.ask(HeartbeatRequest("g", 1, "m"), 4)
        assert ErrorCode(heartbeat.error_code) is ErrorCode.NOT_COORDINATOR
        assert find(wire, "g") == [ErrorCode.NONE]
        assert committed(wire, "g") == -1


def test_a_storm_of_joins_settles() -> None:
    """200 members at once, raw: each connection waits for all the others."""
    with Broker({"group.initial.rebalance.delay.ms": "200"}) as broker:
        first = Wire(broker.bootstrap)
        find(first, "g")
        wires = [Wire(broker.bootstrap) for _ in range(200)]
        for wire in wires:
            wire.send(wire.frame(join("g"), 3))
        answers: list[Any] = [wire.decode(11, wire.receive(), 3) for wire in wires]
        assert {answer.error_code for answer in answers} == {0}
        assert len({answer.generation_id for answer in answers}) == 1
        assert sorted(len(answer.members) for answer in answers) == [0] * 199 + [200]
        for wire in wires:
            wire.close()
