"""Raw events into Parquet files, a directory for each day; aggregates into PostgreSQL."""

from collections.abc import Iterator

from moldau.demo.analysing import EVENT, day_of, scale_here, setting
from moldau.spark.pipelines import Pipeline, Query

SITE = (
    "site STRING NOT NULL, window_start TIMESTAMP NOT NULL, window_end TIMESTAMP, requests BIGINT, errors BIGINT, "
    "users BIGINT, p50 DOUBLE, p95 DOUBLE, p99 DOUBLE"
)
ACTIVE = "span STRING NOT NULL, window_start TIMESTAMP NOT NULL, users BIGINT, sites BIGINT"
ANOMALY = (
    "site STRING NOT NULL, metric STRING NOT NULL, window_start TIMESTAMP NOT NULL, window_end TIMESTAMP, kind STRING, "
    "severity STRING, value DOUBLE, expected DOUBLE, deviations DOUBLE, is_over BOOLEAN, explanation STRING"
)


def queries(pipeline: Pipeline) -> Iterator[Query]:
    events = pipeline.stream("demo-events", EVENT).with_column("day", day_of("at", scale_here(pipeline)))
    yield events.to_parquet(setting(pipeline, "lake"), "demo-events", by="day")

    dsn = setting(pipeline, "postgres")
    if dsn:
        sites = pipeline.stream("demo_sites", SITE)
        yield sites.to_postgres(dsn, "demo_sites", key=("site", "window_start"), newest="requests")
        active = pipeline.stream("demo_active", ACTIVE)
        yield active.to_postgres(dsn, "demo_active", key=("span", "window_start"))
        anomalies = pipeline.stream("demo_anomalies", ANOMALY)
        yield anomalies.to_postgres(dsn, "demo_anomalies", key=("site", "metric", "window_start"))
