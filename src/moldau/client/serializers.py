"""From values to bytes: serializers by name, or any callable that takes a value and returns bytes or None.

None stays None (a tombstone) in every one of them. Integers are Java's: big endian, 4 bytes for `int`, 8 for `long`.
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moldau.client.errors import SettingsError

Serializer = Callable[[Any], bytes | None]


def serialize_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"{type(value).__name__} is not bytes: encode it, or name a serializer (key.serializer, value.serializer)"
    )


def serialize_str(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not str")
    return value.encode()


def serialize_int(value: Any) -> bytes | None:
    """Java's Integer: four bytes, big endian."""
    return _pack_integer(">i", value, "int")


def serialize_long(value: Any) -> bytes | None:
    """Java's Long: eight bytes, big endian."""
    return _pack_integer(">q", value, "long")


def serialize_json(value: Any) -> bytes | None:
    """Compact JSON in UTF-8."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def serialize_csv(value: Any) -> bytes | None:
    """One CSV row (RFC 4180 quoting, no line end); a mapping gives its values in order."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{type(value).__name__} is not a row: give a list, tuple or mapping of fields")
    out = io.StringIO()
    # The line end is written and cut off again: the writer quotes line ends in fields only when it knows of them.
    csv.writer(out, lineterminator="\r\n").writerow(value.values() if isinstance(value, Mapping) else value)
    return out.getvalue().removesuffix("\r\n").encode()


def serialize_none(value: Any) -> bytes | None:
    """For keys or values that never are: anything but None is a mistake."""
    if value is not None:
        raise TypeError(f"no {type(value).__name__} is expected here: the serializer is 'none'")
    return None


SERIALIZERS: dict[str, Serializer] = {
    "bytes": serialize_bytes,
    "str": serialize_str,
    "string": serialize_str,
    "int": serialize_int,
    "integer": serialize_int,
    "long": serialize_long,
    "json": serialize_json,
    "csv": serialize_csv,
    "none": serialize_none,
}


def serializer_of(choice: object) -> Serializer:
    """A serializer by its name, or the callable itself."""
    if callable(choice):
        return choice
    if isinstance(choice, str) and choice.lower() in SERIALIZERS:
        return SERIALIZERS[choice.lower()]
    raise SettingsError(f"{choice!r} is no serializer: use one of {', '.join(SERIALIZERS)}, or a callable")


def _pack_integer(layout: str, value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not an integer")
    try:
        return struct.pack(layout, value)
    except struct.error:
        bits = 8 * struct.calcsize(layout)
        raise ValueError(f"{value} does not fit the {bits} bits of Java's {name}") from None
