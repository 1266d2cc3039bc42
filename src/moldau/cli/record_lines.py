"""Records as lines of text, both ways: what `consume -o jsonl` prints, `produce --format jsonl` takes.

A line is one JSON object: topic, partition, offset, timestamp (ms), timestamp_type, key, value, headers. Bytes that are
UTF-8 stand as text; others as base64 in `key_base64`, `value_base64`, and in a header's `value_base64`. A null value
(tombstone) is `"value": null`. Headers are a list, because names may repeat.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from moldau.client import ConsumedRecord

Headers = Sequence[tuple[str, bytes | None]]

_TIMESTAMP_TYPES = ("create", "log_append")


class LineError(ValueError):
    """A line that is no record; says why and what to write."""


class InputRecord(NamedTuple):
    """What a line says; None where it says nothing."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


def record_line(record: ConsumedRecord) -> str:
    """The JSON of one record, without the newline."""
    topic, partition, offset, timestamp, timestamp_type, key, value, headers = record
    names = ",".join(f'{{"name":{quote(name)},{_field("value", data)}}}' for name, data in headers) if headers else ""
    return (
        f'{{"topic":{quote(topic)},"partition":{partition},"offset":{offset},"timestamp":{timestamp},'
        f'"timestamp_type":"{_TIMESTAMP_TYPES[timestamp_type]}",{_field("key", key)},{_field("value", value)},'
        f'"headers":[{names}]}}'
    )


def _field(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{quote(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{b64encode(data).decode()}"'


def parse_record_line(line: bytes) -> InputRecord:
    """Read a line of `record_line`, or one written by hand: a value may be any JSON, headers may be an object."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"is no JSON ({error}); for plain text use --format lines") from None
    if not isinstance(fields, dict):
        raise LineError("is no JSON object; for plain values use --format lines")
    if "value" not in fields and "value_base64" not in fields:
        raise LineError('has no "value" (null is a tombstone); if the whole line is the value use --format lines')
    timestamp = _whole(fields, "timestamp")
    return InputRecord(
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        _headers(fields.get("headers")),
        _whole(fields, "partition"),
        timestamp if timestamp is not None and timestamp >= 0 else None,
    )


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise LineError(f'has a "{name}_base64" that is no base64') from None
    value = fields.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise LineError(f'has a "{name}" with half a character (a lone surrogate)') from None


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise LineError(f'has a "{name}" that is no whole number')


def _headers(given: Any) -> Headers | None:
    if not given:
        return None
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in given
    ):
        raise LineError('has "headers" that are no list of {"name": ..., "value": ...}')
    return [(one["name"], _bytes(one, "value")) for one in given]
