"""A node: everything wired together, started in order, stopped in order.

    directories locked and checked -> metadata log replayed -> quorum joined -> registered -> logs opened (recovered) ->
    listeners open -> unfenced -> ready

A quorum of one is led at once, so that `start` does all of it; in a cluster `start` leaves the rest to a task, and
`wait_ready` says when it is done.

Handlers see the node as their world: `image`, `replicas`, `controller`, `settings`, `clock`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.broker.active_controller import ActiveController, newest_version
from moldau.broker.cleaner import Cleaner, RunCleaning, clean_in_thread
from moldau.broker.connection import Connection
from moldau.broker.controller import Controller
from moldau.broker.controller_channel import ControllerChannel
from moldau.broker.endpoints import ListenerSpec, read_listeners
from moldau.broker.errors import StartError
from moldau.broker.fetch_sessions import FetchSessions
from moldau.broker.formatting import random_uuid
from moldau.broker.housekeeping import Housekeeping
from moldau.broker.http import HttpListener
from moldau.broker.listener import Listen, listen_on_host
from moldau.broker.membership import Membership
from moldau.broker.metrics import Metrics
from moldau.broker.node_directories import NodeDirectories
from moldau.broker.node_listeners import NodeListeners
from moldau.broker.peers import Connect, Peers, connect_to_peer
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.quorum_network import Addresses, QuorumNetwork
from moldau.broker.quorum_setup import QuorumSettings, make_quorum, read_quorum_settings
from moldau.broker.replicas import Replicas
from moldau.broker.replication import Replication
from moldau.broker.retention import Retention
from moldau.broker.settings import Settings
from moldau.broker.voter_upkeep import VoterUpkeep
from moldau.cluster import (
    FENCE,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    OFFSETS_TOPIC,
    SUPPORTED_FEATURES,
    TRANSACTIONS_TOPIC,
    UNFENCE,
    ConfigKind,
    MetadataDelta,
    MetadataImage,
    MetadataLog,
    MetadataLogError,
    TopicDecider,
    TopicDefaults,
    change_fencing,
    decide_assign_directory,
    lead_again,
    levels_kept_only,
    metadata_release,
    register_broker,
    register_controller,
)
from moldau.consensus import ReplicaKey
from moldau.kernel import Clock, Dice, Disk, KafkaError
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.storage import LogDirectory

if TYPE_CHECKING:
    from moldau.broker.groups import Groups
    from moldau.broker.transactions import Transactions
    from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

# A request in flight when the node is asked to stop gets this long to be answered.
STOP_GRACE_MS = 10_000
SNAPSHOT_KEY = "metadata.log.max.record.bytes.between.snapshots"


class Node:
    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk,
        clock: Clock,
        dice: Dice,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        cluster_id: str | None = None,
        listen: Listen = listen_on_host,
        run_cleaning: RunCleaning | None = None,
        connect: Connect = connect_to_peer,
    ) -> None:
        """`run_cleaning` takes the cleaner's work elsewhere; without it a thread does it."""
        self.peers = Peers(self, connect)
        self.settings = settings
        settings.say = say
        self.node_id = settings.node_id
        self.clock = clock
        self.loop = loop
        self.say = say
        self._disk = disk
        self._dice = dice
        self._wanted_cluster_id = cluster_id
        self.listeners = NodeListeners(self, listen)
        self._run_cleaning = run_cleaning
        self.metrics = Metrics()
        self.fetch_sessions = FetchSessions(dice, clock, settings.integer("max.incremental.fetch.session.cache.slots"))
        self.is_stopping = False
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        self.directories = NodeDirectories(disk, settings, say)
        self.housekeeping = Housekeeping(self)
        self.image = MetadataImage()
        self.topic_decider = TopicDecider(
            dice, self._topic_defaults, self.choose_directory, self._describe_topic_configs
        )
        self._groups: Groups | None = None
        self._transactions: Transactions | None = None
        self.cluster_id: str = ""
        self.http: HttpListener | None = None
        self.incarnation_id = random_uuid(dice)
        self.directory_ids: list[bytes] = []
        # Done when the node serves; failed when it cannot.
        self.ready: asyncio.Future[None] = loop.create_future()
        self.is_closed = False
        self._joining: list[asyncio.Task[None]] = []
        self._is_loaded = False
        self._led_epoch = -1
        self.quorum_settings: QuorumSettings = read_quorum_settings(settings)
        self.addresses = Addresses(self.quorum_settings.addresses)
        self.active = ActiveController(self)
        self.channel = ControllerChannel(self)
        self.membership = Membership(self)

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything up to serving; StartError, ConfigError or LogDirectoryError say in one line what is in the way."""
        started_ms = self.clock.monotonic_ms()
        specs = read_listeners(self.settings)
        try:
            self.cluster_id = self.directories.take(
                specs,
                self.quorum_settings,
                wanted_cluster_id=self._wanted_cluster_id,
                dice=self._dice,
                now_ms=self.clock.now_ms(),
            )
            self._open_rooms()
            self._start_controller()
            self._open_listeners(specs)
            if not self.controller.is_active:
                self._joining.append(self.loop.create_task(self._join(started_ms)))
                return
            self._register()
            self._serve(self._load())
            self._keep_voters_true()
        except BaseException:
            # The process may live on, as a test's does, and try again once what was in the way is gone.
            self.listeners.stop_accepting()
            self.directories.unlock()
            raise
        self._say_started(started_ms)

    def _say_started(self, started_ms: int) -> None:
        took_ms = self.clock.monotonic_ms() - started_ms
        self.say(
            f"node_started node={self.node_id} cluster={self.cluster_id} clean={str(self._was_clean).lower()}"
            f" partitions={sum(1 for _ in self.replicas)} took_ms={took_ms}"
        )
        if not self.ready.done():
            self.ready.set_result(None)

    async def wait_ready(self) -> None:
        """Until the node serves; what stands in its way is raised."""
        await asyncio.shield(self.ready)

    def _load(self) -> bool:
        self._was_clean = self.replicas.load(self.image)
        self._is_loaded = True
        return self._was_clean

    # -- joining a cluster ---------------------------------------------------------------------------------------------

    async def _join(self, started_ms: int) -> None:
        """What takes the others: a leader, its consent, and what it has written."""
        try:
            self.listeners.start_for_controllers()
            if self.quorum_settings.is_controller:
                endpoints = self.listeners.registered(is_controller=True)
                self._joining.append(self.loop.create_task(self.membership.register_controller(endpoints)))
                self._keep_voters_true()
            if self.quorum_settings.is_broker:
                endpoints = self.listeners.registered(is_controller=False)
                await self.membership.register(endpoints, self._previous_epoch())
                self._load()
                self._start_serving()
                self.membership.begin()
                await self.membership.wait_unfenced()
            else:
                self._was_clean = True
                self.housekeeping.begin()
            self._say_started(started_ms)
        except Exception as error:
            # Whoever waits for the node is told; there is nobody else to tell.
            if not self.ready.done():
                self.ready.set_exception(error)

    def _keep_voters_true(self) -> None:
        upkeep = VoterUpkeep(self, self.listeners.voter_endpoints())
        self._joining.append(self.loop.create_task(upkeep.run()))

    def _previous_epoch(self) -> int:
        """The broker epoch of the last life, where all directories say that it ended in good order; else -1."""
        epochs = {directory.read_clean_shutdown() for directory in self.replicas.directories}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return -1 if epoch is None else epoch

    def _open_rooms(self) -> None:
        """What holds this node's replicas, and what looks after them."""
        by_id = self.directories.of_logs
        self.directory_ids = list(by_id)
        self._directory_paths = {directory_id: directory.path for directory_id, directory in by_id.items()}
        self.replicas = Replicas(
            self.node_id,
            self._disk,
            by_id,
            self.settings,
            self.metrics,
            clock=self.clock,
            dice=self._dice,
            loop=self.loop,
            say=self.say,
            on_offline=self._on_directory_offline,
            on_fault=self.fail,
        )
        self.replicas.unusable_directories = self.directories.unusable
        self.replication = Replication(self)
        self.replicas.replication = self.replication
        self.retention = Retention(self.replicas, self.settings, self.clock, self.say)
        run_cleaning = self._run_cleaning or clean_in_thread(self.replicas, self._disk)
        self.cleaner = Cleaner(self.replicas, self.settings, self.clock, self._disk, run_cleaning, self.say)

    def _start_controller(self) -> None:
        directory = self.directories.of_metadata
        log = MetadataLog(directory.disk, directory.path, now_ms=self.clock.now_ms(), say=self.say)
        try:
            image = log.load_snapshot()
        except MetadataLogError as error:
            raise StartError(str(error)) from None
        self._check_metadata_version(image)
        self.network = QuorumNetwork(
            self.node_id,
            self.cluster_id,
            self.addresses,
            self.settings,
            clock=self.clock,
            loop=self.loop,
            own_endpoints=self.listeners.voter_endpoints,
            say=self.say,
        )
        key = ReplicaKey(self.node_id, self.directories.metadata_id)
        try:
            quorum = make_quorum(self.settings, self.quorum_settings, key, log, self._dice)
        except MetadataLogError as error:
            raise StartError(str(error)) from None
        self.addresses.quorum = self.network.quorum = quorum
        self.controller = Controller(
            log,
            quorum,
            image,
            clock=self.clock,
            loop=self.loop,
            publish=self._publish,
            send=self.network.send,
            on_leadership=self._follow_leadership,
            snapshot_after_bytes=lambda: self.settings.integer(SNAPSHOT_KEY),
            say=self.say,
            on_fault=self._on_metadata_fault,
        )
        self.network.step = self.controller.step
        self.network.on_fault = self.fail
        self.producer_ids = ProducerIds(self)
        self.image = image
        self.settings.apply_dynamic(image)
        try:
            self.controller.start()
        except MetadataLogError as error:
            raise StartError(str(error)) from None
        kept = levels_kept_only(self.image)
        if kept:
            levels = " ".join(f"{name}={level}" for name, level in sorted(kept.items()))
            self.say(f"feature_levels_kept_not_served {levels} hint='another version wrote this log'")

    def _check_metadata_version(self, image: MetadataImage) -> None:
        level = image.features.get(METADATA_VERSION, METADATA_VERSION_MAX)
        if level < METADATA_VERSION_MIN:
            raise StartError(
                f"the metadata log is at metadata.version {level}, older than"
                f" {metadata_release(METADATA_VERSION_MIN)} ({METADATA_VERSION_MIN})"
            )

    def _open_listeners(self, specs: Sequence[ListenerSpec]) -> None:
        try:
            self.listeners.open(specs)
        except OSError as error:
            raise StartError(str(error)) from None
        for endpoint in self.listeners.voter_endpoints()[:1]:
            self.addresses.own[self.node_id] = (endpoint.host, endpoint.port)

    def _register(self) -> None:
        epoch = self.controller.next_offset + 1
        broker_endpoints = self.listeners.registered(is_controller=False)
        # Without a listener of its own the controller is reached where the broker is.
        controller_endpoints = self.listeners.registered(is_controller=True) or broker_endpoints[:1]
        self.controller.change_now(
            [
                register_controller(self.node_id, self.incarnation_id, controller_endpoints, SUPPORTED_FEATURES),
                register_broker(
                    self.node_id,
                    epoch,
                    self.incarnation_id,
                    broker_endpoints,
                    SUPPORTED_FEATURES,
                    self.settings.text("broker.rack") or None,
                    self.directory_ids,
                ),
            ]
        )

    def _serve(self, was_clean: bool) -> None:
        self.membership.epoch = self.image.brokers[self.node_id].epoch
        policy = self.active.policy(self.image)
        records: list[Any] = [change_fencing(self.image, self.node_id, UNFENCE)]
        records += lead_again(self.image, self.node_id, policy, unclean=not was_clean)
        self.controller.change_now(records)
        self._start_serving()
        self.membership.begin()

    def _start_serving(self) -> None:
        self.listeners.start()
        if self._has_groups:
            self.groups.coordinator.follow_metadata()
        if self._has_transactions:
            self.transactions.coordinator.follow_metadata()
        self.housekeeping.begin()

    async def start_http(self) -> None:
        """Metrics and health; a port that is taken costs a line in the log, not the broker."""
        address = self.settings.text("moldau.http.listener")
        if not address:
            return
        host, _, port = address.rpartition(":")
        try:
            self.http = HttpListener(self, host.strip("[]"), int(port))
            await self.http.start()
        except (OSError, ValueError) as error:
            self.http = None
            self.say(f"http_unavailable moldau.http.listener={address} reason={str(error)!r}")

    # -- following the metadata ----------------------------------------------------------------------------------------

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A committed change: from here on it is what every handler sees."""
        self.image = image
        if delta.configs_changed:
            # Where an unclean election was forbidden so far, it may be what is waited for.
            self.loop.call_soon(self.active.elections.lead_uncleanly)
        if not self._is_loaded:
            # The logs are opened by the image that stands when the node is registered.
            self.settings.apply_dynamic(image)
            return
        if any(resource.kind == ConfigKind.BROKER for resource in delta.configs_changed):
            self.settings.apply_dynamic(image)
            self.listeners.reconfigure()
        reconfigured = self.replicas.apply(delta, image)
        self.metrics.unclean_elections += delta.unclean_elections
        if delta.brokers is not None:
            self.replication.on_brokers_changed()
        if reconfigured:
            self.retention.look_soon_at(reconfigured)
        if self._has_groups:
            self.groups.follow_metadata(delta, image)
        if self._has_transactions:
            self.transactions.coordinator.follow_metadata()
        for topic in delta.topics_removed.values():
            if topic.name not in image.topics:
                self.metrics.forget(topic.name)

    def _follow_leadership(self) -> None:
        """Another leader of the metadata quorum, or none: this node perhaps."""
        quorum = self.controller.quorum
        led_epoch = quorum.epoch if quorum.is_leader else -1
        if led_epoch != self._led_epoch:
            was_active, self._led_epoch = self._led_epoch >= 0, led_epoch
            if led_epoch >= 0:
                self.say(f"controller_elected node={self.node_id} epoch={led_epoch}")
                self.active.take_over()
            elif was_active:
                self.say(f"controller_resigned node={self.node_id} epoch={quorum.epoch}")
                self.active.step_down()
        if quorum.leader_id >= 0:
            self.membership.nudge()

    @property
    def groups(self) -> Groups:
        """The group coordinator; loaded when it is first needed, which for many a broker is never."""
        if self._groups is None:
            from moldau.broker.groups import Groups

            self._groups = Groups(self, self._dice)
        return self._groups

    @property
    def groups_in_use(self) -> Groups | None:
        return self._groups

    @property
    def _has_groups(self) -> bool:
        return self._groups is not None or OFFSETS_TOPIC in self.image.topics

    @property
    def transactions(self) -> Transactions:
        """The transaction coordinator; loaded when it is first needed."""
        if self._transactions is None:
            from moldau.broker.transactions import Transactions

            self._transactions = Transactions(self)
        return self._transactions

    @property
    def transactions_in_use(self) -> Transactions | None:
        return self._transactions

    @property
    def _has_transactions(self) -> bool:
        return self._transactions is not None or TRANSACTIONS_TOPIC in self.image.topics

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        if not self.controller.is_active:
            response: CreateTopicsResponse = await self.channel.forward(request, newest_version(request))
            return response
        return await self.controller.change(lambda image: self.topic_decider.create(image, request))

    async def move_replica(self, topic: str, index: int, path: str) -> None:
        """AlterReplicaLogDirs: move the files, then say in the metadata where they are."""
        directory_id = await self.replicas.move(topic, index, path)
        if directory_id is None:
            return
        if self.controller.is_active:
            await self.controller.change(
                lambda image: decide_assign_directory(image, topic, index, self.node_id, directory_id)
            )
            return
        from moldau.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest

        kinds = AssignReplicasToDirsRequest
        partition = kinds.TopicData(self.image.topics[topic].id, [kinds.PartitionData(index)])
        directories = [kinds.DirectoryData(directory_id, [partition])]
        await self.channel.ask(kinds(self.node_id, self.membership.epoch, directories))

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """A leader's word on who is in sync, to the active controller, wherever that is."""
        response: AlterPartitionResponse = await self.channel.ask(request)
        return response

    def _topic_defaults(self) -> TopicDefaults:
        return TopicDefaults(
            self.settings.integer("num.partitions"), self.settings.integer("default.replication.factor")
        )

    def choose_directory(self, replica: int) -> bytes:
        """Where a new replica lives: of our own directories we know which is emptiest."""
        broker = self.controller.latest.brokers.get(replica)
        if replica == self.node_id and self._is_loaded:
            return self.replicas.choose_directory(replica)
        ids = () if broker is None else broker.log_directories
        return ids[self._dice.below(len(ids))] if ids else bytes(16)

    def _describe_topic_configs(self, overrides: Mapping[str, str]) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
        from moldau.broker.handlers.k32_describe_configs import topic_configs_of_new_topic

        return topic_configs_of_new_topic(self.settings, overrides)

    # -- what handlers ask for -----------------------------------------------------------------------------------------

    @property
    def kraft_version(self) -> int:
        return self.controller.log.voters.kraft_version

    def controller_id_for_clients(self) -> int:
        """Any broker forwards to the controller, so Kafka names a random alive one; this one will do."""
        return self.node_id

    def offline_directory_ids(self) -> list[bytes]:
        """Directories that failed since the start."""
        working = {directory.path for directory in self.replicas.directories}
        return [directory_id for directory_id, path in self._directory_paths.items() if path not in working]

    def report_bug(self, connection: Connection, error: BaseException) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.say(
            f"handler_failed peer={connection.peer} error={type(error).__name__} reason={str(error)!r}"
            f" at={where.filename.rpartition('/')[2]}:{where.lineno}"
        )

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """A fault that the node cannot outlive."""
        if not self.failed.done():
            self.failed.set_result(error)

    def _on_metadata_fault(self, error: BaseException) -> None:
        """The metadata log is out of service, and so is the directory that it is in."""
        for directory in self.replicas.directories:
            if directory.path == self.directories.metadata_path:
                self.replicas.disk_faults.take_offline(directory, str(error))
                return
        if self.directories.metadata_path not in self.settings.log_directories:
            self.fail(error)

    def _on_directory_offline(self, directory: LogDirectory) -> None:
        """Others are left: what they hold goes on, also without a metadata log, which then stays as it is."""
        if directory.path == self.directories.metadata_path:
            self.say("metadata_log_offline hint='topics and configs cannot change until the broker is restarted'")
            self.controller.give_up(f"log directory {directory.path} failed")
        if self._has_groups:
            self.groups.coordinator.follow_metadata()
        if self._has_transactions:
            self.transactions.coordinator.follow_metadata()

    # -- stop ----------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Finish what is in flight, write everything down, leave a clean mark."""
        if self.is_stopping:
            return
        if self._is_loaded and self._has_company():
            await self.membership.leave()
        self.is_stopping = True
        await self.membership.stop()
        for task in self._joining:
            task.cancel()
        self.housekeeping.end()
        if self.http is not None:
            self.http.close()
        self.listeners.stop_accepting()
        await self.replication.stop()
        # Transactions first: the offsets of one that ends now are the groups' affair.
        if self._transactions is not None:
            self._transactions.stop()
        if self._groups is not None:
            self._groups.stop()
        for partition in self.replicas:
            partition.wake()
        deadline_ms = self.clock.monotonic_ms() + STOP_GRACE_MS
        while (self.listeners.owe_answers or self.replicas.is_flushing) and self.clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(0.005)
        self.listeners.close()
        await self.retention.stop()
        await self.cleaner.stop()
        await self.housekeeping.wait_idle()
        await self.controller.wait_idle()
        registered = self.image.brokers.get(self.node_id)
        epoch = self.membership.epoch
        try:
            is_alone = self.controller.is_active and len(self.controller.quorum.voters.all) == 1
            if is_alone and registered is not None and not registered.fenced:
                self.controller.change_now([change_fencing(self.image, self.node_id, FENCE)])
            elif self.controller.is_active:
                self.controller.resign()
                await self.network.drain()
            self.active.close()
            self.network.close()
            self.channel.close()
            # Since it resigned it may have written more, which is being synced.
            await self.controller.wait_idle()
            self.is_closed = True
            self.controller.close()
        except (KafkaError, OSError) as error:
            # The next start registers anew anyway; the logs must be closed all the same.
            self.say(f"fencing_failed reason={str(error)!r}")
        self.peers.close()
        self.replicas.close(epoch)
        self.directories.unlock()
        self.say(f"node_stopped node={self.node_id}")

    def _has_company(self) -> bool:
        """Whether there are brokers that can take over what this one leads."""
        return any(broker.node_id != self.node_id for broker in self.image.alive_brokers)
