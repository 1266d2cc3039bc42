"""The replicas that this broker holds: opened, created, deleted and checkpointed as the metadata says.

Publishes nothing and decides nothing: `apply` follows a metadata delta. What fails on a disk is said in one line and
concerns the partitions of that directory only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.checkpoints import Checkpoints
from moldau.broker.disk_faults import DiskFaults
from moldau.broker.metrics import Metrics
from moldau.broker.partition import Partition
from moldau.broker.recovery import LogToOpen, Opened, recover
from moldau.broker.replica_moves import ReplicaMove
from moldau.broker.settings import Settings
from moldau.cluster import ConfigKind, InSyncProposal, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from moldau.kernel import Clock, Dice, Disk, ErrorCode, KafkaError, TopicPartition, parse_uuid
from moldau.protocol.wire import write_uvarint
from moldau.storage import DamagedLogError, LogConfig, LogDirectory, LogDirectoryError, PartitionLog

if TYPE_CHECKING:
    from moldau.broker.replication import Replication

# Directory ids below this are reserved by KRaft (unassigned, lost, migrating).
_RESERVED_DIRECTORY_ID_MAX = 100
CLOSING_THREADS = 16
# Copies and removals have threads of their own: they take long, and nobody's answer may wait behind them.
SLOW_THREADS = 2


class _Home(NamedTuple):
    """Where a replica is, and what the checkpoints there say about it."""

    # None: in no directory that we have (a disk that did not mount, say).
    directory_id: bytes | None
    recovery_point: int = 0
    start_offset: int = 0
    is_clean: bool = False
    cleaned_to: int | None = None
    high_watermark: int = 0
    # What is wrong with the files; such a replica is not opened again before the next start.
    damage: str | None = None


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
        on_offline: Callable[[LogDirectory], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._directories = directories
        self._settings = settings
        self._metrics = metrics
        self.clock = clock
        self._dice = dice
        self.loop = loop
        self.say = say
        self._by_name: dict[str, list[Partition | None]] = {}
        self._by_id: dict[bytes, list[Partition | None]] = {}
        # The same by the name's bytes as flexible requests carry it, length included (`single_batch`).
        self.by_wire_name: dict[bytes, list[Partition | None]] = {}
        self._image = MetadataImage()
        self._is_loaded = False
        # What the start opened beforehand, until the topics are gone through.
        self._recovered: dict[TopicPartition, Opened] = {}
        self._unopened: dict[TopicPartition, _Home] = {}
        # Directories that failed since the start; nothing in them is touched any more.
        self._offline: dict[bytes, LogDirectory] = {}
        self.unusable_directories: list[LogDirectory] = []
        # Partitions in each directory, and those that were given to it since the last commit.
        self._counts: Counter[bytes] = Counter()
        self._chosen: Counter[bytes] = Counter()
        self.checkpoints = Checkpoints(self, disk)
        self.disk_faults = DiskFaults(self, disk, on_offline=on_offline, on_fault=on_fault)
        # Told of every change of a partition's part; takes what leaders propose to the controller.
        self.replication: Replication | None = None
        self._deletions: list[str] = []
        # Where the order of a disk's operations matters, one is enough.
        self.closing_threads = CLOSING_THREADS
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="moldau-slow")

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
            raise self.absence(topic, index)
        return partition

    def absence(self, topic: str | bytes, index: int) -> KafkaError:
        """Why a partition that exists has no replica here that works."""
        name = self._image.topic_names.get(topic) if isinstance(topic, bytes) else topic
        if name is not None and TopicPartition(name, index) in self._unopened:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index} is offline: {self.why_offline(name, index)}"
            )
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    @property
    def directories(self) -> list[LogDirectory]:
        return list(self._directories.values())

    @property
    def offline_directories(self) -> list[LogDirectory]:
        return [*self._offline.values(), *self.unusable_directories]

    def is_offline(self, directory: LogDirectory) -> bool:
        return directory in self._offline.values()

    def has_offline(self, topic: str, index: int) -> bool:
        """Whether our replica of the partition is in no state to serve."""
        return TopicPartition(topic, index) in self._unopened

    def offline_of(self, topic: str, index: int, assigned: PartitionImage, alive: set[int]) -> list[int]:
        """The replicas of a partition that nobody can reach: of brokers that are gone, or ours on a failed disk."""
        return [
            replica
            for replica in assigned.replicas
            if replica not in alive or (replica == self._node_id and self.has_offline(topic, index))
        ]

    def why_offline(self, topic: str, index: int) -> str:
        home = self._unopened[TopicPartition(topic, index)]
        if home.directory_id is not None and home.directory_id in self._offline:
            return f"log directory {self._offline[home.directory_id].path} failed"
        return home.damage or "its log could not be opened"

    def drop_directory(self, directory: LogDirectory, reason: str) -> int:
        """Serve nothing of it any more; how many partitions that are."""
        directory_id = next(key for key, each in self._directories.items() if each is directory)
        partitions = list(self.in_directory(directory))
        self._offline[directory_id] = self._directories.pop(directory_id)
        for partition in partitions:
            log, name = partition.log, TopicPartition(partition.topic, partition.index)
            self._by_name[partition.topic][partition.index] = None
            start_offset = max(log.vouched_start_offset, partition.start_wanted)
            self._unopened[name] = _Home(directory_id, log.recovery_point, start_offset)
            self._stop_fetching(partition)
            log.fail(reason)
            partition.remove(self.clock.now_ms(), self.absence(partition.topic, partition.index))
        return len(partitions)

    def in_directory(self, directory: LogDirectory) -> Iterator[Partition]:
        prefix = directory.path + "/"
        return (partition for partition in self if partition.log.directory.startswith(prefix))

    def moving_to(self, directory: LogDirectory) -> Iterator[Partition]:
        return (partition for partition in self if partition.move is not None and partition.move.target is directory)

    def unopened_offsets(self, directory: LogDirectory) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """(recovery points, start offsets) of replicas that could not be opened: what was known of them stays so."""
        homes = {
            name: home
            for name, home in self._unopened.items()
            if home.directory_id is not None and self._directories.get(home.directory_id) is directory
        }
        recovery_points = {name: home.recovery_point for name, home in homes.items()}
        return recovery_points, {name: home.start_offset for name, home in homes.items() if home.start_offset}

    def choose_directory(self, _replica: int = -1) -> bytes:
        """The directory with the fewest partitions, for the next new one."""
        chosen = min(self._directories, key=lambda each: self._counts[each] + self._chosen[each])
        self._chosen[chosen] += 1
        return chosen

    def _home_of(self, log: PartitionLog) -> bytes:
        parent = log.directory.rpartition("/")[0]
        return next(key for key, each in self._directories.items() if each.path == parent)

    # -- opening and following -----------------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> bool:
        """Open every replica that the metadata gives us; whether the last stop was clean everywhere."""
        self._image, self._is_loaded = image, True
        state = {directory_id: _Loaded(directory) for directory_id, directory in self._directories.items()}
        homes = self._find_homes(image, state)
        self._recovered = self._recover(image, homes)
        for topic in image.topics.values():
            self._add_topic(topic, image, homes)
        for loaded in state.values():
            loaded.directory.remove_clean_shutdown()
        self.resume_deletions()
        return all(loaded.is_clean for loaded in state.values())

    def _recover(self, image: MetadataImage, homes: Mapping[TopicPartition, _Home]) -> dict[TopicPartition, Opened]:
        """Logs that have to be examined, where there are several directories to do it in at the same time."""
        logs: dict[str, list[LogToOpen]] = {}
        for name, home in homes.items():
            topic = image.topics[name.topic]
            if (
                home.is_clean
                or home.directory_id is None
                or self._node_id not in topic.partitions[name.partition].replicas
            ):
                continue
            directory = self._directories[home.directory_id]
            config = self._settings.log_config(image.config(ConfigKind.TOPIC, name.topic))
            path = directory.partition_path(name)
            opening = partial(self._open_log, path, topic.id, home, config)
            logs.setdefault(directory.path, []).append(LogToOpen(name, opening))
        return recover(logs, self.clock, self.say) if len(logs) > 1 else {}

    def _open_log(self, path: str, topic_id: bytes, home: _Home, config: LogConfig) -> PartitionLog:
        log = PartitionLog.open(
            self._disk,
            path,
            config,
            now_ms=self.clock.now_ms(),
            recovery_point=home.recovery_point,
            start_offset=home.start_offset,
            clean=home.is_clean,
            topic_id=topic_id,
            say=self.say,
        )
        if config.flush_messages <= 1:
            _sync_recovered(log)
        return log

    def _find_homes(self, image: MetadataImage, state: Mapping[bytes, _Loaded]) -> dict[TopicPartition, _Home]:
        """Where each partition's directory really is; what no topic owns any more becomes stray, as in Kafka."""
        homes: dict[TopicPartition, _Home] = {}
        for directory_id, loaded in state.items():
            for found in loaded.directory.partition_directories():
                path = f"{loaded.directory.path}/{found.name}"
                if found.kind in ("delete", "future"):
                    self._deletions.append(path)
                    continue
                if found.kind:
                    continue
                name = found.partition
                topic = image.topics.get(name.topic)
                if (
                    topic is None
                    or name.partition >= len(topic.partitions)
                    or self._node_id not in topic.partitions[name.partition].replicas
                ):
                    self._set_aside(name, loaded.directory)
                    continue
                other = homes.get(name)
                if other is not None and other.directory_id is not None:
                    # What a crash in the middle of a move leaves: the metadata log says which one is the replica.
                    if self._named_directory(topic.partitions[name.partition]) != directory_id:
                        self._set_aside(name, loaded.directory)
                        continue
                    self._set_aside(name, self._directories[other.directory_id])
                homes[name] = self._existing_home(name, directory_id, loaded, path)
        return homes

    def _existing_home(self, name: TopicPartition, directory_id: bytes, loaded: _Loaded, path: str) -> _Home:
        if self.checkpoints.are_stale(path):
            return _Home(directory_id)
        recovery_point, start_offset = loaded.recovery_points.get(name, 0), loaded.start_offsets.get(name, 0)
        return _Home(
            directory_id,
            recovery_point,
            start_offset,
            loaded.is_clean,
            loaded.cleaned_offsets.get(name),
            loaded.high_watermarks.get(name, 0),
        )

    def _set_aside(self, name: TopicPartition, directory: LogDirectory) -> None:
        try:
            path = directory.set_aside(name, self._dice.random_bytes(16))
        except OSError as error:
            self.say(f"stray_partition_left partition={name} directory={directory.path} reason={str(error)!r}")
            return
        self.say(f"stray_partition_set_aside partition={name} path={path}")

    def _add_topic(self, topic: TopicImage, image: MetadataImage, homes: Mapping[TopicPartition, _Home]) -> None:
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
            if self._node_id not in assigned.replicas:
                self._remove_replica(TopicPartition(topic.name, index), partition)
                partitions[index] = None
                continue
            if partition is None:
                name = TopicPartition(topic.name, index)
                home = homes.get(name) or self._unopened.get(name) or self._new_home(assigned)
                log = self._open(name, topic.id, home, config)
                if log is None:
                    self._unopened.setdefault(name, home)
                    continue
                self._unopened.pop(name, None)
                partition = partitions[index] = Partition(self, topic.name, topic.id, index, log, counters)
                if home.cleaned_to is not None:
                    partition.cleaned_to = min(home.cleaned_to, log.end_offset)
                partition.restore_high_watermark(home.high_watermark)
                self.disk_faults.watch(partition, self._directories[self._home_of(log)])
            if partition is not None:
                partition.require_in_sync(min_in_sync)
                self._follow_leadership(partition, assigned)

    def _new_home(self, assigned: PartitionImage) -> _Home:
        """Where a replica without files belongs. If that is a directory that we do not have, it is not lost yet."""
        named = self._named_directory(assigned)
        if named in self._directories:
            return _Home(named)
        return _Home(self.choose_directory() if is_reserved(named) else None)

    def _named_directory(self, assigned: PartitionImage) -> bytes:
        return assigned.directories[assigned.replicas.index(self._node_id)]

    def _open(self, name: TopicPartition, topic_id: bytes, home: _Home, config: LogConfig) -> PartitionLog | None:
        if home.directory_id is None:
            self._say_unavailable(name, "its log directory is none of log.dirs that work")
            return None
        if home.directory_id in self._offline or home.damage is not None:
            return None
        directory = self._directories[home.directory_id]
        path = directory.partition_path(name)
        try:
            if not self._disk.exists(path):
                self.checkpoints.prepare_directory(name, path)
            opened = self._recovered.pop(name, None) or self._open_log(path, topic_id, home, config)
            if not isinstance(opened, PartitionLog):
                raise opened
            log = opened
        except (KafkaError, OSError) as error:
            if isinstance(error, KafkaError) and error.code == ErrorCode.INCONSISTENT_TOPIC_ID:
                # A directory left behind by an older topic of the same name.
                self._set_aside(name, directory)
                if not self._disk.exists(path):
                    return self._open(name, topic_id, _Home(home.directory_id), config)
            self._say_unavailable(name, str(error))
            if isinstance(error, DamagedLogError):
                self._unopened[name] = home._replace(damage=error.message)
            return None
        self._counts[home.directory_id] += 1
        return log

    def _say_unavailable(self, name: TopicPartition, reason: str) -> None:
        if name not in self._unopened:
            self.say(f"partition_unavailable partition={name} reason={reason!r}")

    def retry_unopened(self) -> None:
        """Perhaps there is room, or a descriptor, by now."""
        names = {
            name.topic
            for name, home in self._unopened.items()
            if home.directory_id in self._directories and home.damage is None
        }
        for name in sorted(names):
            self._add_topic(self._image.topics[name], self._image, {})

    def _follow_leadership(self, partition: Partition, assigned: PartitionImage) -> None:
        if assigned.leader == self._node_id:
            registration = self._image.brokers.get(self._node_id)
            node_epoch = -1 if registration is None else registration.epoch
            is_taken = partition.leader is None or assigned.leader_epoch > partition.leader_epoch
            partition.lead(assigned, self._node_id, node_epoch, self.clock.monotonic_ms())
            if is_taken and self.replication is not None:
                self.replication.on_lead_taken(partition)
        else:
            partition.follow(assigned)
        if self.replication is not None:
            self.replication.on_part_changed(partition)

    # -- replication ---------------------------------------------------------------------------------------------------

    @property
    def lag_ms_max(self) -> int:
        return self._settings.integer("replica.lag.time.max.ms")

    def is_eligible(self, replica: int, broker_epoch: int) -> bool:
        """Whether a follower may be called in sync: alive, not shutting down, and in the life that we heard from."""
        registration = self._image.brokers.get(replica)
        return (
            registration is not None
            and not registration.fenced
            and not registration.in_controlled_shutdown
            and registration.epoch == broker_epoch
        )

    def is_alive(self, replica: int) -> bool:
        registration = self._image.brokers.get(replica)
        return registration is not None and not registration.fenced

    def _stop_fetching(self, partition: Partition) -> None:
        if self.replication is not None:
            self.replication.forget(partition)

    def propose(self, partition: Partition, proposal: InSyncProposal) -> None:
        assert self.replication is not None, "replicas elsewhere are only reached by a node that replicates"
        self.replication.propose(partition, proposal)

    def note_isr(self, partition: Partition, before: tuple[int, ...], isr: tuple[int, ...]) -> None:
        """The controller's set of in-sync replicas of a partition that we lead."""
        added = ",".join(str(each) for each in isr if each not in before)
        removed = ",".join(str(each) for each in before if each not in isr)
        if added:
            self._metrics.isr_expands += 1
            self.say(f"isr_expanded partition={partition} added={added} isr={','.join(map(str, isr))}")
        if removed:
            self._metrics.isr_shrinks += 1
            self.say(f"isr_shrunk partition={partition} removed={removed} isr={','.join(map(str, isr))}")

    def drop_laggards(self) -> None:
        for partition in self:
            if partition.has_followers:
                partition.drop_laggards()

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> set[str]:
        """Follow a committed change of the metadata; the topics whose logs are configured anew."""
        self._image = image
        self._chosen.clear()
        for topic in delta.topics_removed.values():
            self._remove_topic(topic)
        changed = [image.topic_names[topic_id] for topic_id in delta.topics_changed if topic_id in image.topic_names]
        for name in changed:
            self._add_topic(image.topics[name], image, {})
        resources = delta.configs_changed
        if any(resource.kind == ConfigKind.BROKER for resource in resources):
            reconfigured = set(self._by_name)
        else:
            reconfigured = {resource.name for resource in resources if resource.kind == ConfigKind.TOPIC}
        for name in sorted(reconfigured.intersection(image.topics)):
            config = self._settings.log_config(image.config(ConfigKind.TOPIC, name))
            min_in_sync = self._min_in_sync(name, image)
            for partition in self._by_name.get(name, ()):
                if partition is not None:
                    partition.apply_config(config, min_in_sync)
        return reconfigured

    def _min_in_sync(self, topic: str, image: MetadataImage) -> int:
        value = self._settings.topic_value("min.insync.replicas", image.config(ConfigKind.TOPIC, topic))
        return int(value)

    def _remove_replica(self, name: TopicPartition, partition: Partition | None) -> None:
        """Reassigned to others: what we have of it goes."""
        if partition is None and name not in self._unopened:
            return
        self._discard(name, partition, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} has moved away"))
        self.checkpoints.forget([name])
        self.clock.call_later(self._settings.integer("log.segment.delete.delay.ms"), self.resume_deletions)

    # -- deletion ------------------------------------------------------------------------------------------------------

    def _remove_topic(self, topic: TopicImage) -> None:
        """Out of sight at once, off the disk later."""
        partitions = self._by_name.pop(topic.name, None) or []
        self._by_id.pop(topic.id, None)
        self.by_wire_name.pop(wire_name(topic.name), None)
        for index, partition in enumerate(partitions):
            name = TopicPartition(topic.name, index)
            deleted = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted")
            self._discard(name, partition, deleted)
        self.checkpoints.forget(TopicPartition(topic.name, index) for index in range(len(partitions)))
        if partitions:
            delay_ms = self._settings.integer("log.segment.delete.delay.ms")
            self.clock.call_later(delay_ms, self.resume_deletions)

    def _discard(self, name: TopicPartition, partition: Partition | None, why: KafkaError) -> None:
        if partition is not None:
            if partition.move is not None:
                self._give_up(partition.move)
            home_id = self._home_of(partition.log)
            self._counts[home_id] -= 1
            self._stop_fetching(partition)
            partition.remove(self.clock.now_ms(), why)
            self._mark_deleted(name, self._directories[home_id])
            return
        unopened = self._unopened.pop(name, None)
        if unopened is not None and unopened.directory_id in self._directories:
            self._mark_deleted(name, self._directories[unopened.directory_id])

    def _mark_deleted(self, name: TopicPartition, directory: LogDirectory) -> None:
        try:
            self._deletions.append(directory.rename_for_deletion(name, self._dice.random_bytes(16)))
        except FileNotFoundError:
            pass  # it could never be made
        except OSError as error:
            # The next start finds a directory that no topic owns.
            self.say(f"deletion_failed partition={name} directory={directory.path} reason={str(error)!r}")

    def resume_deletions(self) -> None:
        """Remove what is marked for deletion, outside the loop."""
        paths, self._deletions = self._deletions, []
        if paths:
            self.run_slow(lambda: self._remove(paths, self._disk.remove_tree))

    def _remove(self, paths: list[str], remove: Callable[[str], None]) -> None:
        for path in paths:
            try:
                remove(path)
            except FileNotFoundError:
                pass  # removed already
            except OSError as error:
                self.say(f"deletion_failed path={path} reason={str(error)!r}")

    # -- moving --------------------------------------------------------------------------------------------------------

    async def move(self, topic: str, index: int, path: str) -> bytes | None:
        """Move a replica to another of our directories; the new directory's id, None when it is there already."""
        wanted = path.rstrip("/")
        target_id = next((key for key, each in self._directories.items() if each.path == wanted), None)
        if target_id is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs")
        partition = self.require(topic, index)
        while partition.move is not None:
            await partition.move.is_over.wait()
        if partition.why_removed is not None:
            raise partition.why_removed
        source_id = self._home_of(partition.log)
        if source_id == target_id:
            return None
        source, target = self._directories[source_id], self._directories[target_id]
        while partition.is_cleaned is not None:
            await partition.is_cleaned.wait()
        move = partition.move = ReplicaMove(self._disk, partition, source, target, self._dice.random_bytes(16))
        try:
            await self._take_steps(move, partition, source)
        except (OSError, KafkaError) as error:
            self._give_up(move)
            self.resume_deletions()
            if isinstance(error, KafkaError):
                raise
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} could not be moved: {error}") from None
        finally:
            partition.move = None
            move.is_over.set()
        self._counts[source_id] -= 1
        self._counts[target_id] += 1
        self.disk_faults.watch(partition, target)
        self.resume_deletions()
        self.say(f"replica_moved partition={partition} from={source.path} to={target.path}")
        return target_id

    async def _take_steps(self, move: ReplicaMove, partition: Partition, source: LogDirectory) -> None:
        await self.run_slow(move.copy)
        move.check()
        await partition.hold_flushes()
        try:
            move.check()
            await self.run_slow(move.copy)
            move.check()
            move.place()
            await self.run_slow(move.target.sync)
            await self.checkpoints.write()
            move.check()
            self._deletions.append(move.switch())
            await self.run_slow(source.sync)
        finally:
            partition.release_flushes()

    def _give_up(self, move: ReplicaMove) -> None:
        """Before the switch: the copy is worth nothing."""
        try:
            path = move.give_up()
        except OSError as error:
            self.say(f"copy_left_behind directory={move.target.path} reason={str(error)!r}")
            return
        if path is not None:
            self._deletions.append(path)

    # -- flushes and housekeeping --------------------------------------------------------------------------------------

    def run_in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        return self.loop.run_in_executor(None, work)

    def run_slow(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        return self.loop.run_in_executor(self._slow_threads, work)

    def on_flush_failed(self, partition: Partition, error: BaseException) -> None:
        """The log itself has told `disk_faults` what that means for its directory."""
        self.say(f"flush_failed partition={partition} reason={str(error)!r}")

    @property
    def is_flushing(self) -> bool:
        return any(partition.is_flushing for partition in self)

    def flush_due(self) -> None:
        """The timer's part of `flush.ms`."""
        now_ms = self.clock.now_ms()
        for partition in self:
            if partition.log.flush_is_due(now_ms):
                partition.flush_soon()

    def delete_due_segments(self) -> None:
        now_ms = self.clock.now_ms()
        paths = [path for partition in self for path in partition.log.take_deletions(now_ms)]
        if paths:
            self.run_slow(lambda: self._remove(paths, self._disk.remove))

    def expire_producers(self) -> None:
        now_ms = self.clock.now_ms()
        for partition in self:
            partition.log.expire_producers(now_ms)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self, broker_epoch: int) -> None:
        """Everything on disk, checkpointed, and the mark of a clean stop where it is one."""
        self._slow_threads.shutdown()
        if not self._is_loaded:
            return  # nobody looked at the logs: what the last life left behind stays as it is
        partitions = list(self)
        with ThreadPoolExecutor(self.closing_threads) as threads:
            # Logs share nothing, and syncs that wait together are cheaper than one after the other.
            closed = list(threads.map(self._close_log, partitions))
        unclean = {self._home_of(each.log) for each, is_clean in zip(partitions, closed, strict=True) if not is_clean}
        unclean |= {home.directory_id for home in self._unopened.values() if home.directory_id is not None}
        try:
            self.checkpoints.write_now()
            for directory_id, directory in self._directories.items():
                if directory_id not in unclean:
                    directory.write_clean_shutdown(broker_epoch)
        except OSError as error:
            self.say(f"clean_mark_not_written reason={str(error)!r} hint='the next start recovers'")

    def _close_log(self, partition: Partition) -> bool:
        """Whether the next start may believe the files."""
        log = partition.log
        is_clean = log.failure is None and not partition.is_flushing and log.head_missing_from is None
        try:
            log.close(clean=is_clean, now_ms=self.clock.now_ms())
        except (KafkaError, OSError) as error:
            self.say(f"log_not_closed partition={partition} reason={str(error)!r}")
            return False
        return is_clean


def wire_name(topic: str) -> bytes:
    """A topic's name as a compact string."""
    out = bytearray()
    encoded = topic.encode()
    write_uvarint(out, len(encoded) + 1)
    return bytes(out) + encoded


class _Loaded:
    """What a directory's checkpoints said at start."""

    __slots__ = ("cleaned_offsets", "directory", "high_watermarks", "is_clean", "recovery_points", "start_offsets")

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.is_clean = directory.was_closed_cleanly()
        self.recovery_points = directory.read_recovery_points()
        self.start_offsets = directory.read_log_start_offsets()
        self.cleaned_offsets = directory.read_cleaned_offsets()
        try:
            self.high_watermarks = directory.read_high_watermarks()
        except LogDirectoryError:
            # An Apache Kafka that was killed leaves an empty file. Nothing is lost: leaders tell it anew.
            self.high_watermarks = {}


def is_reserved(directory_id: bytes) -> bool:
    """KRaft's ids that name no directory: unassigned, lost, migrating."""
    return int.from_bytes(directory_id, "big") < _RESERVED_DIRECTORY_ID_MAX


def directory_id_of(text: str) -> bytes:
    directory_id = parse_uuid(text)
    if is_reserved(directory_id):
        raise ValueError(f"{text} is a reserved directory id")
    return directory_id


def _sync_recovered(log: PartitionLog) -> None:
    """What an unclean stop left may not be on disk yet, and readers see it from now on."""
    task = log.flush_task()
    if task is not None:
        task.run()
        log.complete_flush(task)
