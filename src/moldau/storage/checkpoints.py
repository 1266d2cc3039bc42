"""The small text files beside the logs, as Kafka writes them. Bytes in, values out; nothing here touches a disk.

leader-epoch-checkpoint             "0\\n<count>\\n" then "<epoch> <start offset>\\n" each
recovery-point-offset-checkpoint,
replication-offset-checkpoint,
log-start-offset-checkpoint         "0\\n<count>\\n" then "<topic> <partition> <offset>\\n" each
partition.metadata                  "version: 0\\ntopic_id: <22 characters>"
meta.properties                     Java properties: version, cluster.id, node.id, directory.id
.kafka_cleanshutdown                {"version":0,"brokerEpoch":n}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from moldau.kernel import TopicPartition, parse_uuid, uuid_text

CHECKPOINT_VERSION = 0


class CorruptCheckpointError(ValueError):
    """A file beside the logs that does not read as it should."""


# -- numbers, one line each --------------------------------------------------------------------------------------------


def epochs_text(entries: Iterable[tuple[int, int]]) -> bytes:
    return _checkpoint_text([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    """Epochs with their first offsets; both must rise, or the file is damaged."""
    entries: list[tuple[int, int]] = []
    for line in _checkpoint_lines(data):
        epoch, start_offset = _numbers(line, line.split())
        if entries and (epoch <= entries[-1][0] or start_offset < entries[-1][1]):
            raise CorruptCheckpointError(f"epoch {epoch} is out of order")
        entries.append((epoch, start_offset))
    return entries


def offsets_text(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _checkpoint_text([f"{key.topic} {key.partition} {offset}" for key, offset in offsets.items()])


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line in _checkpoint_lines(data):
        topic, _, numbers = line.partition(" ")
        partition, offset = _numbers(line, numbers.split())
        offsets[TopicPartition(topic, partition)] = offset
    return offsets


def _checkpoint_text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (CHECKPOINT_VERSION, len(lines), *lines)).encode()


def _checkpoint_lines(data: bytes) -> list[str]:
    # The newline at the very end tells a whole last number from the first digits of a torn one.
    if not data.endswith(b"\n"):
        raise CorruptCheckpointError("the last line is torn" if data else "the file is empty")
    try:
        version, count, *lines = data.decode().splitlines()
        if int(version) != CHECKPOINT_VERSION:
            raise CorruptCheckpointError(f"unknown version {version}")
        if int(count) != len(lines):
            raise CorruptCheckpointError(f"{count} lines are announced, {len(lines)} are there")
    except CorruptCheckpointError:
        raise
    except ValueError:
        raise CorruptCheckpointError("the first two lines are no version and count") from None
    return lines


def _numbers(line: str, words: list[str]) -> tuple[int, int]:
    try:
        first, second = map(int, words)
    except ValueError:
        raise CorruptCheckpointError(f"line {line!r} does not read") from None
    return first, second


# -- partition.metadata ------------------------------------------------------------------------------------------------


def partition_metadata_text(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes:
    """The topic's id."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines())
        if int(fields["version"]) != 0:
            raise CorruptCheckpointError(f"unknown version {fields['version']}")
        return parse_uuid(fields["topic_id"])
    except CorruptCheckpointError:
        raise
    except (KeyError, ValueError):
        raise CorruptCheckpointError("version and topic_id do not read") from None


# -- .kafka_cleanshutdown ----------------------------------------------------------------------------------------------


def clean_shutdown_text(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def parse_clean_shutdown(data: bytes) -> int:
    """The broker epoch, -1 when the file does not say (its being there is what counts)."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (KeyError, TypeError, ValueError):
        return -1


# -- Java properties ---------------------------------------------------------------------------------------------------

_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", ":": "\\:", "=": "\\=", "#": "\\#", "!": "\\!"}
_UNESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def properties_text(fields: Mapping[str, str]) -> bytes:
    lines = ["#"]
    for key, value in fields.items():
        lines.append(f"{key}={''.join(_ESCAPED.get(character, character) for character in value)}")
    return ("\n".join(lines) + "\n").encode()


def parse_properties(data: bytes) -> dict[str, str]:
    """Single-line `key=value` (or `key: value`) entries; comments and empty lines are left out."""
    fields: dict[str, str] = {}
    for raw in data.decode().splitlines():
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        split = min((index for index in (line.find("="), line.find(":")) if index > 0), default=len(line))
        fields[line[:split].strip()] = _unescape(line[split + 1 :].strip())
    return fields


def _unescape(value: str) -> str:
    out: list[str] = []
    characters = iter(value)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            out.append(_UNESCAPED.get(escaped, escaped))
        else:
            out.append(character)
    return "".join(out)
