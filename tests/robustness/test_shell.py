"""Failed logs, full disks, short memory: what the shell makes of them."""

from __future__ import annotations

import errno
import struct
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.testing import Broker, BrokerProcess
from tests.broker.test_produce_and_fetch import batch_of, create, fetch, fetched, produce
from tests.differential.wire import Wire
from tests.robustness.kit import HookedDisk, create_topics, hooked_broker, wait_until


def test_a_log_that_failed_is_not_marked_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A write fails with EIO half way: the log is out of service, its file ends in half a batch. The operator restarts
    the broker. `close(clean=True)` silently skips a failed log and the directory gets its clean mark, so the next start
    believes the file: new batches are appended *behind the garbage*, acknowledged, and cannot be read; the next
    recovery cuts them all off."""
    with hooked_broker(monkeypatch, data=str(tmp_path)) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"first")), 9)
        failed: list[str] = []

        def half(operation: str, path: str) -> None:
            if operation == "write" and path.endswith(".log") and "/t-0/" in path and not failed:
                failed.append(path)
                with open(path, "ab") as file:
                    file.write(bytes(batch_of(b"second"))[:40])
                raise OSError(errno.EIO, "Input/output error")

        disk.hook = half
        wire.ask(produce("t", batch_of(b"second")), 9)
        assert failed
        broker.stop()
        broker.start()
        wire = Wire(broker.bootstrap)
        answer: Any = wire.ask(produce("t", batch_of(b"third")), 9)
        produced = answer.responses[0].partition_responses[0]
        assert produced.error_code == 0, produced
        offset = produced.base_offset
        answer = wire.ask(fetch("t", offset), 4)
        assert not isinstance(answer, str), broker.log[-1]
        assert b"third" in bytes(fetched(answer).records or b""), "acknowledged, and not to be read"


def test_a_full_disk_at_the_start_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """KafkaError of the metadata log (the leader change or the registration does not fit on the disk) is not among what
    `__main__` catches: the user of a full disk sees a traceback."""
    import json

    from moldau.broker.__main__ import main

    Broker(data=str(tmp_path)).start().stop()
    disk = HookedDisk()

    def full(operation: str, path: str) -> None:
        if operation == "write" and "__cluster_metadata-0" in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.hook = full
    monkeypatch.setattr("moldau.broker.run.SystemDisk", disk)
    flags = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "moldau.http.listener": ""}
    order = {"file": None, "flags": flags, "remove": None, "greet": False}
    assert main(json.dumps(order)) == 1  # raises KafkaError
    assert "error: " in capsys.readouterr().err


def big_frame(wire: Wire, topic: str, size: int) -> bytes:
    return wire.frame(produce(topic, batch_of(b"x" * size)), 9)


@pytest.mark.parametrize("idle_ms", ["2000", "-1"])
def test_a_silent_half_frame_does_not_starve_the_others(idle_ms: str) -> None:
    """Over `queued.max.request.bytes` one connection may finish its frame while all others are paused; one that falls
    silent then is given up, whatever `connections.max.idle.ms` says, and the others are served."""
    settings = {"queued.max.request.bytes": "100000", "connections.max.idle.ms": idle_ms}
    with Broker(settings) as broker:
        silent = Wire(broker.bootstrap)
        create(silent, "t")
        frame = big_frame(silent, "t", 400_000)
        silent.send(frame[:300_000])
        assert broker.node is not None
        listener = broker.node.listeners[0]
        assert wait_until(lambda: listener.is_over_memory)
        outcomes: list[Any] = []

        def send() -> None:
            honest = Wire(broker.bootstrap)
            try:
                honest.send(frame)
                outcomes.append(honest.receive())
            except (TimeoutError, EOFError, ConnectionError) as problem:
                outcomes.append(problem)

        threads = [threading.Thread(target=send, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(12)
        answered = sum(isinstance(outcome, bytes) for outcome in outcomes)
        assert answered == 8, (outcomes, broker.log[-8:])


def test_a_partition_whose_log_could_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC or EMFILE while a new topic's log is made: the topic exists, CreateTopics says so, Metadata names a
    leader, and every Produce is NOT_LEADER_OR_FOLLOWER until the broker is restarted, long after there is room."""
    with hooked_broker(monkeypatch) as (broker, disk):

        def full(operation: str, path: str) -> None:
            if operation == "open" and path.endswith("/t-0/partition.metadata"):
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.hook = full
        wire = Wire(broker.bootstrap)
        wire.ask(create_topics("t"), 5)
        disk.hook = lambda operation, path: None

        def works() -> bool:
            answer: Any = wire.ask(produce("t", batch_of(b"x")), 9)
            return int(answer.responses[0].partition_responses[0].error_code) == 0

        assert wait_until(works, 4)


def stall(broker: BrokerProcess, work: Any, seconds: float) -> float:
    """The most CPU seconds that the broker's loop takes before it answers an ApiVersions while something else is
    going on. What others take of the machine meanwhile does not count."""
    other = Wire(broker.bootstrap)
    other.ask(ApiVersionsRequest(), 0)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    longest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until and thread.is_alive():
        began = loop_seconds(broker)
        other.ask(ApiVersionsRequest(), 0)
        longest = max(longest, loop_seconds(broker) - began)
    return longest


def loop_seconds(broker: BrokerProcess) -> float:
    """What the process's main thread has computed."""
    return int(Path(f"/proc/{broker.pid}/schedstat").read_text().split()[0]) / 1e9


def test_metrics_do_not_stall_the_loop() -> None:
    """`/metrics` is rendered on the loop in one piece: about a dozen samples per partition. Nobody is served meanwhile,
    at every scrape."""
    with BrokerProcess({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        wire = Wire(broker.bootstrap)
        for number in range(20):
            wire.ask(create_topics(f"topic-{number}", partitions=100), 5)
        line = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout
        ports = {
            int(part.rpartition(":")[2])
            for row in line.splitlines()
            if f"pid={broker.pid}," in row
            for part in [row.split()[3]]
        }
        (port,) = ports - {int(broker.bootstrap.rpartition(":")[2])}

        def scrape() -> None:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()

        scrape()
        assert stall(broker, scrape, 5) < 0.1


def test_creating_many_topics_with_dots_does_not_stall_the_loop() -> None:
    """`collides_with` walks (and rewrites) all taken names for each topic with '.' or '_' in its name: quadratic.
    4,900 topics, half of what Kafka's own limit allows, and validate-only, so that nothing is written."""
    with BrokerProcess() as broker:
        request = create_topics(*(f"team.service.topic_{number}" for number in range(4900)))
        request.validate_only = True
        wire = Wire(broker.bootstrap)
        assert stall(broker, lambda: wire.ask(request, 5), 20) < 1.0


def test_deciding_to_delete_many_topics_is_not_quadratic() -> None:
    """Five times the topics take five times as long, on the loop, and not twenty-five times."""
    from moldau.cluster import MetadataImage, TopicImage, decide_delete_topics
    from moldau.protocol.messages.delete_topics import DeleteTopicsRequest

    took = {}
    for count in (1000, 5000):
        topics = {f"t{n}": TopicImage(f"t{n}", n.to_bytes(16, "big"), ()) for n in range(1, count + 1)}
        image = MetadataImage(topics=topics, topic_names={topic.id: name for name, topic in topics.items()})
        request = DeleteTopicsRequest(topic_names=list(topics))
        began = time.process_time()
        decide_delete_topics(image, request, 5, deletion_enabled=True)
        took[count] = time.process_time() - began
    assert took[5000] < 10 * took[1000], took


def test_a_snapshot_that_is_cut_short_does_not_make_partitions_vanish(tmp_path: Path) -> None:
    """A snapshot without its footer is not believed, even if it ends with a whole batch: the one before it is read."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": "500"}
    broker = Broker(settings, data=str(tmp_path)).start()
    wire = Wire(broker.bootstrap)
    wire.ask(create_topics("many", partitions=2100), 5)
    for number in range(1000):
        if sum("metadata_snapshot_written" in line for line in broker.log) >= 2:
            break
        create(wire, f"more-{number}")
    broker.stop()
    newest = max((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))
    data = newest.read_bytes()
    position = 0
    ends = []
    while position < len(data):
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
        ends.append(position)
    newest.write_bytes(data[: ends[1]])  # header and the first 2,000 records
    broker = Broker(settings, data=str(tmp_path))
    try:
        broker.start()
    except Exception as refusal:  # a clear refusal would do
        assert "checkpoint" in str(refusal), refusal
        return
    assert broker.node is not None
    count = len(broker.node.image.topics["many"].partitions)
    broker.stop()
    assert count == 2100


def test_a_log_that_was_not_opened_is_not_marked_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a crash a partition's log cannot be opened (no descriptors left) and is left out as unavailable. A clean
    stop then marks the whole directory clean, and the next start believes a log that was never recovered: its torn tail
    stays, new batches go behind it, are acknowledged and cannot be read."""
    with hooked_broker(monkeypatch, data=str(tmp_path)) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"first")), 9)
        broker.stop()
        (tmp_path / ".kafka_cleanshutdown").unlink()  # a crash ...
        with open(tmp_path / "t-0" / f"{0:020d}.log", "ab") as file:
            file.write(bytes(batch_of(b"second"))[:40])  # ... that tore the tail

        def none_left(operation: str, path: str) -> None:
            if operation == "open" and "/t-0/" in path:
                raise OSError(errno.EMFILE, "Too many open files")

        disk.hook = none_left
        broker.start()
        assert any("partition_unavailable" in line for line in broker.log)
        broker.stop()
        disk.hook = lambda operation, path: None
        broker.start()
        wire = Wire(broker.bootstrap)
        answer: Any = wire.ask(produce("t", batch_of(b"third")), 9)
        offset = answer.responses[0].partition_responses[0].base_offset
        answer = wire.ask(fetch("t", offset), 4)
        assert not isinstance(answer, str), broker.log[-1]
        assert b"third" in bytes(fetched(answer).records or b""), "acknowledged, and not to be read"


def test_deleted_records_stay_deleted_when_a_log_did_not_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A partition that cannot be opened at one start is left out of the checkpoints, which are written whole: its start
    offset is forgotten, and records that DeleteRecords removed are served again after the next start."""
    from tests.robustness.kit import trim

    with hooked_broker(monkeypatch, data=str(tmp_path)) as (broker, disk):
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        for _ in range(10):
            wire.ask(produce("t", batch_of(b"secret")), 9)
        wire.ask(trim("t", 5), 1)
        broker.stop()

        def none_left(operation: str, path: str) -> None:
            if operation == "open" and "/t-0/" in path:
                raise OSError(errno.EMFILE, "Too many open files")

        (tmp_path / ".kafka_cleanshutdown").unlink()  # after a crash logs are opened at the start
        disk.hook = none_left
        broker.start()
        assert any("partition_unavailable" in line for line in broker.log)
        broker.stop()
        disk.hook = lambda operation, path: None
        broker.start()
        answer: Any = Wire(broker.bootstrap).ask(fetch("t", 0), 5)
        assert fetched(answer).log_start_offset in (5, -1), fetched(answer)
        assert ErrorCode(fetched(answer).error_code) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_validating_a_topic_does_not_count_as_placing_it(tmp_path: Path) -> None:
    """`choose_directory` counts a partition when a decision is made, not when it is committed: validate-only requests
    (and refused ones) count too. A tool that validates before it creates puts every partition into one directory."""
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    with Broker({"log.dirs": ",".join(paths)}) as broker:
        wire = Wire(broker.bootstrap)
        for number in range(10):
            request = create_topics(f"t{number}")
            request.validate_only = True
            wire.ask(request, 5)
            create(wire, f"t{number}")
        counts = [len(list(Path(path).glob("t*-0"))) for path in paths]
        assert max(counts) <= 6, counts


def test_unknown_records_do_not_push_each_other_out() -> None:
    """Records of a newer Kafka are kept under ("unknown", number of kept records). After another kept record (an ACL,
    say) is removed, that number comes again: the next unknown record replaces an older one, which the next snapshot
    then lacks."""
    from moldau.cluster import MetadataDelta, MetadataImage
    from moldau.protocol.messages.metadata_records.access_control_entry_record import AccessControlEntryRecord
    from moldau.protocol.messages.metadata_records.remove_access_control_entry_record import (
        RemoveAccessControlEntryRecord,
    )
    from moldau.protocol.metadata_records import UnknownMetadataRecord

    acl = bytes(range(16))
    delta = MetadataDelta(MetadataImage())
    delta.replay_all(
        [
            AccessControlEntryRecord(id=acl),
            UnknownMetadataRecord(99, 0, b"one"),
            RemoveAccessControlEntryRecord(id=acl),
            UnknownMetadataRecord(99, 0, b"two"),
        ]
    )
    assert [record.body for record in delta.image(3, 0).kept.values()] == [b"one", b"two"]
