"""Kafka's own command-line tools against our broker, with the arguments that people type.

They run inside the JVM of `java/Peer.java`, by the `main` that their scripts start; the last test starts one as its
script does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.broker.api_table import SERVED
from moldau.testing import BrokerProcess
from tests.clients.peers import JavaPeer
from tests.java import run_tool_alone

pytestmark = [pytest.mark.clients, pytest.mark.oracle]


def test_topics(java: JavaPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    create = ("--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1")
    assert f"Created topic {topic}." in java.tool("topics", *create, "--config", "retention.ms=86400000")
    assert "already exists" in java.tool("topics", *create, code=1)
    assert topic in java.tool("topics", "--list").splitlines()
    described = java.tool("topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=86400000", described)
    assert re.search(r"Partition: 2\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)
    java.tool("topics", "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in java.tool("topics", "--describe", "--topic", topic)
    assert java.tool("topics", "--describe", "--unavailable-partitions") == ""
    assert java.tool("topics", "--describe", "--under-replicated-partitions") == ""
    java.tool("topics", "--delete", "--topic", topic)
    assert topic not in java.tool("topics", "--list").splitlines()
    assert "does not exist as expected" in java.tool("topics", "--describe", "--topic", topic, code=1)


def test_configs(java: JavaPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    java.tool("topics", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    java.tool("configs", "--alter", *entity, "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]")
    described = java.tool("configs", "--describe", *entity)
    assert "retention.ms=3600000 sensitive=false" in described and "cleanup.policy=compact,delete" in described
    java.tool("configs", "--alter", *entity, "--delete-config", "cleanup.policy")
    assert "cleanup.policy" not in java.tool("configs", "--describe", *entity)
    assert "segment.bytes=1073741824" in java.tool("configs", "--describe", "--all", *entity)
    bad = java.tool("configs", "--alter", *entity, "--add-config", "retention.ms=soon", code=1)
    assert "Invalid value soon for configuration retention.ms" in bad
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    java.tool("configs", "--alter", *broker, "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in java.tool("configs", "--describe", *broker)
    java.tool("configs", "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms")
    assert "log.dirs=" in java.tool("configs", "--describe", "--all", *broker)


def test_console_producer_and_consumer(java: JavaPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    pairs = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    java.tool("console-producer", "--topic", topic, *pairs, "--compression-codec", "zstd", stdin="a:1\nb:2\nc:3\n")
    read = ("--topic", topic, "--partition", "0", "--timeout-ms", "5000")
    keys = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    out = java.tool("console-consumer", *read, "--offset", "earliest", "--max-messages", "3", *keys)
    assert out.startswith("Offset:0\ta\t1\nOffset:1\tb\t2\nOffset:2\tc\t3\n")
    assert "Processed a total of 3 messages" in out
    assert java.tool("console-consumer", *read, "--offset", "2", "--max-messages", "1").startswith("3\n")


def test_offsets_and_their_deletion(java: JavaPeer, new_topic: Callable[[], str], tmp_path: Path) -> None:
    topic = new_topic()
    java.tool("console-producer", "--topic", topic, stdin="".join(f"{i}\n" for i in range(10)))
    assert java.tool("get-offsets", "--topic", topic).splitlines() == [f"{topic}:0:10"]
    assert java.tool("get-offsets", "--topic", topic, "--time", "earliest").splitlines() == [f"{topic}:0:0"]
    assert java.tool("get-offsets", "--topic", topic, "--time", "max-timestamp").startswith(f"{topic}:0:")
    wanted = tmp_path / "delete.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}))
    assert "low_watermark: 4" in java.tool("delete-records", "--offset-json-file", str(wanted))
    assert java.tool("get-offsets", "--topic", topic, "--time", "-2").splitlines() == [f"{topic}:0:4"]


def test_log_dirs(java: JavaPeer, broker: BrokerProcess, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    java.tool("console-producer", "--topic", topic, stdin="one\n")
    printed = java.tool("log-dirs", "--describe", "--topic-list", topic, "--broker-list", "1")
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    (found,) = json.loads(line)["brokers"]
    (directory,) = found["logDirs"]
    assert directory["logDir"] == broker.data and directory["error"] is None
    (replica,) = directory["partitions"]
    assert replica["partition"] == f"{topic}-0" and replica["size"] > 60 and not replica["isFuture"]


def test_features_quorum_and_cluster(java: JavaPeer, bootstrap: str) -> None:
    features = java.tool("features", "describe")
    assert re.search(r"Feature: metadata.version.*FinalizedVersionLevel: 4.3-IV0", features), features
    upgrade = java.tool("features", "upgrade", "--dry-run", "--feature", "metadata.version=30")
    assert "metadata.version can be upgraded to 30." in upgrade
    status = java.tool("metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\n", status) and re.search(r"CurrentVoters:.*\"id\": 1", status), status
    replication = java.tool("metadata-quorum", "describe", "--replication")
    assert re.search(r"^1\s.*Leader", replication, re.MULTILINE), replication
    cluster = java.tool("cluster", "cluster-id", "--bootstrap-server", bootstrap)
    assert re.fullmatch(r"Cluster ID: [\w-]{22}\n", cluster)
    assert re.search(
        rf"^1\s+{bootstrap.partition(':')[0]}",
        java.tool("cluster", "list-endpoints", "--bootstrap-server", bootstrap),
        re.MULTILINE,
    )


def test_broker_api_versions(java: JavaPeer) -> None:
    printed = java.tool("broker-api-versions")
    assert "Produce(0): 0 to 13 [usable: 13]" in printed and "Fetch(1): 4 to 18 [usable: 18]" in printed
    assert "JoinGroup(11): 0 to 9 [usable: 9]" in printed and "SaslHandshake(17): UNSUPPORTED" in printed


def test_leader_election(java: JavaPeer, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    java.tool("topics", "--create", "--topic", topic)
    where = ("--election-type", "PREFERRED", "--topic", topic, "--partition", "0")
    assert f"Valid replica already elected for partitions {topic}-0" in java.tool("leader-election", *where)


def test_performance_tools(java: JavaPeer, bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    settings = ("--producer-props", f"bootstrap.servers={bootstrap}", "compression.type=lz4")
    printed = java.tool("producer-perf", *load, *settings)
    assert "2000 records sent" in printed
    assert java.tool("get-offsets", "--topic", topic).splitlines() == [f"{topic}:0:2000"]


def test_tools_of_what_is_not_served_yet_say_so_at_once(java: JavaPeer) -> None:
    for key, tool, args in (
        (66, "transactions", ("list",)),
        (46, "reassign-partitions", ("--list",)),
        (48, "configs", ("--describe", "--entity-type", "clients")),
    ):
        if key not in SERVED:
            printed = java.tool(tool, *args, code=None)
            assert re.search("UnsupportedVersionException|does not support", printed), f"{tool}: {printed}"


def test_a_tool_as_its_script_starts_it(bootstrap: str, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    done = run_tool_alone("verifiable-producer", "--topic", topic, "--max-messages", "5", bootstrap=bootstrap)
    sent = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["offset"] for line in sent if line["name"] == "producer_send_success"] == list(range(5))
