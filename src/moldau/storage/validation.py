"""What a leader demands of a batch that a client sends; the order and the error numbers are Kafka's.

`append_as_leader` does the checks that every batch needs in line, and comes here when one of them fails (to say
which) or when a topic's configuration needs the records opened: key checks on compacted topics, a lower bound on
timestamps, and another codec than the producer's. Knows nothing of files, offsets or producers.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.kernel import Buffer, ErrorCode, KafkaError
from moldau.protocol.batches import (
    ATTRIBUTES_POSITION,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatchError,
    read_header,
    read_varint,
    seal_batch,
)
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import COMPRESSION_BY_NAME, Compression, CompressionError, compress, decompress
from moldau.storage.config import INT64_MAX, KEEP_PRODUCERS_CODEC, LogConfig

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
UNCOMPRESSED = "uncompressed"
# How many record errors an answer lists; one is enough to refuse the batch.
RECORD_ERRORS_MAX = 100

RecordErrors = list[tuple[int, str | None]]


class RecordRefusal(KafkaError):
    """A refusal that names the records it is about, by their place in the batch."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def target_codec(compression_type: str) -> Compression | None:
    """The codec in which a topic stores its batches; None when producers choose."""
    if compression_type == KEEP_PRODUCERS_CODEC:
        return None
    if compression_type == UNCOMPRESSED:
        return Compression.NONE
    return COMPRESSION_BY_NAME[compression_type]


def codec_level(codec: Compression, config: LogConfig) -> int | None:
    if codec is Compression.GZIP:
        return config.compression_gzip_level
    if codec is Compression.LZ4:
        return config.compression_lz4_level
    if codec is Compression.ZSTD:
        return config.compression_zstd_level
    return None


def refuse_malformed(batch: Buffer) -> KafkaError:
    """Why these bytes are not exactly one batch of the only format there is."""
    size = len(batch)
    if size > MAGIC_POSITION and batch[MAGIC_POSITION] < MAGIC:
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"record batch has magic {batch[MAGIC_POSITION]}, only magic {MAGIC} is served"
        )
    if size < HEADER_BYTES:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a record batch")
    header = read_header(batch)
    if header.magic != MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record batch has the unknown magic {header.magic}")
    if HEADER_BYTES <= header.size < size:
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"{size - header.size} bytes follow the one record batch that is allowed"
        )
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record batch claims {header.size} bytes and has {size}")


def check_checksum(batch: Buffer, checksum: int) -> None:
    with memoryview(batch) as view:
        computed = crc32c(view[ATTRIBUTES_POSITION:])
    if computed != checksum:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"record batch has checksum {checksum:#010x}, its bytes have {computed:#010x}"
        )


def check_client_header(header: BatchHeader) -> None:
    """Refuse what only a broker may write, and counts that contradict each other."""
    if header.base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"base offset is {header.base_offset}, a producer must send 0")
    if header.last_offset_delta < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"last offset delta {header.last_offset_delta} is negative")
    if header.record_count <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record count {header.record_count} is not positive")
    if header.last_offset_delta != header.record_count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"last offset delta {header.last_offset_delta} contradicts a count of {header.record_count} records",
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "control batches are written by brokers only")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"producer {header.producer_id} sent the sequence {header.base_sequence}"
        )
    if header.attributes & CODEC_MASK > Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.attributes & CODEC_MASK}")
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime")


def needs_open_records(config: LogConfig) -> bool:
    """Whether headers alone cannot tell: the base timestamp is the first record's, not the oldest."""
    return config.compact or (
        config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms != INT64_MAX
    )


def check_records(batch: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Keys and timestamps, record by record."""
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    bounded = config.message_timestamp_type == "CreateTime"
    keyless: RecordErrors = []
    outside: RecordErrors = []
    base_timestamp = header.base_timestamp
    for index, (timestamp_delta, has_key) in enumerate(scan_records(batch, header)):
        timestamp = base_timestamp + timestamp_delta
        if not has_key and config.compact:
            keyless.append((index, "a compacted topic takes no record without a key"))
        elif bounded and timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            outside.append((index, f"timestamp {timestamp} is outside of [{oldest}, {newest}]"))
    if keyless:
        raise RecordRefusal(
            ErrorCode.INVALID_RECORD, "one or more records have been rejected", keyless[:RECORD_ERRORS_MAX]
        )
    if outside:
        raise RecordRefusal(
            ErrorCode.INVALID_TIMESTAMP,
            "one or more records have been rejected due to invalid timestamp",
            outside[:RECORD_ERRORS_MAX],
        )


def scan_records(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, bool]]:
    """(timestamp delta, whether it has a key) of every record, with the rest skipped over."""
    data = _plain_payload(batch, header)
    size, position = len(data), 0
    try:
        for _ in range(header.record_count):
            length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > size:
                raise CorruptBatchError(f"record claims {length} bytes, {size - position} are left")
            timestamp_delta, position = read_varint(data, position + 1)
            _, position = read_varint(data, position)
            key_size, position = read_varint(data, position)
            yield timestamp_delta, key_size >= 0
            position = end
    except (IndexError, CorruptBatchError) as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"records do not parse: {error}") from None
    if position != size:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{size - position} bytes follow the last record")


def recompress(batch: Buffer, header: BatchHeader, codec: Compression, level: int | None) -> bytearray:
    """The same records in another codec; they are never opened one by one."""
    payload = _plain_payload(batch, header)
    return seal_batch(
        compress(codec, payload, level) if codec else payload,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=(header.attributes & ~CODEC_MASK) | codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )


def _plain_payload(batch: Buffer, header: BatchHeader) -> bytes:
    view = memoryview(batch)[HEADER_BYTES : header.length + LENGTH_OVERHEAD_BYTES]
    try:
        return bytes(decompress(header.compression, view))
    except CompressionError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
