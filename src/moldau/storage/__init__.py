"""One partition's log on disk, in Kafka's own formats. Knows bytes and files; not clients, leaders or the cluster."""

from moldau.storage.config import LogConfig
from moldau.storage.cutting import CutTask
from moldau.storage.faults import DamagedLogError, is_full, is_passing
from moldau.storage.flush import FlushTask
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.log import AppendResult, PartitionLog
from moldau.storage.log_directory import (
    LogDirectory,
    LogDirectoryError,
    MetaProperties,
    PartitionDirectory,
    parse_directory_name,
)
from moldau.storage.producer_state import ProducerState, ProducerStates
from moldau.storage.repair import REPAIR_LOG, repair_partition
from moldau.storage.reserve import Reserve, ReservedDisk
from moldau.storage.segments import LogSlice
from moldau.storage.transaction_index import AbortedTransaction, TransactionIndex
from moldau.storage.validation import RecordRefusal
from moldau.storage.verify import LOST, verify_partition

__all__ = [
    "LOST",
    "REPAIR_LOG",
    "AbortedTransaction",
    "AppendResult",
    "CutTask",
    "DamagedLogError",
    "FlushTask",
    "LeaderEpochs",
    "LogConfig",
    "LogDirectory",
    "LogDirectoryError",
    "LogSlice",
    "MetaProperties",
    "PartitionDirectory",
    "PartitionLog",
    "ProducerState",
    "ProducerStates",
    "RecordRefusal",
    "Reserve",
    "ReservedDisk",
    "TransactionIndex",
    "is_full",
    "is_passing",
    "parse_directory_name",
    "repair_partition",
    "verify_partition",
]
