"""The oracle itself: if these fail, believe no differential test."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.java import run_tool
from tests.oracle import CLUSTER_ID, ApacheKafka, RunningKafka, require_oracle, serves_metadata

pytestmark = pytest.mark.oracle


def test_a_node_starts_serves_its_tools_and_stops_cleanly(tmp_path: Path) -> None:
    require_oracle()
    with ApacheKafka(tmp_path, properties={"num.partitions": "3"}) as kafka:
        kafka.tool("topics", "--create", "--topic", "orders")
        kafka.tool("console-producer", "--topic", "orders", stdin="one\ntwo\n")
        assert "PartitionCount: 3" in kafka.tool("topics", "--describe", "--topic", "orders").stdout
        pid = kafka.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (kafka.log_dir / ".kafka_cleanshutdown").exists()
    assert f"cluster.id={CLUSTER_ID}" in (kafka.log_dir / "meta.properties").read_text()
    segments = sorted(kafka.log_dir.glob("orders-*/*.log"))
    dump = run_tool("dump-log", "--print-data-log", "--files", ",".join(map(str, segments))).stdout
    assert "payload: one" in dump
    assert "payload: two" in dump


def test_a_killed_node_with_static_voters_is_reopened_on_its_directory(tmp_path: Path) -> None:
    require_oracle()
    # A killed broker's registration bars its successor until the session is over: nine seconds by default.
    properties = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    with ApacheKafka(tmp_path, voters="static", properties=properties) as first:
        first.tool("topics", "--create", "--topic", "kept")
        first.kill()
        assert not serves_metadata("127.0.0.1", first.port)
    with ApacheKafka(tmp_path / "again", log_dir=first.log_dir, voters="static", properties=properties) as second:
        assert "kept" in second.tool("topics", "--list").stdout.split()


def test_the_shared_node_answers(apache_kafka: RunningKafka) -> None:
    quorum = apache_kafka.tool("metadata-quorum", "describe", "--status").stdout
    assert CLUSTER_ID in quorum
    assert serves_metadata(*_address(apache_kafka.bootstrap))


def _address(bootstrap: str) -> tuple[str, int]:
    host, port = bootstrap.rsplit(":", 1)
    return host, int(port)


def test_somebody_waits_for_the_last_user_of_the_shared_node(apache_kafka: RunningKafka) -> None:
    """Or a Kafka stays behind after each run of the tests."""

    def is_guarded() -> bool:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"guard" in words and str(apache_kafka.pid).encode() in words:
                    return any(each.readlink().name == "users.lock" for each in (process / "fd").iterdir())
        return False

    deadline = time.monotonic() + 30
    while not is_guarded():
        assert time.monotonic() < deadline, "nobody would stop it"
        time.sleep(0.05)
