"""Events become requests, each once; requests become a row per site and minute."""

from collections.abc import Iterator

from pyspark.sql import functions as F

from moldau.demo.analysing import EVENT, WHOLE, scale_here, span
from moldau.spark.pipelines import Pipeline, Query


def queries(pipeline: Pipeline) -> Iterator[Query]:
    scale = scale_here(pipeline)
    late = span(scale.lateness_ms)

    events = pipeline.stream("demo-events", EVENT, dead_letters="demo-dead-letters").watermark("at", late)
    yield events.deduplicate("id", within=late).to_topic("demo-requests", key="site")

    requests = pipeline.stream("demo-requests", EVENT, options=WHOLE).watermark("at", late)
    by_site = requests.tumbling(span(scale.minute_ms), by="site").agg(
        requests=F.count("*"),
        errors=F.count_if(F.col("status") >= 500),
        users=F.approx_count_distinct("user"),
        p50=F.percentile_approx("latency_ms", 0.50),
        p95=F.percentile_approx("latency_ms", 0.95),
        p99=F.percentile_approx("latency_ms", 0.99),
    )
    yield by_site.to_table("demo_sites")
