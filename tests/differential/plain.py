"""Answers as plain trees: readable names instead of numbers and ids, masks, and a difference that people can read.

A path is the way to a value, `topics.0.partitions.1.leader_epoch`. Masks are patterns over whole paths in which `*`
stands for anything: `*.port`, `topics.*.topic_id`. A masked value keeps only whether it is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from moldau.kernel import ErrorCode
from moldau.protocol.batches import HEADER_BYTES, iterate_batches
from moldau.protocol.message import Struct

Plain = Any
MASKED = "<masked>"


def plain(value: Any, ids: Mapping[bytes | int, str]) -> Plain:
    """A message as dicts and lists. Ids of topics and producers that `ids` knows become names, records batches."""
    if isinstance(value, Struct):
        fields = ((name, getattr(value, name)) for name in value.__slots__)
        return {
            name: _field(name, field, ids) for name, field in fields if name != "unknown_tags" or field not in ((), [])
        }
    if isinstance(value, (list, tuple)):
        return [plain(item, ids) for item in value]
    return value


def _field(name: str, value: Any, ids: Mapping[bytes | int, str]) -> Plain:
    if name.endswith("error_code"):
        return _error_name(value)
    if name == "records":
        return _batches(value, ids)
    if name == "producer_id":
        return ids.get(value, value)
    if isinstance(value, (bytes, memoryview, bytearray)):
        raw = bytes(value)
        return f"<id of {ids[raw]}>" if raw in ids else raw.hex()
    return plain(value, ids)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _batches(records: Any, ids: Mapping[bytes | int, str]) -> Plain:
    if records is None:
        return None
    batches = [
        {
            **header._asdict(),
            "producer_id": ids.get(header.producer_id, header.producer_id),
            "payload": bytes(batch[HEADER_BYTES:]).hex(),
        }
        for header, batch in iterate_batches(bytes(records))
    ]
    rest = len(records) - sum(each["length"] + 12 for each in batches)
    return {"batches": batches, "bytes_after_the_last_whole_batch": rest}


@dataclass(frozen=True)
class Edits:
    """Patterns of paths: values that are masked, values that may differ altogether, lists whose order means nothing."""

    masks: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()


def edited(tree: Plain, edits: Edits, path: str = "") -> Plain:
    if path and _matches(path, edits.ignored):
        return MASKED
    if path and _matches(path, edits.masks):
        return None if tree is None else MASKED
    if isinstance(tree, dict):
        return {name: edited(value, edits, _join(path, name)) for name, value in tree.items()}
    if isinstance(tree, list):
        items = sorted(tree, key=repr) if _matches(path, edits.unordered) else tree
        return [edited(value, edits, _join(path, str(index))) for index, value in enumerate(items)]
    return tree


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def differences(moldau: Plain, kafka: Plain, path: str = "") -> Iterator[str]:
    """One line per value that differs."""
    if isinstance(moldau, dict) and isinstance(kafka, dict) and moldau.keys() == kafka.keys():
        for name in moldau:
            yield from differences(moldau[name], kafka[name], _join(path, name))
        return
    if isinstance(moldau, list) and isinstance(kafka, list):
        if len(moldau) != len(kafka):
            yield f"{path or 'answer'}: Moldau has {len(moldau)} entries, Kafka {len(kafka)}"
            yield from (f"    only Moldau: {each!r}" for each in moldau if each not in kafka)
            yield from (f"    only Kafka:  {each!r}" for each in kafka if each not in moldau)
            return
        for index, (ours, theirs) in enumerate(zip(moldau, kafka, strict=True)):
            yield from differences(ours, theirs, _join(path, str(index)))
        return
    if moldau != kafka or type(moldau) is not type(kafka):
        yield f"{path or 'answer'}:\n        Moldau {moldau!r}\n        Kafka  {kafka!r}"


def shown(value: Any) -> str:
    """A message for people: what is not at its default."""
    if isinstance(value, Struct):
        defaults = type(value)()
        fields = ((name, getattr(value, name)) for name in value.__slots__)
        said = (f"{name}={shown(each)}" for name, each in fields if each != getattr(defaults, name))
        return f"{type(value).__name__}({', '.join(said)})"
    if isinstance(value, list):
        return f"[{', '.join(shown(each) for each in value)}]"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    return repr(value)


def only(field: str, keep: Callable[[Any], bool]) -> Callable[[Plain], Plain]:
    """An edit that keeps the entries of a top-level list for which `keep` holds: other tests share the broker."""

    def edit(tree: Plain) -> Plain:
        return {**tree, field: [entry for entry in tree[field] if keep(entry)]}

    return edit


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
