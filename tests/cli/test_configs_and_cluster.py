"""`moldau config`, `moldau feature`, `moldau cluster`."""

from __future__ import annotations

from moldau.testing import Broker
from tests.cli.conftest import Moldau


def test_set_then_get_shows_value_source_and_doc(moldau: Moldau, topic: str) -> None:
    moldau("config", "set", f"topic/{topic}", "retention.ms=60000", "cleanup.policy=compact")
    rows = moldau("config", "get", f"topic/{topic}", "-o", "jsonl").lines
    own = {row["key"]: row for row in rows if row["source"] == "dynamic_topic"}
    assert {key: row["value"] for key, row in own.items()} == {"retention.ms": "60000", "cleanup.policy": "compact"}
    assert "Milliseconds" in own["retention.ms"]["doc"]
    header = moldau("config", "get", f"topic/{topic}").out.splitlines()[0]
    assert header.split() == ["KEY", "VALUE", "SOURCE", "DOC"]


def test_all_shows_defaults_too_and_keys_choose(moldau: Moldau, topic: str) -> None:
    everything = moldau("config", "get", f"topic/{topic}", "--all", "-o", "json").json
    assert len(everything) > 25
    assert {row["source"] for row in everything} == {"default", "static_broker", "dynamic_default_broker"}
    (one,) = moldau("config", "get", f"topic/{topic}", "segment.bytes", "-o", "json").json
    assert (one["value"], one["source"]) == ("1073741824", "default")
    missing = moldau("config", "get", f"topic/{topic}", "segment.byte", code=3)
    assert "has no config 'segment.byte'; did you mean segment.bytes?" in missing.err


def test_append_subtract_unset_and_dry_run(moldau: Moldau, topic: str) -> None:
    resource = f"topic/{topic}"

    def policy() -> str:
        (row,) = moldau("config", "get", resource, "cleanup.policy", "-o", "json").json
        return str(row["value"])

    moldau("config", "set", resource, "--append", "cleanup.policy=compact")
    assert policy() == "delete,compact"
    moldau("config", "set", resource, "--subtract", "cleanup.policy=delete")
    assert policy() == "compact"
    moldau("config", "set", resource, "cleanup.policy=delete", "--dry-run")
    assert policy() == "compact"
    moldau("config", "set", resource, "--unset", "cleanup.policy")
    assert policy() == "delete"
    refused = moldau("config", "set", resource, "retention.ms=soon", code=1)
    assert refused.err.startswith("error: ") and "INVALID_CONFIG" in refused.err


def test_brokers_and_the_default_of_all_brokers() -> None:
    with Broker() as broker:
        moldau = Moldau(broker.bootstrap)
        # A new cluster has one min.insync.replicas for all, because of its eligible leader replicas.
        (pinned,) = moldau("config", "get", "broker", "-o", "json").json
        assert (pinned["key"], pinned["value"]) == ("min.insync.replicas", "1")
        moldau("config", "set", "broker", "log.retention.ms=70000")
        moldau("config", "set", "broker/1", "log.retention.bytes=5000")
        (default, _) = moldau("config", "get", "broker", "-o", "json").json
        assert (default["key"], default["value"]) == ("log.retention.ms", "70000")
        rows = {row["key"]: row for row in moldau("config", "get", "broker/1", "-o", "json").json}
        assert rows["log.retention.ms"]["source"] == "dynamic_default_broker"
        assert rows["log.retention.bytes"]["source"] == "dynamic_broker"
        assert rows["log.dirs"]["read_only"] is True


def test_features_are_listed_and_set() -> None:
    with Broker() as broker:
        moldau = Moldau(broker.bootstrap)
        rows = {row["feature"]: row for row in moldau("feature", "list", "-o", "json").json}
        assert (rows["metadata.version"]["level"], rows["metadata.version"]["release"]) == (30, "4.3-IV0")
        (row,) = moldau("feature", "set", "metadata.version=4.3", "--dry-run", "-o", "json").json
        assert (row["from"], row["to"], row["result"]) == (30, 30, "valid")
        refused = moldau("feature", "set", "metadata.version=99", code=1)
        assert refused.err.startswith("error: ") and refused.err.count("\n") == 1
        assert "error: " in moldau("feature", "set", "no.such.feature=1", code=1).err


def test_cluster_describe(moldau: Moldau, broker: Broker) -> None:
    found = moldau("cluster", "describe", "-o", "json").json
    assert broker.node is not None and found["cluster_id"] == broker.node.cluster_id
    host, _, port = broker.bootstrap.rpartition(":")
    assert found["brokers"] == [{"id": 1, "host": host, "port": int(port), "rack": None, "fenced": False}]
    assert (found["controller"], found["quorum"]["leader"]) == (1, 1)
    assert [replica["role"] for replica in found["quorum"]["replicas"]] == ["leader"]
    assert "metadata.version" in [row["feature"] for row in found["features"]]
    text = moldau("cluster", "describe").out
    assert found["cluster_id"] in text and "4.3-IV0" in text
    assert moldau("cluster", "describe", "-o", "jsonl").lines == [
        found | {"quorum": moldau("cluster", "describe", "-o", "json").json["quorum"]}
    ]
