"""A broker's log directory: whose it is, what it remembers, which partitions it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.broker.host import SystemDisk
from moldau.kernel import TopicPartition
from moldau.storage import LogDirectory, LogDirectoryError, MetaProperties
from moldau.testing import SeededDice, SimulatedDisk
from tests.storage.kit import new_disk

ORDERS = TopicPartition("orders", 3)


def directory() -> LogDirectory:
    return LogDirectory(new_disk(), "data")


def test_meta_properties_survive_and_name_the_owner() -> None:
    data = directory()
    assert data.read_meta_properties() is None
    data.check_meta_properties("cluster", 1)
    meta = MetaProperties(cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=4, directory_id="JsnDDNVyTL289kZkNzc25Q")
    data.write_meta_properties(meta)
    assert data.read_meta_properties() == meta
    assert b"version=1\n" in data.disk.read_file("data/meta.properties")
    data.check_meta_properties("MkU3OEVBNTcwNTJENDM2Qg", 4)
    for cluster_id, node_id, word in (("other", 4, "belongs to cluster"), (None, 5, "belongs to node 4")):
        with pytest.raises(LogDirectoryError, match=word) as error:
            data.check_meta_properties(cluster_id, node_id)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/var/lib/moldau", "below/here"])
def test_a_directory_that_was_made_is_there_after_a_power_loss(path: str) -> None:
    for seed in range(20):
        disk = SimulatedDisk(SeededDice(seed))
        data = LogDirectory(disk, path)
        data.lock()
        meta = MetaProperties(cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=4, directory_id="JsnDDNVyTL289kZkNzc25Q")
        data.write_meta_properties(meta)
        assert LogDirectory(disk.crash(), path).read_meta_properties() == meta


def test_meta_properties_of_kafka_are_read() -> None:
    data = directory()
    data.disk.replace_file(
        "data/meta.properties",
        b"#\n#Mon Jan 05 10:00:00 UTC 2026\ncluster.id=abc\ndirectory.id=def\nnode.id=1\nversion=1\n",
    )
    assert data.read_meta_properties() == MetaProperties("abc", 1, "def")
    data.disk.replace_file("data/meta.properties", b"node.id=x\n")
    with pytest.raises(LogDirectoryError, match="does not read"):
        data.read_meta_properties()


def test_checkpoints_are_kept_apart_and_a_missing_one_is_empty() -> None:
    data = directory()
    assert data.read_recovery_points() == data.read_high_watermarks() == data.read_log_start_offsets() == {}
    assert data.read_cleaned_offsets() == {}
    data.write_recovery_points({ORDERS: 1})
    data.write_high_watermarks({ORDERS: 2})
    data.write_log_start_offsets({ORDERS: 3})
    found = (data.read_recovery_points(), data.read_high_watermarks(), data.read_log_start_offsets())
    assert found == ({ORDERS: 1}, {ORDERS: 2}, {ORDERS: 3})
    data.disk.replace_file("data/replication-offset-checkpoint", b"0\n7\n")
    with pytest.raises(LogDirectoryError, match="replication-offset-checkpoint does not read"):
        data.read_high_watermarks()


def test_a_clean_shutdown_is_told_once() -> None:
    data = directory()
    assert (data.was_closed_cleanly(), data.read_clean_shutdown()) == (False, None)
    data.write_clean_shutdown(12)
    assert (data.was_closed_cleanly(), data.read_clean_shutdown()) == (True, 12)
    data.remove_clean_shutdown()
    data.remove_clean_shutdown()
    after = LogDirectory(data.disk.crash(), "data")  # type: ignore[attr-defined]
    assert not after.was_closed_cleanly()


def test_partition_directories_are_listed_with_their_kind() -> None:
    data = directory()
    unique = "0123456789abcdef0123456789abcdef"
    names = {
        "orders-3": (ORDERS, ""),
        "a-b-c-0": (TopicPartition("a-b-c", 0), ""),
        f"orders-3.{unique}-delete": (ORDERS, "delete"),
        f"with.dot-1.{unique}-future": (TopicPartition("with.dot", 1), "future"),
        f"orders-4.{unique}-stray": (TopicPartition("orders", 4), "stray"),
        "odd-delete-2": (TopicPartition("odd-delete", 2), ""),
    }
    for name in [*names, "__cluster_metadata-0", "lost+found", "nodash", "-5", "x-"]:
        data.disk.make_directories(f"data/{name}")
    found = {each.name: (each.partition, each.kind) for each in data.partition_directories()}
    assert found == names


def test_a_partition_is_renamed_for_deletion_within_the_limits_of_a_file_name() -> None:
    data = directory()
    for topic in ("orders", "t" * 249):
        partition = TopicPartition(topic, 0)
        data.disk.make_directories(data.partition_path(partition))
        path = data.rename_for_deletion(partition, bytes(range(16)))
        name = path.rsplit("/", 1)[1]
        assert len(name) <= 255 and name.endswith("-0.000102030405060708090a0b0c0d0e0f-delete")
        assert not data.disk.exists(data.partition_path(partition))
    assert {each.kind for each in data.partition_directories()} == {"delete"}


def test_a_second_broker_is_kept_out(tmp_path: Path) -> None:
    first, second = (LogDirectory(SystemDisk(), f"{tmp_path}/data") for _ in range(2))
    first.lock()
    with pytest.raises(LogDirectoryError, match="in use by another broker"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirectoryError, match="cannot be used: ") as error:
        LogDirectory(SystemDisk(), f"{tmp_path}/file/data").lock()
    assert "\n" not in str(error.value)
