"""What the files of the pipelines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from moldau.demo.scale import REAL_DAY_MS, Scale, scale_from

if TYPE_CHECKING:
    from moldau.spark.pipelines import Pipeline

EVENT = (
    "id STRING NOT NULL, site STRING NOT NULL, user STRING NOT NULL, path STRING, status INT NOT NULL, "
    "latency_ms DOUBLE NOT NULL, at TIMESTAMP NOT NULL"
)
DAY = "spark.moldau.demo.day"
# What a query of ours wrote in one batch is in no order of time. It is read whole, or the rest of it would be late.
WHOLE = {"maxOffsetsPerTrigger": str((1 << 63) - 1)}


def scale_here(pipeline: Pipeline) -> Scale:
    """The scale that pipeline.toml gives."""
    return scale_from(pipeline.spark.conf.get(DAY, "24h") or "24h")


def span(milliseconds: int) -> str:
    """As Spark writes it."""
    return f"{milliseconds} milliseconds"


def in_minute_and_hour(rows: DataFrame, scale: Scale) -> DataFrame:
    """Each row twice: in its minute, and in its hour. One query for both costs half of two."""
    spans = F.array(
        *(
            F.struct(F.lit(name).alias("span"), _start(length).alias("window_start"))
            for name, length in (("minute", scale.minute_ms), ("hour", scale.hour_ms))
        )
    )
    return rows.select(*rows.columns, F.inline(spans))


def _start(length_ms: int) -> Column:
    return F.timestamp_millis(F.floor(F.unix_millis("at") / length_ms) * length_ms)


def setting(pipeline: Pipeline, name: str) -> str:
    """One of the demo's settings in pipeline.toml."""
    return pipeline.spark.conf.get(f"spark.moldau.demo.{name}", "") or ""


def day_of(column: str, scale: Scale) -> Column:
    """The day as text: its date, or, of a shortened one, the time at which it began."""
    start = F.timestamp_millis(F.floor(F.unix_millis(column) / scale.day_ms) * scale.day_ms)
    pattern = "yyyy-MM-dd" if scale.day_ms == REAL_DAY_MS else "yyyy-MM-dd'T'HHmm"
    return F.date_format(F.to_utc_timestamp(start, F.current_timezone()), pattern)
