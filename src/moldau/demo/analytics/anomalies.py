"""Each site's minutes beside what was to be expected and what was a day before; where they differ too much, an anomaly.

`moldau.demo.detector` decides, one window after the other. Its state is Spark's, so that a window counts once whatever
is killed; windows come from the table `demo_sites`, when nothing can change them any more.
"""

from collections.abc import Iterator

from pyspark.sql import functions as F

from moldau.demo.analysing import WHOLE, scale_here, span
from moldau.demo.watching import watch
from moldau.spark.pipelines import Aggregation, Pipeline, Query

SITE = "site STRING NOT NULL, window_start TIMESTAMP NOT NULL, requests BIGINT, errors BIGINT, p95 DOUBLE"
ANOMALY = (
    "first BIGINT, last BIGINT, kind STRING, severity STRING, value DOUBLE, expected DOUBLE, deviations DOUBLE, "
    "is_over BOOLEAN, explanation STRING"
)
TREND = f"site STRING, metric STRING, anomalies ARRAY<STRUCT<{ANOMALY.replace(' STRING', ': STRING')}>>"


def queries(pipeline: Pipeline) -> Iterator[Query]:
    scale = scale_here(pipeline)
    # A row is at the time at which its window begins: it is over a minute later, and late events come after that. One
    # minute more, for what was late in the batch that ended it.
    final = span(scale.lateness_ms + 2 * scale.minute_ms)

    minutes = pipeline.stream("demo_sites", SITE, options=WHOLE).watermark("window_start", final)
    trends = minutes.through(lambda rows: watch(rows, scale)).df
    yield Aggregation(trends, ("site", "metric"), True, "append").to_table("demo_trend")

    found = pipeline.stream("demo_trend", TREND).df.select("site", "metric", F.inline("anomalies"))
    times = found.select(
        "site",
        "metric",
        F.timestamp_millis(F.col("first") * scale.minute_ms).alias("window_start"),
        F.timestamp_millis((F.col("last") + 1) * scale.minute_ms).alias("window_end"),
        *(name for name in found.columns if name not in ("site", "metric", "first", "last")),
    )
    yield Aggregation(times, ("site", "metric"), True, "append").to_table("demo_anomalies")
