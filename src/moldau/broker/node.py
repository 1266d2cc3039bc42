"""A node: everything wired together, started in order, stopped in order.

    directories locked and checked -> metadata log replayed -> quorum joined -> registered -> logs opened (recovered) ->
    listeners open -> unfenced -> ready

A quorum of one is led at once, so that `start` does all of it; in a cluster `start` leaves the rest to a task, and
`wait_ready` says when it is done.

Handlers see the node as their world: `image`, `replicas`, `controller`, `settings`, `clock`.
"""

from __future__ import annotations

import asyncio
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.broker.active_controller import ActiveController, newest_version
from moldau.broker.cleaner import Cleaner, RunCleaning, clean_in_thread
from moldau.broker.connection import Connection
from moldau.broker.controller import Controller
from moldau.broker.controller_channel import ControllerChannel
from moldau.broker.dispatch import Context, Dispatcher
from moldau.broker.endpoints import WILDCARDS, ListenerSpec, read_listeners
from moldau.broker.fetch_sessions import FetchSessions
from moldau.broker.formatting import format_directories, random_uuid
from moldau.broker.http import HttpListener
from moldau.broker.listener import BACKLOG, REQUEST_BYTES_HELD_MAX, Listen, Listener, ListenerConfig, listen_on_host
from moldau.broker.membership import Membership
from moldau.broker.metrics import Metrics
from moldau.broker.peers import Connect, Peers, connect_to_peer
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.quorum_network import Addresses, QuorumNetwork
from moldau.broker.quorum_setup import QuorumSettings, cluster_id_of, make_quorum, read_quorum_settings
from moldau.broker.replicas import Replicas, directory_id_of
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
    BrokerRegistration,
    ConfigKind,
    Endpoint,
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
from moldau.consensus import ReplicaKey, VoterEndpoint
from moldau.kernel import Clock, Dice, Disk, KafkaError, uuid_text
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.storage import LogDirectory, LogDirectoryError

if TYPE_CHECKING:
    from moldau.broker.groups import Groups
    from moldau.broker.transactions import Transactions
    from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

# A request in flight when the node is asked to stop gets this long to be answered.
STOP_GRACE_MS = 10_000
HOUSEKEEPING_MS = 1_000
SNAPSHOT_KEY = "metadata.log.max.record.bytes.between.snapshots"
# Where the quorum's own listener would be if none is configured; only written into the log, never opened.
DEFAULT_CONTROLLER_ENDPOINT = ("CONTROLLER", "localhost", 9093)


class StartError(Exception):
    """The node cannot start; one clear line for the person who started it."""


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
        self._listen = listen
        self._run_cleaning = run_cleaning
        self.metrics = Metrics()
        self.fetch_sessions = FetchSessions(dice, clock, settings.integer("max.incremental.fetch.session.cache.slots"))
        self.is_stopping = False
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        self.listeners: list[Listener] = []
        self._locked: list[LogDirectory] = []
        self.dispatchers: list[Dispatcher] = []
        self.image = MetadataImage()
        self.topic_decider = TopicDecider(
            dice, self._topic_defaults, self.choose_directory, self._describe_topic_configs
        )
        self._groups: Groups | None = None
        self._transactions: Transactions | None = None
        self.cluster_id: str = ""
        self._specs: list[ListenerSpec] = []
        self._housekeeper: Any = None
        self._checkpoint_at_ms = 0
        self._expired_at_ms = 0
        self._checkpointing: asyncio.Task[None] | None = None
        self._busy = 0.0
        self._load_since = (_cpu_ms(), clock.monotonic_ms())
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
        # Directories of log.dirs that failed before they could say who they are.
        self._unusable: list[LogDirectory] = []

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything up to serving; StartError, ConfigError or LogDirectoryError say in one line what is in the way."""
        started_ms = self.clock.monotonic_ms()
        self._specs = read_listeners(self.settings)
        try:
            directories = self._open_directories()
            self._start_controller(directories)
            self._open_listeners()
            if not self.controller.is_active:
                self._joining.append(self.loop.create_task(self._join(started_ms)))
                return
            self._register()
            self._serve(self._load())
            self._keep_voters_true()
        except BaseException:
            # The process may live on, as a test's does, and try again once what was in the way is gone.
            for listener in self.listeners:
                listener.stop_accepting()
            for directory in self._locked:
                directory.unlock()
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
            for listener, spec in zip(self.listeners, self._specs, strict=True):
                if spec.is_controller:
                    listener.start()
            if self.quorum_settings.is_controller:
                endpoints = self._registered_endpoints(is_controller=True)
                self._joining.append(self.loop.create_task(self.membership.register_controller(endpoints)))
                self._keep_voters_true()
            if self.quorum_settings.is_broker:
                endpoints = self._registered_endpoints(is_controller=False)
                await self.membership.register(endpoints, self._previous_epoch())
                self._load()
                self._start_serving()
                self.membership.begin()
                await self.membership.wait_unfenced()
            else:
                self._was_clean = True
                self._keep_house()
            self._say_started(started_ms)
        except Exception as error:
            # Whoever waits for the node is told; there is nobody else to tell.
            if not self.ready.done():
                self.ready.set_exception(error)

    def _keep_voters_true(self) -> None:
        upkeep = VoterUpkeep(self, self._own_voter_endpoints())
        self._joining.append(self.loop.create_task(upkeep.run()))

    def _previous_epoch(self) -> int:
        """The broker epoch of the last life, where all directories say that it ended in good order; else -1."""
        epochs = {directory.read_clean_shutdown() for directory in self.replicas.directories}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return -1 if epoch is None else epoch

    def _open_directories(self) -> list[LogDirectory]:
        """Lock, check and format all of them; those of `log.dirs` that work are given back."""
        reserve_bytes = self.settings.integer("moldau.log.dir.reserve.bytes")
        directories = [LogDirectory(self._disk, path, reserve_bytes) for path in self.settings.all_directories]
        for directory in directories:
            if self._lock(directory):
                self._locked.append(directory)
        self._check_identity(self._locked)
        for directory in self._locked:
            self._fill_reserve(directory)
        return [directory for directory in self._locked if directory.path in self.settings.log_directories]

    def _lock(self, directory: LogDirectory) -> bool:
        """Whether the directory works. One that does not costs its partitions, unless nothing goes without it."""
        try:
            directory.lock()
        except LogDirectoryError as error:
            is_only = len(self.settings.log_directories) == 1
            if is_only or directory.path == self.settings.metadata_directory or error.__cause__ is None:
                raise
            self._unusable.append(directory)
            self.say(f"log_directory_offline path={directory.path} reason={str(error)!r}")
            return False
        return True

    def _fill_reserve(self, directory: LogDirectory) -> None:
        try:
            directory.reserve.fill()
        except OSError as error:
            # The first look at the space decides whether anything is written beside what has to be.
            directory.reserve.is_spent = True
            self.say(f"reserve_not_kept path={directory.path} reason={str(error)!r}")

    def _check_identity(self, directories: list[LogDirectory]) -> None:
        """Format what is empty; refuse what is another's."""
        metas = [meta for directory in directories if (meta := directory.read_meta_properties()) is not None]
        known = next((meta.cluster_id for meta in metas if meta.cluster_id), None)
        agreed = cluster_id_of(self.quorum_settings.voters)
        quorum = self.quorum_settings
        is_newcomer = agreed is None and not quorum.is_alone and self.node_id not in quorum.voters
        if is_newcomer and not (self._wanted_cluster_id or known):
            raise StartError(
                "this node joins a cluster and does not know which: format it first, moldau storage format"
                " --cluster-id ID, with the id that moldau cluster describe shows there"
            )
        self.cluster_id = self._wanted_cluster_id or known or agreed or uuid_text(random_uuid(self._dice))
        for directory in directories:
            directory.check_meta_properties(self.cluster_id, self.node_id)
        self._metadata_path = self.settings.metadata_directory
        try:
            format_directories(
                self._disk,
                directories,
                self._metadata_path,
                cluster_id=self.cluster_id,
                node_id=self.node_id,
                dice=self._dice,
                now_ms=self.clock.now_ms(),
                static_voters=not self.quorum_settings.is_alone,
                controller_endpoint=controller_endpoint(self._specs),
            )
        except OSError as error:
            raise LogDirectoryError(f"{self._metadata_path} cannot be written: {error.strerror or error}") from None

    def _start_controller(self, directories: list[LogDirectory]) -> None:
        by_id: dict[bytes, LogDirectory] = {}
        for directory in directories:
            meta = directory.read_meta_properties()
            assert meta is not None and meta.directory_id is not None
            by_id[directory_id_of(meta.directory_id)] = directory
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
        self.replicas.unusable_directories = self._unusable
        self.replication = Replication(self)
        self.replicas.replication = self.replication
        self.retention = Retention(self.replicas, self.settings, self.clock, self.say)
        run_cleaning = self._run_cleaning or clean_in_thread(self.replicas, self._disk)
        self.cleaner = Cleaner(self.replicas, self.settings, self.clock, self._disk, run_cleaning, self.say)
        self.directory_ids = list(by_id)
        self._directory_paths = {directory_id: directory.path for directory_id, directory in by_id.items()}
        metadata_directory = next(each for each in self._locked if each.path == self._metadata_path)
        log = MetadataLog(metadata_directory.disk, self._metadata_path, now_ms=self.clock.now_ms(), say=self.say)
        try:
            image = log.load_snapshot()
        except MetadataLogError as error:
            raise StartError(str(error)) from None
        self._check_metadata_version(image)
        meta = LogDirectory(self._disk, self._metadata_path).read_meta_properties()
        assert meta is not None and meta.directory_id is not None
        self.network = QuorumNetwork(
            self.node_id,
            self.cluster_id,
            self.addresses,
            self.settings,
            clock=self.clock,
            loop=self.loop,
            own_endpoints=self._own_voter_endpoints,
            say=self.say,
        )
        key = ReplicaKey(self.node_id, directory_id_of(meta.directory_id))
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

    def _open_listeners(self) -> None:
        for spec in self._specs:
            dispatcher = Dispatcher(self, spec.name, is_controller=spec.is_controller)
            config = self._listener_config(spec)
            try:
                listener = Listener(
                    config,
                    dispatcher.dispatch,
                    loop=self.loop,
                    say=self.say,
                    report_bug=self._report_bug,
                    listen=self._listen,
                )
            except OSError as error:
                where = f"{spec.host or '*'}:{spec.port}"
                raise StartError(
                    f"cannot listen on {where}: {error.strerror or error};"
                    f" is another broker running there? Choose another port, or 0 for a free one"
                ) from None
            self.listeners.append(listener)
            self.dispatchers.append(dispatcher)
        for endpoint in self._own_voter_endpoints()[:1]:
            self.addresses.own[self.node_id] = (endpoint.host, endpoint.port)

    def _listener_config(self, spec: ListenerSpec) -> ListenerConfig:
        settings = self.settings
        return ListenerConfig(
            name=spec.name,
            host=spec.host,
            port=spec.port,
            connections_max=settings.integer("max.connections"),
            connections_per_address_max=settings.integer("max.connections.per.ip"),
            idle_ms_max=settings.integer("connections.max.idle.ms"),
            frame_bytes_max=settings.integer("socket.request.max.bytes"),
            request_bytes_held_max=self._request_bytes_held_max(),
            backlog=(
                settings.integer("socket.listen.backlog.size")
                if settings.is_set("socket.listen.backlog.size")
                else BACKLOG
            ),
        )

    def _request_bytes_held_max(self) -> int:
        limit = self.settings.integer("queued.max.request.bytes")
        return limit if limit > 0 else REQUEST_BYTES_HELD_MAX

    def _register(self) -> None:
        epoch = self.controller.next_offset + 1
        broker_endpoints = self._registered_endpoints(is_controller=False)
        # Without a listener of its own the controller is reached where the broker is.
        controller_endpoints = self._registered_endpoints(is_controller=True) or broker_endpoints[:1]
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

    def _registered_endpoints(self, *, is_controller: bool) -> list[Endpoint]:
        endpoints = []
        for spec, listener in zip(self._specs, self.listeners, strict=True):
            if spec.is_controller != is_controller:
                continue
            host, port = spec.advertised or (spec.host, 0)
            if host in WILDCARDS:
                host = socket.gethostname()
            endpoints.append(Endpoint(spec.name, host, port or listener.port, spec.security_protocol))
        return endpoints

    def _own_voter_endpoints(self) -> list[VoterEndpoint]:
        endpoints = self._registered_endpoints(is_controller=True)
        return [VoterEndpoint(each.listener, each.host, each.port) for each in endpoints]

    def _serve(self, was_clean: bool) -> None:
        self.membership.epoch = self.image.brokers[self.node_id].epoch
        policy = self.active.policy(self.image)
        records: list[Any] = [change_fencing(self.image, self.node_id, UNFENCE)]
        records += lead_again(self.image, self.node_id, policy, unclean=not was_clean)
        self.controller.change_now(records)
        self._start_serving()
        self.membership.begin()

    def _start_serving(self) -> None:
        for listener in self.listeners:
            if not listener.is_started:
                listener.start()
        self._checkpoint_at_ms = self._expired_at_ms = self.clock.monotonic_ms()
        if self._has_groups:
            self.groups.coordinator.follow_metadata()
        if self._has_transactions:
            self.transactions.coordinator.follow_metadata()
        self._keep_house()

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
            for spec, listener in zip(self._specs, self.listeners, strict=True):
                listener.config = self._listener_config(spec)
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

    def endpoint_for(self, broker: BrokerRegistration, context: Context) -> Endpoint | None:
        """A broker's address on the listener that the client uses."""
        endpoint = broker.endpoint(context.listener)
        if endpoint is None or broker.node_id != self.node_id:
            return endpoint
        spec = next(spec for spec in self._specs if spec.name == context.listener)
        if spec.advertised is None and spec.host in WILDCARDS:
            return endpoint._replace(host=context.connection.local_host)
        return endpoint

    def add_leader_endpoints(self, response: Any, context: Context) -> None:
        """KIP-951: beside the new leader's id, its address."""
        leaders = {
            answer.current_leader.leader_id
            for topic in response.responses
            for answer in topic.partition_responses
            if answer.current_leader is not None
        }
        for node_id in sorted(leaders):
            broker = self.image.brokers.get(node_id)
            endpoint = None if broker is None else self.endpoint_for(broker, context)
            if broker is not None and endpoint is not None:
                response.node_endpoints.append(
                    type(response).NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack)
                )

    def offline_directory_ids(self) -> list[bytes]:
        """Directories that failed since the start."""
        working = {directory.path for directory in self.replicas.directories}
        return [directory_id for directory_id, path in self._directory_paths.items() if path not in working]

    def disk_space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the disk under a directory."""
        return self._disk.total_bytes(path), self._disk.free_bytes(path)

    @property
    def bootstrap(self) -> str:
        """An address that works from this machine."""
        for spec, listener in zip(self._specs, self.listeners, strict=True):
            if not spec.is_controller:
                host = "127.0.0.1" if spec.host in WILDCARDS else spec.host
                return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        return f"{self._specs[0].host or '127.0.0.1'}:{self.listeners[0].port}"

    def busy_fraction(self) -> float:
        """The share of a core that this process used since the last housekeeping but one."""
        return self._busy

    def _measure_load(self) -> None:
        cpu_ms, wall_ms = _cpu_ms(), self.clock.monotonic_ms()
        if wall_ms > self._load_since[1]:
            self._busy = min(1.0, (cpu_ms - self._load_since[0]) / (wall_ms - self._load_since[1]))
        self._load_since = (cpu_ms, wall_ms)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        # First, so that one failure on the way is not the end of all housekeeping.
        self._housekeeper = self.clock.call_later(HOUSEKEEPING_MS, self._keep_house)
        self._measure_load()
        self.replicas.flush_due()
        self.replicas.delete_due_segments()
        self.replicas.disk_faults.look_at_space(self.clock.monotonic_ms())
        self.replicas.retry_unopened()
        self.replication.look_if_due()
        self.retention.look_if_due()
        self.cleaner.look_if_due()
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._checkpoint_at_ms + self.settings.integer("log.flush.offset.checkpoint.interval.ms"):
            self._checkpoint_at_ms = now_ms
            self._checkpointing = self.loop.create_task(self._checkpoint())
        if now_ms >= self._expired_at_ms + self.settings.integer("producer.id.expiration.check.interval.ms"):
            self._expired_at_ms = now_ms
            self.replicas.expire_producers()

    async def _checkpoint(self) -> None:
        try:
            await self.replicas.checkpoints.write()
        except OSError as error:
            self.say(f"checkpoint_failed reason={str(error)!r}")

    def _report_bug(self, connection: Connection, error: BaseException) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.say(
            f"handler_failed peer={connection.peer} error={type(error).__name__} reason={str(error)!r}"
            f" at={where.filename.rpartition('/')[2]}:{where.lineno}"
        )

    def fail(self, error: BaseException) -> None:
        """A fault that the node cannot outlive."""
        if not self.failed.done():
            self.failed.set_result(error)

    def _on_metadata_fault(self, error: BaseException) -> None:
        """The metadata log is out of service, and so is the directory that it is in."""
        for directory in self.replicas.directories:
            if directory.path == self._metadata_path:
                self.replicas.disk_faults.take_offline(directory, str(error))
                return
        if self._metadata_path not in self.settings.log_directories:
            self.fail(error)

    def _on_directory_offline(self, directory: LogDirectory) -> None:
        """Others are left: what they hold goes on, also without a metadata log, which then stays as it is."""
        if directory.path == self._metadata_path:
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
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        if self.http is not None:
            self.http.close()
        for listener in self.listeners:
            listener.stop_accepting()
        await self.replication.stop()
        # Transactions first: the offsets of one that ends now are the groups' affair.
        if self._transactions is not None:
            self._transactions.stop()
        if self._groups is not None:
            self._groups.stop()
        for partition in self.replicas:
            partition.wake()
        deadline_ms = self.clock.monotonic_ms() + STOP_GRACE_MS
        while (self._owed() or self.replicas.is_flushing) and self.clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(0.005)
        for listener in self.listeners:
            listener.close()
        await self.retention.stop()
        await self.cleaner.stop()
        if self._checkpointing is not None:
            await self._checkpointing
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
        for directory in self._locked:
            directory.unlock()
        self.say(f"node_stopped node={self.node_id}")

    def _has_company(self) -> bool:
        """Whether there are brokers that can take over what this one leads."""
        return any(broker.node_id != self.node_id for broker in self.image.alive_brokers)

    def _owed(self) -> bool:
        """Clients; members of the quorum wait for news all the time, and ask the next leader."""
        return any(
            connection.is_owed_answers
            for listener, spec in zip(self.listeners, self._specs, strict=True)
            if not spec.is_controller
            for connection in listener.connections
        )


def _cpu_ms() -> int:
    return time.process_time_ns() // 1_000_000


def controller_endpoint(specs: Sequence[ListenerSpec]) -> tuple[str, str, int]:
    """The address under which the quorum's only voter is recorded."""
    for spec in specs:
        if spec.is_controller:
            return spec.name, spec.host or "localhost", spec.port or DEFAULT_CONTROLLER_ENDPOINT[2]
    return DEFAULT_CONTROLLER_ENDPOINT
