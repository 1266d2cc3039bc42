"""How many sites and users are active, per minute and per hour: exactly, and by HyperLogLog.

Spark refuses distinct aggregates on streams. So one query lets each user through once per window, and another counts
what it let through. What that costs is a state with every user of an hour; the estimate needs none.
"""

from collections.abc import Iterator

from pyspark.sql import functions as F

from moldau.demo.analysing import EVENT, WHOLE, in_minute_and_hour, scale_here, span
from moldau.spark.pipelines import Aggregation, Pipeline, Query


def queries(pipeline: Pipeline) -> Iterator[Query]:
    scale = scale_here(pipeline)
    # Rows are at the time at which their window begins, and the hour began an hour ago.
    late = span(scale.hour_ms + scale.lateness_ms)

    requests = pipeline.stream("demo-requests", EVENT, options=WHOLE)
    windows = requests.through(lambda rows: in_minute_and_hour(rows, scale)).watermark("window_start", late)
    once = windows.select("span", "window_start", "site", "user").deduplicate("span", "site", "user")
    yield once.to_topic("demo-seen")

    seen = pipeline.stream("demo-seen", "span STRING, window_start TIMESTAMP, site STRING, user STRING", options=WHOLE)
    by_window = seen.watermark("window_start", late).df.groupBy("span", "window_start")
    counted = by_window.agg(F.count("*").alias("users"), F.size(F.collect_set("site")).alias("sites"))
    yield Aggregation(counted, ("span",), True, "update").to_table("demo_active")

    estimated = windows.df.groupBy("span", "window_start").agg(F.approx_count_distinct("user", 0.02).alias("users"))
    yield Aggregation(estimated, ("span",), True, "update").to_table("demo_active_approximate")
