"""Configuration: Java's file format, precedence, names that nobody knows, values that no key takes, listeners."""

from __future__ import annotations

import pytest

from moldau.broker.endpoints import read_listeners
from moldau.broker.properties import parse_properties
from moldau.broker.settings import ConfigError, Settings, Source, environment_name, load_settings
from moldau.cluster import ConfigKind, ConfigResource, MetadataImage


def load(
    text: str | None = None, flags: dict[str, str] | None = None, environment: dict[str, str] | None = None
) -> Settings:
    return load_settings(text, (flags or {}).items(), environment or {})[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b  ", {"a": "b  "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("# no\n! nor this\n\na=1", {"a": "1"}),
        ("a=one,\\\n   two", {"a": "one,two"}),
        ("a=c:\\\\x", {"a": "c:\\x"}),
        ("k\\=ey=v", {"k=ey": "v"}),
        ("a=\\u00e9", {"a": "é"}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=tab\\there", {"a": "tab\there"}),
        ("a=ends\\\\\nb=2", {"a": "ends\\", "b": "2"}),
    ],
)
def test_properties_files_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_bad_escape_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_properties("a=1\nb=\\u12")


def test_flags_win_over_the_environment_which_wins_over_the_file() -> None:
    file = "num.partitions=2\nlog.retention.ms=5\nlog.segment.bytes=2000000"
    environment = {"MOLDAU_NUM_PARTITIONS": "3", "MOLDAU_LOG_RETENTION_MS": "6"}
    settings = load(file, {"num.partitions": "4"}, environment)
    assert settings.integer("num.partitions") == 4
    assert settings.integer("log.retention.ms") == 6
    assert settings.integer("log.segment.bytes") == 2_000_000


def test_environment_names_follow_the_rule_of_kafkas_images() -> None:
    assert environment_name("log.retention.ms") == "MOLDAU_LOG_RETENTION_MS"


def test_an_unknown_key_is_a_warning_with_the_nearest_name() -> None:
    settings, warnings = load_settings("num.partitons=3\nutterly.foreign=1", (), {})
    assert settings.integer("num.partitions") == 1
    assert warnings == ["unknown key num.partitons; did you mean num.partitions?", "unknown key utterly.foreign"]


def test_an_unknown_environment_variable_is_a_warning_with_the_nearest_name() -> None:
    _, warnings = load_settings(None, (), {"MOLDAU_NUM_PARTITONS": "3", "MOLDAU_TEST_STRICT": "1"})
    assert warnings == ["environment variable MOLDAU_NUM_PARTITONS names no key; did you mean MOLDAU_NUM_PARTITIONS?"]


def test_a_bad_value_is_one_line_that_names_key_and_value() -> None:
    with pytest.raises(ConfigError, match=r"Invalid value many for configuration num\.partitions") as caught:
        load("num.partitions=many")
    assert "\n" not in str(caught.value)


def test_the_classic_group_protocol_cannot_be_switched_off() -> None:
    with pytest.raises(ConfigError, match="Disabling the 'classic' protocol is not supported"):
        load("group.coordinator.rebalance.protocols=consumer")


def test_values_set_at_run_time_win_over_static_ones() -> None:
    settings = load("message.max.bytes=1000")
    image = MetadataImage(
        configs={
            ConfigResource(ConfigKind.BROKER, ""): {"message.max.bytes": "2000"},
            ConfigResource(ConfigKind.BROKER, "1"): {"message.max.bytes": "3000"},
        }
    )
    settings.apply_dynamic(image)
    assert settings.integer("message.max.bytes") == 3000
    assert [(layer.value, layer.source) for layer in settings.layers("message.max.bytes")] == [
        ("3000", Source.DYNAMIC_BROKER),
        ("2000", Source.DYNAMIC_DEFAULT_BROKER),
        ("1000", Source.STATIC),
        ("1048588", Source.DEFAULT),
    ]


def test_a_topics_retention_follows_the_brokers_ms_then_minutes_then_hours() -> None:
    assert load().log_config({}).retention_ms == 604_800_000
    assert load("log.retention.hours=2").log_config({}).retention_ms == 7_200_000
    assert load("log.retention.hours=2\nlog.retention.minutes=3").log_config({}).retention_ms == 180_000
    assert load("log.retention.hours=2\nlog.retention.ms=7").log_config({}).retention_ms == 7
    assert load("log.retention.ms=7").log_config({"retention.ms": "9"}).retention_ms == 9


@pytest.mark.parametrize("key", ["log.retention.hours", "log.retention.minutes", "log.retention.ms"])
def test_a_negative_retention_means_for_ever_in_every_unit(key: str) -> None:
    assert load(f"{key}=-1").log_config({}).retention_ms == -1
    assert load(f"{key}=-5").log_config({}).retention_ms == -1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("log.roll.ms=0", "log.roll.ms must be greater than or equal to 1"),
        ("log.roll.jitter.ms=-1", "log.roll.jitter.ms must be greater than or equal to 0"),
        ("log.flush.interval.ms=-1", "log.flush.interval.ms must be greater than or equal to 0"),
        ("log.retention.hours=0", "log.retention.hours must be unlimited"),
    ],
)
def test_a_default_that_no_topic_takes_does_not_start_a_broker(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(line)


def test_a_committed_value_that_cannot_be_used_is_passed_over_and_said_once() -> None:
    """Kafka itself commits log.flush.interval.ms=-1, so a log that we take over may hold it."""
    said: list[str] = []
    settings = load("log.flush.interval.ms=70\nmessage.max.bytes=1000")
    settings.say = said.append
    bad = {"log.flush.interval.ms": "-1", "message.max.bytes": "many", "log.retention.ms": "x"}
    settings.apply_dynamic(MetadataImage(configs={ConfigResource(ConfigKind.BROKER, ""): bad}))
    for _ in range(2):
        config = settings.log_config({"segment.ms": "-3"})
        assert (config.flush_ms, config.max_message_bytes) == (70, 1000)
        assert (config.segment_ms, config.retention_ms) == (604_800_000, 604_800_000)
        assert settings.integer("message.max.bytes") == 1000
    assert sorted(line.split()[1] for line in said) == [
        "key=log.flush.interval.ms",
        "key=log.retention.ms",
        "key=message.max.bytes",
        "key=segment.ms",
    ]


def test_a_metadata_directory_is_one_of_the_log_directories_or_one_of_its_own() -> None:
    settings = load("log.dirs=/a/,/b\nmetadata.log.dir=/b/")
    assert (settings.metadata_directory, settings.all_directories) == ("/b", ("/a", "/b"))
    settings = load("log.dirs=/a,/b\nmetadata.log.dir=/m/")
    assert (settings.log_directories, settings.all_directories) == (("/a", "/b"), ("/a", "/b", "/m"))


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ("listeners=nonsense", "is not of the form NAME://host:port"),
        ("listeners=PLAINTEXT://h:70000", "not between 0 and 65535"),
        ("listeners=A://h:1", "listener A has no security protocol: add A:PLAINTEXT"),
        ("listeners=PLAINTEXT://h:1,PLAINTEXT://h:2", "PLAINTEXT is named twice"),
        ("listeners=PLAINTEXT://h:1,B://h:1\nlistener.security.protocol.map=B:PLAINTEXT", "port 1 is used twice"),
        ("listeners=PLAINTEXT://h:1\nadvertised.listeners=OTHER://h:1", "OTHER is not one of listeners"),
        ("listeners=PLAINTEXT://h:1\nadvertised.listeners=PLAINTEXT://0.0.0.0:1", "an address that clients can reach"),
        ("listeners=SSL://h:1", "only PLAINTEXT is served"),
        ("listeners=PLAINTEXT://h:1\ncontroller.listener.names=PLAINTEXT", "clients have nowhere to connect"),
        ("listeners=PLAINTEXT://h:1\ninter.broker.listener.name=X", "X is not one of listeners"),
        ("listeners=PLAINTEXT://h:1\nlistener.security.protocol.map=PLAINTEXT", "is not NAME:PROTOCOL"),
    ],
)
def test_listeners_that_do_not_fit_together_are_refused_in_one_line(properties: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read_listeners(load(properties))
    assert "\n" not in str(caught.value)


def test_a_server_properties_written_for_kafka_is_understood() -> None:
    settings, warnings = load_settings(
        """
        process.roles=broker,controller
        node.id=7
        controller.quorum.bootstrap.servers=localhost:9093
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        inter.broker.listener.name=PLAINTEXT
        advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
        controller.listener.names=CONTROLLER
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
        num.network.threads=3
        num.io.threads=8
        socket.send.buffer.bytes=102400
        socket.receive.buffer.bytes=102400
        socket.request.max.bytes=104857600
        log.dirs=/tmp/kraft-combined-logs
        num.partitions=1
        num.recovery.threads.per.data.dir=1
        offsets.topic.replication.factor=1
        share.coordinator.state.topic.replication.factor=1
        transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1
        log.retention.hours=168
        log.segment.bytes=1073741824
        log.retention.check.interval.ms=300000
        """,
        (),
        {},
    )
    assert warnings == []
    assert settings.node_id == 7
    specs = read_listeners(settings)
    assert [(spec.name, spec.port, spec.is_controller) for spec in specs] == [
        ("PLAINTEXT", 9092, False),
        ("CONTROLLER", 9093, True),
    ]
