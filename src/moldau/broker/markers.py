"""The ends of transactions, written to the partitions that took part: here, or by WriteTxnMarkers where others lead.

A coordinator's order is carried out however often it takes: its decision is committed, so nothing can take it back. A
partition whose topic was deleted has nothing to end. One that has seen a newer epoch was ended by somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.partition import Partition
from moldau.cluster import OFFSETS_TOPIC
from moldau.coordination.groups import EndOffsets
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.markers import Marker
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from moldau.broker.node import Node

RETRY_MS_MIN, RETRY_MS_MAX = 50, 2_000
MARKERS_PER_REQUEST_MAX = 500
_COORDINATOR_MOVES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class End(NamedTuple):
    """How a producer's transaction ends."""

    producer: ProducerIdAndEpoch
    marker: Marker
    transaction_version: int


class Token(Protocol):
    def give(self, response: KafkaError | None) -> None:
        """The marker is committed, or it never will be."""
        ...


class Markers:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._elsewhere: dict[int, _Broker] = {}

    def send(self, where: TopicPartition, end: End, token: Token) -> None:
        """To whoever leads the partition."""
        topic = self._node.image.topics.get(where.topic)
        if topic is None or where.partition >= len(topic.partitions):
            token.give(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        leader = topic.partitions[where.partition].leader
        if leader == self._node.node_id:
            self.write(where, end, token)
        elif leader == NO_LEADER:
            token.give(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
        else:
            broker = self._elsewhere.get(leader)
            if broker is None:
                broker = self._elsewhere[leader] = _Broker(self._node, leader)
            broker.send(where, end, token)

    def write(self, where: TopicPartition, end: End, token: Token) -> None:
        """Write one to a partition that we lead; `token` is given the outcome, often before this returns."""
        try:
            partition = self._node.replicas.require(where.topic, where.partition)
            if where.topic == OFFSETS_TOPIC:
                self._end_offsets(where.partition, end, token)
                return
            now_ms = self._node.clock.now_ms()
            end_offset = partition.append_marker(*end.producer, end.marker, end.transaction_version, now_ms)
        except KafkaError as refusal:
            token.give(_as_partitions_error(refusal))
            return
        if partition.log.flush_is_due(now_ms):
            epoch = partition.leader_epoch
            flushed = partition.when_flushed(end_offset)
            flushed.add_done_callback(lambda _: self._give_when_flushed(flushed, partition, epoch, end_offset, token))
        else:
            self._give_when_committed(partition, partition.leader_epoch, end_offset, token)

    def _end_offsets(self, index: int, end: End, token: Token) -> None:
        """Through the groups' shard there, whose offsets they are."""
        coordinator = self._node.groups.coordinator
        producers = coordinator.partition_at(index).log.producers
        producers.check_marker(*end.producer, end.marker.coordinator_epoch, end.transaction_version)
        coordinator.submit_at(index, EndOffsets(_PartitionsToken(token), *end))

    def _give_when_flushed(
        self, flushed: asyncio.Future[None], partition: Partition, leader_epoch: int, end_offset: int, token: Token
    ) -> None:
        """Our disk is one of several that must have it."""
        refusal = _outcome(flushed)
        if refusal is None:
            self._give_when_committed(partition, leader_epoch, end_offset, token)
        else:
            token.give(refusal)

    def _give_when_committed(self, partition: Partition, leader_epoch: int, end_offset: int, token: Token) -> None:
        if partition.leader is None or partition.leader_epoch != leader_epoch:
            token.give(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif partition.high_watermark >= end_offset:
            token.give(None)
        else:
            partition.add_waiter(lambda: self._give_when_committed(partition, leader_epoch, end_offset, token))

    def carry_out(
        self,
        partitions: Iterable[TopicPartition],
        end: End,
        *,
        is_wanted: Callable[[], bool],
        on_done: Callable[[], None],
    ) -> None:
        """Write all of them, then call `on_done`: at once where nothing has to be waited for."""
        _Order(self, self._node, end, is_wanted, on_done).write(sorted(partitions))


class _Broker:
    """Markers for another broker: those that wait while a request is under way share the next one."""

    def __init__(self, node: Node, broker_id: int) -> None:
        self._node = node
        self._broker_id = broker_id
        self._waiting: list[tuple[TopicPartition, End, Token]] = []
        self._task: asyncio.Task[None] | None = None

    def send(self, where: TopicPartition, end: End, token: Token) -> None:
        self._waiting.append((where, end, token))
        if self._task is None:
            self._task = self._node.loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                under_way = self._take()
                codes: dict[tuple[TopicPartition, int], ErrorCode] = {}
                reason = "the answer does not name the partition"
                try:
                    response = await self._node.peers.ask(self._broker_id, _markers_request(under_way))
                except (OSError, KafkaError) as error:
                    reason = str(error)
                else:
                    codes = _markers_codes(response)
                for where, end, token in under_way:
                    code = codes.get((where, end.producer.producer_id), ErrorCode.NETWORK_EXCEPTION)
                    if code is ErrorCode.NETWORK_EXCEPTION:
                        token.give(KafkaError(code, f"broker {self._broker_id}: {reason}"))
                    else:
                        token.give(None if code is ErrorCode.NONE else KafkaError(code))
        finally:
            self._task = None

    def _take(self) -> list[tuple[TopicPartition, End, Token]]:
        """For one request: of each producer one end in a partition, as its answer names no more than those."""
        taken: dict[tuple[TopicPartition, int], tuple[TopicPartition, End, Token]] = {}
        left = []
        for each in self._waiting:
            key = each[0], each[1].producer.producer_id
            if key in taken or len(taken) == MARKERS_PER_REQUEST_MAX:
                left.append(each)
            else:
                taken[key] = each
        self._waiting = left
        return list(taken.values())


def _markers_request(wanted: list[tuple[TopicPartition, End, Token]]) -> WriteTxnMarkersRequest:
    kinds = WriteTxnMarkersRequest
    by_end: dict[End, dict[str, WriteTxnMarkersRequest.WritableTxnMarkerTopic]] = {}
    for where, end, _ in wanted:
        topics = by_end.setdefault(end, {})
        topics.setdefault(where.topic, kinds.WritableTxnMarkerTopic(where.topic)).partition_indexes.append(
            where.partition
        )
    return kinds(
        [
            kinds.WritableTxnMarker(
                end.producer.producer_id,
                end.producer.epoch,
                end.marker.committed,
                list(topics.values()),
                end.marker.coordinator_epoch,
                end.transaction_version,
            )
            for end, topics in by_end.items()
        ]
    )


def _markers_codes(response: WriteTxnMarkersResponse) -> dict[tuple[TopicPartition, int], ErrorCode]:
    return {
        (TopicPartition(topic.name, each.partition_index), result.producer_id): ErrorCode(each.error_code)
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }


class _Order:
    """A transaction's markers on their way; partitions that refuse are tried again."""

    def __init__(
        self, markers: Markers, node: Node, end: End, is_wanted: Callable[[], bool], on_done: Callable[[], None]
    ) -> None:
        self._markers = markers
        self._node = node
        self._end = end
        self._is_wanted = is_wanted
        self._on_done = on_done
        self._unanswered = 0
        self._refused: list[TopicPartition] = []
        self._retry_ms = RETRY_MS_MIN

    def write(self, partitions: list[TopicPartition]) -> None:
        self._unanswered = len(partitions) + 1  # one for this loop: answers may come within it
        for where in partitions:
            self._markers.send(where, self._end, _OrderToken(self, where))
        self._answered()

    def on_outcome(self, where: TopicPartition, refusal: KafkaError | None) -> None:
        if refusal is not None and refusal.code == ErrorCode.INVALID_PRODUCER_EPOCH:
            self._node.say(f"marker_not_needed partition={where} reason={refusal.message!r}")
        elif refusal is not None and not self._is_gone(where, refusal):
            self._node.say(
                f"marker_not_written partition={where} producer={self._end.producer.producer_id}"
                f" error={refusal.code.name} retry_ms={self._retry_ms} reason={refusal.message!r}"
            )
            self._refused.append(where)
        self._answered()

    def _is_gone(self, where: TopicPartition, refusal: KafkaError) -> bool:
        """A broker that does not know the topic may only not have heard of it yet."""
        return refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and where.topic not in self._node.image.topics

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered:
            return
        if not self._refused:
            self._on_done()
        else:
            self._node.clock.call_later(self._retry_ms, self._try_again)
            self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _try_again(self) -> None:
        refused, self._refused = self._refused, []
        if self._is_wanted():
            self.write(refused)
        else:
            producer_id, epoch = self._end.producer
            self._node.say(f"markers_left producer={producer_id} epoch={epoch} partitions={len(refused)}")


class _OrderToken(NamedTuple):
    order: _Order
    where: TopicPartition

    def give(self, response: KafkaError | None) -> None:
        self.order.on_outcome(self.where, response)


class _PartitionsToken(NamedTuple):
    """Who ends a transaction knows a partition's errors, not those of the groups on it."""

    token: Token

    def give(self, response: KafkaError | None) -> None:
        self.token.give(None if response is None else _as_partitions_error(response))


def _as_partitions_error(refusal: KafkaError) -> KafkaError:
    if refusal.code in _COORDINATOR_MOVES:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal.message)
    return refusal


def _outcome(flushed: asyncio.Future[None]) -> KafkaError | None:
    error = flushed.exception()
    assert error is None or isinstance(error, KafkaError)
    return error
