"""Kafka's files as entries: batches, records, index entries, producers, checkpoints, metadata records.

Reads a piece at a time. What does not read is an entry of kind "corrupt" with its position; nothing here raises for the
contents of a file. Knows the formats from `protocol` and `storage`, and prints nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from moldau.kernel import METADATA_TOPIC, uuid_text
from moldau.protocol.batches import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    CorruptBatchError,
    Record,
    control_kind,
    crc_is_valid,
    iterate_records,
    read_header,
)
from moldau.protocol.message import Struct
from moldau.protocol.wire import ProtocolError

# A batch that claims more than this is not one: brokers refuse far smaller ones.
BATCH_BYTES_MAX = 1 << 30
SMALL_FILE_BYTES_MAX = 64 << 20
INDEX_PIECE_ENTRIES = 4096

_CONTROL_NAMES = {
    0: "abort",
    1: "commit",
    2: "leader_change",
    3: "snapshot_header",
    4: "snapshot_footer",
    5: "kraft_version",
    6: "kraft_voters",
}
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


def _corrupt(reason: str, position: int | None = None) -> Entry:
    return Entry("corrupt", ({} if position is None else {"position": position}) | {"reason": reason})


def dump_file(path: str, *, with_records: bool = False, as_metadata: bool = False) -> Iterator[Entry]:
    """Every entry of a file, whose kind its name tells."""
    name = os.path.basename(path)
    stem, suffix = os.path.splitext(name)
    in_metadata = os.path.basename(os.path.dirname(os.path.abspath(path))) == f"{METADATA_TOPIC}-0"
    try:
        with open(path, "rb") as file:
            if suffix == ".log":
                decode = as_metadata or in_metadata
                yield from _dump_segment(file, with_records=with_records or decode, as_metadata=decode)
            elif suffix == ".checkpoint":
                yield from _dump_segment(file, with_records=True, as_metadata=True)
            elif suffix in _INDEXES:
                yield from _INDEXES[suffix](file, int(stem) if stem.isdigit() else 0)
            else:
                yield from _dump_small(file, name, suffix)
    except OSError as error:
        yield _corrupt(f"cannot be read: {error.strerror or error}")


# -- segments ----------------------------------------------------------------------------------------------------------


def _dump_segment(file: IO[bytes], *, with_records: bool, as_metadata: bool) -> Iterator[Entry]:
    size = os.fstat(file.fileno()).st_size
    position = 0
    while position < size:
        head = file.read(HEADER_BYTES)
        if not any(head) and _only_zeros(file):
            # Kafka may preallocate a segment; the rest is not written yet.
            yield Entry("unwritten", {"position": position, "bytes": size - position})
            return
        if len(head) < HEADER_BYTES:
            yield _corrupt(f"{size - position} bytes are too few for a batch", position)
            return
        header = read_header(head)
        if header.magic != MAGIC:
            yield _corrupt(f"magic is {head[MAGIC_POSITION]}, a batch has {MAGIC}", position)
            return
        if not HEADER_BYTES - LENGTH_OVERHEAD_BYTES <= header.length <= BATCH_BYTES_MAX:
            yield _corrupt(f"a batch claims a length of {header.length}", position)
            return
        if position + header.size > size:
            yield _corrupt(f"a batch of {header.size} bytes has {size - position}", position)
            return
        batch = head + file.read(header.size - HEADER_BYTES)
        yield from _dump_batch(header, batch, position, with_records=with_records, as_metadata=as_metadata)
        position += header.size


def _only_zeros(file: IO[bytes]) -> bool:
    """Whether nothing but zeros follows; the file is left where it was if not."""
    start = file.tell()
    while piece := file.read(1 << 20):
        if any(piece):
            file.seek(start)
            return False
    return True


def _dump_batch(
    header: BatchHeader, batch: bytes, position: int, *, with_records: bool, as_metadata: bool
) -> Iterator[Entry]:
    is_valid = crc_is_valid(batch, header)
    try:
        codec = header.compression.name.lower()
    except ValueError:
        codec = f"unknown {header.attributes & 7}"
    yield Entry(
        "batch",
        {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.record_count,
            "position": position,
            "size": header.size,
            "leader_epoch": header.leader_epoch,
            "compression": codec,
            "timestamp_type": "log_append" if header.is_log_append_time else "create",
            "max_timestamp": header.max_timestamp,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
            "crc": f"{header.crc:08x}",
            "valid": is_valid,
        },
    )
    if not is_valid:
        yield _corrupt(f"the batch at offset {header.base_offset} has a wrong checksum", position)
        return
    if not with_records:
        return
    try:
        for record in iterate_records(batch):
            yield _dump_record(record, header, as_metadata=as_metadata)
    except (CorruptBatchError, ProtocolError) as error:
        yield _corrupt(f"the batch at offset {header.base_offset}: {error}", position)


def _dump_record(record: Record, header: BatchHeader, *, as_metadata: bool) -> Entry:
    if header.is_control:
        return _dump_control(record)
    if as_metadata:
        return _dump_metadata(record)
    return Entry(
        "record",
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            **_bytes_field("key", record.key),
            **_bytes_field("value", record.value),
            "headers": [{"name": name, **_bytes_field("value", value)} for name, value in record.headers],
        },
    )


def _bytes_field(name: str, data: bytes | None) -> dict[str, Any]:
    """Text where it is UTF-8, else hexadecimal digits under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}


def _dump_control(record: Record) -> Entry:
    from moldau.cluster import decode_control_record

    kind = control_kind(record.key)
    fields: dict[str, Any] = {"offset": record.offset, "type": _CONTROL_NAMES.get(kind, f"unknown {kind}")}
    if kind in (0, 1) and record.value is not None and len(record.value) >= 6:
        fields["coordinator_epoch"] = struct.unpack_from(">hi", record.value)[1]
        return Entry("control", fields)
    _, message = decode_control_record(record)
    if message is not None:
        fields["data"] = struct_fields(message)
    return Entry("control", fields)


def _dump_metadata(record: Record) -> Entry:
    from moldau.protocol.metadata_records import UnknownMetadataRecord, decode_metadata_record

    message, version = decode_metadata_record(record.value or b"")
    if isinstance(message, UnknownMetadataRecord):
        data = {"api_key": message.api_key, "body_hex": message.body.hex()}
        return Entry("metadata", {"offset": record.offset, "type": "unknown", "version": version, "data": data})
    fields = {"offset": record.offset, "type": type(message).__name__, "version": version}
    return Entry("metadata", fields | {"data": struct_fields(message)})


def struct_fields(message: Struct) -> dict[str, Any]:
    """A message as plain values; ids as Kafka prints them."""
    return {
        name: _plain(name, getattr(message, name))
        for name in message.__slots__
        if name != "unknown_tags" or getattr(message, name)
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Struct):
        return struct_fields(value)
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        is_id = len(raw) == 16 and name.endswith(("id", "ids", "dirs", "directories"))
        return uuid_text(raw) if is_id else raw.hex()
    if isinstance(value, dict):
        return {str(key): _plain(name, item) for key, item in value.items()}
    return value


# -- indexes -----------------------------------------------------------------------------------------------------------


def _dump_offset_index(file: IO[bytes], base_offset: int) -> Iterator[Entry]:
    last = (-1, -1)
    for position, (offset, place) in _index_entries(file, _OFFSET_ENTRY):
        if isinstance(offset, str):
            yield _corrupt(offset, position)
            return
        yield Entry("offset", {"offset": base_offset + offset, "position": place})
        if offset <= last[0] or place <= last[1]:
            yield _corrupt(f"offset {base_offset + offset} at {place} does not rise", position)
        last = (offset, place)


def _dump_time_index(file: IO[bytes], base_offset: int) -> Iterator[Entry]:
    last = (-1, -1)
    for position, (timestamp, offset) in _index_entries(file, _TIME_ENTRY):
        if isinstance(timestamp, str):
            yield _corrupt(timestamp, position)
            return
        yield Entry("time", {"timestamp": timestamp, "offset": base_offset + offset})
        # Kafka repeats the last entry when it closes a segment.
        if timestamp < last[0] or offset < last[1]:
            yield _corrupt(f"time {timestamp} of offset {base_offset + offset} does not rise", position)
        last = (timestamp, offset)


def _dump_transaction_index(file: IO[bytes], base_offset: int) -> Iterator[Entry]:
    last = -1
    for position, entry in _index_entries(file, _TRANSACTION_ENTRY):
        if isinstance(entry[0], str):
            yield _corrupt(entry[0], position)
            return
        version, producer_id, first_offset, last_offset, last_stable_offset = entry
        if version != 0 or last_offset <= last:
            yield _corrupt(f"version {version}, last offset {last_offset}: no aborted transaction", position)
            return
        last = last_offset
        yield Entry(
            "aborted",
            {
                "producer_id": producer_id,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "last_stable_offset": last_stable_offset,
            },
        )


def _index_entries(file: IO[bytes], layout: struct.Struct) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Entries with their positions; a text in place of the first number says what is wrong.

    The file of an active segment may be longer than its entries: zeros to the end are room, not entries.
    """
    position = 0
    while piece := file.read(layout.size * INDEX_PIECE_ENTRIES):
        whole = len(piece) - len(piece) % layout.size
        for entry in layout.iter_unpack(piece[:whole]):
            rest = position % (layout.size * INDEX_PIECE_ENTRIES)
            if not any(entry) and not any(piece[rest:]) and _only_zeros(file):
                return
            yield position, entry
            position += layout.size
        if whole != len(piece):
            yield position, (f"{len(piece) - whole} bytes are left over: an entry has {layout.size}", 0)
            return


# -- small files -------------------------------------------------------------------------------------------------------


def _dump_small(file: IO[bytes], name: str, suffix: str) -> Iterator[Entry]:
    from moldau.storage.checkpoints import CorruptCheckpointError
    from moldau.storage.producer_state import CorruptSnapshotError

    data = file.read(SMALL_FILE_BYTES_MAX + 1)
    if len(data) > SMALL_FILE_BYTES_MAX:
        yield _corrupt(f"larger than {SMALL_FILE_BYTES_MAX >> 20} MiB: no file of a data directory")
        return
    dump = _SMALL.get(name) or _SMALL.get(suffix)
    if dump is None and name.endswith("-offset-checkpoint"):
        dump = _dump_offsets
    if dump is None:
        known = ", ".join(["NAME.log", *(f"NAME{one}" for one in _INDEXES), "NAME.checkpoint", *_SMALL])
        yield _corrupt(f"its name is not that of a log file; known are {known}")
        return
    try:
        yield from dump(data)
    except (CorruptCheckpointError, CorruptSnapshotError, ValueError, KeyError, TypeError) as error:
        yield _corrupt(str(error) or type(error).__name__, 0)


def _dump_producers(data: bytes) -> Iterator[Entry]:
    from moldau.storage import ProducerStates

    states = ProducerStates()
    states.load_snapshot(data)
    for state in states.active():
        first = state.transaction_first_offset
        yield Entry(
            "producer",
            {
                "producer_id": state.producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_offset": state.last_offset,
                "last_timestamp": state.last_timestamp,
                "coordinator_epoch": state.coordinator_epoch,
                "transaction_first_offset": first if first >= 0 else None,
            },
        )


def _dump_epochs(data: bytes) -> Iterator[Entry]:
    from moldau.storage.checkpoints import parse_epochs

    for epoch, start_offset in parse_epochs(data):
        yield Entry("epoch", {"epoch": epoch, "start_offset": start_offset})


def _dump_offsets(data: bytes) -> Iterator[Entry]:
    from moldau.storage.checkpoints import parse_offsets

    for where, offset in parse_offsets(data).items():
        yield Entry("checkpoint", {"topic": where.topic, "partition": where.partition, "offset": offset})


def _dump_partition_metadata(data: bytes) -> Iterator[Entry]:
    from moldau.storage.checkpoints import parse_partition_metadata

    yield Entry("partition", {"topic_id": uuid_text(parse_partition_metadata(data))})


def _dump_properties(data: bytes) -> Iterator[Entry]:
    from moldau.storage.checkpoints import parse_properties

    for key, value in parse_properties(data).items():
        yield Entry("property", {"key": key, "value": value})


def _dump_json(data: bytes) -> Iterator[Entry]:
    import json

    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("is no JSON object")
    yield Entry("content", content)


_INDEXES: dict[str, Callable[[IO[bytes], int], Iterator[Entry]]] = {
    ".index": _dump_offset_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_transaction_index,
}
_SMALL: dict[str, Callable[[bytes], Iterator[Entry]]] = {
    ".snapshot": _dump_producers,
    "leader-epoch-checkpoint": _dump_epochs,
    "recovery-point-offset-checkpoint": _dump_offsets,
    "replication-offset-checkpoint": _dump_offsets,
    "log-start-offset-checkpoint": _dump_offsets,
    "cleaner-offset-checkpoint": _dump_offsets,
    "partition.metadata": _dump_partition_metadata,
    "meta.properties": _dump_properties,
    "quorum-state": _dump_json,
    ".kafka_cleanshutdown": _dump_json,
}
