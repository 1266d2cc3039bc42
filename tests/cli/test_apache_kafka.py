"""The main verbs on Apache Kafka: every command goes over the wire, so it must not matter whose broker answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Moldau
from tests.java import run_tool
from tests.oracle import RunningKafka

pytestmark = pytest.mark.oracle


@pytest.fixture
def kafka(apache_kafka: RunningKafka) -> Moldau:
    return Moldau(apache_kafka.bootstrap)


def test_topics_live_and_die(kafka: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    kafka("topic", "create", name, "-p", "2", "-c", "retention.ms=60000")
    assert "TOPIC_ALREADY_EXISTS" in kafka("topic", "create", name, code=1).err
    assert kafka("topic", "create", name, "--if-not-exists", "-o", "json").json[0]["result"] == "exists"
    assert name in [row["name"] for row in kafka("topic", "list", "-o", "json").json]
    done = kafka("topic", "alter", name, "-p", "3", "--set", "segment.ms=1000000", "--unset", "retention.ms")
    assert "keys move" in done.err
    (described,) = kafka("topic", "describe", name, "-o", "json").json
    assert len(described["partitions"]) == 3
    own = [one for one in described["configs"] if one["source"] == "dynamic_topic"]
    assert [(one["name"], one["value"]) for one in own] == [("segment.ms", "1000000")]
    assert described["partitions"][0]["leader"] == 1
    kafka("topic", "delete", name)
    assert "does not exist" in kafka("topic", "delete", name, code=3).err
    assert "does not exist" in kafka("topic", "describe", name, code=3).err


def test_records_round_trip_and_trim(kafka: Moldau, new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    kafka("topic", "create", name, "-p", "2")
    dice = random.Random(3)
    lines = [
        {
            "partition": n % 2,
            "timestamp": 1_700_000_000_000 + n,
            "key": f"k{n}",
            "value": None if n % 7 == 0 else "".join(dice.choices("aä\n\t€", k=5)),
            "headers": [{"name": "n", "value": str(n)}],
        }
        for n in range(100)
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kafka("produce", name, "--from", str(source), "-z", "lz4")
    found = kafka("consume", name, "-e", "-o", "jsonl").lines
    assert sorted(({key: one[key] for key in lines[0]} for one in found), key=lambda one: one["timestamp"]) == lines
    assert kafka("consume", name, "-e", "-s", "-1", "-p", "1", "-f", "%o %k\\n").out == "49 k99\n"
    assert len(kafka("consume", name, "-e", "-s", "@1700000000090", "-f", "%k\\n").out.split()) == 10
    rows = kafka("topic", "trim", name, "--before", "@1700000000090", "-o", "json").json
    assert [(row["start"], row["end"]) for row in rows] == [(45, 50), (45, 50)]
    kafka("topic", "trim", name, "--all")
    assert kafka("consume", name, "-e").out == ""


def test_kafkas_own_tools_read_what_we_wrote_and_we_read_theirs(kafka: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    kafka("topic", "create", name, "-p", "1")
    run_tool("console-producer", "--topic", name, bootstrap=kafka.bootstrap, stdin="from java\n")
    kafka.run("produce", name, "-K", ":", stdin=b"key:from moldau\n")
    assert kafka("consume", name, "-n", "2", "-f", "%k|%v\\n").out == "|from java\nkey|from moldau\n"


def test_configs_features_and_cluster(kafka: Moldau, new_name: Callable[[], str], apache_kafka: RunningKafka) -> None:
    name = new_name()
    kafka("topic", "create", name)
    kafka("config", "set", f"topic/{name}", "retention.ms=5", "--append", "cleanup.policy=compact")
    rows = {row["key"]: row for row in kafka("config", "get", f"topic/{name}", "--all", "-o", "json").json}
    assert rows["cleanup.policy"]["value"] == "delete,compact" and rows["retention.ms"]["source"] == "dynamic_topic"
    kafka("config", "set", f"topic/{name}", "--unset", "retention.ms", "--subtract", "cleanup.policy=delete")
    assert kafka("config", "get", "broker/1", "node.id", "-o", "json").json[0]["value"] == "1"
    assert "does not exist" in kafka("config", "get", "topic/nope-nope", code=3).err
    features = {row["feature"]: row for row in kafka("feature", "list", "-o", "json").json}
    assert features["metadata.version"]["release"] == "4.3-IV0" and features["group.version"]["level"] == 1
    kafka("feature", "set", "group.version=1", "--dry-run")
    assert "error: " in kafka("feature", "set", "metadata.version=7", "--dry-run", code=1).err
    found = kafka("cluster", "describe", "-o", "json").json
    assert found["cluster_id"] == apache_kafka.cluster_id and found["quorum"]["leader"] == 1


def test_doctor(kafka: Moldau) -> None:
    found = {row["check"]: row["status"] for row in kafka("doctor", "--write", "-o", "json").json}
    assert {status for check, status in found.items() if check not in ("disk", "versions")} == {"ok"}


def test_log_dump_reads_what_apache_kafka_wrote(
    kafka: Moldau, apache_kafka: RunningKafka, new_name: Callable[[], str]
) -> None:
    name = new_name()
    kafka("topic", "create", name, "-p", "1")
    kafka.run("produce", name, "-K", ":", "-z", "gzip", stdin=b"k:v\n" * 50)
    directory = Path(apache_kafka.log_dir)
    entries = kafka("log", "dump", str(directory / f"{name}-0"), "--records", "-o", "jsonl").lines
    assert [one["key"] for one in entries if one["kind"] == "record"] == ["k"] * 50
    (log,) = sorted((directory / "__cluster_metadata-0").glob("*.log"))[-1:]
    entries = kafka("log", "dump", str(log), str(directory / "bootstrap.checkpoint"), "-o", "jsonl").lines
    assert name in [one["data"]["name"] for one in entries if one.get("type") == "TopicRecord"]
