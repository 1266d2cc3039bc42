"""What a topic's configuration asks of its logs. Values only: who sets and changes them is the broker's affair."""

from __future__ import annotations

from dataclasses import dataclass

INT64_MAX = 2**63 - 1
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
KEEP_PRODUCERS_CODEC = "producer"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's settings with Kafka 4.3's defaults."""

    segment_bytes: int = 1 << 30  # segment.bytes
    segment_ms: int = 604_800_000  # segment.ms
    segment_jitter_ms: int = 0  # segment.jitter.ms
    segment_index_bytes: int = 10 << 20  # segment.index.bytes
    index_interval_bytes: int = 4096  # index.interval.bytes
    max_message_bytes: int = 1_048_588  # max.message.bytes
    message_timestamp_type: str = CREATE_TIME  # message.timestamp.type
    message_timestamp_before_max_ms: int = INT64_MAX  # message.timestamp.before.max.ms
    message_timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    compression_type: str = KEEP_PRODUCERS_CODEC  # compression.type
    compression_gzip_level: int = -1  # compression.gzip.level
    compression_lz4_level: int = 9  # compression.lz4.level
    compression_zstd_level: int = 3  # compression.zstd.level
    compact: bool = False  # cleanup.policy contains "compact"
    delete: bool = True  # cleanup.policy contains "delete"
    delete_retention_ms: int = 86_400_000  # delete.retention.ms
    min_cleanable_dirty_ratio: float = 0.5  # min.cleanable.dirty.ratio
    min_compaction_lag_ms: int = 0  # min.compaction.lag.ms
    max_compaction_lag_ms: int = INT64_MAX  # max.compaction.lag.ms
    flush_messages: int = INT64_MAX  # flush.messages
    flush_ms: int = INT64_MAX  # flush.ms
    file_delete_delay_ms: int = 60_000  # file.delete.delay.ms
    retention_ms: int = 604_800_000  # retention.ms
    retention_bytes: int = -1  # retention.bytes
    producer_id_expiration_ms: int = 86_400_000  # producer.id.expiration.ms, a broker's key
