"""Our own Kafka client: asyncio, small, with a blocking face for the producer and the consumer.

This is the one door; `admin`, `group_admin` and `transaction_admin` are modules of verbs. Knows the protocol and the
kernel, nothing of a broker's inside, and works on any cluster that speaks Kafka's protocol. Where to read next:
`cluster` for connections and metadata, `producer`, `accumulator` and `transactions` for the way in, `fetcher` for the
way out, `consumer` for groups.
"""

from moldau.client import admin, group_admin, transaction_admin
from moldau.client.accumulator import Delivery, DeliveryCallback, RecordMetadata
from moldau.client.addresses import parse_bootstrap
from moldau.client.admin import IsolationLevel
from moldau.client.blocking import BlockingConsumer, BlockingProducer, DeliveryHandle
from moldau.client.cluster import ClusterClient, response_errors
from moldau.client.cluster_admin import (
    Reassignment,
    add_voter,
    elect_leaders,
    list_reassignments,
    reassign,
    remove_voter,
    unregister_broker,
)
from moldau.client.connection import Connection
from moldau.client.consumer import Consumer
from moldau.client.durations import parse_duration_ms
from moldau.client.errors import (
    CommitFailed,
    ConnectionFailed,
    ConsumerClosed,
    DeliveryTimedOut,
    NoBrokerReachable,
    NoCommittedOffset,
    ProducerClosed,
    ProducerFenced,
    RecordUnreadable,
    RequestTimedOut,
    SendTimedOut,
    SettingsError,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
    TransactionTimedOut,
    WrongTransactionState,
)
from moldau.client.group_coordinator import GroupMetadata, OffsetAndMetadata
from moldau.client.loop_thread import LoopThread
from moldau.client.metadata import ClusterMetadata, Node, PartitionInfo, TopicInfo
from moldau.client.partitioner import Partitioner, murmur2, partition_of_key
from moldau.client.producer import Producer
from moldau.client.reader import PartitionReader, read_partition
from moldau.client.records import ConsumedRecord, TimestampType
from moldau.client.serializers import SERIALIZERS, Serializer
from moldau.client.settings import ConsumerSettings, ProducerSettings, consumer_settings, producer_settings
from moldau.client.shared_transaction import Joining, TransactionOwner
from moldau.client.starts import AtTime, LastOf, Start
from moldau.client.transactions import Identity

__all__ = [
    "SERIALIZERS",
    "AtTime",
    "BlockingConsumer",
    "BlockingProducer",
    "ClusterClient",
    "ClusterMetadata",
    "CommitFailed",
    "Connection",
    "ConnectionFailed",
    "ConsumedRecord",
    "Consumer",
    "ConsumerClosed",
    "ConsumerSettings",
    "Delivery",
    "DeliveryCallback",
    "DeliveryHandle",
    "DeliveryTimedOut",
    "GroupMetadata",
    "Identity",
    "IsolationLevel",
    "Joining",
    "LastOf",
    "LoopThread",
    "NoBrokerReachable",
    "NoCommittedOffset",
    "Node",
    "OffsetAndMetadata",
    "PartitionInfo",
    "PartitionReader",
    "Partitioner",
    "Producer",
    "ProducerClosed",
    "ProducerFenced",
    "ProducerSettings",
    "Reassignment",
    "RecordMetadata",
    "RecordUnreadable",
    "RequestTimedOut",
    "SendTimedOut",
    "Serializer",
    "SettingsError",
    "Start",
    "TimestampType",
    "TopicInfo",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionFatal",
    "TransactionOwner",
    "TransactionTimedOut",
    "WrongTransactionState",
    "add_voter",
    "admin",
    "consumer_settings",
    "elect_leaders",
    "group_admin",
    "list_reassignments",
    "murmur2",
    "parse_bootstrap",
    "parse_duration_ms",
    "partition_of_key",
    "producer_settings",
    "read_partition",
    "reassign",
    "remove_voter",
    "response_errors",
    "transaction_admin",
    "unregister_broker",
]
