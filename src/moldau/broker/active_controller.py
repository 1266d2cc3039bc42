"""What this node does while it leads the metadata quorum: sessions of brokers, fences, and the requests of brokers.

Everything decided here is decided by pure functions of `moldau.cluster`; this is their shell: the clock, the sessions'
timer, and the table of requests that brokers address to the active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from moldau.broker.elections import Elections
from moldau.broker.formatting import bootstrap_records
from moldau.cluster import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    MIN_IN_SYNC,
    BrokerSessions,
    ConfigKind,
    Decision,
    MetadataImage,
    PartitionPolicy,
    check_broker_epoch,
    comes_from_the_same_place,
    decide_allocate_producer_ids,
    decide_alter_partition,
    decide_assign_directory,
    decide_heartbeat,
    decide_reassign,
    decide_register_broker,
    decide_register_controller,
    decide_unregister_broker,
    fence,
    keeps_elr,
    list_reassignments,
    pin_min_in_sync,
)
from moldau.consensus import NO_DIRECTORY, ReplicaKey, Voter, VoterEndpoint
from moldau.kernel import ErrorCode, KafkaError, Timer
from moldau.protocol.message import Message
from moldau.protocol.messages.metadata_records.abort_transaction_record import AbortTransactionRecord
from moldau.protocol.messages.registry import API_MESSAGES, ApiKey, response_class

if TYPE_CHECKING:
    from moldau.broker.connection import Connection
    from moldau.broker.node import Node

# A broker whose connection broke gets this long to be heard of again before it is fenced. Broker and leader epochs keep
# a hint that was wrong from doing harm.
SUSPICION_MS = 400
# Brokers tell a new controller of themselves at once; those that do not are looked at after this.
SILENCE_MS = 700


class ActiveController:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.sessions = BrokerSessions(node.settings.integer("broker.session.timeout.ms"))
        self._alarm: Timer | None = None
        self.elections = Elections(node, self.policy)
        self._watched: dict[Connection, tuple[int, int]] = {}
        self._probes: dict[asyncio.Task[None], None] = {}

    # -- leadership ----------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Lead: finish what the last leader left, and give every broker a session."""
        node, controller = self._node, self._node.controller
        now_ms = node.clock.monotonic_ms()
        self.sessions.clear()
        if controller.is_transaction_open:
            controller.propose([AbortTransactionRecord(reason="the controller was restarted")])
        if METADATA_VERSION not in controller.latest.features:
            controller.propose(bootstrap_records(METADATA_VERSION_MAX))
        if keeps_elr(controller.latest):
            pinned = pin_min_in_sync(controller.latest, node.settings.integer(MIN_IN_SYNC))
            if pinned:
                controller.propose(pinned)
        for broker in controller.latest.brokers.values():
            if not broker.fenced:
                self.sessions.begin(broker.node_id, broker.epoch, now_ms)
        if any(node_id != node.node_id for node_id in controller.latest.brokers):
            node.clock.call_later(SILENCE_MS, self._look_at_silent)
        self._set_alarm()
        self.elections.begin()

    def step_down(self) -> None:
        self.sessions.clear()
        self.elections.end()
        self._set_alarm()

    def close(self) -> None:
        self.step_down()
        for probe in list(self._probes):
            probe.cancel()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due_ms = self.sessions.due_ms
        if due_ms is not None and self._node.controller.is_active:
            delay_ms = max(due_ms - self._node.clock.monotonic_ms(), 0) + 1
            self._alarm = self._node.clock.call_later(delay_ms, self._fence_expired)

    def _fence_expired(self) -> None:
        node, controller = self._node, self._node.controller
        self._alarm = None
        if not controller.is_active:
            return
        for node_id in self.sessions.expired(node.clock.monotonic_ms()):
            session = self.sessions.find(node_id)
            self.sessions.end(node_id)
            broker = controller.latest.brokers.get(node_id)
            if node_id == node.node_id:
                continue  # whoever decides is alive; after a long pause it hears of itself last
            if broker is None or broker.fenced or session is None or broker.epoch != session.epoch:
                continue
            records = fence(controller.latest, node_id, self.policy(controller.latest))
            reason = "session" if session.suspect_until_ms is None else "connection"
            node.say(f"broker_fenced broker={node_id} epoch={session.epoch} reason={reason} changes={len(records) - 1}")
            try:
                controller.propose(records)
            except KafkaError as error:
                node.say(f"fencing_failed broker={node_id} reason={str(error)!r}")
        self._set_alarm()

    def watch(self, connection: Connection, node_id: int, epoch: int) -> None:
        """Heartbeats of this broker come over this connection."""
        if connection not in self._watched:
            connection.call_when_closed(lambda: self._on_closed(connection))
        self._watched[connection] = (node_id, epoch)

    def _on_closed(self, connection: Connection) -> None:
        self.suspect(*self._watched.pop(connection))

    def suspect(self, node_id: int, epoch: int) -> None:
        """The connection of a broker's heartbeats broke."""
        node = self._node
        if node.is_stopping or not node.controller.is_active:
            return
        if self.sessions.suspect(node_id, epoch, node.clock.monotonic_ms() + SUSPICION_MS):
            self._set_alarm()

    def _look_at_silent(self) -> None:
        """A new controller does not know who died with the old one: an address where nobody listens tells."""
        controller = self._node.controller
        if not controller.is_active:
            return
        for broker in controller.latest.brokers.values():
            session = self.sessions.find(broker.node_id)
            if broker.fenced or session is None or session.is_heard or not broker.endpoints:
                continue
            endpoint = broker.endpoints[0]
            probe = self._node.loop.create_task(self._probe(broker.node_id, broker.epoch, endpoint.host, endpoint.port))
            self._probes[probe] = None
            probe.add_done_callback(self._probes.pop)

    async def _probe(self, node_id: int, epoch: int, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(1.0):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return
        except OSError:
            self.suspect(node_id, epoch)
        else:
            writer.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def policy(self, image: MetadataImage) -> PartitionPolicy:
        settings = self._node.settings

        def of_topic(key: str, topic: str) -> Any:
            return settings.topic_value(key, image.config(ConfigKind.TOPIC, topic))

        return PartitionPolicy(
            lambda topic: int(of_topic("min.insync.replicas", topic)),
            lambda topic: bool(of_topic("unclean.leader.election.enable", topic)),
            keeps_elr=keeps_elr(image),
        )

    async def answer(self, message: Message, version: int) -> Any:
        """The answer to a request that a broker addresses to the controller; refusals are in it."""
        key = ApiKey(message.API_KEY)
        try:
            self._node.controller.check_active()
            response = await _ANSWERS[key](self, message, version)
        except KafkaError as refusal:
            response = _response(key)(error_code=refusal.code)
            if hasattr(response, "error_message"):
                response.error_message = refusal.message
        if key is ApiKey.UPDATE_RAFT_VOTER:
            quorum = self._node.controller.quorum
            address = self._node.addresses.find(quorum.leader_id) or ("", 0)
            response.current_leader = _response(key).CurrentLeader(quorum.leader_id, quorum.epoch, *address)
        return response

    async def _change(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        return await self._node.controller.change(decide)

    async def _register_broker(self, request: Any, _version: int) -> Any:
        node, controller = self._node, self._node.controller
        now_ms = node.clock.monotonic_ms()
        old = self.sessions.find(request.broker_id)
        if old is not None and not old.is_heard and comes_from_the_same_place(controller.latest, request):
            # Somebody comes in its name, from where it should be: it is gone, unless we hear of it now.
            self.suspect(request.broker_id, old.epoch)
        epoch: int = await self._change(
            lambda image: decide_register_broker(
                image,
                request,
                cluster_id=node.cluster_id,
                next_offset=controller.next_offset,
                sessions=self.sessions,
                policy=self.policy(image),
                now_ms=now_ms,
            )
        )
        self.sessions.begin(request.broker_id, epoch, node.clock.monotonic_ms())
        self._set_alarm()
        node.say(f"broker_registered broker={request.broker_id} epoch={epoch}")
        return _response(ApiKey.BROKER_REGISTRATION)(broker_epoch=epoch)

    async def _heartbeat(self, request: Any, _version: int) -> Any:
        node, controller = self._node, self._node.controller
        check_broker_epoch(controller.latest, request.broker_id, request.broker_epoch)
        session = self.sessions.touch(
            request.broker_id, request.broker_epoch, request.current_metadata_offset, node.clock.monotonic_ms()
        )
        if self._alarm is None:
            self._set_alarm()
        return await self._change(
            lambda image: decide_heartbeat(
                image, request, session, self.sessions, self.policy(image), controller.next_offset, self._followed
            )
        )

    def _followed(self, node_id: int) -> int:
        controller = self._node.controller
        if node_id == self._node.node_id:
            return controller.committed.offset + 1
        leadership = controller.quorum.leadership
        return 0 if leadership is None else leadership.acted_on(node_id)

    async def _alter_partition(self, request: Any, version: int) -> Any:
        return await self._change(lambda image: decide_alter_partition(image, request, version, self.policy(image)))

    async def _register_controller(self, request: Any, _version: int) -> Any:
        await self._change(lambda image: decide_register_controller(image, request))
        return _response(ApiKey.CONTROLLER_REGISTRATION)()

    async def _unregister_broker(self, request: Any, _version: int) -> Any:
        await self._change(lambda image: decide_unregister_broker(image, request.broker_id, self.policy(image)))
        self.sessions.end(request.broker_id)
        self._node.say(f"broker_unregistered broker={request.broker_id}")
        return _response(ApiKey.UNREGISTER_BROKER)(error_message=None)

    async def _allocate_producer_ids(self, request: Any, _version: int) -> Any:
        check_broker_epoch(self._node.controller.latest, request.broker_id, request.broker_epoch)
        block: range = await self._change(lambda image: decide_allocate_producer_ids(image, request.broker_id))
        return _response(ApiKey.ALLOCATE_PRODUCER_IDS)(producer_id_start=block.start, producer_id_len=len(block))

    async def _reassign(self, request: Any, _version: int) -> Any:
        directory_of = self._node.choose_directory
        return await self._change(lambda image: decide_reassign(image, request, self.policy(image), directory_of))

    async def _list_reassignments(self, request: Any, _version: int) -> Any:
        return await self._change(lambda image: Decision(list_reassignments(image, request)))

    # -- voters --------------------------------------------------------------------------------------------------------

    async def _add_voter(self, request: Any, version: int) -> Any:
        self._check_voters_can_change(request.cluster_id)
        voter = Voter(_named_voter(request), self._endpoints_of(request))
        quorum = self._node.controller.quorum
        agreed = self._node.controller.change_voters(lambda: quorum.add_voter(voter))
        if version == 0 or request.ack_when_committed:
            await agreed
        self._node.say(f"voter_added node={request.voter_id}")
        return _response(ApiKey.ADD_RAFT_VOTER)(error_message=None)

    async def _remove_voter(self, request: Any, _version: int) -> Any:
        self._check_voters_can_change(request.cluster_id)
        key = _named_voter(request)
        quorum = self._node.controller.quorum
        await self._node.controller.change_voters(lambda: quorum.remove_voter(key))
        self._node.say(f"voter_removed node={request.voter_id}")
        return _response(ApiKey.REMOVE_RAFT_VOTER)(error_message=None)

    async def _update_voter(self, request: Any, _version: int) -> Any:
        self._check_voters_can_change(request.cluster_id)
        quorum = self._node.controller.quorum
        if request.current_leader_epoch != quorum.epoch:
            is_old = request.current_leader_epoch < quorum.epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
        key, endpoints = _named_voter(request), self._endpoints_of(request)
        low, high = (
            request.kraft_version_feature.min_supported_version,
            request.kraft_version_feature.max_supported_version,
        )
        if not 0 <= low <= high:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no kraft.version from {low} to {high}.")
        voter = Voter(key, endpoints, low, high)
        await self._node.controller.change_voters(lambda: quorum.update_voter(voter))
        return _response(ApiKey.UPDATE_RAFT_VOTER)()

    def _endpoints_of(self, request: Any) -> tuple[VoterEndpoint, ...]:
        """KIP-853: where the other voters find it, by the name that their listeners have."""
        name = self._node.quorum_settings.listener
        if name not in [each.name for each in request.listeners]:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The request did not include the endpoint for the default listener {name}."
            )
        return tuple(VoterEndpoint(each.name, each.host, each.port) for each in request.listeners)

    def _check_voters_can_change(self, cluster_id: str | None) -> None:
        node = self._node
        if cluster_id not in (None, node.cluster_id):
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"This cluster is {node.cluster_id}.")
        if node.kraft_version == 0:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "Cluster doesn't support adding or removing voters because the kraft.version feature is 0",
            )

    async def _assign_directories(self, request: Any, _version: int) -> Any:
        check_broker_epoch(self._node.controller.latest, request.broker_id, request.broker_epoch)
        kinds = _response(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
        directories = []
        for directory in request.directories:
            topics = []
            for topic in directory.topics:
                answers = [
                    kinds.PartitionData(each.partition_index, await self._assign(request, directory.id, topic, each))
                    for each in topic.partitions
                ]
                topics.append(kinds.TopicData(topic.topic_id, answers))
            directories.append(kinds.DirectoryData(directory.id, topics))
        return kinds(directories=directories)

    async def _assign(self, request: Any, directory_id: bytes, topic: Any, partition: Any) -> int:
        found = self._node.controller.latest.topic_by_id(topic.topic_id)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        index = partition.partition_index
        if not 0 <= index < len(found.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if request.broker_id not in found.partitions[index].replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        await self._change(
            lambda image: decide_assign_directory(image, found.name, index, request.broker_id, directory_id)
        )
        return ErrorCode.NONE


_ANSWERS: dict[ApiKey, Callable[[ActiveController, Any, int], Awaitable[Any]]] = {
    ApiKey.ALTER_PARTITION: ActiveController._alter_partition,
    ApiKey.ADD_RAFT_VOTER: ActiveController._add_voter,
    ApiKey.REMOVE_RAFT_VOTER: ActiveController._remove_voter,
    ApiKey.UPDATE_RAFT_VOTER: ActiveController._update_voter,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ActiveController._reassign,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ActiveController._list_reassignments,
    ApiKey.BROKER_REGISTRATION: ActiveController._register_broker,
    ApiKey.BROKER_HEARTBEAT: ActiveController._heartbeat,
    ApiKey.UNREGISTER_BROKER: ActiveController._unregister_broker,
    ApiKey.ALLOCATE_PRODUCER_IDS: ActiveController._allocate_producer_ids,
    ApiKey.CONTROLLER_REGISTRATION: ActiveController._register_controller,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: ActiveController._assign_directories,
}


def _response(key: ApiKey) -> Any:
    return response_class(key)


def _named_voter(request: Any) -> ReplicaKey:
    if request.voter_directory_id == NO_DIRECTORY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request did not include a valid voter: it names no directory.")
    return ReplicaKey(request.voter_id, request.voter_directory_id)


def newest_version(message: Message) -> int:
    api = API_MESSAGES[message.API_KEY]
    return api.version_max - api.latest_version_unstable
