"""One partition's log on disk, in Kafka's own formats. Knows bytes and files; not clients, leaders or the cluster."""

from moldau.storage.config import LogConfig
from moldau.storage.flush import FlushTask
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.log import AppendResult, PartitionLog
from moldau.storage.log_directory import LogDirectory, LogDirectoryError, MetaProperties, PartitionDirectory
from moldau.storage.producer_state import ProducerState, ProducerStates
from moldau.storage.segments import LogSlice
from moldau.storage.transaction_index import AbortedTransaction, TransactionIndex
from moldau.storage.validation import RecordRefusal

__all__ = [
    "AbortedTransaction",
    "AppendResult",
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
    "TransactionIndex",
]
