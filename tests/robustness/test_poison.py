"""One request, or one line of server.properties, that takes the broker down or keeps it from starting."""

from __future__ import annotations

import struct
import time
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
    """The flush task syncs the log's directory by its path. DeleteTopics renames that directory meanwhile; the task
    ends with FileNotFoundError, which `on_flush_failed` takes for a failed fsync: `node.fail` ends the
    whole process."""
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
    """ListOffsets counts duplicates with `list.count` inside a loop: quadratic. 20,000 entries (240 kB) stop the whole
    broker for seconds, 100,000 (1.2 MB, allowed by every limit) for minutes. Topics need not exist."""
    with BrokerProcess() as broker:
        partitions = [ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(20_000)]
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=partitions)])
        wire, other = Wire(broker.bootstrap), Wire(broker.bootstrap)
        other.ask(ApiVersionsRequest(), 0)
        wire.send(wire.frame(request, 1))
        time.sleep(0.1)
        began = time.monotonic()
        other.ask(ApiVersionsRequest(), 0)
        assert time.monotonic() - began < 0.8


def test_a_long_topic_name_left_by_a_crash_does_not_keep_the_broker_from_starting(tmp_path: Path) -> None:
    """A crash between the commit of RemoveTopic and the renaming of its directory leaves a directory that no topic
    owns. It is renamed to `<name>.<32 hex>-stray` without the cut that `deletion_name` makes: for names over 215
    characters that is ENAMETOOLONG, and the broker does not start any more."""
    broker = Broker(data=str(tmp_path)).start()
    broker.stop()
    (tmp_path / ("n" * 240 + "-0")).mkdir()
    broker.start()
    broker.close()


def test_running_out_of_descriptors_does_not_flood_the_log() -> None:
    """accept() fails with EMFILE, the listening socket stays readable, and the loop spins at full speed with a line in
    the log each time: 100 % CPU and a log that fills the disk, as long as the clients stay connected."""
    import socket

    with BrokerProcess(prefix=("prlimit", "--nofile=40:40")) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        held = [socket.create_connection((host, int(port)), timeout=5) for _ in range(60)]
        time.sleep(1.0)
        lines = broker.log.count("accept_failed")
        for each in held:
            each.close()
        assert lines < 50, f"{lines} lines in a second"


def test_an_endless_produce_version_is_refused() -> None:
    """The fast path has a lowest version and no highest: Produce version 99 is appended and answered as version 13,
    where every other key closes the connection on a version that is not served."""
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
    """`_keep_house` schedules its next run last: one exception on the way (EMFILE while a flush opens a recovered
    segment, say) and there are no more flushes by time, checkpoints or deletions until the broker is restarted."""
    from moldau.broker.replicas import Replicas

    real, calls = Replicas.flush_due, []

    def fail_once(self: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        real(self)

    monkeypatch.setattr(Replicas, "flush_due", fail_once)
    with Broker():
        time.sleep(3.5)
        assert len(calls) >= 3
