"""The life of a log: compaction, recovery of a long log, re-compression, retention, old and new ends of a long log."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench.report import Row
from bench.rows import admin, both, run, values_of, wait_for_offsets
from bench.servers import LOAD_CORE, Kafka, Moldau, Server, cpu_seconds
from moldau.broker.host import SystemDisk
from moldau.protocol.compression import Compression
from moldau.storage import LogConfig, PartitionLog
from moldau.storage.cleaning import run as run_cleaning
from moldau.storage.scan import scan_segment

RECORDS, KEYS, RECORD_BYTES = 2_000_000, 100_000, 100
ALLOWED_RECORDS = 1.1
SEGMENT_BYTES = 16 << 20
PROBES_PER_SECOND = 200
LONG_GB, UNFLUSHED_GB = 20, 2
SEGMENTS_DELETED = 10_000
WAIT_SECONDS_MAX = 120.0


def logs(rows: list[Row], rounds: int) -> None:
    compaction(rows, rounds)
    cleaner_alone(rows, rounds)
    recompression(rows, rounds)
    retention(rows, rounds)
    long_log(rows)


@contextmanager
def _on_load_core() -> Iterator[None]:
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _create(server: Server, name: str, configs: dict[str, str]) -> None:
    client = admin(server)
    for future in client.create_topics([NewTopic(name, 1, 1, config=configs)]).values():
        future.result(60)


def _directory(server: Server, topic: str) -> Path:
    assert isinstance(server, Moldau | Kafka)
    (found,) = Path(server.data).glob(f"**/{topic}-0")
    return found


def _until(condition: Callable[[], bool], seconds_max: float = WAIT_SECONDS_MAX) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds_max:
            raise TimeoutError("it does not become so")
        time.sleep(0.02)
    return time.monotonic() - began


# -- compaction --------------------------------------------------------------------------------------------------------


def compaction(rows: list[Row], rounds: int) -> None:
    for codec in ("none", "zstd"):
        row = Row(f"compaction, 2 M x 100 B, 100 k keys, {codec}: until clean", "s", "lower", limit=3)
        with both() as servers, _on_load_core():
            for number in range(rounds):
                for server in servers:
                    topic = f"table-{codec}-{number}"
                    configs = {
                        "cleanup.policy": "compact",
                        "segment.bytes": str(SEGMENT_BYTES),
                        "min.cleanable.dirty.ratio": "0.01",
                    }
                    _create(server, topic, configs)
                    _fill(server, topic, codec)
                    directory = _directory(server, topic)
                    values_of(row, server).append(_until(partial(_is_clean, directory)))
        rows.append(row)
    cleaning_tail(rows, rounds)


def cleaning_tail(rows: list[Row], rounds: int) -> None:
    tail = Row("produce p99 while a log is cleaned, against without", "x", "lower", limit=1.5)
    with both() as servers, _on_load_core():
        for number in range(rounds):
            for server in servers:
                values_of(tail, server).append(_p99_while_cleaning(server, f"busy-{number}"))
    rows.append(tail)


def _fill(server: Server, topic: str, codec: str, records: int = RECORDS) -> None:
    settings = {
        "bootstrap.servers": server.bootstrap,
        "compression.type": codec,
        "linger.ms": 5,
        "queue.buffering.max.messages": 500_000,
        "log_level": 0,
    }
    producer = Producer(settings)
    # Half of a value is noise, so that a codec has something to do and something to find.
    dice, noise, filler = random.Random(1), os.urandom(1 << 20), b"x" * (RECORD_BYTES // 2)
    keys = [b"key-%07d" % key for key in range(KEYS)]
    for _ in range(records):
        place = dice.randrange(1 << 19)
        while True:
            try:
                producer.produce(
                    topic, noise[place : place + RECORD_BYTES // 2] + filler, keys[dice.randrange(KEYS)], partition=0
                )
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(60)


def _is_clean(directory: Path) -> bool:
    """Below the segment that is written to, few records more than keys."""
    paths = sorted(directory.glob("*.log"))[:-1]
    try:
        count = sum(_record_count(path) for path in paths)
    except OSError:
        return False  # swapped under our eyes
    return bool(paths) and count <= KEYS * ALLOWED_RECORDS


def _record_count(path: Path) -> int:
    """By the headers."""
    count, data = 0, path.read_bytes()
    position = 0
    while position + 61 <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        count += int.from_bytes(data[position + 57 : position + 61], "big")
        position += size
    return count


def _p99_while_cleaning(server: Server, topic: str) -> float:
    """How much longer a small produce takes at the 99th percentile while a large log is cleaned on the same broker."""
    _create(server, f"{topic}-probe", {})
    quiet = quantiles(_probe(server, f"{topic}-probe", lambda began: time.monotonic() < began + 5), n=100)[98]
    client = admin(server)
    configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "1.0"}
    _create(server, topic, configs)
    _fill(server, topic, "none")
    change = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)
    directory = _directory(server, topic)
    busy = _probe(
        server,
        f"{topic}-probe",
        lambda began: time.monotonic() < began + WAIT_SECONDS_MAX and not _has_been_cleaned(directory),
    )
    return quantiles(busy[-1000:], n=100)[98] / quiet


def _has_been_cleaned(directory: Path) -> bool:
    paths = sorted(directory.glob("*.log"))[:-1]
    try:
        return sum(path.stat().st_size for path in paths) < RECORDS * RECORD_BYTES / 4
    except OSError:
        return False  # swapped under our eyes


def _probe(server: Server, topic: str, goes_on: Callable[[float], bool]) -> list[float]:
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0, "log_level": 0})
    took: list[float] = []
    began = time.monotonic()
    while goes_on(began):
        before = time.monotonic()
        producer.produce(topic, b"x" * 100)
        producer.flush(10)
        took.append(time.monotonic() - before)
        time.sleep(1 / PROBES_PER_SECOND)
    return took


def cleaner_alone(rows: list[Row], rounds: int) -> None:
    """One worker on one log, without a broker."""
    for codec in (Compression.NONE, Compression.ZSTD):
        row = Row(f"one cleaner, {codec.name.lower()}", "records/s", "higher", limit=700_000)
        server = Moldau()
        try:
            server.start()
            _create(
                server,
                "t",
                {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "1.0"},
            )
            _fill(server, "t", codec.name.lower())
            directory = _directory(server, "t")
            server.stop()
            config = LogConfig(compact=True, segment_bytes=SEGMENT_BYTES)
            log = PartitionLog.open(SystemDisk(), str(directory), config, now_ms=0)
            job = log.cleaning_job(log.dirt(None, log.end_offset, 0), 0, 128 << 20)
            for _ in range(rounds):
                began = time.monotonic()
                steps: list[Any] = list(run_cleaning(job, SystemDisk()))
                took = time.monotonic() - began
                row.moldau.append(sum(step.records_read for step in steps[:-1]) / took)
        finally:
            server.remove()
        rows.append(row)


# -- re-compression ----------------------------------------------------------------------------------------------------


def recompression(rows: list[Row], rounds: int) -> None:
    rate = Row("re-compression none -> zstd on the broker", "MB/s", "higher", at_least=0.8)
    cost = Row("re-compression none -> zstd: CPU per GB", "s", "lower", at_least=0.8)
    with both() as servers:
        for number in range(rounds + 1):
            for server in servers:
                topic = f"zstd-{number}"
                _create(server, topic, {"compression.type": "zstd"})
                before = cpu_seconds(server.pid)
                answer = run("rdload", "produce", server.bootstrap, topic, "500000", "1024")
                if answer["failed"]:
                    raise RuntimeError(f"{server.name} refused {answer['failed']} records")
                used = cpu_seconds(server.pid) - before
                values_of(rate, server).append(answer["mb_per_second"])
                values_of(cost, server).append(used / 0.512)
    for row in (rate, cost):
        del row.moldau[0], row.kafka[0]  # the first warms up
    rows += [rate, cost]


# -- retention ---------------------------------------------------------------------------------------------------------


def retention(rows: list[Row], rounds: int) -> None:
    row = Row("retention deletes 10,000 segments: longest delay of a request", "ms", "lower", limit=20)
    for _ in range(max(1, rounds - 1)):
        server = Moldau()
        try:
            server.start()
            _create(server, "many", {"internal.segment.bytes": "1000", "retention.ms": "-1"})
            _create(server, "probe", {})
            with _on_load_core():
                producer = Producer({"bootstrap.servers": server.bootstrap, "batch.num.messages": 1, "log_level": 0})
                for number in range(SEGMENTS_DELETED + 1):
                    producer.produce("many", b"x" * 900, timestamp=1_000_000_000_000)
                    if number % 50_000 == 0:
                        producer.poll(0)
                producer.flush(120)
                client = admin(server)
                change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ResourceType.TOPIC, "many", incremental_configs=[change])
                directory = _directory(server, "many")
                assert len(list(directory.glob("*.log"))) > SEGMENTS_DELETED * 0.9
                _probe(server, "probe", lambda began: time.monotonic() < began + 2)
                for future in client.incremental_alter_configs([resource]).values():
                    future.result(30)
                took = _probe(server, "probe", partial(_has_segments, directory))
            row.moldau.append(max(took) * 1000)
        finally:
            server.remove()
    rows.append(row)


def _has_segments(directory: Path, _began: float) -> bool:
    return len(list(directory.glob("*.log"))) > 1


# -- a long log --------------------------------------------------------------------------------------------------------


def long_log(rows: list[Row]) -> None:
    """Once each: it writes twenty gigabytes."""
    opened = Row("SIGKILL with 20 GB, the last 2 GB unflushed: back to serving", "s", "lower", limit=5)
    scan = Row("CRC scan of a segment", "MB/s", "higher", limit=500)
    head = Row("fetch at the head, 20 GB against 1 GB of log: p99", "x", "lower", limit=1.2)
    tail = Row("fetch at the tail, 20 GB against 1 GB of log: p99", "x", "lower", limit=1.2)
    clean_open = Row("clean start, 20 GB against 1 GB of log", "x", "lower", limit=1.5)
    for make in (Moldau, Kafka):
        server: Server = make()
        try:
            server.start()
            _create(server, "long", {})
            _write_gb(server, "long", 1)
            short = _fetch_p99(server, "long")
            short_open = _restart(server, kill=False)
            _write_gb(server, "long", LONG_GB - UNFLUSHED_GB - 1)
            _restart(server, kill=False)  # everything so far is on disk, and known to be
            _write_gb(server, "long", UNFLUSHED_GB)
            values_of(opened, server).append(_restart(server, kill=True))
            for row, long, before in zip((head, tail), _fetch_p99(server, "long"), short, strict=True):
                values_of(row, server).append(long / before)
            values_of(clean_open, server).append(_restart(server, kill=False) / short_open)
            if isinstance(server, Moldau):
                scan.moldau.append(_scan_mb_per_second(sorted(_directory(server, "long").glob("*.log"))[0]))
        finally:
            server.remove()
    rows += [opened, scan, head, tail, clean_open]


def _scan_mb_per_second(segment: Path) -> float:
    file = SystemDisk().open(str(segment))
    began = time.monotonic()
    found = scan_segment(file, file.size(), 0, index_interval_bytes=4096)
    return found.valid_bytes / 1e6 / (time.monotonic() - began)


def _write_gb(server: Server, topic: str, gigabytes: int) -> None:
    records = gigabytes * 1_000_000
    answer = run("rdload", "produce", server.bootstrap, topic, str(records), "1000", "batch.size=1000000")
    if (answer["records"], answer["failed"]) != (records, 0):
        raise RuntimeError(f"{server.name} took {answer['records']} of {records} records")


def _restart(server: Server, *, kill: bool) -> float:
    if kill:
        server.kill()
    else:
        server.stop()
    began = time.monotonic()
    server.start()
    wait_for_offsets(server, ["long"], 1)
    return time.monotonic() - began


def _fetch_p99(server: Server, topic: str) -> tuple[float, float]:
    """Of single fetches at the first and at the last records."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "fetch.max.bytes": 1_000_000,
            "max.partition.fetch.bytes": 65_536,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    os.sync()  # what was written just now shall not be written back meanwhile: that is not what is measured
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    cuts = []
    for offset in (low, high - 10):
        took = []
        for _ in range(300):
            consumer.assign([TopicPartition(topic, 0, offset)])
            before = time.monotonic()
            while consumer.poll(5) is None:
                pass
            took.append(time.monotonic() - before)
            consumer.unassign()
        cuts.append(quantiles(took[50:], n=100)[98])
    consumer.close()
    return cuts[0], cuts[1]
