"""Three real brokers in one process, with real sockets and files, under a controller that a test holds in its hand.

The controller is small: it registers, fences, elects from the in-sync and eligible replicas, and checks AlterPartition
as Kafka's does. Its records go through the same deltas and images as the real one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moldau.broker import Node, load_settings
from moldau.broker.host import SystemClock, SystemDice, SystemDisk
from moldau.broker.partition import Partition
from moldau.broker.peers import Peer, connect_to_peer
from moldau.client import Connection
from moldau.cluster import Endpoint, MetadataDelta, MetadataImage, PartitionImage
from moldau.kernel import ErrorCode
from moldau.protocol.batches import Record, build_batch
from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata_records.broker_registration_change_record import BrokerRegistrationChangeRecord
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.protocol.messages.metadata_records.register_broker_record import RegisterBrokerRecord
from moldau.protocol.messages.metadata_records.topic_record import TopicRecord
from moldau.protocol.messages.produce import ProduceRequest
from moldau.testing.broker import TEST_SETTINGS

NOBODY = -1
WAIT_SECONDS_MAX = 20.0
BROKER_SETTINGS = {
    **TEST_SETTINGS,
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "100",
    "replica.lag.time.max.ms": "60000",
}


class RigNode(Node):
    """A node that hears of the cluster from the rig."""

    rig: Rig

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """What its own quorum of one says concerns nobody."""

    def hear(self, delta: MetadataDelta, image: MetadataImage) -> None:
        super()._publish(delta, image)

    def _register(self) -> None:
        super()._register()
        self.image = self.rig.register(self)

    def _serve(self, was_clean: bool) -> None:
        self.listeners.start()
        self.housekeeping.begin()

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.rig.alter_partition(request)


@dataclass
class Member:
    node_id: int
    directory: str
    node: RigNode | None = None
    is_deaf: bool = False


class Rig:
    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, racks: tuple[str, ...] = ("", "", "")
    ) -> None:
        self.image = MetadataImage()
        self.members = [Member(node_id, str(directory / f"broker-{node_id}")) for node_id in range(len(racks))]
        self._settings = dict(settings or {})
        self._racks = racks
        self.lines: list[str] = []
        self._connections: dict[int, Connection] = {}
        # Called instead of the controller, when a test wants its answers otherwise.
        self.intercept: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]] | None = None
        self._topics = 0
        self._cut: set[int] = set()
        self._peers: dict[int, list[Peer]] = {}

    async def __aenter__(self) -> Rig:
        for member in self.members:
            self.start(member.node_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        for member in self.members:
            if member.node is not None:
                await member.node.stop()

    # -- the network between brokers -----------------------------------------------------------------------------------

    async def _connect(self, node_id: int, endpoint: Endpoint, timeout_ms: int) -> Peer:
        if node_id in self._cut:
            raise ConnectionRefusedError("cut by the test")
        peer = await connect_to_peer(endpoint, timeout_ms)
        self._peers.setdefault(node_id, []).append(peer)
        return peer

    def cut(self, *node_ids: int) -> None:
        """These fetch no more."""
        for node_id in node_ids:
            self._cut.add(node_id)
            for peer in self._peers.pop(node_id, ()):
                peer.close()

    def heal(self) -> None:
        self._cut.clear()

    # -- brokers -------------------------------------------------------------------------------------------------------

    def start(self, node_id: int, **more: str) -> RigNode:
        member = self.members[node_id]
        settings, _ = load_settings(
            None,
            {
                **BROKER_SETTINGS,
                "node.id": str(node_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": member.directory,
                "broker.rack": self._racks[node_id],
                **self._settings,
                **more,
            }.items(),
            {},
        )
        node = RigNode(
            settings,
            disk=SystemDisk(),
            clock=SystemClock(),
            dice=SystemDice(),
            loop=asyncio.get_running_loop(),
            say=lambda line: self.lines.append(f"{node_id} {line}"),
            cluster_id="rigrigrigrigrigrigrigg",
            connect=partial(self._connect, node_id),
        )
        node.rig = self
        node.start()
        member.node, member.is_deaf = node, False
        self.publish([BrokerRegistrationChangeRecord(node_id, self.image.brokers[node_id].epoch, fenced=-1)])
        self._elect()
        return node

    def register(self, node: RigNode) -> MetadataImage:
        """A new life: fenced in the image that it opens its logs with."""
        if node.node_id in self.image.brokers and not self.image.brokers[node.node_id].fenced:
            self.fence(node.node_id)
        endpoints = [
            RegisterBrokerRecord.BrokerEndpoint(*each) for each in node.listeners.registered(is_controller=False)
        ]
        record = RegisterBrokerRecord(
            broker_id=node.node_id,
            broker_epoch=self.image.offset + 1,
            incarnation_id=node.incarnation_id,
            end_points=endpoints,
            rack=node.settings.text("broker.rack") or None,
            fenced=True,
            log_dirs=node.directory_ids,
        )
        features = [FeatureLevelRecord(name, level) for name, level in node.image.features.items()]
        self.publish([*features, record])
        return self.image

    def node(self, node_id: int) -> RigNode:
        node = self.members[node_id].node
        assert node is not None
        return node

    async def kill(self, node_id: int) -> None:
        """Its sockets close and nothing of it runs any more; no mark of a clean stop."""
        node, self.members[node_id].node = self.node(node_id), None
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()
        node.housekeeping.end()
        node.listeners.stop_accepting()
        node.listeners.close()
        await node.replication.stop()
        for partition in node.replicas:
            partition.follow(PartitionImage((), (), NOBODY, 1 << 30, 0, ()))
        node.directories.unlock()

    # -- the controller ------------------------------------------------------------------------------------------------

    def publish(self, records: list[Any]) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.image(self.image.offset + len(records), 1)
        for member in self.members:
            if member.node is not None and not member.is_deaf:
                member.node.hear(delta, self.image)

    def create(self, topic: str, *replicas: tuple[int, ...], **configs: str) -> None:
        self._topics += 1
        topic_id = self._topics.to_bytes(16, "big")
        records: list[Any] = [TopicRecord(topic, topic_id)]
        for key, value in configs.items():
            records.append(ConfigRecord(2, topic, key.replace("__", "."), value))
        for index, assigned in enumerate(replicas):
            directories = [self.image.brokers[each].log_directories[0] for each in assigned]
            records.append(
                PartitionRecord(
                    index, topic_id, list(assigned), list(assigned), [], [], assigned[0], 0, 0, 0, directories
                )
            )
        self.publish(records)

    def change(
        self,
        topic: str,
        index: int,
        *,
        isr: tuple[int, ...] | None = None,
        leader: int | None = None,
        replicas: tuple[int, ...] | None = None,
    ) -> None:
        """A new leader has a new epoch."""
        record = PartitionChangeRecord(partition_id=index, topic_id=self.image.topics[topic].id)
        if isr is not None:
            record.isr = list(isr)
        if replicas is not None:
            record.replicas = list(replicas)
            record.directories = [self.image.brokers[each].log_directories[0] for each in replicas]
        if leader is not None:
            record.leader = leader
        self.publish([record])

    def fence(self, node_id: int) -> None:
        epoch = self.image.brokers[node_id].epoch
        self.publish([BrokerRegistrationChangeRecord(node_id, epoch, fenced=1)])
        for topic in self.image.topics.values():
            for index, assigned in enumerate(topic.partitions):
                if node_id in assigned.isr:
                    # The last one stays, as an eligible replica would: it may lead when it returns.
                    isr = tuple(each for each in assigned.isr if each != node_id) or assigned.isr
                    self.change(topic.name, index, isr=isr, leader=self._leader_of(isr, assigned))
        self._elect()

    def _leader_of(self, isr: tuple[int, ...], assigned: PartitionImage) -> int | None:
        alive = [each for each in assigned.replicas if each in isr and not self.image.brokers[each].fenced]
        if assigned.leader in alive:
            return None
        return alive[0] if alive else NOBODY

    def _elect(self) -> None:
        for topic in self.image.topics.values():
            for index, assigned in enumerate(topic.partitions):
                leader = self._leader_of(assigned.isr, assigned)
                if leader is not None and leader != assigned.leader:
                    self.change(topic.name, index, leader=leader)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        await asyncio.sleep(0)
        if self.intercept is not None:
            return await self.intercept(request)
        return self.decide(request)

    def decide(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if self.image.brokers[request.broker_id].epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        topics = []
        for topic in request.topics:
            answers = [self._decide_one(request.broker_id, topic.topic_id, each) for each in topic.partitions]
            topics.append(AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=answers))
        return AlterPartitionResponse(topics=topics)

    def _decide_one(self, broker_id: int, topic_id: bytes, wanted: Any) -> AlterPartitionResponse.PartitionData:
        answer = AlterPartitionResponse.PartitionData(wanted.partition_index)
        name = self.image.topic_names[topic_id]
        assigned = self.image.topics[name].partitions[wanted.partition_index]
        isr = tuple(each.broker_id for each in wanted.new_isr_with_epochs)
        if wanted.leader_epoch < assigned.leader_epoch:
            answer.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif broker_id != assigned.leader:
            answer.error_code = ErrorCode.INVALID_REQUEST
        elif wanted.partition_epoch < assigned.partition_epoch:
            answer.error_code = ErrorCode.INVALID_UPDATE_VERSION
        elif any(
            self.image.brokers[each.broker_id].fenced
            or each.broker_epoch not in (NOBODY, self.image.brokers[each.broker_id].epoch)
            for each in wanted.new_isr_with_epochs
        ):
            answer.error_code = ErrorCode.INELIGIBLE_REPLICA
        else:
            self.change(name, wanted.partition_index, isr=isr)
            assigned = self.image.topics[name].partitions[wanted.partition_index]
            answer.leader_id, answer.leader_epoch = assigned.leader, assigned.leader_epoch
            answer.isr, answer.partition_epoch = list(assigned.isr), assigned.partition_epoch
        return answer

    # -- clients -------------------------------------------------------------------------------------------------------

    async def connection(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is None or connection.closed:
            host, _, port = self.node(node_id).listeners.bootstrap.rpartition(":")
            connection = self._connections[node_id] = await Connection.connect(host, int(port))
        return connection

    async def produce(
        self, node_id: int, topic: str, *values: bytes, acks: int = -1, timeout_ms: int = 10_000, **batch: Any
    ) -> ProduceRequest:
        answer = await self.produce_batch(
            node_id,
            topic,
            build_batch([Record(at, 1, b"k", value) for at, value in enumerate(values)], **batch),
            acks=acks,
            timeout_ms=timeout_ms,
        )
        return answer

    async def produce_batch(
        self, node_id: int, topic: str, batch: Any, *, acks: int = -1, timeout_ms: int = 10_000
    ) -> Any:
        data = ProduceRequest.PartitionProduceData(0, batch)
        request = ProduceRequest(
            None, acks, timeout_ms, [ProduceRequest.TopicProduceData(topic, partition_data=[data])]
        )
        response = await (await self.connection(node_id)).request(request, version=11)
        return response.responses[0].partition_responses[0]

    async def fetch(self, node_id: int, topic: str, offset: int, **more: Any) -> FetchResponse.PartitionData:
        partition = FetchRequest.FetchPartition(0, -1, offset, -1, -1, 1 << 20)
        wanted = FetchRequest.FetchTopic(topic_id=self.image.topics[topic].id, partitions=[partition])
        request = FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=[wanted], **more)
        response = await (await self.connection(node_id)).request(request, version=17)
        answer: FetchResponse.PartitionData = response.responses[0].partitions[0]
        return answer

    async def latest(self, node_id: int, topic: str) -> Any:
        wanted = ListOffsetsRequest.ListOffsetsPartition(0, -1, -1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(topic, [wanted])])
        response = await (await self.connection(node_id)).request(request)
        return response.topics[0].partitions[0]

    # -- what to look at -----------------------------------------------------------------------------------------------

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition:
        return self.node(node_id).replicas.require(topic, index)

    def isr(self, topic: str, index: int = 0) -> tuple[int, ...]:
        return self.image.topics[topic].partitions[index].isr

    def bytes_of(self, node_id: int, topic: str, index: int = 0) -> bytes:
        """Every byte of the log's segments, in order."""
        paths = sorted(Path(self.members[node_id].directory, f"{topic}-{index}").glob("*.log"))
        return b"".join(path.read_bytes() for path in paths)

    def are_equal(self, topic: str, index: int = 0) -> bool:
        assigned = self.image.topics[topic].partitions[index]
        partitions = [self.partition(each, topic, index) for each in assigned.replicas]
        return len({(each.log.end_offset, each.high_watermark) for each in partitions}) == 1

    @contextmanager
    def deaf(self, node_id: int) -> Iterator[None]:
        """The broker hears of no change meanwhile, and of none afterwards that came then."""
        self.members[node_id].is_deaf = True
        try:
            yield
        finally:
            self.members[node_id].is_deaf = False


async def until(condition: Callable[[], bool], what: str = "") -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"did not come about: {what or condition}") from None
