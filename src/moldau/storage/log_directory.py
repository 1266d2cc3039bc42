"""One of a broker's `log.dirs`: its lock, its identity, the checkpoints of all its partitions and their directories.

Names and formats are Kafka's. It does what it is told: when to checkpoint, what to delete and whom to believe after a
crash are the broker's decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.kernel import METADATA_TOPIC, DirectoryLock, Disk, TopicPartition
from moldau.storage.checkpoints import (
    CorruptCheckpointError,
    clean_shutdown_text,
    offsets_text,
    parse_clean_shutdown,
    parse_offsets,
    parse_properties,
    properties_text,
)
from moldau.storage.reserve import Reserve, ReservedDisk

LOCK_FILE = ".lock"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_FILE = "replication-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
META_VERSION = 1
# What becomes of a directory without the file: whoever meets a damaged one decides, it is never taken for an empty one.
_WITHOUT = {
    RECOVERY_POINT_FILE: "remove it to have every log here examined from its start",
    REPLICATION_OFFSET_FILE: "remove it, nothing is lost by that",
    LOG_START_OFFSET_FILE: "remove it, and records that were trimmed but not deleted yet are there again",
    CLEANER_OFFSET_FILE: "remove it to have compacted logs cleaned from their start",
}
# A directory's name must stay a file name, also with the 32 digits and the suffix that mark it for deletion.
DIRECTORY_NAME_MAX = 255
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"


class LogDirectoryError(Exception):
    """The directory cannot be used; one line for the person who starts the broker."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who a log directory belongs to. Ids are text as Kafka prints them; None where the file does not say."""

    cluster_id: str | None
    node_id: int | None
    directory_id: str | None
    version: int = META_VERSION


class PartitionDirectory(NamedTuple):
    """A partition's directory: `kind` is "", "delete", "future" or "stray"."""

    name: str
    partition: TopicPartition
    kind: str


class LogDirectory:
    """Takes the lock when opened; everything else on demand."""

    __slots__ = ("_lock", "disk", "path", "reserve")

    def __init__(self, disk: Disk, path: str, reserve_bytes: int = 0) -> None:
        self.reserve = Reserve(disk, path, reserve_bytes)
        # Checkpoints, marks and the metadata log may use the reserve; partitions' logs have a disk without it.
        self.disk: Disk = ReservedDisk(disk, self.reserve) if reserve_bytes else disk
        self.path = path
        self._lock: DirectoryLock | None = None

    # -- whose it is ---------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make the directory if need be and keep other brokers out."""
        try:
            self.make()
            self._lock = self.disk.lock(f"{self.path}/{LOCK_FILE}")
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"log directory {self.path} is in use by another broker (its {LOCK_FILE} is held by {error})"
            ) from None
        except OSError as error:
            raise LogDirectoryError(f"log directory {self.path} cannot be used: {error.strerror or error}") from error

    def make(self) -> None:
        """If need be, durably: a power loss must not take the name under which everything is."""
        missing, path = [], self.path.rstrip("/")
        while path and not self.disk.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        if not missing:
            return
        self.disk.make_directories(self.path)
        for path in missing:
            parent = path.rpartition("/")[0]
            self.disk.sync_directory(parent or ("/" if path.startswith("/") else "."))

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_meta_properties(self) -> MetaProperties | None:
        """None in a directory that was never formatted."""
        try:
            data = self.disk.read_file(f"{self.path}/{META_PROPERTIES_FILE}")
        except FileNotFoundError:
            return None
        try:
            fields = parse_properties(data)
            version = int(fields.get("version", "0"))
            # Version 0 (brokers that came from ZooKeeper) calls the node id broker.id.
            node_id = fields.get("node.id", fields.get("broker.id"))
            return MetaProperties(
                cluster_id=fields.get("cluster.id"),
                node_id=None if node_id is None else int(node_id),
                directory_id=fields.get("directory.id"),
                version=version,
            )
        except ValueError as error:
            raise LogDirectoryError(f"{self.path}/{META_PROPERTIES_FILE} does not read: {error}") from None

    def write_meta_properties(self, meta: MetaProperties) -> None:
        fields = {
            "cluster.id": meta.cluster_id,
            "directory.id": meta.directory_id,
            "node.id": None if meta.node_id is None else str(meta.node_id),
            "version": str(meta.version),
        }
        data = properties_text({key: value for key, value in fields.items() if value is not None})
        self.disk.replace_file(f"{self.path}/{META_PROPERTIES_FILE}", data)

    def check_meta_properties(self, cluster_id: str | None, node_id: int) -> None:
        """LogDirectoryError when the directory is another cluster's or another node's."""
        meta = self.read_meta_properties()
        if meta is None:
            return
        if cluster_id is not None and meta.cluster_id is not None and meta.cluster_id != cluster_id:
            raise LogDirectoryError(
                f"log directory {self.path} belongs to cluster {meta.cluster_id}, this broker to {cluster_id}"
            )
        if meta.node_id is not None and meta.node_id != node_id:
            raise LogDirectoryError(
                f"log directory {self.path} belongs to node {meta.node_id}, this broker is node {node_id}"
            )

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def read_recovery_points(self) -> dict[TopicPartition, int]:
        return self._read_offsets(RECOVERY_POINT_FILE)

    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write_offsets(RECOVERY_POINT_FILE, offsets)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        return self._read_offsets(REPLICATION_OFFSET_FILE)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write_offsets(REPLICATION_OFFSET_FILE, offsets)

    def read_log_start_offsets(self) -> dict[TopicPartition, int]:
        return self._read_offsets(LOG_START_OFFSET_FILE)

    def write_log_start_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write_offsets(LOG_START_OFFSET_FILE, offsets)

    def read_cleaned_offsets(self) -> dict[TopicPartition, int]:
        """A file that does not read (Apache Kafka makes an empty one) only costs a cleaning from the start."""
        try:
            return self._read_offsets(CLEANER_OFFSET_FILE)
        except LogDirectoryError:
            return {}

    def write_cleaned_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write_offsets(CLEANER_OFFSET_FILE, offsets)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """Empty when there is no such file."""
        try:
            return parse_offsets(self.disk.read_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            return {}
        except CorruptCheckpointError as error:
            raise LogDirectoryError(f"{self.path}/{name} does not read: {error}; {_WITHOUT[name]}") from None

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.disk.replace_file(f"{self.path}/{name}", offsets_text(offsets))

    # -- clean shutdown ------------------------------------------------------------------------------------------------

    def was_closed_cleanly(self) -> bool:
        return self.disk.exists(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")

    def read_clean_shutdown(self) -> int | None:
        """The broker epoch of a clean shutdown (-1 when not told); None when there was none."""
        try:
            return parse_clean_shutdown(self.disk.read_file(f"{self.path}/{CLEAN_SHUTDOWN_FILE}"))
        except FileNotFoundError:
            return None

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        self.disk.replace_file(f"{self.path}/{CLEAN_SHUTDOWN_FILE}", clean_shutdown_text(broker_epoch))

    def remove_clean_shutdown(self) -> None:
        """Before the first append: durable, or a crash would pass for a clean shutdown."""
        try:
            self.disk.remove(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")
        except FileNotFoundError:
            return
        self.disk.sync_directory(self.path)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def partition_path(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition.topic}-{partition.partition}"

    def partition_directories(self) -> list[PartitionDirectory]:
        """All partitions' directories but the metadata log's; what is no partition is left out."""
        found = []
        for name in self.disk.list(self.path):
            parsed = parse_directory_name(name)
            if parsed is not None and parsed.partition.topic != METADATA_TOPIC:
                found.append(parsed)
        return found

    def rename_for_deletion(self, partition: TopicPartition, unique: bytes) -> str:
        """Take a partition out of service at once; the new path is removed later with `remove_tree`."""
        return self._rename(partition, unique, DELETE_SUFFIX)

    def set_aside(self, partition: TopicPartition, unique: bytes) -> str:
        """Keep what no topic owns, under a name that no start looks at."""
        return self._rename(partition, unique, STRAY_SUFFIX)

    def future_path(self, partition: TopicPartition, unique: bytes) -> str:
        """Where a replica that moves here grows until it is complete."""
        return f"{self.path}/{marked_name(partition, unique, FUTURE_SUFFIX)}"

    def _rename(self, partition: TopicPartition, unique: bytes, suffix: str) -> str:
        target = f"{self.path}/{marked_name(partition, unique, suffix)}"
        self.disk.rename(self.partition_path(partition), target)
        return target

    def sync(self) -> None:
        """Make renames of partition directories durable; not on an event loop."""
        self.disk.sync_directory(self.path)


def parse_directory_name(name: str) -> PartitionDirectory | None:
    """`orders-0`, or `orders-0.<32 hex>-delete`, `-future`, `-stray`."""
    kind, rest = "", name
    for suffix in (DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX):
        stem, dot, unique = name.removesuffix(suffix).rpartition(".")
        if name.endswith(suffix) and dot and len(unique) == 32:
            kind, rest = suffix[1:], stem
    topic, dash, digits = rest.rpartition("-")
    if not (topic and dash and digits.isascii() and digits.isdigit()):
        return None
    return PartitionDirectory(name, TopicPartition(topic, int(digits)), kind)


def marked_name(partition: TopicPartition, unique: bytes, suffix: str) -> str:
    assert len(unique) == 16
    ending = f"-{partition.partition}.{unique.hex()}{suffix}"
    return partition.topic[: DIRECTORY_NAME_MAX - len(ending)] + ending
