"""The facts as values: messages, structs, fields and version ranges."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION_OPEN = 32767  # the upper end of "3+"; versions are int16 on the wire

FACTS_DIR = Path(__file__).parent / "facts"

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    snake = _WORD_BOUNDARY.sub("_", name.replace("KRaft", "Kraft")).lower()
    return snake + "_" if keyword.iskeyword(snake) else snake


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions; empty when `low > high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_OPEN)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    attribute: str
    base_type: str  # a primitive's name, or the name of a struct
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    ignorable: bool
    keeps_old_lengths: bool  # `flexibleVersions: none` on the field: old length prefixes even in flexible versions
    default: object  # NO_DEFAULT, None (null), or the value
    struct: Struct | None

    @property
    def is_struct(self) -> bool:
        return self.struct is not None and not self.is_array

    @property
    def has_null_default(self) -> bool:
        return self.default is None

    @property
    def may_be_none(self) -> bool:
        return bool(self.nullable) or self.has_null_default or self.is_optional_struct

    @property
    def is_optional_struct(self) -> bool:
        """A tagged struct that cannot be null: None stands for "not sent", so that absence costs no object."""
        return self.is_struct and bool(self.tagged) and not self.nullable


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()


@dataclass(slots=True, eq=False)
class Struct:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Message:
    name: str
    kind: str
    artifact: str
    api_key: int | None
    valid: Versions
    flexible: Versions
    listeners: tuple[str, ...]
    latest_unstable: bool
    root: Struct
    structs: list[Struct]  # every nested struct, in the order of first use


def _parse_fields(
    facts: list[dict[str, Any]], structs: dict[str, Struct], common: dict[str, list[dict[str, Any]]], valid: Versions
) -> list[Field]:
    fields = []
    for fact in facts:
        versions = Versions.parse(fact["versions"])
        if not any(version in versions for version in valid):
            continue  # belongs to versions that Kafka has removed
        type_name: str = fact["type"]
        is_array = type_name.startswith("[]")
        base_type = type_name.removeprefix("[]")
        struct = None
        if base_type[0].isupper():
            struct = structs.get(base_type)
            if struct is None:
                struct = structs[base_type] = Struct(base_type)
                struct.fields = _parse_fields(fact.get("fields") or common[base_type], structs, common, valid)
        fields.append(
            Field(
                name=fact["name"],
                attribute=snake_case(fact["name"]),
                base_type=base_type,
                is_array=is_array,
                versions=versions,
                nullable=Versions.parse(fact.get("nullableVersions")),
                tagged=Versions.parse(fact.get("taggedVersions")),
                tag=fact.get("tag", -1),
                ignorable=fact.get("ignorable", False),
                keeps_old_lengths=fact.get("flexibleVersions") == "none",
                default=fact.get("default", NO_DEFAULT),
                struct=struct,
            )
        )
    return fields


def parse_message(fact: dict[str, Any]) -> Message:
    valid = Versions.parse(fact["validVersions"])
    structs: dict[str, Struct] = {}
    common = {struct["name"]: struct["fields"] for struct in fact.get("structs", [])}
    root = Struct(fact["name"])
    root.fields = _parse_fields(fact["fields"], structs, common, valid)
    return Message(
        name=fact["name"],
        kind=fact["type"],
        artifact=fact["artifact"],
        api_key=fact.get("apiKey"),
        valid=valid,
        flexible=Versions.parse(fact.get("flexibleVersions")),
        listeners=tuple(fact.get("listeners", ())),
        latest_unstable=fact.get("latestVersionUnstable", False),
        root=root,
        structs=list(structs.values()),
    )


def load(group: str) -> list[Message]:
    return [parse_message(fact) for fact in json.loads((FACTS_DIR / f"{group}.json").read_text())]
