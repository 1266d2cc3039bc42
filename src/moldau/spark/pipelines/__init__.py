"""Pipelines: streams and tables over topics, as thin layers over Spark's own DataFrames.

    shop = Pipeline(spark, "127.0.0.1:9092", name="shop", checkpoints="checkpoints")
    orders = shop.stream("orders", "user STRING, amount DOUBLE, at TIMESTAMP").watermark("at", "1 minute")
    totals = orders.tumbling("1 minute", by="user").agg(total=F.sum("amount")).to_table("totals_by_user")
    shop.start(totals)

Nothing is hidden: `Stream.df`, `Table.changes` and `Aggregation.df` are ordinary streaming DataFrames, and
`Stream.through(function)` puts plain Spark code in between. Start reading at `pipeline`; `streams` and `tables` are
what users hold, `formats` is how bytes become columns, `complaints` says why some do not, `dead_letters` where those
go, `lookups` how an event finds the row of a table, `keys` what identifies a row in a table's topic,
`project` is a pipeline as a folder, `runner` runs it and `running` tells other processes so,
`postgres` writes into tables of PostgreSQL, `redshift` into those of Redshift, `parquet` into files, `lake` into tables
of files.
"""

import importlib
from typing import TYPE_CHECKING, Any

from moldau.spark.pipelines.dead_letters import DeadLetter, dead_letter_of
from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.keys import row_key

if TYPE_CHECKING:
    from moldau.spark.pipelines.formats import Avro, Bytes, Json, Text
    from moldau.spark.pipelines.pipeline import Pipeline
    from moldau.spark.pipelines.queries import Query
    from moldau.spark.pipelines.streams import Aggregation, Stream
    from moldau.spark.pipelines.tables import Table

# These need pyspark, and whoever only looks at dead letters has no use for it.
_WITH_SPARK = {
    "Aggregation": "moldau.spark.pipelines.streams",
    "Avro": "moldau.spark.pipelines.formats",
    "Bytes": "moldau.spark.pipelines.formats",
    "Json": "moldau.spark.pipelines.formats",
    "Pipeline": "moldau.spark.pipelines.pipeline",
    "Query": "moldau.spark.pipelines.queries",
    "Stream": "moldau.spark.pipelines.streams",
    "Table": "moldau.spark.pipelines.tables",
    "Text": "moldau.spark.pipelines.formats",
}

__all__ = [
    "Aggregation",
    "Avro",
    "Bytes",
    "DeadLetter",
    "Json",
    "Pipeline",
    "PipelineError",
    "Query",
    "Stream",
    "Table",
    "Text",
    "dead_letter_of",
    "row_key",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_SPARK[name]), name)
