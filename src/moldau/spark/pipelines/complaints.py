"""Why a record's bytes do not become a row: the reason in words, found by looking at the bytes once more.

Spark's own parser is quick and only says that a record is bad. The few that are, are looked at here, without Spark;
what this finds nothing wrong with is still bad, because Spark said so.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

VALUE_CHARACTERS_MAX = 80
STACK_CHARACTERS_MAX = 4000


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a record must be able to fill. `kind` is Spark's name of the type."""

    name: str
    kind: str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong, in Connect's three parts: an exception's class, message and stack."""

    kind: str
    reason: str
    stack: str


class UnreadableRecord(ValueError):
    """A record whose bytes are not what the stream's schema says."""


def complaint_of(error: BaseException) -> Complaint:
    stack = "".join(traceback.format_exception(error))[-STACK_CHARACTERS_MAX:]
    return Complaint(type(error).__name__, " ".join(str(error).split()) or type(error).__name__, stack)


def complain_of_json(value: bytes | None, fields: Sequence[Field]) -> Complaint:
    """The complaint about a record that Spark could not read as JSON with these fields."""
    try:
        _check_json(value, fields)
        schema = ", ".join(f"{field.name} {field.kind}" for field in fields)
        raise UnreadableRecord(f"the value does not fit the schema {schema}")
    except (ValueError, RecursionError) as error:
        return complaint_of(error)


def complain_of_text(value: bytes | None) -> Complaint:
    try:
        _text_of(value)
        raise UnreadableRecord("the value is not text")
    except ValueError as error:
        return complaint_of(error)


def _text_of(value: bytes | None) -> str:
    if value is None:
        raise UnreadableRecord("the value is null, which is a tombstone: only tables have them")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord(f"the value is not UTF-8: {error.reason} at byte {error.start}") from error


def _check_json(value: bytes | None, fields: Sequence[Field]) -> None:
    text = _text_of(value)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnreadableRecord(f"the value is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnreadableRecord(f"the value is a JSON {type(found).__name__}, not an object: {_shown(found)}")
    for field in fields:
        given = found.get(field.name)
        if given is None:
            if field.is_required:
                state = "null" if field.name in found else "missing"
                raise UnreadableRecord(f"field {field.name} is {state}, and the schema says NOT NULL")
        elif not _fits(given, field.kind):
            raise UnreadableRecord(f"field {field.name} is {_shown(given)}, which is no {field.kind}")


_WHOLE = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def _fits(given: object, kind: str) -> bool:
    """Whether a value can be of a type, as far as that is told without Spark; what is not known here fits."""
    if kind in _WHOLE:
        bits = _WHOLE[kind]
        return isinstance(given, int) and not isinstance(given, bool) and -(1 << bits) <= given < 1 << bits
    if kind in ("float", "double"):
        return isinstance(given, int | float) and not isinstance(given, bool)
    if kind == "boolean":
        return isinstance(given, bool)
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return isinstance(given, str) and any(character.isdigit() for character in given)
    if kind.startswith("array"):
        return isinstance(given, list)
    if kind.startswith(("struct", "map")):
        return isinstance(given, dict)
    return True


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."
