"""KRaft's framing of a metadata record: frame version, record type and version as unsigned varints, then the body.

A type or version that we do not know is kept as it came, so that a log written by a newer Kafka survives us.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from moldau.protocol.message import Message
from moldau.protocol.messages.registry import METADATA_RECORDS, metadata_record_class
from moldau.protocol.wire import Buffer, ProtocolError, UnsupportedVersionError, read_uvarint, write_uvarint

FRAME_VERSION = 1


@dataclass(frozen=True, slots=True)
class UnknownMetadataRecord:
    """A record of a type or version that Kafka 4.3 does not have, verbatim."""

    api_key: int
    version: int
    body: bytes


def encode_metadata_record(record: Message | UnknownMetadataRecord, version: int) -> bytes:
    out = bytearray()
    if isinstance(record, UnknownMetadataRecord):
        if version != record.version:
            raise UnsupportedVersionError(f"an unknown record of version {record.version} cannot become {version}")
        _write_frame(out, record.api_key, version)
        out += record.body
        return bytes(out)
    known = METADATA_RECORDS.get(record.API_KEY)
    if known is None or known.name != type(record).__name__:
        raise UnsupportedVersionError(f"{type(record).__name__} is not a metadata record")
    _write_frame(out, record.API_KEY, version)
    record.encode_into(out, version)
    return bytes(out)


def _write_frame(out: bytearray, api_key: int, version: int) -> None:
    write_uvarint(out, FRAME_VERSION)
    write_uvarint(out, api_key)
    write_uvarint(out, version)


def decode_metadata_record(buf: Buffer) -> tuple[Message | UnknownMetadataRecord, int]:
    """The record and its version. Bytes behind the record are refused: a record's value is the record, no more."""
    try:
        frame_version, pos = read_uvarint(buf, 0)
        if frame_version != FRAME_VERSION:
            raise ProtocolError(f"metadata record: frame version {frame_version}, not {FRAME_VERSION}")
        api_key, pos = read_uvarint(buf, pos)
        version, pos = read_uvarint(buf, pos)
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"metadata record: {error}") from error
    known = METADATA_RECORDS.get(api_key)
    if known is None or not known.version_min <= version <= known.version_max:
        return UnknownMetadataRecord(api_key, version, bytes(buf[pos:])), version
    record, pos = metadata_record_class(api_key).decode_from(buf, pos, version)
    if pos != len(buf):
        raise ProtocolError(f"metadata record: {len(buf) - pos} bytes after {known.name} v{version}")
    return record, version
