"""Kafka's bytes: frames and headers, generated messages, record batches, compression. Knows nothing of brokers or logs.

Messages are imported from their own modules (`moldau.protocol.messages.fetch`), each when first needed; what is listed
here is what everyone uses.
"""

from moldau.protocol.batches import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    CorruptBatchError,
    Header,
    Record,
    add_to_sequence,
    build_batch,
    crc_is_valid,
    iterate_batches,
    iterate_records,
    read_header,
    seal_batch,
)
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import (
    COMPRESSION_BY_NAME,
    DECOMPRESSED_BYTES_MAX,
    Compression,
    CompressionError,
    compress,
    decompress,
)
from moldau.protocol.message import Message, Struct
from moldau.protocol.wire import EncodingError, ProtocolError, UnsupportedVersionError

__all__ = [
    "COMPRESSION_BY_NAME",
    "DECOMPRESSED_BYTES_MAX",
    "HEADER_BYTES",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "BatchHeader",
    "Compression",
    "CompressionError",
    "CorruptBatchError",
    "EncodingError",
    "Header",
    "Message",
    "ProtocolError",
    "Record",
    "Struct",
    "UnsupportedVersionError",
    "add_to_sequence",
    "build_batch",
    "compress",
    "crc32c",
    "crc_is_valid",
    "decompress",
    "iterate_batches",
    "iterate_records",
    "read_header",
    "seal_batch",
]
