"""The catalogue of configuration keys says what Apache Kafka 4.3.1 says, in our own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.config_catalogue import (
    ConfigKey,
    ConfigValueError,
    Effect,
    Kind,
    Synonym,
    UpdateMode,
    broker_key,
    broker_keys,
    broker_synonyms,
    client_metrics_keys,
    format_value,
    group_key,
    group_keys,
    group_synonym,
    nearest_key,
    parse_value,
    topic_key,
    topic_keys,
    topic_synonyms,
)
from tests.differential.deliberate import OTHER_DEFAULTS
from tests.oracle import RunningKafka, ask

DOC_CHARS_MAX = 300
BROKER, TOPIC, GROUP, CLIENT_METRICS = 4, 2, 32, 16
DEFAULT_SOURCE = 5

TABLES: dict[str, Callable[[], Iterator[ConfigKey]]] = {
    "broker": broker_keys,
    "topic": topic_keys,
    "group": group_keys,
    "client-metrics": client_metrics_keys,
}
EVERY_KEY = [key for keys in TABLES.values() for key in keys()]

# Values that a topic does not take, and what Kafka answers.
NOT_A = "Not a number of type"
BAD_TOPIC_VALUES = [
    ("retention.ms", "abc", f"{NOT_A} LONG"),
    ("retention.ms", "", f"{NOT_A} LONG"),
    ("retention.ms", "1e3", f"{NOT_A} LONG"),
    ("retention.ms", "9223372036854775808", f"{NOT_A} LONG"),
    ("retention.ms", "-2", "Value must be at least -1"),
    ("segment.bytes", "2147483648", f"{NOT_A} INT"),
    ("segment.bytes", "1_000_000_0", f"{NOT_A} INT"),
    ("segment.bytes", "13", "Value must be at least 1048576"),
    ("segment.index.bytes", "3", "Value must be at least 4"),
    ("segment.ms", "0", "Value must be at least 1"),
    ("flush.messages", "0", "Value must be at least 1"),
    ("max.message.bytes", "-1", "Value must be at least 0"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("local.retention.ms", "-3", "Value must be at least -2"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("compression.gzip.level", "10", "Value must be between 1 and 9 or equal to -1"),
    ("compression.lz4.level", "18", "Value must be no more than 17"),
    ("compression.zstd.level", "23", "Value must be no more than 22"),
    ("compression.zstd.level", "-131073", "Value must be at least -131072"),
    ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "-0.00001", "Value must be at least 0"),
    ("min.cleanable.dirty.ratio", "much", f"{NOT_A} DOUBLE"),
    ("preallocate", "maybe", "Expected value to be either true or false"),
    ("unclean.leader.election.enable", "1", "Expected value to be either true or false"),
    ("cleanup.policy", "Delete", "String must be one of: compact, delete"),
    ("cleanup.policy", "delete,shred", "String must be one of: compact, delete"),
    ("cleanup.policy", "delete,", "values must not be empty."),
    ("compression.type", "GZIP", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ("leader.replication.throttled.replicas", "0:1,x", "must be the literal '*' or a list of replicas"),
]

# Values that a topic takes, and how DescribeConfigs prints them.
GOOD_TOPIC_VALUES = [
    ("retention.ms", " 5 ", "5"),
    ("segment.bytes", "+1048577", "1048577"),
    ("preallocate", " TRUE ", "true"),
    ("cleanup.policy", "compact , delete", "compact,delete"),
    ("cleanup.policy", "delete,delete", "delete"),
    ("cleanup.policy", "", ""),
    ("min.cleanable.dirty.ratio", ".50", "0.5"),
    ("min.cleanable.dirty.ratio", "1", "1.0"),
    ("min.cleanable.dirty.ratio", "0.0001d", "1.0E-4"),
    ("compression.gzip.level", "-1", "-1"),
    ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
    ("follower.replication.throttled.replicas", "*", "*"),
]

BAD_BROKER_VALUES = [
    ("process.roles", "", "must not be empty. Valid values include: [broker, controller]"),
    ("process.roles", "broker,zookeeper", "String must be one of: broker, controller"),
    ("listeners", "", "must not be empty. Valid values include: any non-empty value"),
    ("log.dirs", "a,,b", "values must not be empty."),
    ("controller.quorum.voters", "1:localhost:9093", "{id}@{host}:{port}"),
    ("controller.quorum.bootstrap.servers", "localhost", "{host}:{port}"),
    ("security.inter.broker.protocol", "TLS", "String must be one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ("group.consumer.migration.policy", "sideways", "(case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL"),
    ("offsets.topic.replication.factor", "32768", "Not a number of type SHORT"),
    ("remote.log.storage.manager.impl.prefix", "", "String must be non-empty"),
]


@pytest.mark.parametrize("table", TABLES)
def test_no_key_is_named_twice(table: str) -> None:
    names = [key.name for key in TABLES[table]()]
    assert len(names) == len(set(names))


def test_every_key_takes_and_reprints_its_own_default() -> None:
    for key in EVERY_KEY:
        if key.default is not None:
            assert (key.name, format_value(key, parse_value(key, key.default))) == (key.name, key.default)


def test_every_key_says_shortly_what_it_does() -> None:
    for key in EVERY_KEY:
        assert 20 <= len(key.doc) <= DOC_CHARS_MAX, key.name
        assert key.doc.endswith("."), key.name
        assert "  " not in key.doc, key.name
        assert ("Without effect" in key.doc) == (key.effect is Effect.NONE), key.name


def test_synonyms_are_keys_of_the_broker() -> None:
    for key in topic_keys():
        for synonym in topic_synonyms(key.name):
            assert broker_key(synonym.name) is not None
    for key in group_keys():
        synonym_name = group_synonym(key.name)
        assert synonym_name is None or broker_key(synonym_name) is not None


def test_retention_comes_from_milliseconds_then_minutes_then_hours() -> None:
    expected = (
        Synonym("log.retention.ms", 1),
        Synonym("log.retention.minutes", 60_000),
        Synonym("log.retention.hours", 3_600_000),
    )
    assert topic_synonyms("retention.ms") == broker_synonyms("log.retention.ms") == expected
    assert topic_synonyms("remote.storage.enable") == ()
    assert broker_synonyms("num.io.threads") == (Synonym("num.io.threads", 1),)


def test_a_misspelt_key_is_recognised() -> None:
    assert broker_key("log.retension.ms") is None
    assert nearest_key("log.retension.ms") == "log.retention.ms"
    assert nearest_key("moldau.http.listner") == "moldau.http.listener"
    assert nearest_key("colour") is None


def test_a_listener_may_have_settings_of_its_own() -> None:
    for name, kind in [
        ("listener.name.internal.max.connections", Kind.INT),
        ("listener.name.internal.scram-sha-256.sasl.jaas.config", Kind.PASSWORD),
    ]:
        key = broker_key(name)
        assert key is not None
        assert (key.name, key.kind, key.listed) == (name, kind, False)
    assert broker_key("listener.name.internal.scram-sha-256.max.connections") is None
    assert broker_key("listener.name.internal") is None


def test_the_http_listener_is_a_key_of_our_own() -> None:
    key = broker_key("moldau.http.listener")
    assert key is not None
    assert (key.default, key.update_mode) == ("127.0.0.1:9644", UpdateMode.READ_ONLY)
    assert parse_value(key, "") == ""


@pytest.mark.parametrize(("name", "unit"), [("log.retention.ms", "ms"), ("fetch.max.bytes", "bytes"), ("node.id", "")])
def test_the_unit_is_read_off_the_name(name: str, unit: str) -> None:
    key = broker_key(name)
    assert key is not None
    assert key.unit == unit


@pytest.mark.parametrize(("name", "text", "why"), BAD_BROKER_VALUES)
def test_a_bad_value_of_the_broker_is_refused_in_one_line_that_names_the_key(name: str, text: str, why: str) -> None:
    key = broker_key(name)
    assert key is not None
    with pytest.raises(ConfigValueError) as refusal:
        parse_value(key, text)
    assert name in str(refusal.value)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "text", "why"), BAD_TOPIC_VALUES)
def test_a_bad_value_of_a_topic_is_refused(name: str, text: str, why: str) -> None:
    assert why in _refusal(topic_key(name), text)


@pytest.mark.parametrize(("name", "text", "printed"), GOOD_TOPIC_VALUES)
def test_a_good_value_of_a_topic_is_printed_in_its_plain_form(name: str, text: str, printed: str) -> None:
    key = topic_key(name)
    assert key is not None
    assert format_value(key, parse_value(key, text)) == printed


@given(st.sampled_from(EVERY_KEY), st.text())
def test_any_text_is_a_value_or_refused(key: ConfigKey, text: str) -> None:
    try:
        value = parse_value(key, text)
    except ConfigValueError as refusal:
        assert key.name in str(refusal)
    else:
        if value == value:  # not NaN
            assert parse_value(key, format_value(key, value)) == value


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("resource_type", "resource_name", "table"),
    [
        (BROKER, "1", "broker"),
        (TOPIC, "catalogue-defaults", "topic"),
        (GROUP, "any", "group"),
        (CLIENT_METRICS, "any", "client-metrics"),
    ],
)
def test_kafka_describes_the_same_keys(
    apache_kafka: RunningKafka, resource_type: int, resource_name: str, table: str
) -> None:
    if resource_type == TOPIC:
        apache_kafka.tool("topics", "--create", "--if-not-exists", "--topic", resource_name)
    theirs = {config.name: config for config in _describe(apache_kafka, resource_type, resource_name)}
    theirs.pop("log.initial.task.delay.ms", None)  # listed only where it is set, as the oracle does
    ours = {key.name: key for key in TABLES[table]() if key.listed and not key.name.startswith("moldau.")}
    assert theirs.keys() == ours.keys()
    for name, config in theirs.items():
        key = ours[name]
        assert (name, key.kind) == (name, Kind(config.config_type))
        assert (name, key.sensitive) == (name, config.is_sensitive)
        assert (name, key.read_only) == (name, config.read_only)
        if name not in OTHER_DEFAULTS:
            assert (name, key.default) == (name, _default(config, resource_type))
        assert {synonym.name for synonym in config.synonyms} == _described_synonyms(key, resource_type)
        assert config.documentation != key.doc


@pytest.mark.oracle
def test_kafka_refuses_the_same_values_with_the_same_words(apache_kafka: RunningKafka) -> None:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
    from kio.schema.types import TopicName
    from kio.static.primitive import i16, i32, i32Timedelta

    for name, text, _ in BAD_TOPIC_VALUES:
        topic = CreatableTopic(
            name=TopicName("catalogue-refused"),
            num_partitions=i32(1),
            replication_factor=i16(1),
            assignments=(),
            configs=(CreatableTopicConfig(name=name, value=text),),
        )
        request = CreateTopicsRequest(
            topics=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=10)), validate_only=True
        )
        answer = ask(apache_kafka.bootstrap, request).topics[0]
        assert (answer.error_code.name, answer.error_message) == ("invalid_config", _refusal(topic_key(name), text))


@pytest.mark.oracle
def test_kafka_refuses_the_same_group_values(apache_kafka: RunningKafka) -> None:
    for name, text in [
        ("share.auto.offset.reset", "sometime"),
        ("share.auto.offset.reset", "by_duration:soon"),
        ("share.isolation.level", "none"),
        ("share.delivery.count.limit", "1"),
        ("streams.num.standby.replicas", "-1"),
    ]:
        answer = _alter(apache_kafka, GROUP, "catalogue", name, text, validate_only=True)
        assert answer.error_message == _refusal(group_key(name), text)


@pytest.mark.oracle
def test_kafka_prints_accepted_values_in_the_same_form(apache_kafka: RunningKafka) -> None:
    apache_kafka.tool("topics", "--create", "--if-not-exists", "--topic", "catalogue-accepted")
    for name, text, printed in GOOD_TOPIC_VALUES:
        answer = _alter(apache_kafka, TOPIC, "catalogue-accepted", name, text, validate_only=False)
        assert (name, answer.error_message) == (name, None)
        # Kafka answers before the broker has seen the change.
        for _ in range(200):
            described = {c.name: c for c in _describe(apache_kafka, TOPIC, "catalogue-accepted")}[name]
            if (described.synonyms and described.synonyms[0].value == text) or described.value == printed:
                break
        assert (name, text, described.value) == (name, text, printed)


def _refusal(key: ConfigKey | None, text: str) -> str:
    assert key is not None
    with pytest.raises(ConfigValueError) as refusal:
        parse_value(key, text)
    return str(refusal.value)


def _default(config: Any, resource_type: int) -> str | None:
    defaults = [synonym.value for synonym in config.synonyms if synonym.source == DEFAULT_SOURCE]
    if resource_type == BROKER or defaults:
        return defaults[0] if defaults else None
    assert config.config_source == DEFAULT_SOURCE
    value: str | None = config.value
    return value


def _described_synonyms(key: ConfigKey, resource_type: int) -> set[str]:
    """Kafka names the strongest synonym, and only if that has a value; never the ones it falls back to."""
    if resource_type == BROKER:
        # The test's own server.properties sets the few keys that have no default and must be there.
        needed = {"node.id", "process.roles", "controller.listener.names", "log.dirs"}
        return {key.name} if key.default is not None or key.name in needed else set()
    if resource_type == GROUP:
        return {group_synonym(key.name) or key.name}
    names = [synonym.name for synonym in topic_synonyms(key.name)][:1]
    return {name for name in names if (found := broker_key(name)) is not None and found.default is not None}


def _describe(kafka: RunningKafka, resource_type: int, resource_name: str) -> Any:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.static.primitive import i8

    resource = DescribeConfigsResource(
        resource_type=i8(resource_type), resource_name=resource_name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)
    result = ask(kafka.bootstrap, request).results[0]
    assert result.error_code.value == 0
    return result.configs


def _alter(
    kafka: RunningKafka, resource_type: int, resource_name: str, name: str, text: str, *, validate_only: bool
) -> Any:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.static.primitive import i8

    resource = AlterConfigsResource(
        resource_type=i8(resource_type),
        resource_name=resource_name,
        configs=(AlterableConfig(name=name, config_operation=i8(0), value=text),),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    return ask(kafka.bootstrap, request).responses[0]
