"""Which columns of a DataFrame become records: the same ones, types and refusals as Spark's `kafka` sink has."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

KEY, VALUE, HEADERS, TOPIC, PARTITION = "key", "value", "headers", "topic", "partition"
COLUMNS = (KEY, VALUE, HEADERS, TOPIC, PARTITION)
NULL_TOPIC = "a row has no topic: fill its topic column, or set the option topic for all rows"


class SinkSchemaError(ValueError):
    """The columns cannot be records. One line, with the remedy."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Refuse what cannot be written; columns with other names are no part of a record and stay behind."""
    types: dict[str, DataType] = {one.name: one.dataType for one in schema.fields if one.name in COLUMNS}
    if VALUE not in types:
        raise SinkSchemaError(f"there is no column value: name one so; there is {', '.join(schema.names) or 'none'}")
    if topic is None and TOPIC not in types:
        raise SinkSchemaError("there is neither an option topic nor a column topic: give one of them")
    for name in (KEY, VALUE):
        _check(types, name, "string or binary", lambda kind: isinstance(kind, StringType | BinaryType))
    _check(types, TOPIC, "string", lambda kind: isinstance(kind, StringType))
    _check(types, PARTITION, "int", lambda kind: isinstance(kind, IntegerType))
    _check(types, HEADERS, "array<struct<key:string,value:binary>>", _is_headers)


def columns_of(schema: StructType, topic: str | None) -> list[str]:
    """The names that are read, in the order of `COLUMNS`; the option outweighs the topic column."""
    return [name for name in COLUMNS if name in schema.names and not (name == TOPIC and topic is not None)]


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    pair = kind.elementType
    return (
        pair.names == ["key", "value"]
        and isinstance(pair["key"].dataType, StringType)
        and isinstance(pair["value"].dataType, BinaryType)
    )


def _check(types: dict[str, DataType], name: str, wanted: str, is_right: Callable[[DataType], bool]) -> None:
    kind = types.get(name)
    if kind is not None and not is_right(kind):
        raise SinkSchemaError(f"column {name} is {kind.simpleString()}, not {wanted}: cast it")
