"""`Table`: a compacted topic as what it means, the newest row of each key; a tombstone deletes.

users.changes      every record as it comes, for plain Spark code
users.snapshot()   the table as it is now, a DataFrame that is no stream
orders.join(users, on="user")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

DELETED = "_deleted"


@dataclass(frozen=True)
class Table:
    """What a pipeline's `table` gives. `schema` is that of the rows, without the key."""

    topic: str
    schema: StructType
    changes: DataFrame
    read_now: Callable[[], DataFrame]

    def keyed_rows(self) -> DataFrame:
        """The changes as key, offset and a row that is null where the key was deleted."""
        return _keyed(self.changes, self.schema)

    def snapshot(self) -> DataFrame:
        """The rows that are there now, with their `_key`; read from the topic each time that Spark computes it."""
        newest_first = Window.partitionBy("_key").orderBy(F.desc("_offset"))
        ranked = self.read_now().withColumn("__moldau_rank", F.row_number().over(newest_first))
        return ranked.where(f"__moldau_rank = 1 AND NOT {DELETED}").select("_key", *self.schema.names)


def _keyed(changes: DataFrame, schema: StructType) -> DataFrame:
    row = F.when(~F.col(DELETED), F.struct(*schema.names))
    return changes.select(F.col("_key").alias("key"), F.col("_offset").alias("offset"), row.alias("row"))
