"""One request, or one line of server.properties, that takes the broker down or keeps it from starting."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.testing import Broker, BrokerProcess
from tests.broker.test_produce_and_fetch import batch_of, create, produce
from tests.differential.wire import CLOSED, Wire
from tests.robustness.kit import (
    Gate,
    alter,
    ask_in_thread,
    create_topics,
    delete_topic,
    hooked_broker,
    wait_until,
)

BROKER, TOPIC, GROUP = 4, 2, 32


@pytest.mark.parametrize(
    ("key", "value"), [("log__roll__ms", "-1"), ("log__roll__ms", "0"), ("log__flush__interval__ms", "-1")]
)
def test_a_broker_config_that_is_accepted_does_not_brick_the_broker(key: str, value: str) -> None:
    """`log.roll.ms=-1` passes the broker key's check, is committed to the metadata log, and then `Replicas.apply` ->
    `Settings.log_config` raises ConfigValueError (the topic key's check is stricter). The exception escapes
    `Controller._finish_flush` to the event loop: the request is never answered, later changes are lost in the same way,
    and every restart fails in `Replicas.load`. One unauthenticated request bricks the broker for ever."""
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        _, answers = ask_in_thread(Wire(broker.bootstrap), alter(BROKER, "", **{key: value}), 1)
        wait_until(lambda: bool(answers), 3)
        broker.stop()
        broker.start()  # raises ConfigValueError
        assert answers and answers[0] != "timeout", "the request was never answered"


@pytest.mark.parametrize("key", ["log.retention.hours", "log.retention.minutes"])
def test_retention_without_limit_is_a_legal_setting(key: str) -> None:
    """`log.retention.hours=-1` (keep for ever) is in many a server.properties. -1 is scaled to -3600000, which
    retention.ms refuses: CreateTopics hangs for ever, and with topics on disk the broker does not start."""
    with Broker({key: "-1"}) as broker:
        thread, answers = ask_in_thread(Wire(broker.bootstrap), create_topics("t"), 5)
        thread.join(3)
        assert answers, "CreateTopics was never answered"
        assert answers[0].topics[0].error_code == 0


def test_a_topic_deleted_while_it_is_flushed_does_not_stop_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush whose directory is renamed under it is no failed fsync: the node goes on."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire, other = Wire(broker.bootstrap), Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        gate = disk.hook = Gate("replace_file", "/t-0/leader-epoch-checkpoint")
        ask_in_thread(other, produce("t", batch_of(b"x")), 9)
        assert gate.reached.wait(5)
        wire.ask(delete_topic("t"), 5)
        gate.opened.set()
        assert broker.node is not None
        node = broker.node
        assert not wait_until(node.failed.done, 1), f"the node stops: {node.failed.result()}"


def test_listing_many_offsets_does_not_stall_the_loop() -> None:
    """Looking for partitions that are named twice takes linear time; quadratic, these would take a minute."""
    with BrokerProcess() as broker:
        partitions = [ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(60_000)]
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=partitions)])
        wire = Wire(broker.bootstrap)
        wire.send(wire.frame(request, 1) + wire.frame(ApiVersionsRequest(), 0))
        wire.receive()
        wire.receive()  # TimeoutError after 10 seconds


def test_a_long_topic_name_left_by_a_crash_does_not_keep_the_broker_from_starting(tmp_path: Path) -> None:
    """A directory that no topic owns is set aside under a name that is cut to what file systems take."""
    broker = Broker(data=str(tmp_path)).start()
    broker.stop()
    (tmp_path / ("n" * 240 + "-0")).mkdir()
    broker.start()
    broker.close()


def test_running_out_of_descriptors_does_not_flood_the_log() -> None:
    """It says so once in a while, and does not try again and again meanwhile."""
    import socket

    with BrokerProcess(prefix=("prlimit", "--nofile=40:40")) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        held = [socket.create_connection((host, int(port)), timeout=5) for _ in range(60)]
        assert wait_until(lambda: broker.log.count("accept_failed") >= 2)
        times = [line.split()[0] for line in broker.log.splitlines() if "accept_failed" in line][:2]
        for each in held:
            each.close()
        first, second = (datetime.fromisoformat(stamp) for stamp in times)
        assert second - first > timedelta(seconds=0.5)


def test_an_endless_produce_version_is_refused() -> None:
    """The connection is closed, as on a version that is not served of any other key; nothing is appended."""
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        assert broker.node is not None
        request = produce("t", batch_of(b"x"))
        request.topic_data[0].topic_id = broker.node.image.topics["t"].id
        frame = bytearray(wire.frame(request, 13))
        struct.pack_into(">h", frame, 6, 99)
        assert wire.exchange(bytes(frame)) == CLOSED


def test_housekeeping_survives_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one run stumbles over, the next one comes: flushes by time, checkpoints and deletions go on."""
    from moldau.broker.replicas import Replicas

    real, calls = Replicas.flush_due, []

    def fail_once(self: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        real(self)

    monkeypatch.setattr(Replicas, "flush_due", fail_once)
    with Broker():
        assert wait_until(lambda: len(calls) >= 3)
