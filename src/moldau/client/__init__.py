"""Our own Kafka client: asyncio, small, with a blocking face for the producer.

This is the one door; `admin` is a module of verbs. Knows the protocol and the kernel, nothing of a broker's inside, and
works on any cluster that speaks Kafka's protocol. Where to read next: `cluster` for connections and metadata,
`producer` and `accumulator` for the way in, `reader` for the way out.
"""

from moldau.client import admin
from moldau.client.accumulator import Delivery, DeliveryCallback, RecordMetadata
from moldau.client.addresses import parse_bootstrap
from moldau.client.admin import IsolationLevel
from moldau.client.blocking import BlockingProducer, DeliveryHandle
from moldau.client.cluster import ClusterClient, response_errors
from moldau.client.connection import Connection
from moldau.client.errors import (
    ConnectionFailed,
    DeliveryTimedOut,
    NoBrokerReachable,
    ProducerClosed,
    RequestTimedOut,
    SendTimedOut,
    SettingsError,
)
from moldau.client.metadata import ClusterMetadata, Node, PartitionInfo, TopicInfo
from moldau.client.partitioner import Partitioner, murmur2, partition_of_key
from moldau.client.producer import Producer
from moldau.client.reader import AtTime, PartitionReader, Start, read_partition
from moldau.client.records import ConsumedRecord, TimestampType
from moldau.client.serializers import SERIALIZERS, Serializer
from moldau.client.settings import ProducerSettings, producer_settings

__all__ = [
    "SERIALIZERS",
    "AtTime",
    "BlockingProducer",
    "ClusterClient",
    "ClusterMetadata",
    "Connection",
    "ConnectionFailed",
    "ConsumedRecord",
    "Delivery",
    "DeliveryCallback",
    "DeliveryHandle",
    "DeliveryTimedOut",
    "IsolationLevel",
    "NoBrokerReachable",
    "Node",
    "PartitionInfo",
    "PartitionReader",
    "Partitioner",
    "Producer",
    "ProducerClosed",
    "ProducerSettings",
    "RecordMetadata",
    "RequestTimedOut",
    "SendTimedOut",
    "Serializer",
    "SettingsError",
    "Start",
    "TimestampType",
    "TopicInfo",
    "admin",
    "murmur2",
    "parse_bootstrap",
    "partition_of_key",
    "producer_settings",
    "read_partition",
    "response_errors",
]
