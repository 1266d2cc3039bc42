"""Acknowledged records that are lost, answers that promise more than the disk holds, errors that mislead."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol import Record, build_batch
from moldau.storage import LogConfig, PartitionLog
from moldau.testing import Broker, BrokerProcess
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk
from tests.broker.test_produce_and_fetch import batch_of, create, fetch, fetched, produce
from tests.differential.wire import Wire
from tests.robustness.kit import (
    Gate,
    ask_in_thread,
    create_topics,
    delete_topic,
    hooked_broker,
    move,
    trim,
    wait_until,
)

NOW_MS = 1_700_000_001_000


def end_offset(wire: Wire, topic: str) -> int:
    answer: Any = wire.ask(fetch(topic, 0), 4)
    return int(fetched(answer).high_watermark)


def test_a_topic_made_again_keeps_its_records_after_a_crash() -> None:
    """DeleteTopics does not touch the checkpoints (the next write is up to 60 s away). A topic of the same name then
    inherits the old one's entry in log-start-offset-checkpoint after SIGKILL: the log "starts" past its end, so
    `_settle_start` removes every segment. All acknowledged records of the new topic are gone."""
    with BrokerProcess() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        for _ in range(20):
            wire.ask(produce("t", batch_of(b"old")), 9)
        wire.ask(trim("t", 15), 1)
        wire.ask(delete_topic("t"), 5)
        create(wire, "t")
        for _ in range(5):
            wire.ask(produce("t", batch_of(b"new")), 9)
        assert end_offset(wire, "t") == 5
        broker.kill()
        broker.start()
        again = Wire(broker.bootstrap)
        answer = fetched(again.ask(fetch("t", 0), 4))
        assert "log_restarted" not in broker.log, broker.log
        assert (answer.error_code, answer.high_watermark) == (0, 5)


def test_a_full_disk_is_a_storage_error_for_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path patches base offset and epoch into the request's bytes, the write fails with ENOSPC, and the
    handler then judges the patched batch: "INVALID_RECORD: base offset is 1, a producer must send 0". That error is
    final for every client (the records are dropped), where KAFKA_STORAGE_ERROR would make it try again."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)

        def full(operation: str, path: str) -> None:
            if operation == "write" and "/t-0/" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        answer: Any = wire.ask(produce("t", batch_of(b"y")), 9)
        refused = answer.responses[0].partition_responses[0]
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR, refused


def test_a_full_disk_with_log_append_time_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the attribute bit that LogAppendTime sets in the request's bytes."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"message.timestamp.type": "LogAppendTime"})

        def full(operation: str, path: str) -> None:
            if operation == "write" and "/t-0/" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        answer: Any = wire.ask(produce("t", batch_of(b"y")), 9)
        refused = answer.responses[0].partition_responses[0]
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR, refused


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_used_up_is_a_full_disk(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Half of a batch is written and taken back, reads go on, and so does the log when there is room again."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"kept")), 9)
        log = f"{broker.data}/t-0/{0:020d}.log"
        size = os.path.getsize(log)

        def full(operation: str, path: str) -> None:
            if operation == "write" and path == log:
                with open(log, "ab") as file:
                    file.write(b"half a batch")
                raise OSError(error, os.strerror(error))

        disk.hook = full
        answer: Any = wire.ask(produce("t", batch_of(b"refused")), 9)
        refused = answer.responses[0].partition_responses[0]
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert os.strerror(error) in refused.error_message
        assert os.path.getsize(log) == size
        assert fetched(wire.ask(fetch("t", 0), 11)).high_watermark == 1
        disk.hook = lambda operation, path: None
        answer = wire.ask(produce("t", batch_of(b"after")), 9)
        assert answer.responses[0].partition_responses[0].base_offset == 1
        assert not any("offline" in line for line in broker.log)


def plain_log(**config: Any) -> PartitionLog:
    disk = SimulatedDisk(SeededDice(1))
    return PartitionLog.open(disk, "/data/t-0", LogConfig(**config), now_ms=0)


def test_flush_messages_holds_while_another_flush_is_under_way() -> None:
    """With `flush.messages=1` a batch that rolls the segment while a flush is under way is "not due"
    (`if unsynced.segments: return not under_way` comes before the count), so Produce answers it, and every batch until
    that flush ends, without a sync: acknowledged as durable, lost in a power cut."""
    log = plain_log(flush_messages=1, segment_bytes=300)
    log.append_as_leader(batch_of(b"a" * 150), 0, NOW_MS)
    task = log.flush_task()
    assert task is not None
    log.append_as_leader(batch_of(b"b" * 150), 0, NOW_MS)  # rolls
    assert log.segment_base_offsets == [0, 1]
    assert log.recovery_point == 0
    assert log.flush_is_due(NOW_MS), "the answer does not wait for the disk"


def test_a_retry_is_not_acknowledged_before_the_first_attempt_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush.messages=1`: the first attempt waits for its sync; the producer gives up, connects anew and sends the
    batch again. `and not result.duplicate` answers the retry at once, with the sync still under way."""
    records = [Record(0, 1_700_000_000_000, None, b"x")]
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        gate = disk.hook = Gate("sync", "/t-0/")
        ask_in_thread(Wire(broker.bootstrap), produce("t", batch), 9)
        assert gate.reached.wait(5)
        _, retried = ask_in_thread(Wire(broker.bootstrap), produce("t", batch), 9)
        answered = wait_until(lambda: bool(retried), 1)
        gate.opened.set()
        assert not answered, "answered while the only sync was still waiting"


def test_readers_do_not_see_what_a_power_cut_could_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush.messages=1`: as in Kafka, which syncs within the append, the high watermark waits for the sync."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        gate = disk.hook = Gate("sync", "/t-0/")
        _, answered = ask_in_thread(Wire(broker.bootstrap), produce("t", batch_of(b"x")), 9)
        assert gate.reached.wait(5)
        assert broker.node is not None
        partition = broker.node.replicas.require("t", 0)
        assert (partition.log.end_offset, partition.high_watermark) == (1, 0)
        gate.opened.set()
        assert wait_until(lambda: bool(answered), 5)
        assert partition.high_watermark == 1


def test_a_producer_waiting_for_a_flush_is_answered_when_its_topic_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost wake-up. Batch 1 is being synced, batch 2 waits for the next sync; the topic is deleted, which closes the
    log. When sync 1 ends, `flush_soon` gets no task from a closed log and leaves batch 2's future alone, for ever. On
    its connection no later request is answered either, and every stop of the broker takes the whole grace time."""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        wire.ask(produce("t", batch_of(b"0")), 9)  # from here on no directory has to be synced
        gate = disk.hook = Gate("sync", "/t-0/")
        ask_in_thread(Wire(broker.bootstrap), produce("t", batch_of(b"1")), 9)
        assert gate.reached.wait(5)
        _, second = ask_in_thread(Wire(broker.bootstrap), produce("t", batch_of(b"2")), 9)
        wait_until(lambda: end_offset(wire, "t") == 3, 5)
        wire.ask(delete_topic("t"), 5)
        gate.opened.set()
        assert wait_until(lambda: bool(second), 3), "never answered"


def test_a_failed_sync_of_one_topic_is_an_error_of_that_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """`await wait` in Produce lets KAFKA_STORAGE_ERROR escape the handler: the connection is closed, with all answers
    that it owed, and the client learns nothing. (The node also ends, by design of the fsync rule.)"""
    with hooked_broker(monkeypatch) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})

        def broken(operation: str, path: str) -> None:
            if operation == "sync" and "/t-0/" in path:
                raise OSError(errno.EIO, "Input/output error")

        disk.hook = broken
        answer: Any = wire.ask(produce("t", batch_of(b"x")), 9)
        assert not isinstance(answer, str), answer
        code = answer.responses[0].partition_responses[0].error_code
        assert ErrorCode(code) is ErrorCode.KAFKA_STORAGE_ERROR


# -- two log directories -----------------------------------------------------------------------------------------------


def two(tmp_path: Path) -> tuple[dict[str, str], list[str]]:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    return {"log.dirs": ",".join(paths)}, paths


def home_of(paths: list[str], name: str) -> tuple[str, str]:
    """(where the partition is, the other directory)."""
    at = next(path for path in paths if Path(path, name).is_dir())
    return at, next(path for path in paths if path != at)


def test_a_partition_of_a_missing_directory_is_not_made_again_empty(tmp_path: Path) -> None:
    """One of two log directories is gone at a start (a disk that did not mount, a line edited). Kafka takes its
    partitions offline; here `_assigned_directory` chooses another place and makes an empty log there: consumers are
    told that the topic is empty, and offsets are given out a second time to other records."""
    settings, paths = two(tmp_path)
    with Broker(settings) as broker:
        wire = Wire(broker.bootstrap)
        wire.ask(create_topics("t", "u"), 5)
        for topic in "tu":
            for _ in range(5):
                wire.ask(produce(topic, batch_of(b"x")), 9)
    metadata, other = paths
    topic = next(name for name in "tu" if Path(other, f"{name}-0").is_dir())
    with Broker({"log.dirs": metadata}) as broker:
        answer: Any = Wire(broker.bootstrap).ask(produce(topic, batch_of(b"again")), 9)
        produced = answer.responses[0].partition_responses[0]
        assert produced.error_code != 0, f"offset {produced.base_offset} was given out twice"


def test_the_directory_that_the_metadata_names_wins(tmp_path: Path) -> None:
    """The old place of a moved replica is renamed without a sync, so a power cut may bring it back. Both directories
    then hold the partition, and `_place_existing` takes whichever comes last, not the one that the metadata log names:
    everything produced after the move is gone although it was acknowledged and synced."""
    settings, paths = two(tmp_path)
    broker = Broker(settings).start()
    wire = Wire(broker.bootstrap)
    wire.ask(create_topics("t", "u"), 5)
    topic = next(name for name in "tu" if Path(paths[1], f"{name}-0").is_dir())
    wire.ask(produce(topic, batch_of(b"before")), 9)
    saved = tmp_path / "saved"
    shutil.copytree(Path(paths[1], f"{topic}-0"), saved)
    moved: Any = wire.ask(move(topic, paths[0]), 1)
    assert moved.results[0].partitions[0].error_code == 0
    for _ in range(4):
        wire.ask(produce(topic, batch_of(b"after")), 9)
    broker.stop()
    shutil.copytree(saved, Path(paths[1], f"{topic}-0"))  # what a lost rename leaves
    broker.start()
    found = end_offset(Wire(broker.bootstrap), topic)
    broker.close()
    assert found == 5


def test_a_move_while_a_flush_is_under_way_succeeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`switch` closes the log although a flush may be under way: AssertionError, the connection is closed without an
    answer, and the whole copy stays behind as `-future` until the next start."""
    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        home, other = home_of(paths, "t-0")
        gate = disk.hook = Gate("sync", f"{home}/t-0/")
        ask_in_thread(Wire(broker.bootstrap), produce("t", batch_of(b"x")), 9)
        assert gate.reached.wait(5)
        thread, answers = ask_in_thread(wire, move("t", other), 1)
        thread.join(1.5)
        gate.opened.set()
        thread.join(5)
        assert answers and not isinstance(answers[0], str), (answers, broker.log[-1])


def test_two_moves_of_one_replica_leave_it_in_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two AlterReplicaLogDirs of the same partition at once (an admin client that tries again): the second `switch`
    closes the log that the first one has just opened, fails to find the source, and the partition takes no more
    records until the broker is restarted."""
    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)
        _, other = home_of(paths, "t-0")
        gate = disk.hook = Gate("sync", "-future/")
        moves = [ask_in_thread(Wire(broker.bootstrap), move("t", other), 1) for _ in range(2)]
        assert gate.reached.wait(5)
        wait_until(lambda: len(list(Path(other).glob("*-future"))) == 2, 3)
        gate.opened.set()
        for thread, _ in moves:
            thread.join(5)
        answer: Any = wire.ask(produce("t", batch_of(b"y")), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def test_a_move_that_fails_at_the_end_leaves_the_partition_in_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`switch` closes the log before the last copy. If that fails (the target is full), the partition keeps the closed
    log: KAFKA_STORAGE_ERROR for every record until the broker is restarted, because of a move that was only tried."""
    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)
        _, other = home_of(paths, "t-0")

        def full(operation: str, path: str) -> None:
            if operation == "rename" and "-future" in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        wire.ask(move("t", other), 1)
        answer: Any = wire.ask(produce("t", batch_of(b"y")), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def test_a_topic_made_again_during_a_move_keeps_its_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While a replica is copied its topic is deleted and made again under the same name. `switch` then completes the
    copy from the new topic's directory and renames the mixture to `<target>/t-0`: two directories hold the partition,
    and after a restart the mixture may win over the real one."""
    settings, paths = two(tmp_path)
    broker_settings = {**settings, "log.segment.delete.delay.ms": "0"}
    with hooked_broker(monkeypatch, broker_settings) as (broker, disk):
        wire = Wire(broker.bootstrap)
        wire.ask(create_topics("pad"), 5)
        create(wire, "t")
        _, other = home_of(paths, "t-0")
        for _ in range(3):
            wire.ask(produce("t", batch_of(b"old" * 50)), 9)
        gate = disk.hook = Gate("sync", "-future/")
        thread, answers = ask_in_thread(Wire(broker.bootstrap), move("t", other), 1)
        assert gate.reached.wait(5)
        wire.ask(delete_topic("t"), 5)
        create(wire, "t")
        new_home = home_of(paths, "t-0")[0]
        wire.ask(produce("t", batch_of(b"new")), 9)
        gate.opened.set()
        thread.join(5)
        wire.ask(produce("t", batch_of(b"new")), 9)
        homes = [path for path in paths if Path(path, "t-0").is_dir()]
        assert homes == [new_home], (homes, answers)


def test_a_client_that_leaves_does_not_leave_its_copy_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client of AlterReplicaLogDirs goes away (its request timed out on a large partition): the coroutine is closed
    in the middle, nobody calls `abandon`, and the full copy `-future` takes its space until the next start."""
    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        wire, leaving = Wire(broker.bootstrap), Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)
        _, other = home_of(paths, "t-0")
        gate = disk.hook = Gate("sync", "-future/")
        leaving.send(leaving.frame(move("t", other), 1))
        assert gate.reached.wait(5)
        leaving.close()
        assert broker.node is not None
        wait_until(lambda: len(broker.node.listeners[0].connections) == 1, 3)  # type: ignore[union-attr]
        gate.opened.set()
        done = wait_until(lambda: not list(Path(other).glob("*-future")), 3)
        assert done, list(Path(other).iterdir())
