"""What lies on the wire: one layout per struct and version, equal for versions that read and write alike."""

from __future__ import annotations

import struct as struct_module
from dataclasses import dataclass

from tools.generator.schema import Field, Message, Struct

FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


@dataclass(frozen=True, slots=True)
class FieldLayout:
    field: Field
    compact: bool  # unsigned varint lengths instead of int16 and int32
    nullable: bool
    struct: StructLayout | None

    @property
    def fixed_format(self) -> str | None:
        if self.field.is_array or self.struct is not None:
            return None
        return FIXED_FORMATS.get(self.field.base_type)

    @property
    def bytes_min(self) -> int:
        if fixed := self.fixed_format:
            return struct_module.calcsize(">" + fixed)
        if self.struct is not None and not self.field.is_array:
            return 1 if self.nullable else self.struct.bytes_min
        if self.compact:
            return 1
        return 2 if self.field.base_type == "string" and not self.field.is_array else 4


@dataclass(frozen=True, slots=True)
class StructLayout:
    struct: Struct
    flexible: bool
    body: tuple[FieldLayout, ...]
    tagged: tuple[FieldLayout, ...]  # ascending by tag
    absent: tuple[Field, ...]

    @property
    def bytes_min(self) -> int:
        return sum(item.bytes_min for item in self.body) + (1 if self.flexible else 0)


def layout_of(message: Message, struct: Struct, version: int) -> StructLayout:
    flexible = version in message.flexible
    body: list[FieldLayout] = []
    tagged: list[FieldLayout] = []
    absent: list[Field] = []
    for field in struct.fields:
        if version not in field.versions:
            absent.append(field)
            continue
        item = FieldLayout(
            field=field,
            compact=flexible and not field.keeps_old_lengths,
            nullable=version in field.nullable,
            struct=layout_of(message, field.struct, version) if field.struct else None,
        )
        (tagged if version in field.tagged else body).append(item)
    tagged.sort(key=lambda item: item.field.tag)
    assert flexible or not tagged, f"{message.name}: tagged fields need a flexible version"
    return StructLayout(struct, flexible, tuple(body), tuple(tagged), tuple(absent))
