"""What the sinks for tables of files decide, without Spark and without a table: columns, and what keeps rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moldau.spark.pipelines.errors import PipelineError


@dataclass(frozen=True, slots=True)
class LakeRows:
    """The rows of a query, as a table of files holds them.

    With `keys` a row replaces the one that has the same; of several in one batch the last one by `order` stays, which
    may name columns that are not kept.
    """

    schema: Any  # Arrow's
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lost = [one for one in self.keys if one not in self.schema.names]
        if lost:
            raise PipelineError(f"there is no column {lost[0]!r}; there is {', '.join(self.schema.names)}")


def check_columns(rows: Any, table: Any, where: str) -> None:
    """PipelineError when rows with that schema do not fit a table's. Columns that only the table has become null."""
    for field in rows:
        index = table.get_field_index(field.name)
        if index < 0:
            raise PipelineError(
                f"{where} has no column {field.name} ({field.type}); it has {', '.join(table.names)}: add the column, "
                "or leave it out with select(...)"
            )
        found = table.field(index).type
        if not _is_same(found, field.type):
            raise PipelineError(
                f"{where} has column {field.name} as {found}, and the rows have it as {field.type}: cast it with "
                "select(...)"
            )
    for field in table:
        if not field.nullable and rows.get_field_index(field.name) < 0:
            raise PipelineError(f"{where} wants column {field.name} in each row, and the rows have it not: select it")


def _is_same(left: Any, right: Any) -> bool:
    """Whether a file of the one type is read as the other; how long texts may become is a matter of memory alone."""
    return bool(_plain(left).equals(_plain(right)))


def _plain(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def key_ranges(keys: Sequence[str], rows: Any) -> list[tuple[str, Any, Any, bool]]:
    """For each key's column its least and its greatest value (None when there is none) and whether there are nulls."""
    found = []
    for key in keys:
        ends = pc.min_max(rows[key]).as_py()
        found.append((key, ends["min"], ends["max"], bool(rows[key].null_count)))
    return found


def without_keys_of(old: Any, new: Any, keys: Sequence[str]) -> Any:
    """The rows of `old` whose key is not among those of `new`; nulls are equal."""
    replaced = set(_keys_of(new, keys))
    return old.filter(pa.array([key not in replaced for key in _keys_of(old, keys)], pa.bool_()))


def _keys_of(rows: Any, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[key].to_pylist() for key in keys), strict=True))


def first_line(error: BaseException) -> str:
    """What a library said, as far as it fits on a line."""
    return (str(error) or type(error).__name__).splitlines()[0]
