"""How a record's bytes become columns: one class per format, and none of them fails a query.

A format adds one column `ROWS` to the records of a topic: an array that holds the row, or nothing when the bytes are
not one. Spark unfolds it, so that a value is parsed once; what has none is a dead letter, and `complain` says why.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from moldau.spark.pipelines import avro_types
from moldau.spark.pipelines.arrow_types import arrow_type
from moldau.spark.pipelines.complaints import (
    Complaint,
    Field,
    UnreadableRecord,
    complain_of_json,
    complain_of_text,
    complaint_of,
)
from moldau.spark.pipelines.errors import PipelineError

ROWS = "__moldau_rows"
_OBJECT, _CORRUPT = "__moldau_object", "__moldau_corrupt"


class Format(Protocol):
    @property
    def schema(self) -> StructType:
        """The columns of a row."""
        ...

    def with_rows(self, records: DataFrame) -> DataFrame:
        """The records with the column `ROWS`."""
        ...

    def complainer(self) -> Callable[[bytes | None], Complaint]:
        """What says why a value is no row; goes to tasks."""
        ...


@dataclass(frozen=True)
class Json:
    """An object per record. Fields that the schema does not name are left behind, NOT NULL ones must be there."""

    ddl: str | StructType

    @cached_property
    def schema(self) -> StructType:
        return self.ddl if isinstance(self.ddl, StructType) else schema_of_ddl(self.ddl)

    def with_rows(self, records: DataFrame) -> DataFrame:
        columns = StructType([StructField(field.name, field.dataType) for field in self.schema.fields])
        asked = StructType([StructField(_OBJECT, columns), StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        # Spark reads the first value of a text and forgets what is behind it: as a field it must be the only one.
        text = F.concat(F.lit(f'{{"{_OBJECT}":'), F.col("value").cast("string"), F.lit("}"))
        parsed = F.from_json(text, asked, options)
        required = [field.name for field in self.schema.fields if not field.nullable]

        def is_good(one: Column) -> Column:
            good = one[_OBJECT].isNotNull() & one[_CORRUPT].isNull()
            for name in required:
                good = good & one[_OBJECT][name].isNotNull()
            return good

        whole = F.transform(F.filter(F.array(parsed), is_good), lambda one: one[_OBJECT])
        return records.withColumn(ROWS, F.when(F.is_valid_utf8("value"), whole).otherwise(_none(self.schema)))

    def complainer(self) -> Callable[[bytes | None], Complaint]:
        fields = [Field(one.name, one.dataType.simpleString(), not one.nullable) for one in self.schema.fields]
        return partial(complain_of_json, fields=fields)


@dataclass(frozen=True)
class Avro:
    """A datum per record, of the schema in a file. Nothing stands before the datum."""

    path: str | Path

    @cached_property
    def definition(self) -> dict[str, Any]:
        try:
            found = json.loads(Path(self.path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PipelineError(f"Avro schema {self.path}: {error.strerror}") from error
        except ValueError as error:
            raise PipelineError(f"Avro schema {self.path} is not JSON: {error}") from error
        if not isinstance(found, dict) or found.get("type") != "record":
            raise PipelineError(f"Avro schema {self.path} is no record: a row needs fields")
        return found

    @cached_property
    def schema(self) -> StructType:
        return avro_types.row_type(self.definition, str(self.path))

    def with_rows(self, records: DataFrame) -> DataFrame:
        asked = StructType([*records.schema.fields, StructField(ROWS, ArrayType(self.schema))])
        rows_type = arrow_type(ArrayType(self.schema))
        definition = self.definition

        def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            read = avro_types.reader_of(definition)
            for batch in batches:
                rows = [_row_or_nothing(read, value) for value in batch.column("value").to_pylist()]
                yield pa.RecordBatch.from_arrays(
                    [*batch.columns, pa.array(rows, rows_type)], names=[*batch.schema.names, ROWS]
                )

        return records.mapInArrow(decode, asked)

    def complainer(self) -> Callable[[bytes | None], Complaint]:
        return partial(_complain_of_avro, definition=self.definition)


@dataclass(frozen=True)
class Text:
    """One column `value`: the record's value, which must be UTF-8."""

    schema = StructType([StructField("value", StringType())])

    def with_rows(self, records: DataFrame) -> DataFrame:
        row = F.array(F.struct(F.col("value").cast("string").alias("value")))
        return records.withColumn(ROWS, F.when(F.is_valid_utf8("value"), row).otherwise(_none(self.schema)))

    def complainer(self) -> Callable[[bytes | None], Complaint]:
        return complain_of_text


@dataclass(frozen=True)
class Bytes:
    """One column `value`: the record's value as it is."""

    schema = StructType([StructField("value", BinaryType())])

    def with_rows(self, records: DataFrame) -> DataFrame:
        row = F.array(F.struct(F.col("value").alias("value")))
        return records.withColumn(ROWS, F.when(F.col("value").isNotNull(), row).otherwise(_none(self.schema)))

    def complainer(self) -> Callable[[bytes | None], Complaint]:
        return complain_of_text  # what is not null is read


def format_of(schema: str | StructType | Format) -> Format:
    """A schema as it is written in a pipeline: DDL means JSON."""
    return Json(schema) if isinstance(schema, str | StructType) else schema


def schema_of_ddl(text: str) -> StructType:
    from pyspark.errors import ParseException

    try:
        found = StructType.fromDDL(text)
    except ParseException as error:
        raise PipelineError(
            f"schema {text!r} is not one: write columns as in 'user STRING NOT NULL, at TIMESTAMP'"
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise PipelineError(f"schema {text!r} has no columns: write them as in 'user STRING NOT NULL, at TIMESTAMP'")
    return found


def _none(schema: StructType) -> Column:
    nullable = StructType([StructField(field.name, field.dataType) for field in schema.fields])
    return F.array().cast(ArrayType(nullable))


def _row_or_nothing(read: Callable[[Any], Any], value: bytes | None) -> list[Any]:
    if value is None:
        return []
    try:
        return [_whole(read, value)]
    except Exception:  # fastavro raises whatever the bytes lead it into; the complaint says which
        return []


def _whole(read: Callable[[Any], Any], value: bytes) -> Any:
    stream = io.BytesIO(value)
    row = read(stream)
    left = len(value) - stream.tell()
    if left:
        raise UnreadableRecord(f"{left} bytes follow the datum: another schema, or a schema id before it")
    return row


def _complain_of_avro(value: bytes | None, definition: dict[str, Any]) -> Complaint:
    try:
        if value is None:
            raise UnreadableRecord("the value is null, which is a tombstone: only tables have them")
        try:
            _whole(avro_types.reader_of(definition), value)
        except UnreadableRecord:
            raise
        except Exception as error:
            raise UnreadableRecord(f"the value is no {definition.get('name')} in Avro: {error!r}") from error
        raise UnreadableRecord(f"the value does not fit the schema {definition.get('name')}")
    except UnreadableRecord as error:
        return complaint_of(error)
