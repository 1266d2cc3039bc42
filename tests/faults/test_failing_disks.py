"""A disk that fills up, and one that fails: real file systems, and errors that strace puts into system calls."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.kernel import ErrorCode
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.storage.reserve import RESERVE_FILE
from moldau.testing import Broker, BrokerProcess
from tests.broker.test_produce_and_fetch import batch_of, create, fetch, fetched, produce
from tests.differential.wire import CLOSED, Wire
from tests.robustness.kit import create_topics, delete_topic, trim, wait_until

DISK_BYTES = 4 << 20
RESERVE_BYTES = 256 << 10
VALUE = b"v" * 100_000
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def mounted(path: Path, *options: str) -> None:
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={DISK_BYTES}", *options)), "moldau-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    mounted(path)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def answer_to(wire: Wire, topic: str, value: bytes = VALUE) -> Any:
    answer: Any = wire.ask(produce(topic, batch_of(value)), 9)
    return answer.responses[0].partition_responses[0]


def fill(wire: Wire, topic: str, value: bytes = VALUE) -> tuple[int, Any]:
    """(records that were taken, the answer that refused the next)."""
    count = 0
    while (answer := answer_to(wire, topic, value)).error_code == 0:
        count += 1
        assert count < 2 * DISK_BYTES // len(value), "the disk is never full"
    return count, answer


def values_of(wire: Wire, topic: str, start: int, end: int) -> list[bytes]:
    from moldau.protocol.batches import iterate_batches, iterate_records

    found: list[bytes] = []
    while start < end:
        part = fetched(wire.ask(fetch(topic, start, max_bytes=1 << 20), 11))
        assert part.error_code == 0, ErrorCode(part.error_code)
        for header, batch in iterate_batches(bytes(part.records)):
            found += [record.value or b"" for record in iterate_records(batch)]
            start = header.last_offset + 1
    return found


def test_a_full_disk_refuses_produce_serves_reads_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    settings = {"moldau.log.dir.reserve.bytes": str(RESERVE_BYTES)}
    with Broker(settings, data=str(small_disk)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"segment.bytes": "1048576"})
        count, refused = fill(wire, "t")
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in refused.error_message or "full" in refused.error_message
        assert count > 20, "the reserve is small"
        assert wait_until(lambda: any("log_directory_full" in line for line in broker.log))
        again = answer_to(wire, "t", b"small")
        assert ErrorCode(again.error_code) is ErrorCode.KAFKA_STORAGE_ERROR and "is full" in again.error_message
        assert values_of(wire, "t", 0, count) == [VALUE] * count, "what was taken is read while the disk is full"

        # The metadata log and the checkpoints have what is left: the reserve is given back for them.
        for number in range(40):
            created: Any = wire.ask(create_topics(f"u{number}", partitions=1), 5)
            assert created.topics[0].error_code == 0, created
        trimmed: Any = wire.ask(trim("t", count - 5), 1)
        assert trimmed.topics[0].partitions[0].error_code == 0

        assert wait_until(lambda: answer_to(wire, "t", b"after").error_code == 0), broker.log[-3:]
        assert any("log_directory_has_room" in line for line in broker.log)
        assert (small_disk / RESERVE_FILE).stat().st_size == RESERVE_BYTES
        assert values_of(wire, "t", count - 5, count + 1) == [VALUE] * 5 + [b"after"], "no partial batch is left"
        broker.stop()
        assert not any("recovered" in line or "node_failed" in line for line in broker.log)
        broker.start()
        assert values_of(Wire(broker.bootstrap), "t", count - 5, count + 1) == [VALUE] * 5 + [b"after"]


def test_a_broker_starts_on_a_full_disk_and_goes_on_after_a_topic_is_deleted(small_disk: Path) -> None:
    settings = {"moldau.log.dir.reserve.bytes": str(RESERVE_BYTES)}
    with Broker(settings, data=str(small_disk)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        create(wire, "other")
        answer_to(wire, "other", b"one")
        count, _ = fill(wire, "t")
        (small_disk / "ballast").write_bytes(b"")
        with open(small_disk / "ballast", "ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        broker.stop()
        broker.start()
        wire = Wire(broker.bootstrap)
        assert values_of(wire, "other", 0, 1) == [b"one"]
        assert answer_to(wire, "other", VALUE).error_code != 0
        wire.ask(delete_topic("t"), 3)
        assert wait_until(lambda: answer_to(wire, "other", b"two").error_code == 0), broker.log[-3:]
        assert values_of(wire, "other", 0, 2) == [b"one", b"two"] and count


# -- failing -----------------------------------------------------------------------------------------------------------


@contextmanager
def injected(pid: int, call: str, error: str, *paths: str) -> Iterator[None]:
    """While this lasts, the call fails on these files."""
    only = [f"-P{path}" for path in paths]
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), *only, f"-etrace={call}", f"-einject={call}:error={error}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    if "attached" not in line:
        tracer.communicate()
        pytest.skip(f"strace cannot attach here: {line.strip()}")
    try:
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


class Pair:
    """A broker with two directories and a topic in each."""

    def __init__(self, broker: Any, paths: list[Path], **configs: str) -> None:
        self.wire = Wire(broker.bootstrap)
        for name in ("t", "u"):
            create(self.wire, name, **configs)
            assert answer_to(self.wire, name, b"first").error_code == 0
        self.paths = paths
        self.topics = [next(name for name in "tu" if (path / f"{name}-0").is_dir()) for path in paths]

    def segment(self, place: int) -> str:
        return str(self.paths[place] / f"{self.topics[place]}-0" / f"{0:020d}.log")

    def check(self, failed: int) -> None:
        """One directory is out of service, the other goes on."""
        lost, kept = self.topics[failed], self.topics[1 - failed]
        assert wait_until(lambda: fetched(self.wire.ask(fetch(lost, 0), 11)).error_code == 56)
        assert ErrorCode(answer_to(self.wire, lost, b"x").error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert answer_to(self.wire, kept, b"second").error_code == 0
        assert values_of(self.wire, kept, 0, 2) == [b"first", b"second"]
        answer: Any = self.wire.ask(DescribeLogDirsRequest(topics=None), 4)
        codes = {each.log_dir: ErrorCode(each.error_code) for each in answer.results}
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in (lost, kept)]
        known: Any = self.wire.ask(MetadataRequest(topics=asked), 9)
        assert [(each.name, each.partitions[0].offline_replicas) for each in known.topics] == [(lost, [1]), (kept, [])]
        assert codes == {
            str(self.paths[failed]): ErrorCode.KAFKA_STORAGE_ERROR,
            str(self.paths[1 - failed]): ErrorCode.NONE,
        }


def two(tmp_path: Path) -> tuple[dict[str, str], list[Path]]:
    paths = [tmp_path / "a", tmp_path / "b"]
    return {"log.dirs": ",".join(map(str, paths))}, paths


@needs_strace
@pytest.mark.parametrize(
    ("call", "error"),
    # The last is a file system that the kernel made read-only under the running broker.
    (("fdatasync", "EIO"), ("pwrite64", "EIO"), ("pwrite64", "EROFS")),
)
def test_an_error_of_one_disk_costs_its_partitions_only(tmp_path: Path, call: str, error: str) -> None:
    settings, paths = two(tmp_path)
    with BrokerProcess(settings) as broker:
        pair = Pair(broker, paths, **({"flush.messages": "1"} if call == "fdatasync" else {}))
        with injected(broker.pid, call, error, pair.segment(1)):
            refused = answer_to(pair.wire, pair.topics[1], b"lost")
            assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        pair.check(failed=1)
        assert f"log_directory_offline path={paths[1]}" in broker.log
        # New topics have the directory that is left.
        assert all(each.error_code == 0 for each in pair.wire.ask(create_topics("v", "w"), 5).topics)  # type: ignore[union-attr]
        assert all(answer_to(pair.wire, name, b"x").error_code == 0 for name in "vw")
        assert broker.stop() == 0, broker.log
        broker.start()
        wire = Wire(broker.bootstrap)
        assert values_of(wire, pair.topics[0], 0, 2) == [b"first", b"second"]
        assert values_of(wire, pair.topics[1], 0, 1)[0] == b"first", "what was synced is there after a restart"


@needs_strace
def test_a_disk_that_cannot_be_read_costs_its_partitions_only(tmp_path: Path) -> None:
    settings, paths = two(tmp_path)
    with BrokerProcess(settings) as broker:
        pair = Pair(broker, paths)
        with injected(broker.pid, "sendfile", "EIO", pair.segment(1)):
            assert pair.wire.ask(fetch(pair.topics[1], 0), 11) == CLOSED, "the answer had begun already"
        pair.wire = Wire(broker.bootstrap)
        pair.check(failed=1)
        assert f"log_directory_offline path={paths[1]} partitions=1 reason='reading failed" in broker.log


@needs_strace
def test_without_the_metadata_log_the_other_disk_goes_on_and_nothing_changes(tmp_path: Path) -> None:
    settings, paths = two(tmp_path)
    with BrokerProcess(settings) as broker:
        pair = Pair(broker, paths)
        metadata = str(paths[0] / "__cluster_metadata-0" / f"{0:020d}.log")
        with injected(broker.pid, "fdatasync", "EIO", metadata):
            refused: Any = pair.wire.ask(create_topics("v"), 5)
            assert ErrorCode(refused.topics[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        pair.check(failed=0)
        refused = pair.wire.ask(create_topics("v"), 5)
        assert ErrorCode(refused.topics[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "metadata_log_offline" in broker.log
        broker.stop()
        broker.start()
        assert values_of(Wire(broker.bootstrap), pair.topics[0], 0, 1) == [b"first"]


@needs_strace
@pytest.mark.parametrize("call", ("fdatasync", "pwrite64"))
def test_the_process_ends_when_its_last_disk_fails(call: str) -> None:
    with BrokerProcess() as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"flush.messages": "1"})
        assert answer_to(wire, "t", b"first").error_code == 0
        with injected(broker.pid, call, "EIO", f"{broker.data}/t-0/{0:020d}.log"):
            answer: Any = wire.ask(produce("t", batch_of(b"lost")), 9)
            assert answer == CLOSED or answer.responses[0].partition_responses[0].error_code == 56
            assert broker._process is not None
            assert broker._process.wait(15) != 0
        assert "no log directory is left" in broker.log
        broker.stop()
        broker.start()
        assert values_of(Wire(broker.bootstrap), "t", 0, 1)[0] == b"first"


def test_a_checkpoint_that_cannot_be_written_costs_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import errno

    from tests.robustness.kit import hooked_broker

    settings, paths = two(tmp_path)
    with hooked_broker(monkeypatch, settings) as (broker, disk):
        pair = Pair(broker, paths)

        def broken(operation: str, path: str) -> None:
            if operation == "replace_file" and path.startswith(f"{paths[1]}/"):
                raise OSError(errno.EIO, "Input/output error")

        disk.hook = broken
        trimmed: Any = pair.wire.ask(trim(pair.topics[1], 1), 1)
        assert ErrorCode(trimmed.topics[0].partitions[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        pair.check(failed=1)
        trimmed = pair.wire.ask(trim(pair.topics[0], 1), 1)
        assert trimmed.topics[0].partitions[0].error_code == 0


def test_a_directory_that_is_read_only_at_the_start_costs_its_partitions_only(tmp_path: Path) -> None:
    settings, paths = two(tmp_path)
    mounted(paths[1])
    try:
        broker = Broker(settings).start()
        pair = Pair(broker, paths)
        broker.stop()
        remount: Callable[[str], Any] = lambda mode: subprocess.run(  # noqa: E731
            ["mount", "-o", f"remount,{mode}", str(paths[1])], check=True
        )
        remount("ro")
        broker.start()
        pair.wire = Wire(broker.bootstrap)
        pair.check(failed=1)
        broker.stop()
        remount("rw")
        broker.start()
        assert values_of(Wire(broker.bootstrap), pair.topics[1], 0, 1) == [b"first"]
        broker.close()
    finally:
        subprocess.run(["umount", "-l", str(paths[1])], check=True)


def test_a_killed_broker_examines_its_directories_side_by_side_and_says_so(tmp_path: Path) -> None:
    settings, paths = two(tmp_path)
    with BrokerProcess(settings) as broker:
        pair = Pair(broker, paths)
        broker.kill()
        broker.start()
        wire = Wire(broker.bootstrap)
        assert [values_of(wire, topic, 0, 1) for topic in pair.topics] == [[b"first"]] * 2
        assert all(f"recovery_done path={path} logs=1" in broker.log for path in paths)
