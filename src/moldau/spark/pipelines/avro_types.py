"""Avro schemas as Spark's types, and a reader of single datums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
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
_ARROW: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    BinaryType: pa.binary(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    DateType: pa.date32(),
}


def row_type(definition: dict[str, Any], where: str) -> StructType:
    """The columns of a record schema; PipelineError names the field that Spark has no type for."""
    return _record(definition, where, {})


def arrow_type(kind: DataType) -> pa.DataType:
    """Of the types that schemas become here. Spark's own table of them has changed its door from version to version."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(one.name, arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), arrow_type(kind.valueType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[type(kind)]


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
