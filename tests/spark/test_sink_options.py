"""What the sink refuses before anything is written: one line each, with the remedy."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from moldau.protocol.compression import Compression
from moldau.spark.exactly_once import ExactlyOnceRefused
from moldau.spark.exactly_once_sink import local_checkpoint
from moldau.spark.options import stream_options
from moldau.spark.sink_columns import SinkSchemaError, check_schema, columns_of
from moldau.spark.sink_options import SinkOptionError, sink_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        ("key string", "t", "no column value"),
        ("value binary", None, "neither an option topic nor a column topic"),
        ("value int", "t", "column value is int, not string or binary"),
        ("value binary, key int", "t", "column key is int"),
        ("value binary, topic int", "t", "column topic is int, not string"),
        ("value binary, partition bigint", "t", "column partition is bigint, not int"),
        ("value binary, headers string", "t", "column headers is string"),
        ("value binary, headers array<struct<key:string,value:string>>", "t", "not array<struct<key:string,value:bin"),
    ],
)
def test_columns_that_are_no_records_are_refused(
    spark: SparkSession, schema: str, topic: str | None, message: str
) -> None:
    with pytest.raises(SinkSchemaError, match=re.escape(message)):
        check_schema(StructType.fromDDL(schema), topic)


def test_the_columns_of_a_record_are_taken_and_the_option_outweighs_the_topic_column(spark: SparkSession) -> None:
    headers = "headers array<struct<key:string,value:binary>>"
    schema = StructType.fromDDL(f"other int, partition int, topic string, {headers}, value string, key binary")
    check_schema(schema, None)
    assert columns_of(schema, None) == ["key", "value", "headers", "topic", "partition"]
    assert columns_of(schema, "t") == ["key", "value", "headers", "partition"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**SERVERS, "kafka.acks": "2"}, "kafka.acks"),
        ({**SERVERS, "kafka.acks": "0", "kafka.enable.idempotence": "false"}, "acks=0"),
        ({**SERVERS, "kafka.batch.sise": "2"}, "batch.size"),
        ({**SERVERS, "kafka.transactional.id": "x"}, "transactionalId"),
        ({**SERVERS, "exactlyOnce": "yes"}, "exactlyOnce='yes' is not true or false"),
        ({**SERVERS, "tasks": "0"}, "tasks='0' is not a whole number"),
        ({**SERVERS, "exactly_once": "true"}, "unknown option 'exactly_once': did you mean 'exactlyOnce'"),
        ({**SERVERS, "kafka.security.protocol": "SSL"}, "only PLAINTEXT"),
        ({**SERVERS, "kafka.partitioner.class": "x"}, "give a partition column"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SinkOptionError, match=message):
        sink_options(options)


def test_producer_settings_are_honoured_under_kafkas_names() -> None:
    options = sink_options({**SERVERS, "kafka.compression.type": "zstd", "kafka.delivery.timeout.ms": "60000"})
    settings = options.producer_settings()
    assert settings.compression_type is Compression.ZSTD
    assert settings.delivery_timeout_ms == 60_000
    assert settings.enable_idempotence and settings.acks == -1


def test_settings_that_mean_nothing_here_are_those_of_the_source() -> None:
    java = {"kafka.security.protocol": "PLAINTEXT", "kafka.client.dns.lookup": "use_all_dns_ips"}
    assert sink_options({**SERVERS, **java}) == sink_options(SERVERS)
    assert stream_options({**SERVERS, **java, "subscribe": "x"}) == stream_options({**SERVERS, "subscribe": "x"})


@pytest.mark.parametrize("location", [None, "", "hdfs://name/checkpoint", "/nowhere/at/all"])
def test_a_checkpoint_that_cannot_be_read_is_refused_with_the_remedy(location: str | None) -> None:
    with pytest.raises(ExactlyOnceRefused, match="foreach_batch"):
        local_checkpoint(location)
