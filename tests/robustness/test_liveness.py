"""Requests that are never answered, locks that are never given on, changes that hang, stops that do not end."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.connection import drive
from moldau.kernel import ErrorCode
from moldau.protocol import Record, build_batch
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.testing import Broker, BrokerProcess
from tests.broker.test_produce_and_fetch import batch_of, create, fetch, fetched, produce
from tests.differential.wire import CLOSED, Wire
from tests.robustness.kit import (
    alter,
    ask_in_thread,
    create_topics,
    delete_topic,
    hooked_broker,
    trim,
    wait_until,
)

BROKER, TOPIC, GROUP = 4, 2, 32
DELETE_RECORDS = 21


class _Client:
    """What `drive` needs of a connection."""

    closed = False

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def on_answered(self, answer: Any, parts: Any) -> None:
        self.answers.append(parts)


def test_a_client_that_leaves_gives_the_lock_on() -> None:
    """Lost wake-up. A handler whose client leaves in the very turn in which it is given a lock must pass it on: were it
    closed, asyncio.Lock would wake nobody else (it does so for CancelledError only). So handlers run to their end."""

    async def scenario() -> list[Any]:
        lock = asyncio.Lock()

        async def handler() -> str:
            async with lock:
                await asyncio.sleep(0)
            return "answered"

        await lock.acquire()
        leaving, staying = _Client(), _Client()
        drive(leaving, handler(), lambda value: (value,))  # type: ignore[arg-type]
        drive(staying, handler(), lambda value: (value,))  # type: ignore[arg-type]
        lock.release()  # wakes the first in line ...
        leaving.closed = True  # ... whose client leaves in the same turn of the loop
        for _ in range(20):
            await asyncio.sleep(0)
        return staying.answers

    # asyncio.sleep(0) yields None, which `drive` does not take: a real future instead.
    async def sleep_0(_: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future

    asyncio_sleep, asyncio.sleep = asyncio.sleep, sleep_0  # type: ignore[assignment]
    try:
        assert asyncio.run(scenario()) == [("answered",)]
    finally:
        asyncio.sleep = asyncio_sleep


def test_checkpoints_are_written_one_at_a_time_also_when_a_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeleteRecords writes the checkpoints in a thread, under a lock. When its client leaves, the coroutine is closed
    and the lock is free while the thread still writes: the next one writes the same `.tmp` file at the same time. The
    two tear each other's bytes, or the older overwrites the newer and deleted records come back after a crash."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire, leaving = Wire(broker.bootstrap), Wire(broker.bootstrap)
        create(wire, "t")
        for _ in range(4):
            wire.ask(produce("t", batch_of(b"x")), 9)
        lock, inside, most = threading.Lock(), [0], [0]
        hold = threading.Event()
        real = disk.replace_file

        def replace_file(path: str, data: bytes) -> None:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            if inside[0] == 1:
                hold.wait(3)
            try:
                real(path, data)
            finally:
                with lock:
                    inside[0] -= 1

        monkeypatch.setattr(disk, "replace_file", replace_file, raising=False)
        assert broker.node is not None
        leaving.send(leaving.frame(trim("t", 1), 1))
        assert wait_until(lambda: inside[0] == 1, 3)
        leaving.close()
        wait_until(lambda: len(broker.node.listeners[0].connections) == 1, 3)  # type: ignore[union-attr]
        thread, _ = ask_in_thread(wire, trim("t", 2), 1)
        assert wait_until(lambda: broker.node.listeners.dispatchers[0].request_counts[DELETE_RECORDS] == 2)  # type: ignore[union-attr]
        hold.set()
        thread.join(5)
        assert most[0] == 1, "two threads wrote checkpoints at once"


def test_a_fetch_wakes_after_its_topic_was_made_again() -> None:
    """Also when deletion and creation are published in one turn: it then waits on the new topic's partitions."""
    with Broker() as broker:
        wire, waiting = Wire(broker.bootstrap), Wire(broker.bootstrap)
        create(wire, "t")
        waiting.ask(MetadataRequest(topics=[]), 1)
        _, answers = ask_in_thread(waiting, fetch("t", 0, max_wait_ms=8_000), 4)
        assert broker.node is not None
        partition = broker.node.replicas.require("t", 0)
        assert wait_until(lambda: bool(partition._waiters), 3)
        wire.send(wire.frame(delete_topic("t"), 5) + wire.frame(create_topics("t"), 5))
        for _ in range(2):
            wire.receive()
        wire.ask(produce("t", batch_of(b"x")), 9)
        assert wait_until(lambda: bool(answers), 3), "the fetch sleeps although there are records"


def test_a_refusal_waits_for_the_change_that_it_is_based_on() -> None:
    """`Controller.change` answers a decision without records at once, though it was made from records that are not
    committed. Two clients ask for the same missing topic: the second is told UNKNOWN_TOPIC_OR_PARTITION although
    auto-creation is on. (Kafka lets such answers wait for the newest pending record.)"""
    with Broker() as broker:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        wire = Wire(broker.bootstrap)
        wire.send(wire.frame(request, 4) + wire.frame(request, 4))
        answers: list[Any] = [wire.decode(3, wire.receive(), 4) for _ in range(2)]
        assert [answer.topics[0].error_code for answer in answers] == [0, 0]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_metadata_disk_is_answered(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """KAFKA_STORAGE_ERROR from the metadata log escapes every handler that changes something: CreateTopics,
    DeleteTopics, configs, InitProducerId and Metadata close the connection instead of answering."""
    with hooked_broker(monkeypatch) as (broker, disk):

        def full(operation: str, path: str) -> None:
            if operation == "write" and "__cluster_metadata-0" in path:
                raise OSError(error, "the disk")

        disk.hook = full
        answer: Any = Wire(broker.bootstrap).ask(create_topics("t"), 5)
        disk.hook = lambda operation, path: None
        assert not isinstance(answer, str), answer
        assert answer.topics[0].error_code != 0


def test_a_failed_metadata_write_does_not_leave_earlier_changes_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change 1 is appended and waits for its flush, change 2 fails with EIO in the same turn: the log is out of
    service, `_start_flush` gets no task and returns. Change 1 is never answered, and the node goes on without
    a metadata log
    instead of ending as it does after a failed sync."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        writes = []

        def broken(operation: str, path: str) -> None:
            if operation == "write" and "__cluster_metadata-0" in path:
                writes.append(path)
                if len(writes) == 2:
                    raise OSError(errno.EIO, "Input/output error")

        wire.ask(MetadataRequest(topics=[]), 1)
        other = Wire(broker.bootstrap)
        other.ask(MetadataRequest(topics=[]), 1)
        disk.hook = broken
        assert broker.node is not None and broker._loop is not None
        # Both requests in one turn of the loop: they lie in the sockets before the loop looks.
        ready, sent = threading.Event(), threading.Event()

        def hold_the_loop() -> None:
            ready.set()
            sent.wait(3)

        broker._loop.call_soon_threadsafe(hold_the_loop)
        ready.wait(3)
        wire.send(wire.frame(create_topics("one"), 5))
        other.send(other.frame(create_topics("two"), 5))
        sent.set()
        try:
            answered: Any = wire.receive()
        except (TimeoutError, EOFError, ConnectionError) as problem:
            answered = problem
        assert not isinstance(answered, TimeoutError) or broker.node.failed.done(), "no answer, and the node goes on"


def test_a_decision_of_too_many_records_is_answered() -> None:
    """With a refusal that names the limit, not with a closed connection."""
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        request = alter(BROKER, "", **{f"my__key__{number}": "x" for number in range(10_001)})
        answer: Any = wire.ask(request, 1)
        assert not isinstance(answer, str), answer


def test_a_decision_of_too_many_bytes_is_answered() -> None:
    """A batch of more than 8 MiB is MESSAGE_TOO_LARGE from the metadata log's own append; it closes the connection."""
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        values = {f"my__key__{number}": "x" * 30_000 for number in range(300)}
        answer: Any = wire.ask(alter(BROKER, "", **values), 1)
        assert not isinstance(answer, str), answer


def test_an_answer_that_cannot_be_encoded_after_a_wait_closes_the_connection() -> None:
    """`_Parked._resume` encodes inside `except StopIteration`, where its other `except` clauses do not reach. An answer
    that does not encode (here: an error message longer than version 0's strings allow) escapes to the event loop; the
    connection stays open, and neither this nor any later request on it is ever answered."""
    with Broker() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        request = alter(TOPIC, "t", retention__ms="1000")
        request.resources += alter(BROKER, "x" * 32_760, a="b").resources
        thread, answers = ask_in_thread(wire, request, 0)
        thread.join(4)
        assert answers, "neither answered nor closed"


def test_a_checkpoint_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """OSError of the checkpoint escapes DeleteRecords: the connection is closed. The records are gone by then: the new
    start is set before it is persisted, against what `stored_log` says that its caller owes."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)

        def full(operation: str, path: str) -> None:
            if operation == "replace_file" and "checkpoint" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        answer: Any = wire.ask(trim("t", 1), 1)
        disk.hook = lambda operation, path: None
        assert not isinstance(answer, str), answer
        assert ErrorCode(answer.topics[0].partitions[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_segment_that_cannot_be_opened_is_an_error_of_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """OSError while a fetch opens a segment (no descriptors left, a bad sector) escapes the handler and closes the
    connection: one bad partition takes all others of the same fetch with it, again and again."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)
        broker.stop()
        broker.start()

        def none_left(operation: str, path: str) -> None:
            if operation == "open" and "/t-0/" in path:
                raise OSError(errno.EMFILE, "Too many open files")

        disk.hook = none_left
        answer: Any = Wire(broker.bootstrap).ask(fetch("t", 0), 4)
        assert not isinstance(answer, str), answer
        assert ErrorCode(fetched(answer).error_code) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_stop_does_not_wait_for_a_consumer_that_goes_on_polling() -> None:
    """Fetches that wait are woken by a stop, and none waits again."""
    with BrokerProcess() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")

        polls = threading.Event()

        def poll() -> None:
            consumer = Wire(broker.bootstrap)
            consumer.ask(fetch("t", 0, max_wait_ms=1), 4)
            polls.set()
            while consumer.ask(fetch("t", 0, max_wait_ms=8_000), 4) != CLOSED:
                pass

        threading.Thread(target=poll, daemon=True).start()
        assert polls.wait(10)
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 4


def test_a_full_disk_does_not_spoil_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fence record does not fit, the logs are closed and checkpointed all the same."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")

        def full(operation: str, path: str) -> None:
            if operation == "write" and "__cluster_metadata-0" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        broker.stop()
        assert broker._problem is None, repr(broker._problem)
        assert Path(broker.data, ".kafka_cleanshutdown").exists()


def test_a_snapshot_that_does_not_fit_does_not_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC while a snapshot is written (nothing is lost by it: the log has everything) is treated as a failed sync
    and ends the process."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": "500"}
    with hooked_broker(monkeypatch, settings) as (broker, disk):

        def full(operation: str, path: str) -> None:
            if operation == "replace_file" and path.endswith(".checkpoint"):
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        wire = Wire(broker.bootstrap)
        for number in range(10):
            create(wire, f"t{number}")
        assert broker.node is not None
        assert not wait_until(broker.node.failed.done, 1)


def test_producers_are_forgotten_while_the_broker_runs() -> None:
    """`expire_producers` is never called: a partition remembers every producer id that ever wrote to it until the
    broker is restarted (memory, and a growing snapshot written on the loop at every roll)."""
    with Broker({"producer.id.expiration.ms": "100", "producer.id.expiration.check.interval.ms": "100"}) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        for producer_id in range(50):
            records = [Record(0, int(time.time() * 1000), None, b"x")]
            batch = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
            wire.ask(produce("t", batch), 9)
        assert broker.node is not None
        producers = broker.node.replicas.require("t", 0).log.producers
        assert wait_until(lambda: len(producers) == 0, 4), f"{len(producers)} producers remembered"


def test_a_full_session_cache_does_not_thrash() -> None:
    """As with Kafka: sessions that were used lately are kept, and who comes when all slots are taken has none."""
    with Broker({"max.incremental.fetch.session.cache.slots": "2"}) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        sessions = [[0, 0] for _ in range(3)]
        errors = 0
        for _ in range(10):
            for session in sessions:
                request = fetch("t", 0)
                request.session_id, request.session_epoch = session
                answer: Any = wire.ask(request, 11)
                if answer.error_code:
                    errors += 1
                    session[:] = [0, 0]
                elif answer.session_id:
                    session[:] = [answer.session_id, session[1] + 1]
        assert errors <= 2, f"{errors} of 30 fetches found no session"


def test_bytes_out_counts_what_was_sent() -> None:
    """And not what a fetch that waits for min.bytes looked at on the way."""
    with Broker() as broker:
        wire, waiting = Wire(broker.bootstrap), Wire(broker.bootstrap)
        create(wire, "t")
        assert broker.node is not None
        partition = broker.node.replicas.require("t", 0)
        _, answers = ask_in_thread(waiting, fetch("t", 0, max_wait_ms=1500, min_bytes=100_000), 4)
        assert wait_until(lambda: bool(partition._waiters))
        for _ in range(10):
            wire.ask(produce("t", batch_of(b"x" * 500)), 9)
        assert wait_until(lambda: bool(answers), 5)
        assert broker.node.metrics.topics["t"].bytes_out == len(fetched(answers[0]).records)


def test_answers_that_wait_in_line_count_as_unsent() -> None:
    """A fetch that waits may hold back the answers behind it, but not more bytes of them than a client may leave
    unread."""
    with Broker() as broker:
        wire, hoarder = Wire(broker.bootstrap), Wire(broker.bootstrap)
        wire.ask(create_topics("many", partitions=1500), 5)
        create(wire, "t")
        frames = wire.frame(fetch("t", 0, max_wait_ms=60_000), 4)
        hoarder.send(frames)
        for _ in range(250):
            hoarder.send(wire.frame(MetadataRequest(topics=None), 9))
        assert broker.node is not None

        def held() -> int:
            sizes: list[int] = [
                len(part)
                for connection in list(broker.node.listeners[0].connections)  # type: ignore[union-attr]
                for answer in list(connection._answers or ())
                for part in answer.parts or ()
                if isinstance(part, (bytes, bytearray))
            ]
            return sum(sizes)

        wait_until(lambda: held() > 8 << 20, 5)
        assert held() <= 8 << 20, f"{held() >> 20} MiB held for one connection"
        hoarder.close()  # or the broker's stop waits for its fetch


# -- starting ----------------------------------------------------------------------------------------------------------


def start(*flags: str) -> subprocess.CompletedProcess[str]:
    """A broker that is expected to say in one line why it does not start; killed after a while if it does."""
    command = [
        sys.executable,
        "-m",
        "moldau",
        "broker",
        "-Xmoldau.http.listener=",
        "-Xlisteners=PLAINTEXT://127.0.0.1:0",
    ]
    try:
        return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=4)
    except subprocess.TimeoutExpired as running:
        return subprocess.CompletedProcess(command, 0, "", (running.stderr or b"").decode())


def test_a_metadata_directory_of_its_own_is_served(tmp_path: Path) -> None:
    """`metadata.log.dir` outside of log.dirs, a usual set-up for Kafka: `next(...)` finds no such directory and
    StopIteration ends the start with a traceback. (Nor is that directory made, locked or given meta.properties.)"""
    (tmp_path / "m").mkdir()
    result = start(f"-Xlog.dirs={tmp_path}/d", f"-Xmetadata.log.dir={tmp_path}/m")
    assert "Traceback" not in result.stderr, result.stderr[-300:]
    assert result.returncode == 0


def test_a_crash_while_formatting_does_not_change_the_kind_of_quorum(tmp_path: Path) -> None:
    """Formatting makes `__cluster_metadata-0` first and its snapshot 0-0 second. After a crash in between the next
    start sees the directory and skips the snapshot: the node runs with kraft.version 0 and no voters, for ever."""
    whole = Broker(data=str(tmp_path / "whole")).start()
    assert whole.node is not None
    wanted = whole.node.kraft_version
    whole.close()
    torn = Broker(data=str(tmp_path / "torn"))
    Path(torn.data, "__cluster_metadata-0").mkdir(parents=True)
    with torn:
        assert torn.node is not None
        assert torn.node.kraft_version == wanted


def test_a_damaged_vote_file_is_one_line(tmp_path: Path) -> None:
    """ValueError of `read_quorum_state` is caught nowhere: a traceback."""
    Broker(data=str(tmp_path)).start().stop()
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text("{")
    result = start(f"-Xlog.dirs={tmp_path}")
    assert "Traceback" not in result.stderr, result.stderr[-300:]
    assert "error: " in result.stderr


def test_a_log_of_a_newer_kafka_is_one_line(tmp_path: Path) -> None:
    """The log is replayed before its metadata.version is looked at. A record of a newer version (here PartitionRecord
    9) is kept aside as unknown, the next that refers to it raises IndexError: a traceback in place of the
    clear line that
    `_check_metadata_version` has for this very case."""
    from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
    from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
    from moldau.protocol.messages.metadata_records.topic_record import TopicRecord
    from moldau.protocol.metadata_records import UnknownMetadataRecord

    with Broker(data=str(tmp_path)) as broker:
        assert broker.node is not None and broker._loop is not None
        records = [
            FeatureLevelRecord(name="metadata.version", feature_level=31),
            TopicRecord(name="t", topic_id=bytes(range(16))),
            UnknownMetadataRecord(3, 9, b"whatever"),
            PartitionChangeRecord(partition_id=0, topic_id=bytes(range(16)), leader=1),
        ]
        controller, done = broker.node.controller, threading.Event()

        def write() -> None:
            controller.log.append(records, 30, controller.quorum.epoch, 0)
            done.set()

        broker._loop.call_soon_threadsafe(write)
        done.wait(3)
    result = start(f"-Xlog.dirs={tmp_path}")
    assert "Traceback" not in result.stderr, result.stderr[-300:]
    assert "metadata.version 31" in result.stderr
