"""The transaction coordinator of this broker: `__transaction_state`, made on first use, and the machines on it.

Hands requests to the machines, and carries out what they order: markers, once a decision is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator import Coordinator
from moldau.broker.internal_topics import ensure_internal_topic
from moldau.broker.markers import End, Markers
from moldau.broker.partition import Partition
from moldau.broker.reply import Reply
from moldau.cluster import TRANSACTION_VERSION, TRANSACTIONS_TOPIC
from moldau.coordination.transactions import (
    EPOCH_BUMP_VERSION,
    AddPartitions,
    MarkersWritten,
    TransactionMachine,
    WriteMarkers,
)
from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.markers import Marker
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from moldau.broker.node import Node


class Transactions:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = NodeTransactionSettings(node)
        self.markers = Markers(node)
        self.committed_count = 0
        self.aborted_count = 0
        # Of each partition the newest machine's: what an older one ordered, the newest has ordered again.
        self._outboxes: dict[int, _Outbox] = {}
        self.coordinator: Coordinator[TransactionMachine] = Coordinator(node, TRANSACTIONS_TOPIC, self._make_machine)

    def _make_machine(self, partition: Partition) -> TransactionMachine:
        outbox = self._outboxes[partition.index] = _Outbox(self, partition)
        return TransactionMachine(self._settings, self._node.producer_ids, outbox, self._node.say)

    def ask(self, transactional_id: str, event_type: Any, *fields: Any) -> Reply:
        """Hand an event about a transactional id to its shard; KafkaError refuses at once."""
        return self.coordinator.ask(transactional_id, lambda token: event_type(token, transactional_id, *fields))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        bumps_epochs: bool,
        only_verifies: bool = False,
    ) -> dict[TopicPartition, ErrorCode]:
        """What the coordinator says of each; a refusal of all is everyone's. `bumps_epochs` is the client's kind."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        try:
            answer: dict[TopicPartition, ErrorCode] = await self.ask(
                transactional_id,
                AddPartitions,
                producer,
                partitions,
                EPOCH_BUMP_VERSION if bumps_epochs else 0,
                only_verifies,
            )
        except KafkaError as refusal:
            return dict.fromkeys(partitions, refusal.code)
        return answer

    async def ask_coordinator(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        bumps_epochs: bool,
        only_verifies: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """`add_partitions`, wherever the transactional id is coordinated."""
        node = self._node
        try:
            leader = self._coordinator_of(transactional_id)
        except KafkaError as refusal:
            return dict.fromkeys(partitions, refusal.code)
        if leader == node.node_id:
            return await self.add_partitions(
                transactional_id, producer, partitions, bumps_epochs=bumps_epochs, only_verifies=only_verifies
            )
        kinds = AddPartitionsToTxnRequest
        topics: dict[str, AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = {}
        for where in sorted(partitions):
            topics.setdefault(where.topic, kinds.AddPartitionsToTxnTopic(where.topic)).partitions.append(
                where.partition
            )
        transaction = kinds.AddPartitionsToTxnTransaction(
            transactional_id, producer.producer_id, producer.epoch, only_verifies, list(topics.values())
        )
        try:
            response: AddPartitionsToTxnResponse = await node.peers.ask(leader, kinds(transactions=[transaction]))
        except (OSError, KafkaError):
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if response.error_code:
            return dict.fromkeys(partitions, ErrorCode(response.error_code))
        (result,) = response.results_by_transaction
        return {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }

    def _coordinator_of(self, transactional_id: str) -> int:
        index = self.coordinator.index_of(transactional_id)
        return self._node.image.topics[TRANSACTIONS_TOPIC].partitions[index].leader

    async def ensure_topic(self) -> None:
        settings = self._node.settings
        replicas = min(settings.integer("transaction.state.log.replication.factor"), len(self._node.image.brokers))
        await ensure_internal_topic(
            self._node,
            TRANSACTIONS_TOPIC,
            partitions=settings.integer("transaction.state.log.num.partitions"),
            replicas=replicas,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(min(settings.integer("transaction.state.log.min.isr"), replicas)),
                "segment.bytes": str(settings.integer("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )

    def is_newest(self, outbox: _Outbox, index: int) -> bool:
        return self._outboxes.get(index) is outbox

    def stop(self) -> None:
        self.coordinator.stop()


class _Outbox:
    """Where a machine's orders go: the token of `WriteMarkers`, given when the decision is committed."""

    def __init__(self, transactions: Transactions, partition: Partition) -> None:
        self._transactions = transactions
        self._partition = partition
        self._epoch = partition.leader_epoch

    def give(self, order: WriteMarkers | KafkaError) -> None:
        if isinstance(order, KafkaError):
            return  # the shard is unloaded: who loads it next gives the order again
        end = End(order.producer, Marker(order.committed, self._epoch), order.transaction_version)
        self._transactions.markers.carry_out(
            order.partitions, end, is_wanted=self._is_coordinator, on_done=lambda: self._report(order)
        )

    def _is_coordinator(self) -> bool:
        partition = self._partition
        is_leader = partition.leader is not None and partition.leader_epoch == self._epoch
        return is_leader and self._transactions.is_newest(self, partition.index)

    def _report(self, order: WriteMarkers) -> None:
        # In the first generation the producer's next transaction has the same epoch: an order that outlived its
        # machine would speak of that one.
        if not self._is_coordinator():
            return
        if order.committed:
            self._transactions.committed_count += 1
        else:
            self._transactions.aborted_count += 1
        try:
            self._transactions.coordinator.submit(
                order.transactional_id, MarkersWritten(order.transactional_id, order.producer)
            )
        except KafkaError:
            # Not active any more; once it is loaded again it gives the order again.
            return


class NodeTransactionSettings:
    """`TransactionSettings` of the broker's configuration and the cluster's features."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def integer(self, name: str) -> int:
        return self._node.settings.integer(name)

    @property
    def transaction_version(self) -> int:
        return self._node.image.features.get(TRANSACTION_VERSION, 0)
