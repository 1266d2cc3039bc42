"""What everyone may know: ids, error numbers and the ports to the outside world. Knows nobody."""

from moldau.kernel.errors import RETRIABLE, ErrorCode, KafkaError
from moldau.kernel.ids import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    NO_LEADER,
    ZERO_UUID,
    ProducerIdAndEpoch,
    TopicPartition,
    parse_uuid,
    uuid_text,
)
from moldau.kernel.ports import Buffer, Clock, Connection, Dice, DirectoryLock, Disk, File, Network, Timer

__all__ = [
    "METADATA_TOPIC",
    "METADATA_TOPIC_ID",
    "NO_LEADER",
    "RETRIABLE",
    "ZERO_UUID",
    "Buffer",
    "Clock",
    "Connection",
    "Dice",
    "DirectoryLock",
    "Disk",
    "ErrorCode",
    "File",
    "KafkaError",
    "Network",
    "ProducerIdAndEpoch",
    "Timer",
    "TopicPartition",
    "parse_uuid",
    "uuid_text",
]
