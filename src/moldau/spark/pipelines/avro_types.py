"""Avro schemas as Spark's types, and a reader of single datums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.spark.pipelines.errors import PipelineError

_PRIMITIVES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "date": DateType(),
}


def row_type(definition: dict[str, Any], where: str) -> StructType:
    """The columns of a record schema; PipelineError names the field that Spark has no type for."""
    return _record(definition, where, {})


def reader_of(definition: dict[str, Any]) -> Callable[[Any], Any]:
    import fastavro

    parsed = fastavro.parse_schema(definition)

    def read(stream: Any) -> Any:
        return fastavro.schemaless_reader(stream, parsed, None)

    return read


def _record(definition: dict[str, Any], where: str, named: dict[str, DataType]) -> StructType:
    fields = []
    for field in definition["fields"]:
        kind, nullable = _type(field["type"], f"{where}: field {field['name']}", named)
        fields.append(StructField(field["name"], kind, nullable))
    return StructType(fields)


def _type(definition: Any, where: str, named: dict[str, DataType]) -> tuple[DataType, bool]:
    """A type, and whether it may be null."""
    if isinstance(definition, list):
        kinds = [one for one in definition if one != "null"]
        if len(kinds) != 1:
            raise PipelineError(f"{where} is a union of {len(kinds)} types: Spark has columns of one type, or null")
        return _type(kinds[0], where, named)[0], len(kinds) < len(definition)
    if isinstance(definition, str):
        kind = _PRIMITIVES.get(definition) or named.get(definition)
        if kind is None:
            raise PipelineError(f"{where} is of type {definition!r}, which has no type in Spark")
        return kind, False
    name, logical = definition["type"], definition.get("logicalType")
    if logical == "decimal":
        return DecimalType(definition["precision"], definition.get("scale", 0)), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if name == "record":
        kind = _record(definition, where, named)
    elif name == "array":
        item, nullable = _type(definition["items"], where, named)
        return ArrayType(item, nullable), False
    elif name == "map":
        item, nullable = _type(definition["values"], where, named)
        return MapType(StringType(), item, nullable), False
    else:
        kind = _type(name, where, named)[0]
    if "name" in definition:
        named[definition["name"]] = kind
    return kind, False
