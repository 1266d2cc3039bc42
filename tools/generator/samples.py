"""Random messages, made from the facts: the raw material of round trips, comparisons and fuzzing."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

from moldau.protocol.message import Message as WireMessage
from tools.generator.__main__ import module_name
from tools.generator.facts import GROUPS
from tools.generator.schema import Field, Message, Struct, load

_INT_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_ALPHABET = "abcXYZ019._- é東🚋"
_UNKNOWN_TAG_MIN = 10_000  # above every tag that Kafka uses


def all_messages() -> list[tuple[str, Message]]:
    """Every message that has a version, with its group."""
    return [(group, message) for group in GROUPS for message in load(group) if message.valid]


def load_class(group: str, message: Message) -> type[WireMessage]:
    module = import_module(f"moldau.protocol.messages.{module_name(group, message)}")
    loaded: type[WireMessage] = getattr(module, message.name)
    return loaded


class Sampler:
    """Makes random messages. `tame` values keep to what other implementations' richer types can hold (real error
    codes, times that are dates); otherwise the whole range is used."""

    def __init__(self, seed: int, *, tame: bool = False, with_unknown_tags: bool = False) -> None:
        self.rng = random.Random(seed)
        self.tame = tame
        self.with_unknown_tags = with_unknown_tags

    def message(self, cls: type[WireMessage], message: Message, version: int) -> Any:
        return self._struct(cls, cls, message, message.root, version)

    def _struct(self, outer: type[Any], cls: type[Any], message: Message, struct: Struct, version: int) -> Any:
        values: dict[str, Any] = {}
        for field in struct.fields:
            if version not in field.versions:
                continue
            if version in field.tagged and self.rng.random() < 0.5:
                continue
            if version in field.nullable and self.rng.random() < 0.25:
                values[field.attribute] = None
                continue
            value = self._value(outer, message, field, version)
            if field.is_optional_struct and value == type(value)():
                value = None  # the same thing on the wire
            values[field.attribute] = value
        if self.with_unknown_tags and version in message.flexible and self.rng.random() < 0.2:
            tags = self.rng.sample(range(_UNKNOWN_TAG_MIN, _UNKNOWN_TAG_MIN + 50), self.rng.randint(1, 3))
            values["unknown_tags"] = tuple((tag, self._bytes()) for tag in sorted(tags))
        return cls(**values)

    def _value(self, outer: type[Any], message: Message, field: Field, version: int) -> Any:
        if not field.is_array:
            return self._element(outer, message, field, version)
        count = self.rng.choice((0, 1, 1, 2, 3))
        if field.struct is None and self.rng.random() < 0.03:
            count = 200  # a count of two varint bytes
        return [self._element(outer, message, field, version) for _ in range(count)]

    def _element(self, outer: type[Any], message: Message, field: Field, version: int) -> Any:
        kind = field.base_type
        if field.struct is not None:
            return self._struct(outer, getattr(outer, kind), message, field.struct, version)
        if kind in _INT_BITS:
            return self._int(field)
        if kind == "bool":
            return self.rng.random() < 0.5
        if kind == "float64":
            return self.rng.uniform(-1e9, 1e9)
        if kind == "string":
            return self._string()
        if kind == "uuid":
            return self.rng.randbytes(16)
        return self._bytes()

    def _int(self, field: Field) -> int:
        bits = _INT_BITS[field.base_type]
        if self.tame and field.base_type == "int16" and "Error" in field.name:
            return self.rng.choice((0, 1, 3, 35, 42, 100))
        if self.tame and ("Ms" in field.name or "Time" in field.name):
            return self.rng.randrange(0, 2**31)
        if field.base_type.startswith("u"):
            return self.rng.choice((0, 1, 9092, 2**bits - 1, self.rng.randrange(2**bits)))
        high = 2 ** (bits - 1)
        return self.rng.choice((0, 1, -1, high - 1, -high, self.rng.randrange(-high, high)))

    def _string(self) -> str:
        length = self.rng.choice((0, 1, 5, 12, 12, 12, 126, 127, 128, 300) if self.rng.random() < 0.2 else (3, 8))
        return "".join(self.rng.choices(_ALPHABET, k=length))

    def _bytes(self) -> bytes:
        return self.rng.randbytes(
            self.rng.choice((0, 1, 10, 126, 127, 128, 1000) if self.rng.random() < 0.3 else (4, 20))
        )
