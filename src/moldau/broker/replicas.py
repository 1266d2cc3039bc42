"""The replicas that this broker holds: opened, created, deleted and checkpointed as the metadata says.

Publishes nothing and decides nothing: `apply` follows a metadata delta. What fails on a disk is said in one line and
concerns the partitions of that directory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moldau.broker.checkpoints import Checkpoints
from moldau.broker.metrics import Metrics
from moldau.broker.partition import Partition
from moldau.broker.replica_moves import ReplicaMove
from moldau.broker.settings import Settings
from moldau.cluster import ConfigKind, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from moldau.kernel import ZERO_UUID, Clock, Dice, Disk, ErrorCode, KafkaError, TopicPartition, parse_uuid
from moldau.protocol.wire import write_uvarint
from moldau.storage import LogDirectory, PartitionLog

# Directory ids below this are reserved by KRaft (unassigned, lost, migrating).
_RESERVED_DIRECTORY_ID_MAX = 100
CLOSING_THREADS = 16


class Replicas:
    def __init__(
        self,
        node_id: int,
        disk: Disk,
        directories: dict[bytes, LogDirectory],
        settings: Settings,
        metrics: Metrics,
        *,
        clock: Clock,
        dice: Dice,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._directories = directories
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._dice = dice
        self.loop = loop
        self._say = say
        self._on_fault = on_fault
        self._by_name: dict[str, list[Partition | None]] = {}
        self._by_id: dict[bytes, list[Partition | None]] = {}
        # The same by the name's bytes as flexible requests carry it, length included (`single_batch`).
        self.by_wire_name: dict[bytes, list[Partition | None]] = {}
        self._counts = dict.fromkeys(directories, 0)
        self.checkpoints = Checkpoints(self)
        self._deletions: list[str] = []

    # -- looking up ----------------------------------------------------------------------------------------------------

    def by_name(self, topic: str) -> list[Partition | None] | None:
        return self._by_name.get(topic)

    def by_id(self, topic_id: bytes) -> list[Partition | None] | None:
        return self._by_id.get(topic_id)

    def require(self, topic: str, index: int) -> Partition:
        partitions = self._by_name.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = partitions[index]
        if partition is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    @property
    def directories(self) -> list[LogDirectory]:
        return list(self._directories.values())

    def in_directory(self, directory: LogDirectory) -> Iterator[Partition]:
        prefix = directory.path + "/"
        return (partition for partition in self if partition.log.directory.startswith(prefix))

    def choose_directory(self, _replica: int = -1) -> bytes:
        """The directory with the fewest partitions, for the next new one."""
        chosen = min(self._counts, key=self._counts.__getitem__)
        self._counts[chosen] += 1
        return chosen

    # -- opening and following -----------------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> bool:
        """Open every replica that the metadata gives us; whether the last stop was clean everywhere."""
        state: dict[bytes, _Loaded] = {}
        for directory_id, directory in self._directories.items():
            state[directory_id] = _Loaded(directory)
        placed = self._place_existing(image, state)
        for topic in image.topics.values():
            self._add_topic(topic, image, placed, state)
        for loaded in state.values():
            loaded.directory.remove_clean_shutdown()
        self.resume_deletions()
        return all(loaded.clean for loaded in state.values())

    def _place_existing(self, image: MetadataImage, state: dict[bytes, _Loaded]) -> dict[TopicPartition, bytes]:
        """Where each partition's directory really is; what no topic owns any more becomes stray, as in Kafka."""
        placed: dict[TopicPartition, bytes] = {}
        for directory_id, loaded in state.items():
            for found in loaded.directory.partition_directories():
                path = f"{loaded.directory.path}/{found.name}"
                if found.kind in ("delete", "future"):
                    self._deletions.append(path)
                    continue
                if found.kind:
                    continue
                topic = image.topics.get(found.partition.topic)
                if topic is None or found.partition.partition >= len(topic.partitions):
                    stray = f"{loaded.directory.path}/{found.partition}.{self._dice.random_bytes(16).hex()}-stray"
                    self._disk.rename(path, stray)
                    self._say(f"stray_partition_set_aside partition={found.partition} path={stray}")
                    continue
                placed[found.partition] = directory_id
        return placed

    def _add_topic(
        self,
        topic: TopicImage,
        image: MetadataImage,
        placed: dict[TopicPartition, bytes],
        state: dict[bytes, _Loaded],
    ) -> None:
        config = self._settings.log_config(image.config(ConfigKind.TOPIC, topic.name))
        min_in_sync = self._min_in_sync(topic.name, image)
        counters = self._metrics.topic(topic.name)
        partitions = self._by_name.get(topic.name)
        if partitions is None:
            partitions = self._by_name[topic.name] = self._by_id[topic.id] = []
            self.by_wire_name[wire_name(topic.name)] = partitions
        for index, assigned in enumerate(topic.partitions):
            if index == len(partitions):
                partitions.append(None)
            partition = partitions[index]
            if partition is None and self._node_id in assigned.replicas:
                name = TopicPartition(topic.name, index)
                directory_id = placed.get(name) or self._assigned_directory(assigned)
                loaded = state.get(directory_id)
                log = self._open(name, topic.id, directory_id, loaded, config)
                if log is None:
                    continue
                partition = partitions[index] = Partition(self, topic.name, topic.id, index, log, counters)
            if partition is not None:
                partition.min_in_sync = min_in_sync
                self._follow_leadership(partition, assigned)

    def _open(
        self, name: TopicPartition, topic_id: bytes, directory_id: bytes, loaded: _Loaded | None, config: Any
    ) -> PartitionLog | None:
        directory = self._directories[directory_id]
        self._counts[directory_id] += 0 if loaded is None else 1
        path = directory.partition_path(name)
        try:
            return PartitionLog.open(
                self._disk,
                path,
                config,
                now_ms=self._clock.now_ms(),
                recovery_point=0 if loaded is None else loaded.recovery_points.get(name, 0),
                start_offset=0 if loaded is None else loaded.start_offsets.get(name, 0),
                clean=loaded is not None and loaded.clean,
                topic_id=topic_id,
                say=self._say,
            )
        except KafkaError as refusal:
            if refusal.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                raise
            # A directory left behind by an older topic of the same name.
            stray = f"{directory.path}/{name}.{self._dice.random_bytes(16).hex()}-stray"
            self._disk.rename(path, stray)
            self._say(f"stray_partition_set_aside partition={name} path={stray}")
            return self._open(name, topic_id, directory_id, None, config)
        except OSError as error:
            self._say(f"partition_unavailable partition={name} reason={str(error)!r}")
            return None

    def _assigned_directory(self, assigned: PartitionImage) -> bytes:
        directory_id = assigned.directories[assigned.replicas.index(self._node_id)]
        if directory_id in self._directories:
            return directory_id
        return self.choose_directory()

    def _follow_leadership(self, partition: Partition, assigned: PartitionImage) -> None:
        if assigned.leader == self._node_id:
            partition.lead(self._node_id, assigned.leader_epoch, assigned.isr)
        else:
            partition.leader = None
            partition.leader_id = assigned.leader
            partition.leader_epoch = assigned.leader_epoch

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow a committed change of the metadata."""
        for topic in delta.topics_removed.values():
            self._remove_topic(topic)
        changed = {image.topic_names[topic_id] for topic_id in delta.topics_changed if topic_id in image.topic_names}
        for name in changed:
            self._add_topic(image.topics[name], image, {}, {})
        resources = delta.configs_changed
        if any(resource.kind == ConfigKind.BROKER for resource in resources):
            reconfigured = set(self._by_name)
        else:
            reconfigured = {resource.name for resource in resources if resource.kind == ConfigKind.TOPIC} - changed
        for name in reconfigured & set(image.topics):
            config = self._settings.log_config(image.config(ConfigKind.TOPIC, name))
            min_in_sync = self._min_in_sync(name, image)
            for partition in self._by_name.get(name, ()):
                if partition is not None:
                    partition.apply_config(config, min_in_sync)

    def _min_in_sync(self, topic: str, image: MetadataImage) -> int:
        value = self._settings.topic_value("min.insync.replicas", image.config(ConfigKind.TOPIC, topic))
        return int(value)

    # -- deletion ------------------------------------------------------------------------------------------------------

    def _remove_topic(self, topic: TopicImage) -> None:
        """Out of sight at once, off the disk later."""
        partitions = self._by_name.pop(topic.name, None) or []
        self._by_id.pop(topic.id, None)
        self.by_wire_name.pop(wire_name(topic.name), None)
        for partition in partitions:
            if partition is None:
                continue
            partition.leader = None
            partition.leader_id = -1
            partition.wake()
            partition.log.close(clean=False, now_ms=self._clock.now_ms())
            name = TopicPartition(topic.name, partition.index)
            directory = next(each for each in self.directories if partition.log.directory == each.partition_path(name))
            self._counts[next(key for key, value in self._directories.items() if value is directory)] -= 1
            self._deletions.append(directory.rename_for_deletion(name, self._dice.random_bytes(16)))
        if partitions:
            delay_ms = self._settings.integer("log.segment.delete.delay.ms")
            self._clock.call_later(delay_ms, self.resume_deletions)

    def resume_deletions(self) -> None:
        """Remove what is marked for deletion, outside the loop."""
        paths, self._deletions = self._deletions, []
        if paths:
            self.run_in_thread(lambda: self._remove(paths, self._disk.remove_tree))

    def _remove(self, paths: list[str], remove: Callable[[str], None]) -> None:
        for path in paths:
            try:
                remove(path)
            except OSError as error:
                self._say(f"deletion_failed path={path} reason={str(error)!r}")

    # -- moving --------------------------------------------------------------------------------------------------------

    async def move(self, topic: str, index: int, path: str) -> bytes | None:
        """Move a replica to another of our directories; the new directory's id, None when it is there already."""
        wanted = path.rstrip("/")
        target_id = next((key for key, each in self._directories.items() if each.path == wanted), None)
        if target_id is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs")
        partition = self.require(topic, index)
        name = TopicPartition(topic, index)
        source_id = next(
            key for key, each in self._directories.items() if each.partition_path(name) == partition.log.directory
        )
        if source_id == target_id:
            return None
        source, target = self._directories[source_id], self._directories[target_id]
        move = ReplicaMove(self._disk, partition, source, target, self._dice.random_bytes(16).hex())
        try:
            await self.run_in_thread(move.copy)
            log = move.switch(self._clock.now_ms())
        except OSError as error:
            move.abandon()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} could not be moved: {error}") from None
        partition.log = log
        self._deletions.append(source.rename_for_deletion(name, self._dice.random_bytes(16)))
        self.resume_deletions()
        self._counts[source_id] -= 1
        self._counts[target_id] += 1
        self._say(f"replica_moved partition={name} from={source.path} to={target.path}")
        return target_id

    # -- checkpoints and flushes ---------------------------------------------------------------------------------------

    def run_in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        return self.loop.run_in_executor(None, work)

    def on_flush_failed(self, partition: Partition, error: BaseException) -> None:
        """An fsync failed: nothing is known about the file any more, so its partition takes no more writes."""
        self._say(f"flush_failed partition={partition} reason={str(error)!r}")
        self._on_fault(error)

    @property
    def is_flushing(self) -> bool:
        return any(partition.is_flushing for partition in self)

    def flush_due(self) -> None:
        """The timer's part of `flush.ms`."""
        now_ms = self._clock.now_ms()
        for partition in self:
            if partition.log.flush_is_due(now_ms):
                partition.flush_soon()

    def delete_due_segments(self) -> None:
        now_ms = self._clock.now_ms()
        paths = [path for partition in self for path in partition.log.take_deletions(now_ms)]
        if paths:
            self.run_in_thread(lambda: self._remove(paths, self._disk.remove))

    def close(self, broker_epoch: int) -> None:
        """Everything on disk, checkpointed, and the mark of a clean stop."""
        now_ms = self._clock.now_ms()
        with ThreadPoolExecutor(CLOSING_THREADS) as threads:
            # Logs share nothing, and syncs that wait together are cheaper than one after the other.
            list(threads.map(lambda partition: partition.log.close(clean=True, now_ms=now_ms), self))
        self.checkpoints.write_now()
        for directory in self.directories:
            directory.write_clean_shutdown(broker_epoch)


def wire_name(topic: str) -> bytes:
    """A topic's name as a compact string."""
    out = bytearray()
    encoded = topic.encode()
    write_uvarint(out, len(encoded) + 1)
    return bytes(out) + encoded


class _Loaded:
    """What a directory's checkpoints said at start."""

    __slots__ = ("clean", "directory", "recovery_points", "start_offsets")

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.clean = directory.was_closed_cleanly()
        self.recovery_points = directory.read_recovery_points()
        self.start_offsets = directory.read_log_start_offsets()


def directory_id_of(text: str) -> bytes:
    """A directory's id; ids in KRaft's reserved range name no directory."""
    directory_id = parse_uuid(text)
    if directory_id == ZERO_UUID or int.from_bytes(directory_id, "big") < _RESERVED_DIRECTORY_ID_MAX:
        raise ValueError(f"{text} is a reserved directory id")
    return directory_id
