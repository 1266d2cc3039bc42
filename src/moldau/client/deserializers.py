"""From bytes to values: the other way of `serializers`, by the same names, or any callable that takes bytes or None.

None (a tombstone, or no key) stays None in every one of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from moldau.client.errors import SettingsError

Deserializer = Callable[[bytes | None], Any]


def deserialize_bytes(data: bytes | None) -> bytes | None:
    return data


def deserialize_str(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def deserialize_int(data: bytes | None) -> int | None:
    """Java's Integer: four bytes, big endian."""
    return _unpack_integer(">i", data, "int")


def deserialize_long(data: bytes | None) -> int | None:
    """Java's Long: eight bytes, big endian."""
    return _unpack_integer(">q", data, "long")


def deserialize_json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


DESERIALIZERS: dict[str, Deserializer] = {
    "bytes": deserialize_bytes,
    "str": deserialize_str,
    "string": deserialize_str,
    "int": deserialize_int,
    "integer": deserialize_int,
    "long": deserialize_long,
    "json": deserialize_json,
}


def deserializer_of(choice: object) -> Deserializer:
    """A deserializer by its name, or the callable itself."""
    if callable(choice):
        return choice
    if isinstance(choice, str) and choice.lower() in DESERIALIZERS:
        return DESERIALIZERS[choice.lower()]
    raise SettingsError(f"{choice!r} is no deserializer: use one of {', '.join(DESERIALIZERS)}, or a callable")


def _unpack_integer(layout: str, data: bytes | None, name: str) -> int | None:
    if data is None:
        return None
    if len(data) != struct.calcsize(layout):
        raise ValueError(f"{len(data)} bytes are no {name}: it has {struct.calcsize(layout)}")
    number: int = struct.unpack(layout, data)[0]
    return number
